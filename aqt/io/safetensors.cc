#include "aqt/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's byte order is taken to be the machine's");

constexpr char kMetadataKey[] = "__metadata__";
// Deeper nesting can only be in fields that are skipped.
constexpr int kMaxDepth = 64;
// NumPy's limit. Keeps messages short, too.
constexpr int64_t kMaxRank = 64;

struct FileDTypeRow {
  absl::string_view name;
  int bits;
  std::optional<DType> dtype;
};

constexpr FileDTypeRow kRows[kNumFileDTypes] = {
    {"BOOL", 8, DType::kBool},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, DType::kU8},
    {"I8", 8, DType::kS8},
    {"F8_E5M2", 8, DType::kE5M2},
    {"F8_E4M3", 8, DType::kE4M3FN},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, DType::kS16},
    {"U16", 16, {}},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kS32},
    {"U32", 32, DType::kU32},
    {"F32", 32, DType::kF32},
    {"C64", 64, {}},
    {"F64", 64, DType::kF64},
    {"I64", 64, DType::kS64},
    {"U64", 64, {}},
};

const FileDTypeRow& Row(FileDType dtype) { return kRows[static_cast<int>(dtype)]; }

absl::Status Damaged(absl::string_view name, absl::string_view cause) {
  return absl::DataLossError(absl::StrCat("tensor ", QuoteForMessage(name), ": ", cause));
}

std::vector<int32_t> SortByName(const std::vector<TensorInfo>& tensors) {
  std::vector<int32_t> by_name(tensors.size());
  for (size_t i = 0; i < by_name.size(); ++i) by_name[i] = static_cast<int32_t>(i);
  std::sort(by_name.begin(), by_name.end(), [&](int32_t a, int32_t b) { return tensors[a].name < tensors[b].name; });
  return by_name;
}

const TensorInfo* FindByName(const std::vector<TensorInfo>& tensors, const std::vector<int32_t>& by_name,
                             absl::string_view name) {
  const auto it = std::lower_bound(by_name.begin(), by_name.end(), name, [&](int32_t i, absl::string_view n) {
    return absl::string_view(tensors[i].name) < n;
  });
  return it != by_name.end() && tensors[*it].name == name ? &tensors[*it] : nullptr;
}

// The name that two of `tensors` have, or null.
const std::string* FindDuplicate(const std::vector<TensorInfo>& tensors) {
  const std::vector<int32_t> by_name = SortByName(tensors);
  const auto same = [&](int32_t a, int32_t b) { return tensors[a].name == tensors[b].name; };
  const auto it = std::adjacent_find(by_name.begin(), by_name.end(), same);
  return it == by_name.end() ? nullptr : &tensors[*it].name;
}

const std::string* FindDuplicate(const Metadata& metadata) {
  std::vector<const std::string*> keys;
  for (const auto& [key, value] : metadata) keys.push_back(&key);
  std::sort(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto it = std::adjacent_find(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a == *b; });
  return it == keys.end() ? nullptr : *it;
}

// Builds a SafetensorsHeader from the events of its JSON text and checks each entry alone.
class HeaderHandler final : public JsonHandler {
 public:
  SafetensorsHeader header;

