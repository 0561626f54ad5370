#ifndef AQT_QUANT_TEXT_CALIBRATION_MESSAGE_H_
#define AQT_QUANT_TEXT_CALIBRATION_MESSAGE_H_

// Calibrations to and from their messages, field by field by name. Internal.

#include <optional>

#include "absl/status/statusor.h"
#include "aqt/quant/config/calibrations.h"
#include "aqt/quant/text/config_path.h"
#include "configs/quant.pb.h"

namespace aqt::internal {

// Sets the oneof `calibration` of `out`.
void WriteCalibration(const Calibration& calibration, config::Quantizer* out);

// Null if none is set.
absl::StatusOr<std::optional<Calibration>> ReadCalibration(const config::Quantizer& m, const ConfigPath& path);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TEXT_CALIBRATION_MESSAGE_H_
