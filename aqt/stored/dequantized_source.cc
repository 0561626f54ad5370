#include "aqt/stored/dequantized_source.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/kernels/quantize/finite.h"
#include "aqt/native/native_file.h"
#include "aqt/quant/weights/stored_values.h"

namespace aqt::stored {
namespace {

using io::FileDType;

// Elements that are decoded at a time, at least a row.
constexpr int64_t kElementsAtOnce = 1 << 16;

// Whether only quantized weights have this type.
bool IsCodeType(FileDType dtype) {
  switch (dtype) {
    case FileDType::kF4:
    case FileDType::kF6E2M3:
    case FileDType::kF6E3M2:
    case FileDType::kF8E4M3:
    case FileDType::kF8E5M2:
    case FileDType::kF8E4M3FNUZ:
    case FileDType::kF8E5M2FNUZ:
    case FileDType::kF8E8M0: return true;
    default: return false;
  }
}

// A weight of integers.
bool IsIntegerWeight(const io::TensorInfo& tensor) {
  return (tensor.dtype == FileDType::kI8 || tensor.dtype == FileDType::kU8) && tensor.shape.rank() >= 2 &&
         absl::EndsWith(tensor.name, ".weight");
}

// DataLoss if a tensor that is not part of a weight shows that a weight is incomplete, or of another format.
absl::Status CheckLeftOver(const io::TensorSource& base, const StoredFormat& format,
                           const std::set<absl::string_view>& consumed) {
  const absl::Span<const absl::string_view> suffixes = format.PartSuffixes();
  if (suffixes.empty()) return absl::OkStatus();
  for (const io::TensorInfo& tensor : base.tensors()) {
    if (consumed.contains(tensor.name)) continue;
    const bool part = std::any_of(suffixes.begin(), suffixes.end(),
                                  [&](absl::string_view suffix) { return absl::EndsWith(tensor.name, suffix); });
    if (part) {
      return absl::DataLossError(
          absl::StrCat(Describe(base, tensor), " is a part of a quantized weight (", format.name(),
                       "), and the weight's values are ",
                       "missing; download the checkpoint again, or ask those who made it for a complete one"));
    }
    if (IsCodeType(tensor.dtype) || IsIntegerWeight(tensor)) {
      return absl::DataLossError(absl::StrCat(
          Describe(base, tensor), " has the type of a quantized weight, but not the scales of the format ",
          format.name(), " beside it; download the checkpoint again, or ask those who made it for a complete one"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DequantizedSource>> DequantizedSource::Open(const io::TensorSource& base,
                                                                           const StoredConfig& config, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights cannot be dequantized to ", ToString(dtype), "; expected f32, bf16 or f16"));
  }
  AQT_ASSIGN_OR_RETURN(const StoredFormat* const format, FindStoredFormat(base, config));
  const std::string path = absl::StrCat("'", io::PrintableLine(base.path()), "'");
  if (format == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is not quantized: there is no quantization_config, and no tensor has the name of a scale or of packed ",
        "values that is known"));
  }
  std::unique_ptr<DequantizedSource> source(new DequantizedSource(base, config, dtype));
  absl::StatusOr<StoredWeights> weights = format->Find(source->reader_, source->config_);
  if (!weights.ok()) {
    const bool names_it = absl::StrContains(weights.status().message(), path);  // not if it is about the configuration
    return names_it ? weights.status() : Annotate(weights.status(), path);
  }
  StoredWeights found = *std::move(weights);
  std::set<absl::string_view> consumed;
  for (const io::TensorInfo* tensor : found.consumed) consumed.insert(tensor->name);
  AQT_RETURN_IF_ERROR(CheckLeftOver(base, *format, consumed));
  if (found.weights.empty()) {
    return absl::DataLossError(absl::StrCat(
        path, " has no quantized weight, though ", config.where.empty() ? "its tensors show" : config.where + " says",
        " that it is quantized (", format->name(), "); remove the quantization_config if it is a float checkpoint"));
  }
  AQT_RETURN_IF_ERROR(source->SetTensors(*format, std::move(found), consumed));
  return source;
}

absl::StatusOr<std::unique_ptr<DequantizedSource>> DequantizedSource::OpenIfQuantized(const io::FileSystem& fs,
                                                                                      const io::Checkpoint& base,
                                                                                      DType dtype) {
  AQT_ASSIGN_OR_RETURN(const StoredConfig config, ReadStoredConfig(fs, base));
  absl::StatusOr<std::unique_ptr<DequantizedSource>> source = Open(base, config, dtype);
  if (absl::IsFailedPrecondition(source.status())) return std::unique_ptr<DequantizedSource>();
  return source;
}

absl::Status DequantizedSource::SetTensors(const StoredFormat& format, StoredWeights found,
                                           const std::set<absl::string_view>& consumed) {
  // A weight takes the place of the tensor that holds its values.
  struct Entry {
    io::TensorInfo info;
    int64_t begin;  // of that tensor
  };
  std::vector<Entry> entries;
  for (const io::TensorInfo& tensor : base_.tensors()) {
    if (!consumed.contains(tensor.name)) entries.push_back({tensor, tensor.begin});
  }
  std::set<absl::string_view> names;
  for (const std::unique_ptr<StoredWeight>& weight : found.weights) {
    const io::TensorInfo* const other = base_.Find(weight->name());
    if ((other != nullptr && !consumed.contains(other->name)) || !names.insert(weight->name()).second) {
      return absl::DataLossError(absl::StrCat("'", io::PrintableLine(base_.path()), "' has the weight ",
                                              io::Printable(weight->name()), " twice, once of them quantized as ",
                                              io::Printable(weight->main().name), "; remove one"));
    }
    io::TensorInfo info;
    info.name = weight->name();
    info.dtype = *io::ToFileDType(dtype_);
    info.shape = weight->shape();
    info.shard = weight->main().shard;
    AQT_ASSIGN_OR_RETURN(info.end, io::TensorBytes(info.dtype, info.shape));
    entries.push_back({std::move(info), weight->main().begin});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.info.shard, a.begin, a.info.name) < std::tie(b.info.shard, b.begin, b.info.name);
  });
  std::vector<io::TensorInfo> tensors;
  for (Entry& entry : entries) tensors.push_back(std::move(entry.info));
  format_ = std::string(format.name());
  details_ = std::move(found.details);
  notes_ = std::move(found.notes);
  weights_ = std::move(found.weights);
  std::sort(weights_.begin(), weights_.end(), [](const auto& a, const auto& b) { return a->name() < b->name(); });
  std::vector<Shard> shards = base_.shards();
  for (Shard& shard : shards) {
    std::erase_if(shard.metadata, [](const auto& entry) { return native::IsNativeKey(entry.first); });
  }
  SetContents(base_.path(), std::move(shards), std::move(tensors), base_.warnings());
  return absl::OkStatus();
}

std::string DequantizedSource::Description() const {
  return absl::StrCat(format_, details_.empty() ? "" : ": ", details_);
}

const StoredWeight* DequantizedSource::FindWeight(absl::string_view name) const {
  const auto it = std::lower_bound(weights_.begin(), weights_.end(), name,
                                   [](const auto& weight, absl::string_view n) { return weight->name() < n; });
  return it != weights_.end() && (*it)->name() == name ? it->get() : nullptr;
}

absl::Status DequantizedSource::CheckFinite(const StoredWeight& weight, int64_t first_row,
                                            absl::Span<const float> values) const {
  const int64_t bad = kernels::FirstNotFiniteIn(dtype_, values.data(), static_cast<int64_t>(values.size()));
  if (bad < 0) return absl::OkStatus();
  const bool overflow = kernels::FirstNotFinite(&values[bad], DType::kF32, 1) < 0;
  return absl::DataLossError(absl::StrCat(
      stored::Describe(base_, weight.main()), ": element [", first_row + bad / weight.cols(), ",", bad % weight.cols(),
      "] of ", io::Printable(weight.name()),
      overflow ? absl::StrCat(" is ", values[bad], ", which overflows ", ToString(dtype_), "; use bf16 or f32")
               : std::string(" is a NaN or an infinity, because a scale or a value is; the file is "
                             "damaged")));
}

absl::Status DequantizedSource::ReadBytes(const io::TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  const StoredWeight* const weight = FindWeight(tensor.name);
  if (weight == nullptr) return base_.Read(tensor, offset, dst);
  const int64_t row_bytes = weight->cols() * SizeOf(dtype_), bytes = static_cast<int64_t>(dst.size());
  const int64_t begin = offset / row_bytes, end = (offset + bytes + row_bytes - 1) / row_bytes;
  const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / weight->cols());
  const int64_t most = std::min(at_once, end - begin) * weight->cols();
  const auto memory = [most](int64_t size) { return std::make_unique_for_overwrite<uint8_t[]>(most * size); };
  std::unique_ptr<uint8_t[]> decoded, rounded;  // made when they are needed
  for (int64_t row = begin; row < end; row += at_once) {
    const int64_t n = std::min(at_once, end - row), elements = n * weight->cols();
    const int64_t first_byte = row * row_bytes, last_byte = (row + n) * row_bytes;
    const int64_t from = std::max(first_byte, offset), to = std::min(last_byte, offset + bytes);
    const bool whole = from == first_byte && to == last_byte;
    uint8_t* const target = dst.data() + from - offset;
    const bool in_place = whole && dtype_ == DType::kF32 && reinterpret_cast<uintptr_t>(target) % alignof(float) == 0;
    if (!in_place && decoded == nullptr) decoded = memory(sizeof(float));
    float* const values = reinterpret_cast<float*>(in_place ? target : decoded.get());
    AQT_RETURN_IF_ERROR(weight->DecodeRows(reader_, row, n, values));
    AQT_RETURN_IF_ERROR(CheckFinite(*weight, row, absl::MakeConstSpan(values, static_cast<size_t>(elements))));
    if (in_place) continue;
    if (whole) {
      stored_values::Round(values, elements, dtype_, target);
      continue;
    }
    if (rounded == nullptr) rounded = memory(SizeOf(dtype_));
    stored_values::Round(values, elements, dtype_, rounded.get());
    std::memcpy(target, rounded.get() + from - first_byte, static_cast<size_t>(to - from));
  }
  return absl::OkStatus();
}

}  // namespace aqt::stored
