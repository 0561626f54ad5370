// The header of a safetensors file: reading and writing its text.

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/tensors/safetensors.h"

namespace aqt::io {
namespace {

constexpr char kMetadataKey[] = "__metadata__";
// Only skipped fields can nest deeper.
constexpr int kMaxDepth = 64;

absl::Status Damaged(absl::string_view name, absl::string_view cause) {
  return absl::DataLossError(absl::StrCat("tensor ", QuoteForMessage(name), ": ", cause));
}

std::vector<const std::string*> Names(const std::vector<TensorInfo>& tensors) {
  std::vector<const std::string*> names;
  names.reserve(tensors.size());
  for (const TensorInfo& t : tensors) names.push_back(&t.name);
  return names;
}

std::vector<const std::string*> Keys(const Metadata& metadata) {
  std::vector<const std::string*> keys;
  for (const auto& [key, value] : metadata) keys.push_back(&key);
  return keys;
}

// Builds a SafetensorsHeader from the events of its JSON text. Checks each entry by itself, but not their tiling.
class HeaderHandler final : public JsonHandler {
 public:
  SafetensorsHeader header;

  absl::Status StartObject() override {
    switch (state_) {
      case State::kStart: state_ = State::kRoot; return absl::OkStatus();
      case State::kRoot:
        if (key_ != kMetadataKey) {
          state_ = State::kEntry;
          entry_ = {};
          entry_.info.name = std::move(key_);
          return absl::OkStatus();
        }
        AQT_RETURN_IF_ERROR(BeginMetadata());
        state_ = State::kMetadata;
        return absl::OkStatus();
      case State::kEntry: return SkipOrFail();
      case State::kSkip: ++skip_depth_; return absl::OkStatus();
      default: return Unexpected();
    }
  }

  absl::Status EndObject() override {
    if (state_ == State::kSkip) return LeaveSkipped();
    const bool entry = state_ == State::kEntry;
    state_ = state_ == State::kRoot ? State::kEnd : State::kRoot;
    return entry ? FinishEntry() : absl::OkStatus();
  }

  absl::Status StartArray() override {
    if (state_ == State::kSkip) {
      ++skip_depth_;
      return absl::OkStatus();
    }
    if (state_ != State::kEntry) return Unexpected();
    if (field_ == Field::kShape) {
      state_ = State::kShape;
    } else if (field_ == Field::kOffsets) {
      state_ = State::kOffsets;
    } else {
      return SkipOrFail();
    }
    return absl::OkStatus();
  }

  absl::Status EndArray() override {
    if (state_ == State::kSkip) return LeaveSkipped();
    state_ = State::kEntry;
    return absl::OkStatus();
  }

  absl::Status Key(std::string& key) override {
    if (state_ == State::kSkip) return absl::OkStatus();
    if (state_ == State::kEntry) return EntryKey(key);
    key_ = std::move(key);
    return absl::OkStatus();
  }

  absl::Status Scalar(const JsonScalar& value) override {
    switch (state_) {
      case State::kRoot:  // the format's own package reads "__metadata__": null as no metadata
        if (key_ != kMetadataKey || value.kind != JsonScalar::kNull) return Unexpected();
        return BeginMetadata();
      case State::kSkip: return absl::OkStatus();
      case State::kMetadata:
        if (value.kind != JsonScalar::kString) return Unexpected();
        header.metadata.emplace_back(std::move(key_), std::move(*value.string));
        return absl::OkStatus();
      case State::kEntry:
        if (field_ == Field::kOther) return absl::OkStatus();
        if (field_ != Field::kDType || value.kind != JsonScalar::kString) return Unexpected();
        return EntryDType(*value.string);
      case State::kShape:
        if (value.kind != JsonScalar::kUnsigned || value.unsigned_value > kMaxInt64) return Unexpected();
        if (entry_.info.shape.rank() == kMaxTensorRank) {
          return Fail(absl::StrCat("the rank exceeds ", kMaxTensorRank));
        }
        entry_.info.shape.push_back(static_cast<int64_t>(value.unsigned_value));
        return absl::OkStatus();
      case State::kOffsets:
        if (value.kind != JsonScalar::kUnsigned || value.unsigned_value > kMaxInt64 || entry_.num_offsets == 2) {
          return Unexpected();
        }
        (entry_.num_offsets++ == 0 ? entry_.info.begin : entry_.info.end) = static_cast<int64_t>(value.unsigned_value);
        return absl::OkStatus();
      default: return Unexpected();
    }
  }

 private:
  enum class State { kStart, kRoot, kMetadata, kEntry, kShape, kOffsets, kSkip, kEnd };
  enum class Field { kDType, kShape, kOffsets, kOther };
  struct Entry {
    TensorInfo info;
    bool has_dtype = false, has_shape = false, has_offsets = false;
    int num_offsets = 0;
  };
  static constexpr char kBadOffsets[] = "data_offsets is not a list of two integers in 0 .. 2^63-1";
  static constexpr uint64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

