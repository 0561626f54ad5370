#ifndef AQT_OPS_FP8_FP8_SHARDING_H_
#define AQT_OPS_FP8_FP8_SHARDING_H_

// Which processes of a mesh hold which part of an FP8 product, and what they exchange. Matrices have logical axes, such
// as {"batch", "embed"} for x, and rules say along which axis of the mesh a logical axis is divided. Everything else
// follows:
//   - the largest magnitude of x, kernel and dy is taken over the processes that hold parts of it;
//   - y is a sum over the processes that divide the contracted axis, dk over those that divide the rows of y, and dx
//     over those that divide its columns;
//   - an operand is gathered where it is divided otherwise than the product.
// Scales and histories are whole in all processes, and equal. fp8_sharded_dense.h computes by such a plan.

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/collective/mesh.h"

namespace aqt {

// Logical axis `logical` is divided along the axis `mesh` of the mesh; "": it is whole.
struct AxisRule {
  std::string logical, mesh;
};

// The mesh axes that divide the rows and the columns of a matrix; "": whole.
struct MatrixLayout {
  std::string rows, columns;
  bool operator==(const MatrixLayout&) const = default;
};

// By the first rule for each axis whose axis of the mesh does not divide the rows already. An axis without a rule is
// whole. InvalidArgument, naming the rule, for an axis that the mesh has not.
absl::StatusOr<MatrixLayout> LayoutOf(absl::Span<const AxisRule> rules, const Mesh& mesh,
                                      const std::array<std::string, 2>& logical_axes);

struct Fp8DotSharding {
  Mesh mesh;
  MatrixLayout x, kernel, y;  // as processes hold them; dx, dk and dy are like x, k and y
  // The axis that divides the contracted axis in the product, "" if it is whole there. x is [y.rows, contracted] in
  // the product, and the kernel [contracted, y.columns].
  std::string contracted;

  MatrixLayout XInProduct() const { return {y.rows, contracted}; }
  MatrixLayout KernelInProduct() const { return {contracted, y.columns}; }
  // The mesh axes that divide a matrix, in the order of the mesh: over them go the largest magnitudes, of dy with
  // y's layout. "data,model", "data", or "" if every process holds the whole.
  std::string AxesOf(const MatrixLayout& layout) const;
  // Over these axes go the sums; "": no sum is divided.
  const std::string& YSum() const { return contracted; }
  const std::string& DkSum() const { return y.rows; }
  const std::string& DxSum() const { return y.columns; }
};

// x_axes name the rows and columns of x, kernel_axes those of the kernel. The rows of y are divided like those of x;
// its columns like those of the kernel, unless the same axis of the mesh divides the rows. The contracted axis is
// divided like the columns of x, or else like the rows of the kernel, unless that axis divides y. Errors: LayoutOf's.
absl::StatusOr<Fp8DotSharding> PlanFp8Dot(absl::Span<const AxisRule> rules, const Mesh& mesh,
                                          const std::array<std::string, 2>& x_axes,
                                          const std::array<std::string, 2>& kernel_axes);

}  // namespace aqt

#endif  // AQT_OPS_FP8_FP8_SHARDING_H_
