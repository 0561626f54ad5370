#include "aqt/quant/text/write_config.h"

#include <cstdint>
#include <variant>
#include <vector>

#include "aqt/quant/config/tiling.h"
#include "aqt/quant/text/calibration_message.h"
#include "aqt/quant/text/config_path.h"
#include "aqt/quant/text/numerics_message.h"
#include "google/protobuf/repeated_field.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace aqt::internal {
namespace {

template <class T>
void WriteList(const T& values, google::protobuf::RepeatedField<int64_t>* out) {
  out->Add(values.begin(), values.end());
}

}  // namespace

void Write(const Quantizer& q, config::Quantizer* out) {
  WriteNumerics(q.numerics, out);
  if (q.calib_shared_axes.per_tensor) out->mutable_calib_shared_axes()->set_per_tensor(true);
  if (!q.calib_shared_axes.axes.empty()) {
    WriteList(q.calib_shared_axes.axes, out->mutable_calib_shared_axes()->mutable_axes());
  }
  if (!q.scale_stop_grad) out->set_scale_stop_grad(false);
  if (q.scale_dtype.has_value()) out->set_scale_dtype(DTypeText(q.scale_dtype));
  if (q.calibration.has_value()) WriteCalibration(*q.calibration, out);
}

namespace {

void Write(const TensorConfig& tensor, config::Tensor* out) {
  internal::Write(tensor.quantizer, out->mutable_quantizer());
  if (tensor.use_fwd_quant) out->set_use_fwd_quant(true);
  switch (tensor.dequant_mode) {
    case DequantMode::kOutput: break;
    case DequantMode::kThisInput: out->set_dequant_mode(config::DEQUANT_MODE_THIS_INPUT); break;
    case DequantMode::kOtherInput: out->set_dequant_mode(config::DEQUANT_MODE_OTHER_INPUT); break;
  }
  switch (tensor.calibration_mode) {
    case CalibrationMode::kContractingAxis: break;
    case CalibrationMode::kRemainingAxis: out->set_calibration_mode(config::CALIBRATION_MODE_REMAINING_AXIS); break;
  }
}

void Write(const DotGeneralRawConfig& raw, config::DotGeneralRaw* out) {
  Write(raw.lhs, out->mutable_lhs());
  Write(raw.rhs, out->mutable_rhs());
  out->set_dg_accumulator_dtype(DTypeText(raw.dg_accumulator_dtype));
  if (raw.local_aqt.has_value()) {
    const LocalAqt& local = *raw.local_aqt;
    config::LocalAqt* message = out->mutable_local_aqt();
    if (local.contraction_axis_shard_count.has_value()) {
      message->set_contraction_axis_shard_count(*local.contraction_axis_shard_count);
    }
    if (local.contraction_axis_shard_size.has_value()) {
      message->set_contraction_axis_shard_size(*local.contraction_axis_shard_size);
    }
    if (local.tile_largest_shape) message->set_tile_largest_shape(true);
  }
  if (raw.lhs_mid_alpha.has_value()) out->set_lhs_mid_alpha(*raw.lhs_mid_alpha);
  if (raw.rhs_mid_alpha.has_value()) out->set_rhs_mid_alpha(*raw.rhs_mid_alpha);
  if (raw.hadamard.has_value()) out->mutable_hadamard()->set_block(raw.hadamard->block);
  if (raw.allow_dummy_gradient_into_qtensor) out->set_allow_dummy_gradient_into_qtensor(true);
}

void Write(const std::vector<AxisTiling>& list, google::protobuf::RepeatedPtrField<config::AxisTiling>* out) {
  for (const AxisTiling& tiling : list) {
    config::AxisTiling* message = out->Add();
    message->set_axis(tiling.axis);
    if (tiling.tile_count.has_value()) message->set_tile_count(*tiling.tile_count);
    if (tiling.tile_size.has_value()) message->set_tile_size(*tiling.tile_size);
  }
}

void Write(const TensorTiling& tiling, config::TensorTiling* out) {
  Write(tiling.contraction_axes, out->mutable_contraction_axes());
  Write(tiling.remaining_axes, out->mutable_remaining_axes());
}

}  // namespace

void Write(const DotGeneralConfig& dg, config::DotGeneral* out) {
  Write(dg.fwd, out->mutable_fwd());
  Write(dg.dlhs, out->mutable_dlhs());
  Write(dg.drhs, out->mutable_drhs());
  if (dg.tiling.has_value()) {
    Write(dg.tiling->lhs, out->mutable_tiling()->mutable_lhs());
    Write(dg.tiling->rhs, out->mutable_tiling()->mutable_rhs());
  }
}

}  // namespace aqt::internal
