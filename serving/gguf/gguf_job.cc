#include "serving/gguf/gguf_job.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/gguf/tensor_values.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "aqt/kernels/quantize/finite.h"
#include "aqt/quant/weights/ggml_blocks.h"
#include "aqt/quant/weights/stored_values.h"
#include "serving/convert/output.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/parallel.h"

namespace aqt::serving {
namespace {

using ggml::Type;
using gguf::GgufTensor;

// Values that are converted at a time: a multiple of every block.
constexpr int64_t kValuesAtOnce = 1 << 18;
// Bytes that are copied at a time.
constexpr int64_t kBytesAtOnce = 1 << 20;
// For all threads together.
constexpr int64_t kMemoryBudget = 32 << 20;

DType DTypeOf(Type type) { return type == Type::kF16 ? DType::kF16 : type == Type::kBF16 ? DType::kBF16 : DType::kF32; }

// A part of the work.
struct Piece {
  size_t tensor = 0;  // of the plan
  // Values of a tensor that changes, else bytes.
  int64_t begin = 0;
  int64_t end = 0;
};

class Converter {
 public:
  Converter(const gguf::GgufModel& model, const GgufPlan& plan, gguf::GgufWriter& writer, Progress* progress)
      : model_(model), plan_(plan), writer_(writer), progress_(progress) {
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
      const GgufTensor& from = From(i);
      const bool changed = plan.tensors[i].changed;
      const int64_t size = changed ? from.shape.num_elements() : from.num_bytes();
      const int64_t step = changed ? kValuesAtOnce : kBytesAtOnce;
      for (int64_t begin = 0; begin < size; begin += step) pieces_.push_back({i, begin, std::min(size, begin + step)});
    }
  }

  absl::Status Run(int jobs, const std::atomic<bool>* cancelled) const {
    const ParallelOptions options = {.threads = jobs, .memory_budget = kMemoryBudget};
    return ParallelRun(
        static_cast<int64_t>(pieces_.size()), options, [&](int64_t i) { return MemoryOf(pieces_[i]); },
        [&](int64_t i) -> absl::Status {
          AQT_RETURN_IF_ERROR(CheckCancelled(cancelled));
          const Piece& piece = pieces_[i];
          AQT_RETURN_IF_ERROR(plan_.tensors[piece.tensor].changed ? Encode(piece) : Copy(piece));
          if (progress_ != nullptr) progress_->Add(InputBytes(piece), From(piece.tensor).name);
          return absl::OkStatus();
        });
  }

 private:
  const gguf::GgufFile& FileOf(size_t tensor) const { return model_.files()[plan_.tensors[tensor].file]; }
  const GgufTensor& From(size_t tensor) const { return FileOf(tensor).tensors()[plan_.tensors[tensor].tensor]; }

  int64_t InputBytes(const Piece& piece) const {
    const int64_t n = piece.end - piece.begin;
    return plan_.tensors[piece.tensor].changed ? gguf::RowBytes(From(piece.tensor).type, n) : n;
  }
  int64_t MemoryOf(const Piece& piece) const {
    const int64_t n = piece.end - piece.begin;
    return plan_.tensors[piece.tensor].changed ? 3 * n * static_cast<int64_t>(sizeof(float)) : n;
  }

  absl::Status Copy(const Piece& piece) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(piece.end - piece.begin));
    AQT_RETURN_IF_ERROR(
        FileOf(piece.tensor).file().Read(From(piece.tensor).begin + piece.begin, absl::MakeSpan(bytes)));
    return OutputError(writer_.Write(piece.tensor, piece.begin, bytes));
  }

  absl::Status Encode(const Piece& piece) const {
    const Type type = plan_.tensors[piece.tensor].type;
    const int64_t n = piece.end - piece.begin;
    std::vector<float> values(static_cast<size_t>(n));
    AQT_RETURN_IF_ERROR(
        gguf::ReadFloats(FileOf(piece.tensor), From(piece.tensor), piece.begin, absl::MakeSpan(values)));
    std::vector<uint8_t> bytes(static_cast<size_t>(gguf::RowBytes(type, n)));
    int64_t bad = -1;
    if (ggml::CanEncode(type)) {
      bad = ggml::EncodeBlocks(type, values.data(), n / ggml::InfoOf(type).block_values, bytes.data());
    } else {
      bad = kernels::FirstNotFiniteIn(DTypeOf(type), values.data(), n);
      if (bad < 0) stored_values::Round(values.data(), n, DTypeOf(type), bytes.data());
    }
    if (bad >= 0) return BadValue(piece, bad, values[static_cast<size_t>(bad)]);
    return OutputError(writer_.Write(piece.tensor, gguf::RowBytes(type, piece.begin), bytes));
  }

  absl::Status BadValue(const Piece& piece, int64_t index, float value) const {
    const bool finite = std::isfinite(value);
    return absl::DataLossError(absl::StrCat(
        "'", io::PrintableLine(FileOf(piece.tensor).path()), "', tensor ", io::QuoteForMessage(From(piece.tensor).name),
        ": element ", piece.begin + index, finite ? absl::StrCat(" is ", value) : " is a NaN or an infinity",
        finite ? absl::StrCat(", too large for ", ggml::InfoOf(plan_.tensors[piece.tensor].type).name) : "",
        "; a rule with keep_float leaves the tensor as it is"));
  }

  const gguf::GgufModel& model_;
  const GgufPlan& plan_;
  gguf::GgufWriter& writer_;
  Progress* const progress_;
  std::vector<Piece> pieces_;
};

