// Calibrations with state.

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/tensor/calibration.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {
namespace {

// Row i of x.
absl::StatusOr<Array> RowOf(const Array& x, int64_t i) {
  Shape shape;
  for (int64_t axis = 1; axis < x.shape().rank(); ++axis) shape.push_back(x.shape()[axis]);
  const int64_t bytes = Aval{x.dtype(), shape}.num_bytes();
  ArrayBuilder row(x.dtype(), std::move(shape));
  std::memcpy(row.data(), static_cast<const char*>(x.data()) + i * bytes, bytes);
  return std::move(row).Build();
}

// Arrays of one dtype and shape, along a new first axis.
Array Stack(const std::vector<Array>& rows) {
  Shape shape = {static_cast<int64_t>(rows.size())};
  for (const int64_t extent : rows[0].shape()) shape.push_back(extent);
  ArrayBuilder stack(rows[0].dtype(), std::move(shape));
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(static_cast<char*>(stack.data()) + i * rows[i].num_bytes(), rows[i].data(), rows[i].num_bytes());
  }
  return std::move(stack).Build();
}

}  // namespace

// The expected tensors are the scale and the arrays of the state after each step. With MeanOfAbsMax they end before the
// last step, whose mode is not calibrate and which has its own names.
absl::StatusOr<Tensors> Run(const StatefulConfig& config, const Tensors& inputs, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const Array x, Input(inputs, "x"));
  if (x.shape().rank() == 0 || x.shape()[0] != static_cast<int64_t>(config.steps.size()) || config.steps.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("x is ", x.aval().ToString(), " for ", config.steps.size(), " steps"));
  }
  std::map<std::string, std::vector<Array>> rows;
  CalibrationState state;
  for (size_t i = 0; i < config.steps.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(const Array batch, RowOf(x, static_cast<int64_t>(i)));
    if (i == 0) {
      AQT_ASSIGN_OR_RETURN(state, InitialCalibrationState(config.quantizer, batch.aval(), config.calibration_axes));
    }
    AQT_ASSIGN_OR_RETURN(CalibratedTensor result,
                         CalibrateWithState(config.quantizer, state, batch, config.calibration_axes,
                                            {.quant_mode = config.steps[i]}, semantics));
    state = std::move(result.state);
    rows["scale"].push_back(result.qtensor.scale[0]);
    for (const auto& [name, array] : state) rows[name].push_back(array);
  }
  Tensors out;
  if (state.contains("sum_of_max") && config.steps.back() != QuantMode::kCalibrate) {
    out.emplace("scale_after_train_step", rows["scale"].back());
    out.emplace("sum_after_train_step", rows["sum_of_max"].back());
    for (auto& [name, arrays] : rows) arrays.pop_back();
  }
  for (const auto& [name, arrays] : rows) {
    if (!arrays.empty()) out.emplace(name, Stack(arrays));
  }
  return out;
}

}  // namespace aqt::golden
