#include "aqt/ops/xla_sum.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/kernels/reduce/xla_sum.h"

namespace aqt::internal {
namespace {

class XlaSumOp : public CompositeOf<XlaSumFields> {
 public:
  using CompositeOf::CompositeOf;

  std::string Name() const override { return "xla_sum"; }
  std::string Attributes() const override { return absl::StrCat("axes=", absl::StrJoin(fields_.axes, ",")); }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 1 || (!fields_.axes.empty() && fields_.axes.back() >= in[0].shape.rank())) {
      return absl::InvalidArgumentError(absl::StrCat("takes one operand that has the axes ", Attributes()));
    }
    if (in[0].dtype != DType::kF32 && in[0].dtype != DType::kBF16 && in[0].dtype != DType::kF16) {
      return absl::InvalidArgumentError(absl::StrCat("takes f32, bf16 or f16, got ", ToString(in[0].dtype)));
    }
    Aval out{in[0].dtype, {}};
    for (const int64_t axis : Kept(in[0].shape.rank())) out.shape.push_back(in[0].shape[axis]);
    return std::vector<Aval>{out};
  }
  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool>) const override {
    return OpKernel{.run = [axes = fields_.axes, x = in[0].aval](const KernelCall& call) {
      kernels::SumAsXla(ArrayRef(x.dtype, x.shape, call.in[0]), axes, call.out[0]);
      return absl::OkStatus();
    }};
  }

  bool has_gradient() const override { return true; }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override {
    return {ops::BroadcastInDim(cotangents[0], residuals[0].shape(), Kept(residuals[0].rank()))};
  }

 private:
  Axes Kept(int64_t rank) const { return RemainingAxes(rank, fields_.axes, {}); }
};

}  // namespace

Value SumAsXla(const Value& x, const Axes& axes) {
  return BindOne(CompositeOp{std::make_shared<XlaSumOp>(XlaSumFields{axes})}, {x});
}

absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const XlaSumFields& fields) {
  const Axes& axes = fields.axes;
  const bool ascends = std::adjacent_find(axes.begin(), axes.end(), std::greater_equal<>()) == axes.end();
  if (!ascends || (!axes.empty() && axes[0] < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("axes ", absl::StrJoin(axes, ", "), ", expected numbers from 0 on in ascending order"));
  }
  return std::make_shared<XlaSumOp>(fields);
}

}  // namespace aqt::internal