// What files of that kind say: the type that most values of matrices have, or nullopt if it has no number.
std::optional<uint32_t> FileTypeOf(const gguf::GgufModel& model, const GgufPlan& plan) {
  std::map<Type, int64_t> values;
  for (const GgufTensorPlan& tensor : plan.tensors) {
    const GgufTensor& from = model.files()[tensor.file].tensors()[tensor.tensor];
    if (from.shape.rank() >= 2) values[tensor.type] += from.shape.num_elements() / 32;
  }
  const auto most =
      std::max_element(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == values.end() || ggml::InfoOf(most->first).file_type == ggml::kNoFileType) return std::nullopt;
  return static_cast<uint32_t>(ggml::InfoOf(most->first).file_type);
}

// Replaces the item of that key, or adds it at the end.
void SetItem(gguf::MetadataItem item, std::vector<gguf::MetadataItem>& items) {
  const auto it = std::find_if(items.begin(), items.end(), [&](const auto& other) { return other.key == item.key; });
  if (it == items.end()) items.push_back(std::move(item));
  else *it = std::move(item);
}

// Checks the place. It may not be one of the files that are read.
absl::StatusOr<OutputPlace> CheckPlace(const io::FileSystem& fs, const gguf::GgufModel& model, const GgufJob& job) {
  const std::string shown = io::PrintableLine(job.output);
  OutputPlace place = {.path = job.output, .target = job.output, .is_file = true};
  AQT_ASSIGN_OR_RETURN(const bool has_folder, io::Exists(fs, io::FolderOf(job.output)));
  if (!has_folder) {
    return absl::NotFoundError(
        absl::StrCat("the folder of the output, ", io::PrintableLine(io::FolderOf(job.output)), ", does not exist"));
  }
  AQT_ASSIGN_OR_RETURN(const bool exists, io::Exists(fs, job.output));
  if (!exists) return place;
  AQT_ASSIGN_OR_RETURN(place.target, fs.RealPath(job.output));
  std::vector<std::string> read = {job.recipe.config_file};
  for (const gguf::GgufFile& file : model.files()) read.push_back(file.path());
  for (const std::string& path : read) {
    if (path.empty()) continue;
    AQT_ASSIGN_OR_RETURN(const bool same, io::SameFile(fs, path, job.output));
    if (same)
      return absl::InvalidArgumentError(absl::StrCat("the output ", shown, " is a file that is read; choose another"));
  }
  AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(job.output));
  if (info.kind != io::FileKind::kRegular) {
    return absl::FailedPreconditionError(absl::StrCat("the output ", shown, " is not a file; choose another name"));
  }
  if (!job.force) return absl::AlreadyExistsError(absl::StrCat("the output ", shown, " exists; --force replaces it"));
  place.replace = true;
  return place;
}

absl::StatusOr<Recipe> LoadGgufRecipe(const io::FileSystem& fs, const GgufJob& job) {
  AQT_ASSIGN_OR_RETURN(Recipe recipe, LoadRecipe(fs, job.recipe));
  if (!recipe.config.has_value() || recipe.keep_non_finite) {
    return absl::InvalidArgumentError(
        absl::StrCat(!recipe.config.has_value() ? "--scheme-from" : "keeping weights that are not finite",
                     " is not possible for a GGUF file; use --preset or --config, and rules with keep_float"));
  }
  return recipe;
}

}  // namespace

