#include "aqt/ops/aqt_parts.h"

#include <functional>
#include <memory>
#include <source_location>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/describe.h"
#include "aqt/quant/dot_general.h"
#include "aqt/quant/numerics.h"
#include "aqt/quant/quantizer.h"

namespace aqt {
namespace internal {
namespace {

// An operation with one output that is a function on arrays; the output's aval is found by `infer`.
class Part : public Composite {
 public:
  using InferFn = std::function<absl::StatusOr<Aval>(absl::Span<const Aval>)>;
  using EvalFn = std::function<absl::StatusOr<Array>(absl::Span<const Array>)>;

  Part(std::string name, std::string attributes, InferFn infer, EvalFn eval)
      : name_(std::move(name)), attributes_(std::move(attributes)), infer_(std::move(infer)), eval_(std::move(eval)) {}

  std::string Name() const override { return name_; }
  std::string Attributes() const override { return attributes_; }
  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> operands) const override {
    AQT_ASSIGN_OR_RETURN(Aval out, infer_(operands));
    return std::vector<Aval>{std::move(out)};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> operands, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(Array out, eval_(operands));
    return std::vector<Array>{std::move(out)};
  }

 private:
  const std::string name_, attributes_;
  const InferFn infer_;
  const EvalFn eval_;
};

Value BindPart(std::string name, std::string attributes, absl::Span<const Value> operands, Part::InferFn infer,
               Part::EvalFn eval) {
  const CompositeOp op{
      std::make_shared<Part>(std::move(name), std::move(attributes), std::move(infer), std::move(eval))};
  return Bind(op, operands, std::source_location::current())[0];
}

absl::Status ExpectKey(const Aval& key) {
  if (key == KeyAval()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the key is ", key.ToString(), ", expected ", KeyAval().ToString()));
}

absl::StatusOr<Aval> InferKey(absl::Span<const Aval> operands) {
  AQT_RETURN_IF_ERROR(ExpectKey(operands[0]));
  return KeyAval();
}

Key KeyOf(const Array& array) { return {array.View<uint32_t>()[0], array.View<uint32_t>()[1]}; }

Array ArrayOf(Key key) { return Array::Of<uint32_t>({key.hi, key.lo}, {2}); }

absl::string_view LayoutText(PrngLayout layout) {
  return layout == PrngLayout::kPartitionable ? "" : ", original_layout";
}

Key KeyOfRole(const OperandKeys& keys, KeyRole role) {
  switch (role) {
    case KeyRole::kFwdLhs: return keys.fwd_lhs;
    case KeyRole::kFwdRhs: return keys.fwd_rhs;
    case KeyRole::kDlhsLhs: return keys.dlhs_lhs;
    case KeyRole::kDlhsRhs: return keys.dlhs_rhs;
    case KeyRole::kDrhsLhs: return keys.drhs_lhs;
    case KeyRole::kDrhsRhs: return keys.drhs_rhs;
  }
  return {};
}

constexpr const char* kRoleNames[] = {"fwd.lhs", "fwd.rhs", "dlhs.lhs", "dlhs.rhs", "drhs.lhs", "drhs.rhs"};

}  // namespace

Value OperandKey(const Value& key, KeyRole role, PrngLayout layout) {
  return BindPart("aqt_operand_key", absl::StrCat(kRoleNames[static_cast<int>(role)], LayoutText(layout)), {key}, InferKey,
                  [role, layout](absl::Span<const Array> in) -> absl::StatusOr<Array> {
                    return ArrayOf(KeyOfRole(SplitContextKey(KeyOf(in[0]), layout), role));
                  });
}

Value NoiseFor(const Noise& noise, const Shape& shape, const Value& key, PrngLayout layout) {
  return BindPart(
      "aqt_noise", absl::StrCat(DescribeNoise(noise), " for ", shape.ToString(), LayoutText(layout)), {key},
      [noise, shape](absl::Span<const Aval> in) -> absl::StatusOr<Aval> {
        AQT_RETURN_IF_ERROR(ExpectKey(in[0]));
        AQT_ASSIGN_OR_RETURN(Shape out, NoiseShape(noise, shape));
        return Aval{DType::kF32, std::move(out)};
      },
      [noise, shape, layout](absl::Span<const Array> in) { return MakeNoise(noise, shape, KeyOf(in[0]), layout); });
}

Value CalibratedScale(const Quantizer& quantizer, const Value& x, const Axes& axes, Arithmetic arithmetic) {
  return BindPart(
      "aqt_scale", absl::StrCat(DescribeQuantizer(quantizer), " axes=[", absl::StrJoin(axes, ","), "]",
                                arithmetic == Arithmetic::kIeee ? ", ieee" : ""), {x},
      [quantizer, axes](absl::Span<const Aval> in) -> absl::StatusOr<Aval> {
        Aval out{quantizer.scale_dtype.value_or(in[0].dtype), in[0].shape};
        const SharedAxes& shared = quantizer.calib_shared_axes;
        AQT_ASSIGN_OR_RETURN(const Axes reduced, NormalizeAxes(shared.axes.empty() ? axes : shared.axes, out.shape.rank()));
        for (const int64_t axis : reduced) out.shape[axis] = 1;
        for (int64_t axis = 0; shared.per_tensor && axis < out.shape.rank(); ++axis) out.shape[axis] = 1;
        return out;
      },
      [quantizer, axes, arithmetic](absl::Span<const Array> in) -> absl::StatusOr<Array> {
        AQT_ASSIGN_OR_RETURN(const QTensor calibrated, Calibrate(quantizer, in[0], axes, {.arithmetic = arithmetic}));
        return calibrated.scale[0];
      });
}

Value NumericsQvalue(const Numerics& numerics, const Value& scaled, const Value& key, PrngLayout layout) {
  const bool draws = NeedsKey(numerics);
  std::vector<Value> operands = {scaled};
  if (draws) operands.push_back(key);
  return BindPart(
      "aqt_qvalue", absl::StrCat(DescribeNumerics(numerics), LayoutText(layout)), operands,
      [numerics](absl::Span<const Aval> in) -> absl::StatusOr<Aval> {
        if (in.size() > 1) AQT_RETURN_IF_ERROR(ExpectKey(in[1]));
        return Aval{QvalueDType(numerics, in[0].dtype), in[0].shape};
      },
      [numerics, layout](absl::Span<const Array> in) {
        Context context{.prng_layout = layout};
        if (in.size() > 1) context.key = KeyOf(in[1]);
        return NumericsForward(numerics, in[0], context);
      });
}

}  // namespace internal

namespace ops {

Value FoldInKey(const Value& key, uint32_t data) {
  return internal::BindPart("fold_in_key", absl::StrCat(data), {key}, internal::InferKey,
                            [data](absl::Span<const Array> in) -> absl::StatusOr<Array> {
                              return internal::ArrayOf(FoldIn(internal::KeyOf(in[0]), data));
                            });
}

}  // namespace ops
}  // namespace aqt
