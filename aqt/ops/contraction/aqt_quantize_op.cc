#include "aqt/ops/contraction/aqt_dot_ops.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/describe.h"
#include "aqt/ops/expand/aqt_expand.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt::internal {
namespace {

using Impl = AqtDot::Impl;

class QuantizeOp : public DotOp, public HasFields<DotQuantizeFields> {
 public:
  // (x[, scale][, key])
  QuantizeOp(std::shared_ptr<const Impl> dot, Side side, bool has_scale, bool has_key)
      : dot_(std::move(dot)), side_(side), has_scale_(has_scale), has_key_(has_key) {}

  std::string Name() const override { return "aqt_quantize"; }
  std::string Attributes() const override {
    const std::optional<Hadamard>& hadamard = dot_->config.fwd.hadamard;
    return absl::StrCat(DescribeQuantizer(quantizer()), " axes=[", absl::StrJoin(dot_->shared_axes(side_), ","), "]",
                        hadamard.has_value() ? absl::StrCat(" hadamard=", hadamard->block) : "",
                        ArithmeticText(dot_->semantics()));
  }
  const AqtDot::Impl& dot() const override { return *dot_; }
  DotQuantizeFields fields() const override { return {FieldsOfDot(*dot_), side_, has_scale_}; }
  int num_outputs() const override { return 2; }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    const size_t expected = 1 + (has_scale_ ? 1 : 0) + (has_key_ ? 1 : 0);
    if (in.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", expected, " operands, got ", in.size()));
    }
    AQT_ASSIGN_OR_RETURN(const AqtDot::QuantizedAvals out, dot_->plan().quantized_avals(side_));
    AQT_RETURN_IF_ERROR(ExpectAval("the operand", in[0], dot_->aval(side_)));
    if (has_scale_) AQT_RETURN_IF_ERROR(ExpectAval("the scale", in[1], out.scale));
    if (has_key_) AQT_RETURN_IF_ERROR(ExpectAval("the key", in.back(), KeyAval()));
    return std::vector<Aval>{out.qvalue, out.scale};
  }

  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    Context context = ContextOf(*dot_, has_key_ ? &in.back() : nullptr);
    if (has_scale_) {
      if (context.key.has_value()) {
        context.key = OperandKey(*context.key, RoleOf(*dot_, Pass::kFwd, side_), dot_->semantics().prng_layout);
      }
      Array rotated;
      const ArrayRef x = dot_->engine().RotatedView(side_, in[0], rotated);
      QTensor scaled{.scale = {in[1]}, .dequant_dtype = x.dtype};
      AQT_ASSIGN_OR_RETURN(const QTensor qtensor,
                           CalculateQvalue(quantizer(), x, std::move(scaled), context, dot_->semantics()));
      return std::vector<Array>{*qtensor.qvalue, in[1]};
    }
    AQT_ASSIGN_OR_RETURN(const QTensor qtensor, dot_->engine().QuantizeOperand(side_, in[0], context));
    return std::vector<Array>{*qtensor.qvalue, qtensor.scale[0]};
  }

  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    ProductSide operand{.x = RotatedOperand(*dot_, side_, in[0]),
                        .key = KeyFor(*dot_, has_key_ ? &in.back() : nullptr, Pass::kFwd, side_)};
    if (has_scale_) operand.scale = in[1];
    const QuantizedValue out = QuantizeValue(quantizer(), operand, dot_->shared_axes(side_), dot_->semantics());
    return {out.qvalue, *out.scale};
  }

 private:
  const Quantizer& quantizer() const { return dot_->forward(side_).quantizer; }

  const std::shared_ptr<const Impl> dot_;
  const Side side_;
  const bool has_scale_, has_key_;
};

}  // namespace

std::shared_ptr<const Composite> MakeQuantizeOp(std::shared_ptr<const AqtDot::Impl> dot, Side side, bool has_scale,
                                                bool has_key) {
  return std::make_shared<QuantizeOp>(std::move(dot), side, has_scale, has_key);
}

}  // namespace aqt::internal