ConvertReport ToConvertReport(const GgufReport& report) {
  ConvertReport result;
  result.num_tensors = report.num_tensors;
  result.num_quantized = report.num_changed;
  result.old_bytes = report.old_bytes;
  result.new_bytes = report.new_bytes;
  result.warnings = report.warnings;
  return result;
}

bool IsGgufName(absl::string_view path) { return absl::EndsWithIgnoreCase(path, gguf::kGgufSuffix); }

absl::StatusOr<std::vector<gguf::MetadataItem>> GgufMetadata(const gguf::GgufModel& model, const GgufPlan& plan) {
  const gguf::GgufFile& file = model.first();
  std::vector<gguf::MetadataItem> items;
  for (const gguf::MetadataEntry& entry : file.metadata()) {
    if (!absl::StartsWith(entry.key, "split.")) items.push_back(gguf::CopiedItem(file, entry));
  }
  if (const std::optional<uint32_t> type = FileTypeOf(model, plan); type.has_value()) {
    SetItem(gguf::U32Item(gguf::kFileTypeKey, *type), items);
  }
  AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> version, file.Integer(gguf::kQuantizationVersionKey));
  bool blocks = false;
  for (const GgufTensorPlan& tensor : plan.tensors) blocks |= ggml::InfoOf(tensor.type).block_values > 1;
  if (blocks && version.has_value() && *version != gguf::kQuantizationVersion) {
    return absl::UnimplementedError(
        absl::StrCat("'", io::PrintableLine(file.path()), "': ", gguf::kQuantizationVersionKey, " is ", *version,
                     "; only ", gguf::kQuantizationVersion, " is known: make the file again with a current tool"));
  }
  if (blocks) SetItem(gguf::U32Item(gguf::kQuantizationVersionKey, gguf::kQuantizationVersion), items);
  return items;
}

absl::StatusOr<GgufReport> RunGgufJob(const io::FileSystem& fs, const GgufJob& job) {
  AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadGgufRecipe(fs, job));
  AQT_ASSIGN_OR_RETURN(const gguf::GgufModel model, gguf::GgufModel::Open(fs, job.input));
  AQT_ASSIGN_OR_RETURN(const OutputPlace first, CheckPlace(fs, model, job));
  AQT_ASSIGN_OR_RETURN(
      GgufPlan plan,
      MakeGgufPlan(model, *recipe.config, {.strict = recipe.strict, .allow_requantize = job.allow_requantize}));
  AQT_ASSIGN_OR_RETURN(const std::vector<gguf::MetadataItem> metadata, GgufMetadata(model, plan));
  absl::StatusOr<std::unique_ptr<io::FileLock>> lock = LockOutput(fs, first);
  if (!lock.ok()) return OutputError(lock.status());
  // Another run may have written there since the first check.
  AQT_ASSIGN_OR_RETURN(const OutputPlace place, CheckPlace(fs, model, job));
  AQT_RETURN_IF_ERROR(CheckSpace(fs, place, plan.new_bytes));

  std::vector<gguf::GgufTensorSpec> tensors;
  for (const GgufTensorPlan& tensor : plan.tensors) {
    const GgufTensor& from = model.files()[tensor.file].tensors()[tensor.tensor];
    tensors.push_back({from.name, tensor.type, from.shape});
  }
  const gguf::GgufWriterOptions options = {.version = model.first().version(),
                                           .alignment = model.first().alignment(),
                                           .output = {.overwrite = place.replace}};
  absl::StatusOr<std::unique_ptr<gguf::GgufWriter>> writer =
      gguf::GgufWriter::Create(fs, job.output, metadata, tensors, options);
  if (!writer.ok()) return OutputError(writer.status());
  const std::unique_ptr<Progress> progress = job.make_progress ? job.make_progress(plan.old_bytes) : nullptr;
  AQT_RETURN_IF_ERROR(Converter(model, plan, **writer, progress.get()).Run(job.jobs, job.cancelled));
  AQT_RETURN_IF_ERROR(CheckCancelled(job.cancelled));
  AQT_RETURN_IF_ERROR(OutputError((*writer)->Finish()));
  return GgufReport{static_cast<int>(plan.tensors.size()), plan.num_changed, plan.old_bytes, plan.new_bytes,
                    std::move(plan.warnings)};
}

}  // namespace aqt::serving