  absl::Status StartObject() override {
    switch (state_) {
      case State::kStart:
        state_ = State::kRoot;
        return absl::OkStatus();
      case State::kRoot:
        if (key_ != kMetadataKey) {
          state_ = State::kEntry;
          entry_ = {};
          entry_.info.name = std::move(key_);
          return absl::OkStatus();
        }
        if (has_metadata_) return absl::DataLossError("the header has __metadata__ twice");
        has_metadata_ = true;
        state_ = State::kMetadata;
        return absl::OkStatus();
      case State::kEntry:
        return SkipOrFail();
      case State::kSkip:
        ++skip_depth_;
        return absl::OkStatus();
      default:
        return Unexpected();
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
      case State::kSkip:
        return absl::OkStatus();
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
        if (entry_.info.shape.rank() == kMaxRank) {
          return Fail(absl::StrCat("the rank exceeds ", kMaxRank));
        }
        entry_.info.shape.push_back(static_cast<int64_t>(value.unsigned_value));
        return absl::OkStatus();
      case State::kOffsets:
        if (value.kind != JsonScalar::kUnsigned || value.unsigned_value > kMaxInt64 || entry_.num_offsets == 2) {
          return Unexpected();
        }
        (entry_.num_offsets++ == 0 ? entry_.info.begin : entry_.info.end) = static_cast<int64_t>(value.unsigned_value);
        return absl::OkStatus();
      default:
        return Unexpected();
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

  // An event that does not fit where the parse is.
  absl::Status Unexpected() const {
    switch (state_) {
      case State::kStart:
        return absl::DataLossError("the header is not a JSON object");
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

// The tensors, sorted by their data, must cover the data without hole or overlap.
absl::Status CheckTiling(const std::vector<TensorInfo>& tensors, int64_t data_bytes) {
  int64_t covered = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& t : tensors) {
    if (t.begin < covered) {
      return Damaged(t.name, absl::StrCat("data begins at ", t.begin, " and overlaps that of tensor ",
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

// What a file may be when it is not safetensors; "" when nothing is recognised.
absl::string_view GuessFormat(absl::string_view begin) {
  if (absl::StartsWith(begin, "version "))
    return "; it looks like a Git LFS pointer: fetch the file with `git lfs pull`";
  if (absl::StartsWith(begin, "PK\x03\x04"))
    return "; it looks like a zip archive, such as a PyTorch .bin or NumPy .npz";
  if (absl::StartsWith(begin, "GGUF")) return "; it looks like a GGUF file";
  if (absl::StartsWith(begin, "<")) return "; it looks like a web page, not the file meant";
  return "";
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const RandomAccessFile& file, int64_t* data_begin) {
  constexpr int64_t kLengthBytes = 8;
  if (file.size() < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("the file has ", file.size(), " bytes, fewer than the 8 of the header length"));
  }
  char length_bytes[kLengthBytes];
  AQT_RETURN_IF_ERROR(file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(length_bytes), kLengthBytes)));
  uint64_t length = 0;
  std::copy_n(length_bytes, kLengthBytes, reinterpret_cast<char*>(&length));
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    return absl::DataLossError(absl::StrCat("the header length ", length, " exceeds the limit of ",
                                            kMaxSafetensorsHeader,
                                            GuessFormat(absl::string_view(length_bytes, kLengthBytes))));
  }
  const int64_t data_bytes = file.size() - kLengthBytes - static_cast<int64_t>(length);
  if (data_bytes < 0) {
    return absl::DataLossError(absl::StrCat("the header length ", length, " exceeds the file, which has ", file.size(),
                                            " bytes; it is truncated"));
  }
  std::string json(length, '\0');
  AQT_RETURN_IF_ERROR(file.Read(kLengthBytes, absl::MakeSpan(reinterpret_cast<uint8_t*>(json.data()), json.size())));
  *data_begin = file.size() - data_bytes;
  return ParseSafetensorsHeader(json, data_bytes);
}

}  // namespace

// ---- dtypes

int BitWidth(FileDType dtype) { return Row(dtype).bits; }
absl::string_view ToString(FileDType dtype) { return Row(dtype).name; }
std::optional<DType> ToDType(FileDType dtype) { return Row(dtype).dtype; }

std::optional<FileDType> FileDTypeFromString(absl::string_view text) {
  for (int i = 0; i < kNumFileDTypes; ++i) {
    if (kRows[i].name == text) return static_cast<FileDType>(i);
  }
  return std::nullopt;
}

std::optional<FileDType> ToFileDType(DType dtype) {
  for (int i = 0; i < kNumFileDTypes; ++i) {
    if (kRows[i].dtype == dtype) return static_cast<FileDType>(i);
  }
  return std::nullopt;
}

std::ostream& operator<<(std::ostream& os, FileDType dtype) { return os << ToString(dtype); }

absl::StatusOr<int64_t> TensorBytes(FileDType dtype, const Shape& shape) {
  if (shape.rank() > kMaxRank) return absl::InvalidArgumentError(absl::StrCat("the rank exceeds ", kMaxRank));
  int64_t bits = BitWidth(dtype);
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0)
      return absl::InvalidArgumentError(absl::StrCat("shape ", shape.ToString(), " has a negative extent"));
    empty |= extent == 0;
    // An extent of 0 saves no shape whose other extents overflow.
    if (extent != 0 && __builtin_mul_overflow(bits, extent, &bits)) {
      return absl::InvalidArgumentError(absl::StrCat(ToString(dtype), shape.ToString(), " exceeds 2^63-1 bits"));
    }
  }
  if (empty) return 0;
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(dtype), shape.ToString(), " takes ", bits, " bits, which is no whole number of bytes"));
  }
  return bits / 8;
}

