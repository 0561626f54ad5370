#include "serving/convert/weight_encoder.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/finite.h"
#include "aqt/quant/weights/microscaled.h"
#include "serving/convert/read_blocks.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/parallel.h"

namespace aqt::serving {
namespace {

absl::Status NonFiniteError(const TensorPlan& tensor, int64_t index) {
  const int64_t columns = tensor.input->shape[1];
  return absl::DataLossError(
      absl::StrCat(io::Printable(tensor.name()), " ", tensor.input->shape.ToString(),
                   " holds a NaN or an infinity at [", index / columns, ",", index % columns,
                   "]; repair it, or leave such weights in floating point with --non-finite keep"));
}

}  // namespace

absl::StatusOr<WeightEncoder> WeightEncoder::Make(const io::TensorSource& input, const Plan& plan, const Recipe& recipe,
                                                  const Calibration& calibration, const ConvertOptions& options) {
  WeightEncoder encoder(recipe, calibration);
  AQT_RETURN_IF_ERROR(encoder.FindGlobalScales(input, plan, options));
  return encoder;
}

absl::Status WeightEncoder::FindGlobalScales(const io::TensorSource& input, const Plan& plan,
                                             const ConvertOptions& options) {
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.scale_set.empty()) sets_.try_emplace(tensor.scale_set, Set{*io::ToDType(tensor.input->dtype), 0});
  }
  std::mutex mutex;
  const auto find = [&](const TensorPlan& tensor, int64_t begin, absl::Span<const uint8_t> bytes) -> absl::Status {
    const DType dtype = *io::ToDType(tensor.input->dtype);
    const int64_t size = static_cast<int64_t>(bytes.size()), n = size / SizeOf(dtype);
    const float absmax = kernels::AbsMaxAll({bytes.data(), dtype, 1, n, n, 1});
    if (!std::isfinite(absmax)) {
      return NonFiniteError(tensor, begin / SizeOf(dtype) + kernels::FirstNotFinite(bytes.data(), dtype, n));
    }
    if (options.progress != nullptr) options.progress->Add(size, tensor.name());
    const std::lock_guard<std::mutex> lock(mutex);
    Set& set = sets_.at(tensor.scale_set);
    set.absmax = std::max(set.absmax, absmax);
    return absl::OkStatus();
  };
  return ReadInBlocks(
      input, plan, options, [](const TensorPlan& tensor) { return !tensor.scale_set.empty(); }, find);
}

float WeightEncoder::GlobalScaleOf(const TensorPlan& tensor) const {
  if (tensor.scale_set.empty()) return 1;
  const Set& set = sets_.at(tensor.scale_set);
  return compressed_tensors::GlobalScaleOf(set.absmax, set.dtype);
}

absl::StatusOr<std::vector<StoredRows>> WeightEncoder::Encode(const TensorPlan& tensor, int64_t first_row,
                                                              const ArrayRef& rows) const {
  const int64_t columns = rows.shape[1];
  // FindGlobalScales has looked at the weights with a global scale.
  const int64_t bad =
      tensor.scale_set.empty() ? kernels::FirstNotFinite(rows.data, rows.dtype, rows.shape[0] * columns) : -1;
  if (bad >= 0) return NonFiniteError(tensor, first_row * columns + bad);
  absl::StatusOr<std::vector<StoredRows>> encoded = EncodeRows(
      rows, first_row, tensor.input->shape, *tensor.decision.scheme, recipe_->weight_rules, GlobalScaleOf(tensor));
  if (!encoded.ok()) return Annotate(encoded.status(), io::Printable(tensor.name()));
  return encoded;
}

absl::StatusOr<std::vector<StoredRows>> WeightEncoder::EncodeInput(const TensorPlan& tensor) const {
  std::vector<StoredRows> parts;
  if (!tensor.decision.scheme->HasStaticInput()) return parts;
  const std::string module(tensor.module());
  const InputScheme& scheme = *tensor.decision.scheme->input;
  const InputRange& range = calibration_->at(module);
  absl::StatusOr<EncodedInput> input =
      EncodeInputRange(scheme, range.min, range.max, *io::ToDType(tensor.input->dtype));
  if (!input.ok()) {
    return Annotate(input.status(),
                    absl::StrCat(io::Printable(module), ": input range [", range.min, ", ", range.max, "]"));
  }
  const char* const suffix = scheme.scale_type == ScaleType::kE4M3 ? kInputGlobalScale : kInputScale;
  parts.push_back({suffix, 0, std::move(input->scale)});
  if (input->zero_point.has_value()) parts.push_back({kInputZeroPoint, 0, *std::move(input->zero_point)});
  return parts;
}

}  // namespace aqt::serving
