#include "aqt/ops/fp8/fp8_projections.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"

namespace aqt::ops {
namespace {

int64_t Product(const Shape& shape, int64_t begin, int64_t end) {
  int64_t product = 1;
  for (int64_t i = begin; i < end; ++i) product *= shape[i];
  return product;
}

// Extents [begin, end) of a shape.
Shape Part(const Shape& shape, int64_t begin, int64_t end) {
  return Shape(shape.extents().subspan(begin, end - begin));
}

Shape Joined(Shape a, const Shape& b) {
  for (const int64_t extent : b) a.push_back(extent);
  return a;
}

// A projection: the last `contracted` axes of x are contracted with a kernel flattened to a matrix, whose columns are
// `out`.
struct Layout {
  const char* equation;
  int64_t contracted, kernel_rank;
};

// Whether the operands fit. `inner` and `out` are the kernel's contracted extents and its other extents.
absl::Status Check(const Layout& layout, const Value& x, const Value& kernel, const std::optional<Value>& bias,
                   const Shape& inner, const Shape& out) {
  const int64_t leading = x.rank() - layout.contracted;
  if (leading < 1 || Part(x.shape(), leading, x.rank()) != inner) {
    return absl::InvalidArgumentError(absl::StrCat("x is ", x.aval().ToString(), " and the kernel ",
                                                   kernel.aval().ToString(), ", which do not fit ", layout.equation));
  }
  if (bias.has_value() && bias->shape() != out) {
    return absl::InvalidArgumentError(
        absl::StrCat("the bias is ", bias->aval().ToString(), ", expected the shape ", out.ToString()));
  }
  return absl::OkStatus();
}

// `matrix` is the kernel as [inner, out].
Value Project(const Layout& layout, const Value& x, const Value& matrix, const std::optional<Value>& bias,
              const Shape& out, const Fp8DotState& state, const Fp8DotOptions& options,
              const std::source_location& where) {
  const int64_t leading = x.rank() - layout.contracted;
  const int64_t rows = Product(x.shape(), 0, leading);
  Value y =
      Fp8Dot(Reshape(x, {rows, Product(x.shape(), leading, x.rank())}), Cast(matrix, x.dtype()), state, options, where);
  if (bias.has_value()) y = Fp8AddBias(y, Reshape(Cast(*bias, x.dtype()), {Product(out, 0, out.rank())}), where);
  return Reshape(y, Joined(Part(x.shape(), 0, leading), out));
}

// The first value that is poisoned or does not have the rank of the layout.
std::optional<Value> Unusable(const Layout& layout, const Value& x, const Value& kernel,
                              const std::optional<Value>& bias, const std::source_location& where) {
  if (!x.status().ok()) return x;
  if (!kernel.status().ok()) return kernel;
  if (bias.has_value() && !bias->status().ok()) return *bias;
  if (kernel.rank() == layout.kernel_rank) return std::nullopt;
  return Refuse(absl::InvalidArgumentError(absl::StrCat("the kernel is ", kernel.aval().ToString(), ", expected rank ",
                                                        layout.kernel_rank, " for ", layout.equation)),
                "fp8_projection", {x, kernel}, where);
}

// Contracts the kernel's first `inner` axes.
Value ProjectFirst(const Layout& layout, const Value& x, const Value& kernel, const std::optional<Value>& bias,
                   const Fp8DotState& state, const Fp8DotOptions& options, const std::source_location& where) {
  const CallSite site(where);
  if (const std::optional<Value> bad = Unusable(layout, x, kernel, bias, where); bad.has_value()) return *bad;
  const Shape inner = Part(kernel.shape(), 0, layout.contracted);
  const Shape out = Part(kernel.shape(), layout.contracted, kernel.rank());
  if (const absl::Status status = Check(layout, x, kernel, bias, inner, out); !status.ok()) {
    return Refuse(status, "fp8_projection", {x, kernel}, where);
  }
  const Value matrix = Reshape(kernel, {Product(inner, 0, inner.rank()), Product(out, 0, out.rank())});
  return Project(layout, x, matrix, bias, out, state, options, where);
}

}  // namespace

Value Fp8AddBias(const Value& y, const Value& bias, const std::source_location& where) {
  const CallSite site(where);
  if (bias.dtype() != DType::kF32) return y + bias;
  // The gradient of each conversion is the other one.
  return y + Cast(Cast(bias, DType::kBF16), DType::kF32);
}

Value Fp8Projection(const Value& x, const Value& kernel, const std::optional<Value>& bias, const Fp8DotState& state,
                    const Fp8DotOptions& options, const std::source_location& where) {
  return ProjectFirst({"...K,KN->...N", 1, 2}, x, kernel, bias, state, options, where);
}

Value Fp8QkvCombinedProjection(const Value& x, const Value& kernel, const std::optional<Value>& bias,
                               const Fp8DotState& state, const Fp8DotOptions& options,
                               const std::source_location& where) {
  constexpr Layout kLayout{"...D,KDNH->K...NH", 1, 4};
  const CallSite site(where);
  if (const std::optional<Value> bad = Unusable(kLayout, x, kernel, bias, where); bad.has_value()) return *bad;
  const Value first = Transpose(kernel, {1, 0, 2, 3});
  const Value y = ProjectFirst(kLayout, x, first, bias, state, options, where);
  if (!y.status().ok()) return y;
  // Moves the axis K to the front.
  const int64_t from = x.rank() - 1;
  Axes permutation = {from};
  for (int64_t axis = 0; axis < y.rank(); ++axis) {
    if (axis != from) permutation.push_back(axis);
  }
  return Transpose(y, permutation);
}

Value Fp8QkvProjection(const Value& x, const Value& kernel, const std::optional<Value>& bias, const Fp8DotState& state,
                       const Fp8DotOptions& options, const std::source_location& where) {
  return ProjectFirst({"...D,DNH->...NH", 1, 3}, x, kernel, bias, state, options, where);
}

Value Fp8AttentionOutputProjection(const Value& x, const Value& kernel, const std::optional<Value>& bias,
                                   Fp8OutputKernel layout, const Fp8DotState& state, const Fp8DotOptions& options,
                                   const std::source_location& where) {
  if (layout == Fp8OutputKernel::kNHD) {
    return ProjectFirst({"...NH,NHD->...D", 2, 3}, x, kernel, bias, state, options, where);
  }
  constexpr Layout kLayout{"...NH,DNH->...D", 2, 3};
  const CallSite site(where);
  if (const std::optional<Value> bad = Unusable(kLayout, x, kernel, bias, where); bad.has_value()) return *bad;
  return ProjectFirst(kLayout, x, Transpose(kernel, {1, 2, 0}), bias, state, options, where);
}

}  // namespace aqt::ops
