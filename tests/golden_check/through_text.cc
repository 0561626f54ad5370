#include "tests/golden_check/through_text.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "aqt/core/status_macros.h"
#include "aqt/quant/text/config_proto.h"

namespace aqt::golden {
namespace {

// Visits the numerics of type T that `part` is or has as a field.
template <class T>
absl::Status VisitNumerics(T& part, const PartVisitor& visitor) {
  Numerics numerics = part;
  AQT_RETURN_IF_ERROR(visitor.numerics(numerics));
  if (!std::holds_alternative<T>(numerics)) return absl::InternalError("the numerics became others");
  part = std::get<T>(std::move(numerics));
  return absl::OkStatus();
}

// Visits a contraction as the fwd of a configuration.
absl::Status VisitRaw(DotGeneralRawConfig& raw, const PartVisitor& visitor) {
  DotGeneralConfig whole{.fwd = raw};
  AQT_RETURN_IF_ERROR(visitor.dot_general(whole));
  raw = std::move(whole.fwd);
  return absl::OkStatus();
}

// One overload for each configuration, which lists its parts.
absl::Status Visit(QuantizeConfig& config, const PartVisitor& visitor) { return visitor.quantizer(config.quantizer); }
absl::Status Visit(StatefulConfig& config, const PartVisitor& visitor) { return visitor.quantizer(config.quantizer); }
absl::Status Visit(NumericsConfig& config, const PartVisitor& visitor) { return visitor.numerics(config.numerics); }
absl::Status Visit(RoundToFormatConfig& config, const PartVisitor& visitor) {
  Fp fp{.format = config.format};
  AQT_RETURN_IF_ERROR(VisitNumerics(fp, visitor));
  config.format = fp.format;
  return absl::OkStatus();
}
absl::Status Visit(DotConfig& config, const PartVisitor& visitor) { return visitor.dot_general(config.config); }
absl::Status Visit(EinsumConfig& config, const PartVisitor& visitor) { return visitor.dot_general(config.config); }
absl::Status Visit(ConvGeneralConfig& config, const PartVisitor& visitor) { return VisitRaw(config.config, visitor); }
absl::Status Visit(RaggedDotConfig& config, const PartVisitor& visitor) { return VisitRaw(config.config, visitor); }
absl::Status Visit(MlpConfig& config, const PartVisitor& visitor) {
  return config.dot_general.has_value() ? visitor.dot_general(*config.dot_general) : absl::OkStatus();
}
absl::Status Visit(ServingConfig& config, const PartVisitor& visitor) {
  return visitor.dot_general(config.dot_general);
}
absl::Status Visit(ServedDotConfig& config, const PartVisitor& visitor) { return visitor.dot_general(config.config); }
absl::Status Visit(TrainingConfig& config, const PartVisitor& visitor) {
  return config.dot_general.has_value() ? visitor.dot_general(*config.dot_general) : absl::OkStatus();
}
absl::Status Visit(HandWrittenMatMulConfig& config, const PartVisitor& visitor) {
  return VisitNumerics(config.numerics, visitor);
}
absl::Status Visit(CeilToPo2Config&, const PartVisitor&) { return absl::OkStatus(); }
absl::Status Visit(DecodeConfig&, const PartVisitor&) { return absl::OkStatus(); }
absl::Status Visit(CastConfig&, const PartVisitor&) { return absl::OkStatus(); }
absl::Status Visit(RandomConfig&, const PartVisitor&) { return absl::OkStatus(); }
absl::Status Visit(OperandKeysConfig&, const PartVisitor&) { return absl::OkStatus(); }

}  // namespace

absl::Status VisitParts(CaseConfig& config, const PartVisitor& visitor) {
  return std::visit([&](auto& c) { return Visit(c, visitor); }, config);
}

absl::StatusOr<CaseConfig> ThroughText(CaseConfig config, TextWriter to_text) {
  const auto dot_general = [&](DotGeneralConfig& part) -> absl::Status {
    AQT_ASSIGN_OR_RETURN(part, DotGeneralFromText(to_text(part)));
    return absl::OkStatus();
  };
  const auto quantizer = [&](Quantizer& part) -> absl::Status {
    // In this mode a bias is allowed, too.
    DotGeneralConfig whole{.fwd = {.lhs = {.quantizer = part, .dequant_mode = DequantMode::kThisInput}}};
    AQT_RETURN_IF_ERROR(dot_general(whole));
    part = std::move(whole.fwd.lhs.quantizer);
    return absl::OkStatus();
  };
  const auto numerics = [&](Numerics& part) -> absl::Status {
    Quantizer whole{.numerics = part, .calibration = AbsMax{}};
    AQT_RETURN_IF_ERROR(quantizer(whole));
    part = std::move(whole.numerics);
    return absl::OkStatus();
  };
  AQT_RETURN_IF_ERROR(VisitParts(config, {dot_general, quantizer, numerics}));
  return config;
}

}  // namespace aqt::golden
