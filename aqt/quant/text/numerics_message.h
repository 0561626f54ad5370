#ifndef AQT_QUANT_TEXT_NUMERICS_MESSAGE_H_
#define AQT_QUANT_TEXT_NUMERICS_MESSAGE_H_

// Numerics to and from their messages. Internal.

#include "absl/status/statusor.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/text/config_path.h"
#include "configs/quant.pb.h"

namespace aqt::internal {

// Sets the oneof `numerics` of `out`. Fields with their fixed default are left out.
void WriteNumerics(const Numerics& numerics, config::Quantizer* out);

// NoNumerics if none is set.
absl::StatusOr<Numerics> ReadNumerics(const config::Quantizer& m, const ConfigPath& path);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TEXT_NUMERICS_MESSAGE_H_