// ---- reading

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes) {
  HeaderHandler handler;
  if (absl::Status status = ParseJson(json, kMaxDepth, handler); !status.ok()) return Annotate(status, "header");
  SafetensorsHeader& header = handler.header;
  if (const std::string* name = FindDuplicate(header.tensors)) return Damaged(*name, "the header has it twice");
  if (const std::string* key = FindDuplicate(header.metadata)) {
    return absl::DataLossError(absl::StrCat("__metadata__ has ", QuoteForMessage(*key), " twice"));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  AQT_RETURN_IF_ERROR(CheckTiling(header.tensors, data_bytes));
  return std::move(header);
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const FileSystem& fs, absl::string_view path) {
  SafetensorsReader reader;
  AQT_ASSIGN_OR_RETURN(reader.file_, fs.OpenForReading(path));
  absl::StatusOr<SafetensorsHeader> header = ReadHeader(*reader.file_, &reader.data_begin_);
  if (!header.ok()) return Annotate(header.status(), absl::StrCat("cannot read safetensors file '", path, "'"));
  reader.header_ = *std::move(header);
  reader.by_name_ = SortByName(reader.header_.tensors);
  return reader;
}

const TensorInfo* SafetensorsReader::Find(absl::string_view name) const {
  return FindByName(header_.tensors, by_name_, name);
}

absl::Status SafetensorsReader::Read(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  const int64_t bytes = static_cast<int64_t>(dst.size());
  if (offset < 0 || offset > tensor.num_bytes() || bytes > tensor.num_bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat("'", path(), "', tensor ", QuoteForMessage(tensor.name), ": ", bytes,
                                              " bytes at ", offset, " are not inside its ", tensor.num_bytes(),
                                              " bytes"));
  }
  return file_->Read(data_begin_ + tensor.begin + offset, dst);
}

absl::StatusOr<Array> SafetensorsReader::ReadArray(absl::string_view name) const {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("'", path(), "' has no tensor ", QuoteForMessage(name)));
  }
  return ReadArray(*tensor);
}

absl::StatusOr<Array> SafetensorsReader::ReadArray(const TensorInfo& tensor) const {
  const std::optional<DType> dtype = ToDType(tensor.dtype);
  if (!dtype.has_value()) {
    return absl::UnimplementedError(absl::StrCat("'", path(), "', tensor ", QuoteForMessage(tensor.name),
                                                 ": no array type for ", ToString(tensor.dtype), "; read its bytes"));
  }
  ArrayBuilder builder(*dtype, tensor.shape);
  const absl::Span<uint8_t> bytes = absl::MakeSpan(static_cast<uint8_t*>(builder.data()), tensor.num_bytes());
  AQT_RETURN_IF_ERROR(Read(tensor, 0, bytes));
  if (*dtype == DType::kBool) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte > 1; });
    if (bad != bytes.end()) {
      return Annotate(Damaged(tensor.name, absl::StrCat("element ", bad - bytes.begin(), " of a BOOL is ", int{*bad})),
                      absl::StrCat("'", path(), "'"));
    }
  }
  return std::move(builder).Build();
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
  // The texts alone, before the work.
  int64_t text_bytes = 0;
  for (const auto& [key, value] : options.metadata) text_bytes += static_cast<int64_t>(key.size() + value.size());
  for (const TensorSpec& spec : tensors) text_bytes += static_cast<int64_t>(spec.name.size());
  if (text_bytes > kMaxSafetensorsHeader) return too_long(text_bytes);

  SafetensorsLayout layout;
  layout.json = "{";
  if (const std::string* key = FindDuplicate(options.metadata)) {
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
  if (const std::string* name = FindDuplicate(layout.tensors)) {
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

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<OutputFile> file, SafetensorsLayout layout)
    : file_(std::move(file)), layout_(std::move(layout)), by_name_(SortByName(layout_.tensors)) {}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const FileSystem& fs,
                                                                             absl::string_view path,
                                                                             std::vector<TensorSpec> tensors,
                                                                             const SafetensorsWriterOptions& options) {
  AQT_ASSIGN_OR_RETURN(SafetensorsLayout layout, LayOutSafetensors(std::move(tensors), options));
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, fs.CreateOutput(path, options.output));
  const uint64_t length = layout.json.size();
  std::string header(reinterpret_cast<const char*>(&length), sizeof(length));
  header += std::exchange(layout.json, {});
  AQT_RETURN_IF_ERROR(file->Reserve(static_cast<int64_t>(header.size()) + layout.data_bytes));
  AQT_RETURN_IF_ERROR(
      file->Write(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(header.data()), header.size())));
  auto writer = absl::WrapUnique(new SafetensorsWriter(std::move(file), std::move(layout)));
  writer->data_begin_ = static_cast<int64_t>(header.size());
  return writer;
}

