#ifndef AQT_QUANT_TEXT_READ_CONFIG_H_
#define AQT_QUANT_TEXT_READ_CONFIG_H_

// Messages to structs. Internal.

#include "absl/status/statusor.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/text/config_path.h"
#include "configs/quant.pb.h"

namespace aqt::internal {

// Where an accumulator dtype is checked.
enum class AccumulatorCheck { kHere, kByPlan };

// Without base, schema and presets, which FromProto resolves. Errors as for DotGeneralFromText.
absl::StatusOr<DotGeneralConfig> Read(const config::DotGeneral& m, const ConfigPath& path,
                                      AccumulatorCheck check = AccumulatorCheck::kHere);
absl::StatusOr<Quantizer> Read(const config::Quantizer& m, const ConfigPath& path);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TEXT_READ_CONFIG_H_