  absl::Status Fail(absl::string_view cause) const { return Damaged(entry_.info.name, cause); }

  // The error for an event that is not allowed in the current state.
  absl::Status Unexpected() const {
    switch (state_) {
      case State::kStart: return absl::DataLossError("the header is not a JSON object");
      case State::kRoot:
        if (key_ == kMetadataKey) return absl::DataLossError("__metadata__ is not an object of strings");
        return Damaged(key_, "its entry is not an object with dtype, shape and data_offsets");
      case State::kMetadata:
        return absl::DataLossError(absl::StrCat("__metadata__ ", QuoteForMessage(key_), ": the value is not a string"));
      case State::kEntry:
        if (field_ == Field::kDType) return Fail("dtype is not a string");
        [[fallthrough]];
      default:
        if (field_ == Field::kShape) return Fail("shape is not a list of integers in 0 .. 2^63-1");
        return Fail(kBadOffsets);
    }
  }

  absl::Status BeginMetadata() {
    if (has_metadata_) return absl::DataLossError("the header has __metadata__ twice");
    has_metadata_ = true;
    return absl::OkStatus();
  }

  absl::Status SkipOrFail() {
    if (field_ != Field::kOther) return Unexpected();
    state_ = State::kSkip;
    skip_depth_ = 1;
    return absl::OkStatus();
  }

  absl::Status LeaveSkipped() {
    if (--skip_depth_ == 0) state_ = State::kEntry;
    return absl::OkStatus();
  }

  absl::Status EntryKey(absl::string_view key) {
    bool* seen = nullptr;
    if (key == "dtype") {
      field_ = Field::kDType;
      seen = &entry_.has_dtype;
    } else if (key == "shape") {
      field_ = Field::kShape;
      seen = &entry_.has_shape;
    } else if (key == "data_offsets") {
      field_ = Field::kOffsets;
      seen = &entry_.has_offsets;
    } else {
      field_ = Field::kOther;
      return absl::OkStatus();
    }
    if (*seen) return Fail(absl::StrCat(key, " is given twice"));
    *seen = true;
    return absl::OkStatus();
  }

  absl::Status EntryDType(absl::string_view text) {
    const std::optional<FileDType> dtype = FileDTypeFromString(text);
    if (!dtype.has_value()) return Fail(absl::StrCat("unknown dtype ", QuoteForMessage(text)));
    entry_.info.dtype = *dtype;
    return absl::OkStatus();
  }

  absl::Status FinishEntry() {
    const TensorInfo& info = entry_.info;
    if (!entry_.has_dtype) return Fail("dtype is missing");
    if (!entry_.has_shape) return Fail("shape is missing");
    if (!entry_.has_offsets) return Fail("data_offsets is missing");
    if (entry_.num_offsets != 2) return Fail(kBadOffsets);
    if (info.begin > info.end)
      return Fail(absl::StrCat("data begins at ", info.begin, ", after its end at ", info.end));
    const absl::StatusOr<int64_t> bytes = TensorBytes(info.dtype, info.shape);
    if (!bytes.ok()) return Fail(bytes.status().message());
    if (*bytes != info.num_bytes()) {
      return Fail(absl::StrCat(ToString(info.dtype), info.shape.ToString(), " takes ", *bytes,
                               " bytes, but data_offsets [", info.begin, ",", info.end, "] span ", info.num_bytes()));
    }
    header.tensors.push_back(std::move(entry_.info));
    return absl::OkStatus();
  }