const TensorInfo* SafetensorsWriter::Find(absl::string_view name) const {
  return FindByName(layout_.tensors, by_name_, name);
}

absl::Status SafetensorsWriter::Write(absl::string_view name, int64_t offset, absl::Span<const uint8_t> data) {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("'", path(), "': tensor ", QuoteForMessage(name), " was not announced"));
  }
  const int64_t bytes = static_cast<int64_t>(data.size());
  if (offset < 0 || offset > tensor->num_bytes() || bytes > tensor->num_bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat("'", path(), "', tensor ", QuoteForMessage(name), ": ", bytes,
                                              " bytes at ", offset, " are not inside its ", tensor->num_bytes(),
                                              " bytes"));
  }
  if (bytes == 0) return absl::OkStatus();
  const int64_t begin = tensor->begin + offset;
  AQT_RETURN_IF_ERROR(MarkWritten(*tensor, begin, begin + bytes));
  const absl::Status status = file_->Write(data_begin_ + begin, data);
  if (!status.ok()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    status_.Update(status);
  }
  return status;
}

absl::Status SafetensorsWriter::MarkWritten(const TensorInfo& tensor, int64_t begin, int64_t end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = written_.lower_bound(begin);
  const auto previous = next == written_.begin() ? written_.end() : std::prev(next);
  if ((next != written_.end() && next->first < end) || (previous != written_.end() && previous->second > begin)) {
    return absl::FailedPreconditionError(absl::StrCat("'", path(), "', tensor ", QuoteForMessage(tensor.name),
                                                      ": bytes ", begin - tensor.begin, " to ", end - tensor.begin,
                                                      " are written a second time, in part or all"));
  }
  if (next != written_.end() && next->first == end) {
    end = next->second;
    written_.erase(next);
  }
  if (previous != written_.end() && previous->second == begin) {
    previous->second = end;
  } else {
    written_.emplace(begin, end);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::WriteArray(absl::string_view name, const Array& array) {
  const TensorInfo* tensor = Find(name);
  if (tensor != nullptr && (ToDType(tensor->dtype) != array.dtype() || tensor->shape != array.shape())) {
    return absl::InvalidArgumentError(absl::StrCat("'", path(), "', tensor ", QuoteForMessage(name), ": announced as ",
                                                   ToString(tensor->dtype), tensor->shape.ToString(), ", given as ",
                                                   array.aval().ToString()));
  }
  return Write(name, 0, absl::MakeConstSpan(static_cast<const uint8_t*>(array.data()), array.num_bytes()));
}

absl::Status SafetensorsWriter::Finish() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    AQT_RETURN_IF_ERROR(status_);
    const bool starts = !written_.empty() && written_.begin()->first == 0;
    const int64_t covered = starts ? written_.begin()->second : 0;
    if (covered < layout_.data_bytes) {
      const auto missing = std::find_if(layout_.tensors.begin(), layout_.tensors.end(),
                                        [&](const TensorInfo& t) { return t.end > covered; });
      return absl::FailedPreconditionError(absl::StrCat("'", path(), "' is not complete: tensor ",
                                                        QuoteForMessage(missing->name), " lacks its data from byte ",
                                                        covered - missing->begin, " on"));
    }
  }
  return file_->Commit();
}

}  // namespace aqt::io
