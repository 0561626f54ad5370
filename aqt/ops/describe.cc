#include "aqt/ops/describe.h"

#include <optional>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "aqt/graph/program.h"

namespace aqt {
namespace {

std::string List(const Axes& axes) { return absl::StrCat("[", absl::StrJoin(axes, ","), "]"); }

// "DEQUANT_MODE_THIS_INPUT" -> "this_input".
std::string Word(absl::string_view identifier, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(identifier, prefix));
}

// All digits of a double.
std::string Number(double x) { return ContentsText(Array::Scalar(x)); }

std::string ValueText(const ConstantValue& value) {
  if (const double* number = std::get_if<double>(&value)) return Number(*number);
  const Array& array = std::get<ConstantArray>(value).array;
  return absl::StrCat(array.aval().ToString(), " ", ContentsText(array));
}

std::string FieldText(double value) { return Number(value); }
std::string FieldText(bool value) { return value ? "true" : "false"; }
std::string FieldText(int value) { return absl::StrCat(value); }
std::string FieldText(int64_t value) { return absl::StrCat(value); }
std::string FieldText(const ConstantValue& value) { return ValueText(value); }
std::string FieldText(const std::vector<double>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ",", [](std::string* out, double x) { *out += Number(x); }), "]");
}
template <class T>
std::string FieldText(const std::optional<T>& value) {
  return value.has_value() ? FieldText(*value) : "none";
}

// "SnrSearch(candidates=[0.5,1], po2_scale=true)", without fields that have default values; "absmax*0.5+po2" for
// AbsMax.
std::string CalibrationText(const Calibration& calibration) {
  if (const auto* c = std::get_if<AbsMax>(&calibration)) {
    return absl::StrCat("absmax", c->clipping_scale.has_value() ? absl::StrCat("*", Number(*c->clipping_scale)) : "",
                        c->po2_scale ? "+po2" : "");
  }
  std::vector<std::string> fields;
  std::visit(
      [&]<class C>(const C& c) {
        CalibrationTraits<C>::VisitFields(c, [&](absl::string_view name, const auto& value) {
          if (!IsDefault<C>(name, value)) fields.push_back(absl::StrCat(name, "=", FieldText(value)));
        });
      },
      calibration);
  if (fields.empty()) return std::string(NameOf(calibration));
  return absl::StrCat(NameOf(calibration), "(", absl::StrJoin(fields, ", "), ")");
}

std::string TensorText(const TensorConfig& tensor) {
  std::string text = DescribeQuantizer(tensor.quantizer);
  if (tensor.use_fwd_quant) text += " use_fwd_quant";
  if (tensor.dequant_mode != DequantMode::kOutput) {
    absl::StrAppend(&text, " ", Word(ToString(tensor.dequant_mode), "DEQUANT_MODE_"));
  }
  if (tensor.calibration_mode != CalibrationMode::kContractingAxis) {
    absl::StrAppend(&text, " ", Word(ToString(tensor.calibration_mode), "CALIBRATION_MODE_"));
  }
  return text;
}

std::string OptionalText(absl::string_view name, const std::optional<int64_t>& number) {
  return number.has_value() ? absl::StrCat(" ", name, "=", *number) : "";
}

// "(contracting 1:4x2, remaining 0:4x)": axis, tiles, elements per tile; an empty one is the quotient.
std::string TilingText(const TensorTiling& tiling) {
  const auto list = [](const std::vector<AxisTiling>& tilings) {
    return absl::StrJoin(tilings, ",", [](std::string* out, const AxisTiling& t) {
      const auto number = [](const std::optional<int64_t>& n) {
        return n.has_value() ? absl::StrCat(*n) : std::string();
      };
      absl::StrAppend(out, t.axis, ":", number(t.tile_count), "x", number(t.tile_size));
    });
  };
  std::vector<std::string> parts;
  if (!tiling.contraction_axes.empty()) parts.push_back("contracting " + list(tiling.contraction_axes));
  if (!tiling.remaining_axes.empty()) parts.push_back("remaining " + list(tiling.remaining_axes));
  return absl::StrCat("(", absl::StrJoin(parts, ", "), ")");
}

std::string RawText(const DotGeneralRawConfig& raw) {
  if (raw == DotGeneralRawConfig{}) return "float";
  std::string text = absl::StrCat("(", TensorText(raw.lhs), " * ", TensorText(raw.rhs));
  if (raw.dg_accumulator_dtype.has_value()) absl::StrAppend(&text, " -> ", ToString(*raw.dg_accumulator_dtype));
  if (raw.local_aqt.has_value()) {
    absl::StrAppend(&text, " local", OptionalText("count", raw.local_aqt->contraction_axis_shard_count),
                    OptionalText("size", raw.local_aqt->contraction_axis_shard_size),
                    raw.local_aqt->tile_largest_shape ? " largest" : "");
  }
  if (raw.lhs_mid_alpha.has_value()) absl::StrAppend(&text, " lhs_mid_alpha=", Number(*raw.lhs_mid_alpha));
  if (raw.rhs_mid_alpha.has_value()) absl::StrAppend(&text, " rhs_mid_alpha=", Number(*raw.rhs_mid_alpha));
  if (raw.hadamard.has_value()) absl::StrAppend(&text, " hadamard=", raw.hadamard->block);
  if (raw.allow_dummy_gradient_into_qtensor) text += " dummy_gradient";
  return text + ")";
}

}  // namespace

std::string DescribeQuantizer(const Quantizer& quantizer) {
  std::string text = Describe(quantizer.numerics);
  if (quantizer.calibration.has_value()) absl::StrAppend(&text, " ", CalibrationText(*quantizer.calibration));
  if (quantizer.calib_shared_axes.per_tensor) text += " per_tensor";
  if (!quantizer.calib_shared_axes.axes.empty())
    absl::StrAppend(&text, " shared=", List(quantizer.calib_shared_axes.axes));
  if (quantizer.scale_dtype.has_value()) absl::StrAppend(&text, " scale=", ToString(*quantizer.scale_dtype));
  if (!quantizer.scale_stop_grad) text += " scale_gradient";
  return text;
}

std::string DescribeConfig(const DotGeneralConfig& config) {
  std::string text =
      absl::StrCat("fwd=", RawText(config.fwd), ", dlhs=", RawText(config.dlhs), ", drhs=", RawText(config.drhs));
  if (config.tiling.has_value()) {
    absl::StrAppend(&text, ", tiles=", TilingText(config.tiling->lhs), "*", TilingText(config.tiling->rhs));
  }
  return text;
}

}  // namespace aqt
