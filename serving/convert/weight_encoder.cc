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
#include "serving/convert/block_buffers.h"
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
  struct Block {
    const TensorPlan* tensor;
    int64_t begin, bytes;
  };
  std::vector<Block> blocks;
  for (const TensorPlan& tensor : plan.tensors) {
    if (tensor.scale_set.empty()) continue;
    sets_.try_emplace(tensor.scale_set, Set{*io::ToDType(tensor.input->dtype), 0});
    for (int64_t begin = 0; begin < tensor.old_bytes; begin += kMaxBlock) {
      blocks.push_back({&tensor, begin, std::min(kMaxBlock, tensor.old_bytes - begin)});
    }
  }
  std::mutex mutex;
  BlockBuffers buffers;
  return ParallelRun(
      static_cast<int64_t>(blocks.size()), {.threads = options.jobs, .memory_budget = kMemoryBudget},
      [&](int64_t i) { return blocks[i].bytes; },
      [&](int64_t i) -> absl::Status {
        AQT_RETURN_IF_ERROR(CheckCancelled(options.cancelled));
        const auto& [tensor, begin, bytes] = blocks[i];
        std::vector<uint8_t> buffer = buffers.Take();
        buffer.resize(bytes);
        AQT_RETURN_IF_ERROR(input.Read(*tensor->input, begin, absl::MakeSpan(buffer)));
        const DType dtype = *io::ToDType(tensor->input->dtype);
        const int64_t n = bytes / SizeOf(dtype);
        const float absmax = kernels::AbsMaxAll({buffer.data(), dtype, 1, n, n, 1});
        if (!std::isfinite(absmax)) {
          return NonFiniteError(*tensor, begin / SizeOf(dtype) + kernels::FirstNotFinite(buffer.data(), dtype, n));
        }
        buffers.Give(std::move(buffer));
        if (options.progress != nullptr) options.progress->Add(bytes, tensor->name());
        const std::lock_guard<std::mutex> lock(mutex);
        Set& set = sets_.at(tensor->scale_set);
        set.absmax = std::max(set.absmax, absmax);
        return absl::OkStatus();
      });
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
