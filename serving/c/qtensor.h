#ifndef AQT_SERVING_C_QTENSOR_H_
#define AQT_SERVING_C_QTENSOR_H_

// Quantized tensors of the C interface. Internal.

#include <utility>

#include "aqt/c_api.h"
#include "aqt/core/aval.h"
#include "aqt/quant/tensor/qtensor.h"
#include "serving/c/call.h"

struct aqt_qtensor {
  static constexpr aqt::capi::Tag kTag = aqt::capi::Tag::kQTensor;
  static constexpr char kName[] = "aqt_qtensor";
  explicit aqt_qtensor(aqt::QTensor made) : qtensor(std::move(made)) {
    if (!qtensor.IsFull()) return;
    const bool tiled = qtensor.tiling_state.has_value();
    dequantized = {qtensor.dequant_dtype, tiled ? qtensor.tiling_state->untiled_shape : qtensor.qvalue->shape()};
  }

  aqt::capi::Tag tag = kTag;
  const aqt::QTensor qtensor;
  aqt::Aval dequantized;  // of a full tensor
};

#endif  // AQT_SERVING_C_QTENSOR_H_