  State state_ = State::kStart;
  bool has_metadata_ = false;
  std::string key_;  // of the root or of the metadata
  Field field_ = Field::kOther;
  Entry entry_;
  int skip_depth_ = 0;
};

// The tensors, sorted by their data, must cover the data without holes or overlaps.
absl::Status CheckTiling(const std::vector<TensorInfo>& tensors, int64_t data_bytes) {
  int64_t covered = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& t : tensors) {
    if (t.begin < covered) {
      return Damaged(t.name, absl::StrCat("data begins at ", t.begin, " and overlaps the data of tensor ",
                                          QuoteForMessage(previous->name), ", which ends at ", covered));
    }
    if (t.begin > covered) {
      return Damaged(t.name, absl::StrCat("data begins at ", t.begin, ", and bytes ", covered, " to ", t.begin,
                                          " belong to no tensor"));
    }
    if (t.end > data_bytes) {
      return Damaged(t.name, absl::StrCat("data ends at ", t.end, ", but the file holds only ", data_bytes,
                                          " bytes of data; it is truncated"));
    }
    covered = t.end;
    previous = &t;
  }
  if (covered < data_bytes) {
    return absl::DataLossError(absl::StrCat(data_bytes - covered, " bytes after the last tensor belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

// ---- reading

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes) {
  HeaderHandler handler;
  if (absl::Status status = ParseJson(json, kMaxDepth, handler); !status.ok()) return Annotate(status, "header");
  SafetensorsHeader& header = handler.header;
  if (const std::string* name = FindDuplicate(Names(header.tensors))) return Damaged(*name, "the header has it twice");
  if (const std::string* key = FindDuplicate(Keys(header.metadata))) {
    return absl::DataLossError(absl::StrCat("__metadata__ has ", QuoteForMessage(*key), " twice"));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  AQT_RETURN_IF_ERROR(CheckTiling(header.tensors, data_bytes));
  return std::move(header);
}

// ---- writing

absl::StatusOr<SafetensorsLayout> LayOutSafetensors(std::vector<TensorSpec> tensors,
                                                    const SafetensorsWriterOptions& options) {
  if (options.alignment < 8 || options.alignment > 4096 ||
      !std::has_single_bit(static_cast<uint64_t>(options.alignment))) {
    return absl::InvalidArgumentError(
        absl::StrCat("safetensors: alignment ", options.alignment, " is not a power of two from 8 to 4096"));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  const auto too_long = [](int64_t header_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors: a header of ", header_bytes,
                                                   " bytes or more exceeds the limit of ", kMaxSafetensorsHeader,
                                                   "; write several files"));
  };
  // A lower bound from the texts, before any work is done.
  int64_t text_bytes = 0;
  for (const auto& [key, value] : options.metadata) text_bytes += static_cast<int64_t>(key.size() + value.size());
  for (const TensorSpec& spec : tensors) text_bytes += static_cast<int64_t>(spec.name.size());
  if (text_bytes > kMaxSafetensorsHeader) return too_long(text_bytes);

  SafetensorsLayout layout;
  layout.json = "{";
  if (const std::string* key = FindDuplicate(Keys(options.metadata))) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors: metadata has ", QuoteForMessage(*key), " twice"));
  }
  if (!options.metadata.empty()) {
    absl::StrAppend(&layout.json, "\"", kMetadataKey, "\":{");
    absl::string_view comma = "";
    for (const auto& [key, value] : options.metadata) {
      AQT_ASSIGN_OR_RETURN(const std::string quoted_key, JsonQuote(key));
      AQT_ASSIGN_OR_RETURN(const std::string quoted_value, JsonQuote(value));
      absl::StrAppend(&layout.json, comma, quoted_key, ":", quoted_value);
      comma = ",";
    }
    layout.json += '}';
  }
  layout.tensors.reserve(tensors.size());
  for (TensorSpec& spec : tensors) {
    const auto refuse = [&](absl::string_view cause) {
      return absl::InvalidArgumentError(absl::StrCat("safetensors: tensor ", QuoteForMessage(spec.name), ": ", cause));
    };
    if (spec.name == kMetadataKey) return refuse("the format reserves this name");
    const absl::StatusOr<std::string> quoted = JsonQuote(spec.name);
    if (!quoted.ok()) return refuse("the name is not UTF-8");
    const absl::StatusOr<int64_t> bytes = TensorBytes(spec.dtype, spec.shape);
    if (!bytes.ok()) return refuse(bytes.status().message());
    const int64_t begin = layout.data_bytes;
    if (__builtin_add_overflow(begin, *bytes, &layout.data_bytes)) return refuse("the data exceed 2^63-1 bytes");
    absl::StrAppend(&layout.json, layout.json.size() > 1 ? "," : "", *quoted, ":{\"dtype\":\"", ToString(spec.dtype),
                    "\",\"shape\":", spec.shape.ToString());
    absl::StrAppend(&layout.json, ",\"data_offsets\":[", begin, ",", layout.data_bytes, "]}");
    layout.tensors.push_back({std::move(spec), begin, layout.data_bytes});
  }
  if (const std::string* name = FindDuplicate(Names(layout.tensors))) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors: tensor ", QuoteForMessage(*name), " is given twice"));
  }
  layout.json += '}';
  const int64_t before_padding = 8 + static_cast<int64_t>(layout.json.size());
  layout.json.append(-before_padding & (options.alignment - 1), ' ');
  const int64_t header_bytes = static_cast<int64_t>(layout.json.size());
  if (header_bytes > kMaxSafetensorsHeader) return too_long(header_bytes);
  if (layout.data_bytes > std::numeric_limits<int64_t>::max() - 8 - header_bytes) {
    return absl::InvalidArgumentError("safetensors: the file would exceed 2^63-1 bytes");
  }
  return layout;
}

}  // namespace aqt::io
