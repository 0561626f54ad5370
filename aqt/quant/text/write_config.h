#ifndef AQT_QUANT_TEXT_WRITE_CONFIG_H_
#define AQT_QUANT_TEXT_WRITE_CONFIG_H_

// Structs to messages. Fields with their fixed default are left out. Internal.

#include "aqt/quant/config/config.h"
#include "configs/quant.pb.h"

namespace aqt::internal {

void Write(const DotGeneralConfig& dg, config::DotGeneral* out);
void Write(const Quantizer& q, config::Quantizer* out);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TEXT_WRITE_CONFIG_H_
