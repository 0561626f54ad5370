#ifndef AQT_OPS_FP8_FP8_SHARDING_H_
#define AQT_OPS_FP8_FP8_SHARDING_H_

// Which processes of a mesh hold which part of an FP8 product, and what they exchange. Matrices have logical axes, such
// as {"batch", "embed"} for x, and rules map a logical axis to the axis of the mesh that divides it. Everything else
// follows:
//   - the largest magnitude of x, kernel and dy is taken over the processes that hold parts of it;
//   - y is a sum over the processes that divide the contracted axis, dk over those that divide the rows of y, and dx
//     over those that divide its columns;
//   - an operand is gathered where its division differs from the product's.
// Scales and histories are replicated. fp8_sharded_dense.h computes by such a plan.

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/collective/mesh.h"

namespace aqt {

// The logical axis `logical` is divided along the axis `mesh` of the mesh; "": not divided.
struct AxisRule {
  std::string logical, mesh;
};

// The mesh axes that divide the rows and the columns of a matrix; "": not divided.
struct MatrixLayout {
  std::string rows, columns;
  bool operator==(const MatrixLayout&) const = default;
};

// The layout of a matrix with these logical axes. For each axis, the first rule applies whose mesh axis does not
// already divide the rows. An axis without a rule is not divided. InvalidArgument, naming the rule, for an axis that
// the mesh does not have.
absl::StatusOr<MatrixLayout> LayoutOf(absl::Span<const AxisRule> rules, const Mesh& mesh,
                                      const std::array<std::string, 2>& logical_axes);

// The division of one FP8 product over a mesh.
struct Fp8DotSharding {
  Mesh mesh;
  MatrixLayout x, kernel, y;  // as processes hold them; dx, dk and dy are like x, k and y
  // The mesh axis that divides the contracted axis in the product; "" if it is not divided. In the product x is
  // [y.rows, contracted] and the kernel is [contracted, y.columns].
  std::string contracted;

  MatrixLayout XInProduct() const { return {y.rows, contracted}; }
  MatrixLayout KernelInProduct() const { return {contracted, y.columns}; }
  // The mesh axes that divide a matrix, in the order of the mesh; for dy use y's layout. Largest magnitudes are taken
  // over them. "data,model", "data", or "" if every process holds the full matrix.
  std::string AxesOf(const MatrixLayout& layout) const;
  // The sums are taken over these axes; "": the sum is not divided.
  const std::string& YSum() const { return contracted; }
  const std::string& DkSum() const { return y.rows; }
  const std::string& DxSum() const { return y.columns; }
};

// Plans a product. x_axes name the rows and columns of x, kernel_axes those of the kernel. The rows of y are divided
// like those of x; its columns like those of the kernel, unless the same mesh axis divides the rows. The contracted
// axis is divided like the columns of x, or else like the rows of the kernel, unless that mesh axis divides y. Errors:
// LayoutOf's.
absl::StatusOr<Fp8DotSharding> PlanFp8Dot(absl::Span<const AxisRule> rules, const Mesh& mesh,
                                          const std::array<std::string, 2>& x_axes,
                                          const std::array<std::string, 2>& kernel_axes);

}  // namespace aqt

#endif  // AQT_OPS_FP8_FP8_SHARDING_H_
