#include "aqt/jax/contraction_spec.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/text/compat_names.h"
#include "aqt/quant/text/config_proto.h"

namespace aqt::jax {
namespace {

constexpr size_t kOperands = 6;

absl::Status LineError(absl::string_view line, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("the line '", line, "' of the call is not ", expected,
                                                 ": the Python package does not fit this library"));
}

absl::StatusOr<DotDims> ParseDims(absl::string_view text) {
  DotDims dims;
  Axes* const lists[] = {&dims.lhs_contracting, &dims.rhs_contracting, &dims.lhs_batch, &dims.rhs_batch};
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '|');
  if (parts.size() != 4) return LineError(text, "four lists of axes");
  for (size_t i = 0; i < 4; ++i) {
    for (const absl::string_view axis : absl::StrSplit(parts[i], ',', absl::SkipEmpty())) {
      int64_t value = 0;
      if (!absl::SimpleAtoi(axis, &value)) return LineError(text, "four lists of axes");
      lists[i]->push_back(value);
    }
  }
  return dims;
}

absl::Status ParseLine(absl::string_view line, ContractionSpec* spec) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
  const auto& [name, value] = parts;
  if (name == "dims") {
    AQT_ASSIGN_OR_RETURN(spec->dims, ParseDims(value));
  } else if (name == "compat") {
    AQT_ASSIGN_OR_RETURN(spec->semantics.compat, CompatFromNames(value, ' ', "Compat"));
  } else if (name == "layout" && value == "original") {
    spec->semantics.prng_layout = PrngLayout::kOriginal;
  } else if (name == "arithmetic" && value == "ieee") {
    spec->semantics.arithmetic = Arithmetic::kIeee;
  } else if (name == "levels") {
    spec->levels = absl::StrSplit(value, ' ', absl::SkipEmpty());
    for (const std::string& level : spec->levels) {
      if (level.size() != kOperands) return LineError(line, "six digits for each level");
    }
  } else {
    return LineError(line, "known");
  }
  return absl::OkStatus();
}

// ---- leading batch axes

void ShiftAxes(int64_t by, Axes* axes) {
  for (int64_t& axis : *axes) axis += axis >= 0 ? by : 0;
}

// The noise of numerics that add noise; null for others.
std::optional<Noise>* NoiseOf(Numerics* numerics) {
  auto* integers = std::get_if<IntSymmetric>(numerics);
  return integers != nullptr && integers->noise.has_value() ? &integers->noise : nullptr;
}

bool DrawsBits(const Numerics& numerics) {
  const auto* fp8 = std::get_if<Fp8>(&numerics);
  const auto* fp = std::get_if<Fp>(&numerics);
  return (fp8 != nullptr && fp8->stochastic_rounding) || (fp != nullptr && fp->stochastic_rounding);
}

// Leading axes of one element for an array.
absl::Status AddAxes(int64_t count, ConstantValue* value) {
  auto* constant = std::get_if<ConstantArray>(value);
  if (constant == nullptr || constant->array.shape().rank() == 0) return absl::OkStatus();
  Shape shape;
  for (int64_t i = 0; i < count; ++i) shape.push_back(1);
  for (const int64_t extent : constant->array.shape()) shape.push_back(extent);
  AQT_ASSIGN_OR_RETURN(constant->array, constant->array.Reshaped(shape));
  return absl::OkStatus();
}

// Moves the axes of the configuration of one operand. `operand` is its digit in a level, `rank` that of the operand.
absl::Status AddLevels(absl::Span<const std::string> levels, size_t operand, int64_t rank, Quantizer* quantizer) {
  const int64_t count = static_cast<int64_t>(levels.size());
  SharedAxes& shared = quantizer->calib_shared_axes;
  ShiftAxes(count, &shared.axes);
  if (shared.per_tensor) {
    shared.per_tensor = false;
    for (int64_t axis = count; axis < rank; ++axis) shared.axes.push_back(axis);
  }
  std::optional<Noise>* noise = NoiseOf(&quantizer->numerics);
  if (noise != nullptr) ShiftAxes(count, &(*noise)->noise_sharing_axes);
  for (int64_t level = 0; level < count; ++level) {
    if (levels[level][operand] != '1') continue;
    if (DrawsBits(quantizer->numerics)) {
      return absl::UnimplementedError(
          "one key for all entries of a batch axis needs the same random bits for each, which these numerics cannot "
          "share");
    }
    if (noise != nullptr) (*noise)->noise_sharing_axes.push_back(level);
  }
  if (auto* constant = quantizer->calibration.has_value() ? std::get_if<Constant>(&*quantizer->calibration) : nullptr) {
    AQT_RETURN_IF_ERROR(AddAxes(count, &constant->bound));
    if (constant->bias.has_value()) AQT_RETURN_IF_ERROR(AddAxes(count, &*constant->bias));
  }
  return absl::OkStatus();
}

absl::StatusOr<DotGeneralConfig> WithLevels(const ContractionSpec& spec, int64_t lhs_rank, int64_t rhs_rank) {
  DotGeneralConfig config = spec.config;
  if (spec.levels.empty()) return config;
  if (config.tiling.has_value()) return absl::UnimplementedError("a tiling cannot be combined with added batch axes");
  const int64_t shared_axes =
      static_cast<int64_t>(spec.dims.lhs_contracting.size()) * 2 + static_cast<int64_t>(spec.dims.lhs_batch.size());
  const int64_t out_rank = lhs_rank + rhs_rank - shared_axes;
  // In a backward product lhs is the gradient of the output.
  const int64_t ranks[] = {lhs_rank, rhs_rank, out_rank, rhs_rank, out_rank, lhs_rank};
  TensorConfig* const tensors[] = {&config.fwd.lhs,  &config.fwd.rhs,  &config.dlhs.lhs,
                                   &config.dlhs.rhs, &config.drhs.lhs, &config.drhs.rhs};
  for (size_t i = 0; i < kOperands; ++i) {
    AQT_RETURN_IF_ERROR(AddLevels(spec.levels, i, ranks[i], &tensors[i]->quantizer));
  }
  return config;
}

}  // namespace

absl::StatusOr<ContractionSpec> ParseContractionSpec(absl::string_view text) {
  ContractionSpec spec;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == absl::string_view::npos) break;
    const absl::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line == "config") {
      AQT_ASSIGN_OR_RETURN(spec.config, DotGeneralFromText(text));
      return spec;
    }
    AQT_RETURN_IF_ERROR(ParseLine(line, &spec));
  }
  return absl::InvalidArgumentError("the call has no configuration: the Python package does not fit this library");
}

absl::StatusOr<DotGeneralPlan> MakePlan(const ContractionSpec& spec, const Aval& lhs, const Aval& rhs,
                                        PlanPasses passes) {
  AQT_ASSIGN_OR_RETURN(const DotGeneralConfig config, WithLevels(spec, lhs.shape.rank(), rhs.shape.rank()));
  return DotGeneralPlan::Make(config, lhs, rhs, spec.dims, {.passes = passes, .semantics = spec.semantics});
}

}  // namespace aqt::jax
