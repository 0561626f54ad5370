#include "aqt/quant/tensor/calibration.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/quantize_spec.h"
#include "aqt/quant/tensor/statistics.h"

namespace aqt {
namespace {

using internal::QuantizeSpec;
using internal::Statistic;

absl::StatusOr<QuantizeSpec> SpecWithState(const Quantizer& quantizer, const Aval& x, absl::Span<const int64_t> axes) {
  AQT_RETURN_IF_ERROR(internal::ValidateQuantizer(quantizer));
  if (!HasState(quantizer)) {
    return absl::InvalidArgumentError(
        absl::StrCat("calibration: ",
                     quantizer.calibration.has_value() ? NameOf(*quantizer.calibration) : Describe(quantizer.numerics),
                     " has no state; use Calibrate"));
  }
  return internal::MakeQuantizeSpec(quantizer, x, axes);
}

std::string NamesOf(const internal::Statistics& statistics) {
  return absl::StrJoin(statistics, ", ", [](std::string* out, const Statistic& s) {
    absl::StrAppend(out, s.name, " ", s.aval.ToString());
  });
}

// The arrays of `state` in the order of the spec.
absl::StatusOr<internal::StatisticData> DataOf(const QuantizeSpec& spec, const CalibrationState& state) {
  internal::StatisticData data;
  for (size_t i = 0; i < spec.statistics.size(); ++i) {
    const Statistic& statistic = spec.statistics[i];
    const auto it = state.find(std::string(statistic.name));
    if (it == state.end() || it->second.aval() != statistic.aval || state.size() != spec.statistics.size()) {
      const std::string got = absl::StrJoin(state, ", ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, entry.first, " ", entry.second.aval().ToString());
      });
      return absl::InvalidArgumentError(absl::StrCat("calibration: the state is {", got, "}, expected {",
                                                     NamesOf(spec.statistics), "} for ", spec.x.ToString()));
    }
    data.old[i] = it->second.ref().data;
  }
  return data;
}

}  // namespace

bool HasState(const Quantizer& quantizer) {
  return IsQuantized(quantizer.numerics) && quantizer.calibration.has_value() && HasState(*quantizer.calibration);
}

std::vector<std::string> StatisticNames(const Quantizer& quantizer) {
  std::vector<std::string> names;
  if (!HasState(quantizer)) return names;
  for (const Statistic& statistic : internal::StatisticsOf(*quantizer.calibration, Aval{DType::kF32, {}}, {})) {
    names.emplace_back(statistic.name);
  }
  return names;
}

bool UpdatesState(const Quantizer& quantizer, QuantMode mode) {
  return HasState(quantizer) && internal::UpdatesIn(mode, *quantizer.calibration);
}

absl::StatusOr<CalibrationState> InitialCalibrationState(const Quantizer& quantizer, const Aval& x,
                                                         absl::Span<const int64_t> calibration_axes) {
  AQT_ASSIGN_OR_RETURN(const QuantizeSpec spec, SpecWithState(quantizer, x, calibration_axes));
  CalibrationState state;
  for (const Statistic& statistic : spec.statistics) state.emplace(statistic.name, internal::InitialValue(statistic));
  return state;
}

absl::StatusOr<CalibratedTensor> CalibrateWithState(const Quantizer& quantizer, const CalibrationState& state,
                                                    const ArrayRef& x, absl::Span<const int64_t> calibration_axes,
                                                    const Context& context, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const QuantizeSpec spec, SpecWithState(quantizer, x.aval(), calibration_axes));
  AQT_ASSIGN_OR_RETURN(internal::StatisticData data, DataOf(spec, state));
  AQT_RETURN_IF_ERROR(internal::CheckSeen(spec, context.quant_mode, semantics.compat, data.old));
  std::vector<ArrayBuilder> updated;
  if (internal::UpdatesIn(context.quant_mode, spec.calibration)) {
    for (const Statistic& statistic : spec.statistics) updated.emplace_back(statistic.aval);
    for (size_t i = 0; i < updated.size(); ++i) data.updated[i] = updated[i].data();
  }
  std::vector<double> work(spec.num_work_doubles());
  ArrayBuilder scale(spec.scale_dtype, spec.scale_shape);
  internal::ComputeScaleWithState(spec, x, context.quant_mode, semantics, data, work.data(), scale.data());
  CalibratedTensor result;
  result.qtensor.dequant_dtype = x.dtype;
  result.qtensor.scale.push_back(std::move(scale).Build());
  result.state = state;
  for (size_t i = 0; i < updated.size(); ++i) {
    result.state[std::string(spec.statistics[i].name)] = std::move(updated[i]).Build();
  }
  return result;
}

absl::StatusOr<CalibrationState> UpdateCalibration(const Quantizer& quantizer, const CalibrationState& state,
                                                   const ArrayRef& x, absl::Span<const int64_t> calibration_axes) {
  AQT_ASSIGN_OR_RETURN(CalibratedTensor result, CalibrateWithState(quantizer, state, x, calibration_axes,
                                                                   {.quant_mode = QuantMode::kCalibrate}));
  return std::move(result.state);
}

absl::StatusOr<Array> StaticScale(const Quantizer& quantizer, const CalibrationState& state, const Aval& x,
                                  absl::Span<const int64_t> calibration_axes, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const QuantizeSpec spec, SpecWithState(quantizer, x, calibration_axes));
  AQT_ASSIGN_OR_RETURN(const internal::StatisticData data, DataOf(spec, state));
  AQT_RETURN_IF_ERROR(internal::CheckSeen(spec, QuantMode::kServe, semantics.compat, data.old));
  std::vector<double> work(spec.num_work_doubles());
  ArrayBuilder scale(spec.scale_dtype, spec.scale_shape);
  internal::ScaleFromState(spec, semantics, data.old, work.data(), scale.data());
  return std::move(scale).Build();
}

}  // namespace aqt
