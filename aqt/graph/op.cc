#include "aqt/graph/op.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/composite_fields.h"

namespace aqt {
namespace {

std::string List(absl::Span<const int64_t> numbers) { return absl::StrCat("[", absl::StrJoin(numbers, ","), "]"); }

std::string WindowText(const WindowDims& dims) {
  return absl::StrCat("window=", List(dims.window), ", stride=", List(dims.stride), ", low=", List(dims.low),
                      ", high=", List(dims.high));
}

std::string Text(absl::string_view text) { return std::string(text); }

}  // namespace

bool CompositeOp::operator==(const CompositeOp& other) const {
  if (impl == other.impl) return true;
  const auto* fields = dynamic_cast<const internal::AnyFields*>(impl.get());
  return fields != nullptr && other.impl != nullptr && fields->SameFields(*other.impl);
}

std::string OpName(const Op& op) {
  return std::visit(Overload{
                        [](const UnaryOp& o) { return Text(ToString(o.kind)); },
                        [](const BinaryOp& o) { return Text(ToString(o.kind)); },
                        [](const CompareOp& o) { return Text(ToString(o.kind)); },
                        [](const SelectOp&) { return Text("select"); },
                        [](const CastOp&) { return Text("cast"); },
                        [](const BitcastOp&) { return Text("bitcast"); },
                        [](const ClampOp&) { return Text("clamp"); },
                        [](const IsFiniteOp&) { return Text("is_finite"); },
                        [](const IntegerPowOp&) { return Text("integer_pow"); },
                        [](const ReducePrecisionOp&) { return Text("reduce_precision"); },
                        [](const ReduceOp& o) { return absl::StrCat("reduce_", ToString(o.kind)); },
                        [](const BroadcastOp&) { return Text("broadcast"); },
                        [](const ReshapeOp&) { return Text("reshape"); },
                        [](const TransposeOp&) { return Text("transpose"); },
                        [](const SliceOp&) { return Text("slice"); },
                        [](const PadOp&) { return Text("pad"); },
                        [](const ReverseOp&) { return Text("reverse"); },
                        [](const IotaOp&) { return Text("iota"); },
                        [](const ArgReduceOp& o) { return absl::StrCat("arg", ToString(o.kind)); },
                        [](const CumulativeSumOp&) { return Text("cumulative_sum"); },
                        [](const TakeOp&) { return Text("take"); },
                        [](const ScatterAddOp&) { return Text("scatter_add"); },
                        [](const ReduceWindowOp& o) { return absl::StrCat("reduce_window_", ToString(o.kind)); },
                        [](const ArgReduceWindowOp& o) { return absl::StrCat("window_arg", ToString(o.kind)); },
                        [](const RandomBitsOp&) { return Text("random_bits"); },
                        [](const ConcatenateOp&) { return Text("concatenate"); },
                        [](const DotGeneralOp&) { return Text("dot_general"); },
                        [](const StopGradientOp&) { return Text("stop_gradient"); },
                        [](const CompositeOp& o) { return o.impl->Name(); },
                    },
                    op);
}

std::string OpAttributes(const Op& op) {
  return std::visit(
      Overload{
          [](const UnaryOp&) { return std::string(); },
          [](const BinaryOp&) { return std::string(); },
          [](const CompareOp&) { return std::string(); },
          [](const SelectOp&) { return std::string(); },
          [](const CastOp&) { return std::string(); },     // shown by the output's dtype
          [](const BitcastOp&) { return std::string(); },  // likewise
          [](const ClampOp&) { return std::string(); },
          [](const IsFiniteOp&) { return std::string(); },
          [](const IntegerPowOp& o) { return absl::StrCat("exponent=", o.exponent); },
          [](const ReducePrecisionOp& o) {
            return absl::StrCat("exponent_bits=", o.precision.exponent_bits,
                                ", mantissa_bits=", o.precision.mantissa_bits);
          },
          [](const ReduceOp& o) { return absl::StrCat("axes=", List(o.axes), o.keepdims ? ", keepdims" : ""); },
          [](const BroadcastOp& o) { return absl::StrCat("axes=", List(o.axes)); },
          [](const ReshapeOp&) { return std::string(); },  // shown by the output's shape
          [](const TransposeOp& o) { return absl::StrCat("permutation=", List(o.permutation)); },
          [](const SliceOp& o) {
            return absl::StrCat("start=", List(o.start), ", limit=", List(o.limit), ", stride=", List(o.stride));
          },
          [](const PadOp& o) {
            return absl::StrCat("low=", List(o.low), ", high=", List(o.high), ", interior=", List(o.interior),
                                o.value == 0 ? "" : absl::StrCat(", value=", o.value));
          },
          [](const ReverseOp& o) { return absl::StrCat("axes=", List(o.axes)); },
          [](const IotaOp& o) { return absl::StrCat("axis=", o.axis); },
          [](const ArgReduceOp& o) { return absl::StrCat("axis=", o.axis); },
          [](const CumulativeSumOp& o) { return absl::StrCat("axis=", o.axis, o.reverse ? ", reverse" : ""); },
          [](const TakeOp& o) { return absl::StrCat("axis=", o.axis); },
          [](const ScatterAddOp& o) { return absl::StrCat("axis=", o.axis, ", extent=", o.extent); },
          [](const ReduceWindowOp& o) { return WindowText(o.dims); },
          [](const ArgReduceWindowOp& o) { return WindowText(o.dims); },
          [](const RandomBitsOp&) { return std::string(); },  // shown by the output's shape
          [](const ConcatenateOp& o) { return absl::StrCat("axis=", o.axis); },
          [](const DotGeneralOp& o) { return absl::StrCat("dims=", o.dims.ToString()); },
          [](const StopGradientOp&) { return std::string(); },
          [](const CompositeOp& o) { return o.impl->Attributes(); },
      },
      op);
}

kernels::PadAxis PadAxisOf(const PadOp& op, int64_t axis, int64_t size, int64_t padded) {
  // With fewer than two elements `interior` is irrelevant.
  return {.size = size, .dilation = size > 1 ? op.interior[axis] + 1 : 1, .low = op.low[axis], .padded = padded};
}

int NumOutputs(const Op& op) {
  const CompositeOp* composite = std::get_if<CompositeOp>(&op);
  return composite == nullptr ? 1 : composite->impl->num_outputs();
}

}  // namespace aqt
