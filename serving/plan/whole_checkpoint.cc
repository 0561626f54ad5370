#include "serving/plan/whole_checkpoint.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/foreign_file.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint_files.h"
#include "serving/formats/quantization_config.h"

namespace aqt::serving {
namespace {

// Substrings of the names of an adapter's tensors.
constexpr absl::string_view kAdapterMarks[] = {
    ".lora_A",         ".lora_B",
    ".lora_a",         ".lora_b",
    "_lora.",          "lora_unet_",
    "lora_te",         ".lora_down",
    ".lora_up",        ".lora.",
    ".lokr_",          ".hada_",
    ".ia3_",           ".oft_",
    ".boft_",          ".vera_lambda_",
    "lora_embedding_", ".lora_magnitude_vector",
    ".dora_scale",     "prompt_embeddings",
};
constexpr absl::string_view kPeftPrefix = "base_model.model.";

bool IsOfAdapter(absl::string_view tensor) {
  return std::any_of(std::begin(kAdapterMarks), std::end(kAdapterMarks),
                     [&](absl::string_view mark) { return absl::StrContains(tensor, mark); });
}

// The evidence that the checkpoint is an adapter, or an empty text. A model that contains an adapter is not one.
std::string AdapterEvidence(const io::Checkpoint& checkpoint) {
  const std::vector<std::string> files = checkpoint.shard_names();
  if (std::all_of(files.begin(), files.end(), io::IsAdapterWeights)) return io::Printable(files[0]);
  std::string evidence;
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    if (IsOfAdapter(tensor.name)) {
      if (evidence.empty()) evidence = io::Printable(tensor.name);
    } else if (!absl::StartsWith(tensor.name, kPeftPrefix) && !absl::EndsWith(tensor.name, ".alpha")) {
      return "";
    }
  }
  return evidence;
}

absl::Status CheckNotAdapter(const io::Checkpoint& checkpoint) {
  const std::string evidence = AdapterEvidence(checkpoint);
  if (evidence.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(io::PrintableLine(checkpoint.path()), " is an adapter (LoRA or another kind), as ", evidence,
                   " shows, not a model; no server loads a quantized adapter: merge it into its base model first "
                   "(merge_and_unload of peft), then convert that"));
}

absl::Status CheckNotPart(const io::FileSystem& fs, const io::Checkpoint& checkpoint) {
  // A file with several shards has brought the others of its set.
  if (checkpoint.is_folder() || checkpoint.is_sharded()) return absl::OkStatus();
  const std::optional<io::WholeOfFile> whole = io::FindWholeOfFile(fs, checkpoint.path());
  if (!whole.has_value()) return absl::OkStatus();
  const std::string folder(io::FolderOf(checkpoint.path()));
  const std::string message =
      absl::StrCat(io::PrintableLine(checkpoint.path()), " is one of the ", whole->num_files, " files of a checkpoint",
                   whole->index.empty() ? "" : absl::StrCat(", as ", io::Printable(whole->index), " beside it says"));
  if (whole->missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(message, "; a part of a model cannot be converted: give its folder, ", io::PrintableLine(folder)));
  }
  return absl::NotFoundError(absl::StrCat(message, ", and ", io::ListSome(whole->missing),
                                          whole->missing.size() == 1 ? " is" : " are",
                                          " missing beside it; download the others and give their folder"));
}

}  // namespace

std::string ConfigFileOf(const io::Checkpoint& checkpoint) {
  return io::JoinPath(checkpoint.is_folder() ? checkpoint.path() : io::FolderOf(checkpoint.path()), kConfigFile);
}

absl::StatusOr<std::string> ReadConfigFile(const io::FileSystem& fs, const std::string& path) {
  const absl::StatusOr<io::FileInfo> link = fs.LStat(path);
  if (absl::IsNotFound(link.status())) return std::string();
  AQT_RETURN_IF_ERROR(link.status());
  const absl::StatusOr<std::string> text = io::ReadFile(fs, path, kMaxConfigBytes);
  if (link->kind == io::FileKind::kLink && absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(io::PrintableLine(path), " is a link to something that does not exist; ",
                                            "download the model again, or put its config.json there"));
  }
  if (absl::IsInvalidArgument(text.status()))
    return absl::FailedPreconditionError(text.status().message());  // a folder
  AQT_RETURN_IF_ERROR(text.status());
  if (const absl::Status parsed = ParseModelConfig(*text).status(); !parsed.ok()) {
    return absl::Status(parsed.code(), absl::StrCat(path, ": ", parsed.message(), io::GuessContent(*text)));
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> CheckWhole(const io::FileSystem& fs, const io::Checkpoint& checkpoint) {
  AQT_RETURN_IF_ERROR(CheckNotAdapter(checkpoint));
  AQT_RETURN_IF_ERROR(CheckNotPart(fs, checkpoint));
  const absl::StatusOr<std::string> config = ReadConfigFile(fs, ConfigFileOf(checkpoint));
  if (!config.ok() && !checkpoint.is_folder()) return std::vector<std::string>();  // it may be another model's
  AQT_RETURN_IF_ERROR(config.status());
  const std::vector<std::string>& beside = checkpoint.other_files();
  if (checkpoint.is_folder() && config->empty() && std::binary_search(beside.begin(), beside.end(), "params.json")) {
    return absl::UnimplementedError(absl::StrCat(
        io::PrintableLine(checkpoint.path()), " has a params.json, and no config.json: it is in the format of the ",
        "model's makers, where no loader looks for a quantization_config; start from the model in the Hugging Face ",
        "format"));
  }
  return FindMissingLayers(checkpoint, *config);
}

}  // namespace aqt::serving
