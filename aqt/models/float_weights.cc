#include "aqt/models/float_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint_files.h"
#include "aqt/io/tensors/map_tensor.h"
#include "aqt/kernels/quantize/finite.h"

namespace aqt::models {
namespace {

// Smaller tensors are read: a mapping takes whole pages.
constexpr int64_t kLeastMappedBytes = 64 << 10;

bool AreFinite(absl::Span<const float> values) {
  return kernels::FirstNotFinite(values.data(), DType::kF32, static_cast<int64_t>(values.size())) < 0;
}

}  // namespace

absl::StatusOr<std::vector<nn::WeightPlace>> PlaceFolderWeights(const nn::WeightsMap& map,
                                                                const io::TensorSource& source,
                                                                const Program& program) {
  AQT_ASSIGN_OR_RETURN(const nn::WeightsReport report, nn::CheckWeights(map, source, program));
  if (report.ok()) return nn::PlaceWeights(map, source, program);
  std::string text = absl::StrCat(io::PrintableLine(source.path()), ": the weights do not fit config.json");
  const auto add = [&](absl::string_view what, const std::vector<std::string>& lines) {
    if (!lines.empty()) absl::StrAppend(&text, "; ", what, io::ListSome(lines));
  };
  add("no tensor for ", report.missing);
  add("no place for ", report.left_over);
  add("what does not fit: ", report.wrong);
  if (report.missing.empty() && report.left_over.empty() && report.wrong.empty()) {
    add("no tensor for ", report.unused);
  }
  absl::StrAppend(&text, "; download the model again, with the config.json that belongs to it");
  return absl::InvalidArgumentError(text);
}

std::string FloatReader::Describe(const io::TensorInfo& tensor) const {
  return absl::StrCat(io::PrintableLine(source_.path()), ": tensor ", io::QuoteForMessage(tensor.name), " ",
                      io::ToString(tensor.dtype), tensor.shape.ToString());
}

// A single number that is not finite can make all results NaN.
absl::Status FloatReader::NotFinite(const io::TensorInfo& tensor) const {
  return absl::DataLossError(absl::StrCat(Describe(tensor), " has a NaN, an infinity, or a number that is too large ",
                                          "for float32; copy or download the file again"));
}

// Checks a tensor in f32 part by part.
absl::Status FloatReader::CheckFinite(const io::TensorInfo& tensor) const {
  std::vector<float> part(static_cast<size_t>(std::min<int64_t>(tensor.shape.num_elements(), 1 << 18)));
  for (int64_t at = 0; at < tensor.shape.num_elements(); at += static_cast<int64_t>(part.size())) {
    part.resize(
        static_cast<size_t>(std::min<int64_t>(tensor.shape.num_elements() - at, static_cast<int64_t>(part.size()))));
    const auto bytes = absl::MakeSpan(reinterpret_cast<uint8_t*>(part.data()), part.size() * sizeof(float));
    AQT_RETURN_IF_ERROR(source_.Read(tensor, at * static_cast<int64_t>(sizeof(float)), bytes));
    if (!AreFinite(part)) return NotFinite(tensor);
  }
  return absl::OkStatus();
}

// An array without data if the tensor is to be read.
absl::StatusOr<Array> FloatReader::Mapped(const nn::WeightPlace& place) const {
  const io::TensorInfo& tensor = *place.tensor;
  if (files_ == nullptr || tensor.dtype != io::FileDType::kF32 || tensor.num_bytes() < kLeastMappedBytes ||
      !place.rule->transpose.empty() || place.rule->slice.has_value()) {
    return Array();
  }
  const std::optional<Array> mapped = io::MapTensor(*files_, *checkpoint_, tensor);
  if (!mapped.has_value()) return Array();
  AQT_RETURN_IF_ERROR(CheckFinite(tensor));
  return mapped->Reshaped(place.aval.shape);
}

absl::StatusOr<Array> FloatReader::Value(const nn::WeightPlace& place) {
  const io::TensorInfo& tensor = *place.tensor;
  const std::optional<DType> dtype = io::ToDType(tensor.dtype);
  if (!dtype.has_value() || !IsFloat(*dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(tensor), " has no floats, and nothing says how to read a weight from it; if it is ",
                     "quantized, config.json lacks the quantization_config of the tool that wrote it"));
  }
  AQT_ASSIGN_OR_RETURN(Array value, Mapped(place));
  if (value.data() != nullptr) return value;
  if (read_ != &tensor) {
    AQT_ASSIGN_OR_RETURN(tensor_, source_.ReadArray(tensor));
    read_ = &tensor;
  }
  AQT_ASSIGN_OR_RETURN(value, nn::SlotValue(place, tensor_));
  if (!AreFinite(value.View<float>())) return NotFinite(tensor);
  return value;
}

absl::StatusOr<SlotValues> LoadFloats(const nn::WeightsMap& map, const io::TensorSource& source,
                                      const Program& program) {
  AQT_ASSIGN_OR_RETURN(const std::vector<nn::WeightPlace> places, PlaceFolderWeights(map, source, program));
  FloatReader reader(source);
  SlotValues values;
  for (const nn::WeightPlace& place : places) {
    AQT_ASSIGN_OR_RETURN(Array value, reader.Value(place));
    values.emplace(place.slot, std::move(value));
  }
  return values;
}

}  // namespace aqt::models
