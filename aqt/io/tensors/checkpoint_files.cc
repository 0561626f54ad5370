#include "aqt/io/tensors/checkpoint_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/foreign_file.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/safetensors.h"

namespace aqt::io {
namespace {

constexpr absl::string_view kIndexPart = ".index";
// An index of such files joins keys with slashes, where names of tensors have dots.
constexpr absl::string_view kFlaxSuffix = ".msgpack";
// Names of files of the other formats. The first format that a folder has files of is read.
constexpr FileNames kOtherNames[] = {{".bin", "pytorch_model"},
                                     {kFlaxSuffix, "flax_model"},
                                     {".gguf", ""},
                                     {".npz", ""},
                                     {".pth", ""},
                                     {".pt", ""},
                                     {".npy", ""}};
// The beginnings of names that programs for training give to what is not a model.
constexpr absl::string_view kNotModels[] = {"training_args.", "optimizer",     "scheduler",
                                            "rng_state",      "random_states", "scaler."};
// The size limit of an index file. The largest published ones have about 10 MB.
constexpr int64_t kMaxIndexBytes = 100'000'000;
// The most missing files to look for; a name may claim to be one of millions.
constexpr size_t kMaxMissing = 1000;
// The names that diffusers and transformers give to copies of a model in another type, or before averaging over its
// training.
constexpr absl::string_view kVariants[] = {"fp32", "fp16", "bf16", "fp8", "int8", "8bit", "4bit", "ema", "non_ema"};

bool IsVisible(absl::string_view name) { return !name.empty() && name.front() != '.'; }
bool IsWeightFile(absl::string_view name, const FileNames& of) {
  if (!IsVisible(name) || !absl::EndsWith(name, of.suffix)) return false;
  return of.suffix == kSafetensorsNames.suffix ||
         absl::c_none_of(kNotModels, [&](absl::string_view begin) { return absl::StartsWith(name, begin); });
}
std::string StemOfFile(absl::string_view name, const FileNames& of) {
  return std::string(absl::StripSuffix(name, of.suffix));
}
// "model.safetensors", and its index; empty if the format has no such name.
std::string ModelFileOf(const FileNames& of) { return of.model.empty() ? "" : absl::StrCat(of.model, of.suffix); }
std::string IndexFileOf(const FileNames& of) {
  return of.model.empty() ? "" : absl::StrCat(of.model, of.suffix, kIndexPart, ".json");
}
bool IsSeparator(char c) { return c == '-' || c == '_' || c == '.'; }

// The digits at the end or the beginning of a text.
absl::string_view DigitsAtEnd(absl::string_view text) {
  size_t n = 0;
  while (n < text.size() && absl::ascii_isdigit(text[text.size() - 1 - n])) ++n;
  return text.substr(text.size() - n);
}
absl::string_view DigitsAtBegin(absl::string_view text) {
  return text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size()));
}

absl::Status ReadIndex(const FileSystem& fs, const std::string& folder, const std::string& name,
                       CheckpointFiles& files) {
  const std::string path = JoinPath(folder, name);
  AQT_ASSIGN_OR_RETURN(const std::string json, ReadFile(fs, path, kMaxIndexBytes));
  absl::StatusOr<WeightMap> parsed = ParseIndex(json, &files.extras, files.names.suffix);
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(), absl::StrCat("cannot read index '", path,
                                                             "': ", parsed.status().message(), GuessContent(json)));
  }
  files.index = name;
  files.weight_map = *std::move(parsed);
  if (files.names.suffix == kFlaxSuffix) {
    for (auto& [tensor, file] : files.weight_map) tensor = absl::StrReplaceAll(tensor, {{"/", "."}});
  }
  std::set<std::string> shards;
  for (const auto& [tensor, file] : files.weight_map) shards.insert(file);
  files.shards.assign(shards.begin(), shards.end());
  return absl::OkStatus();
}

// Sets and single files by stem, and indices. Each may be the folder's checkpoint.
struct Candidate {
  std::string index;
  std::vector<std::string> shards;
};
using Candidates = std::map<std::string, Candidate>;

Candidates FindCandidates(const std::vector<std::string>& names, const FileNames& of, bool adapters) {
  Candidates candidates;
  for (const std::string& name : names) {
    if (IsVisible(name) && IsAdapterWeights(name) != adapters) continue;
    if (const std::optional<std::string> stem = StemOfIndex(name, of.suffix); stem.has_value() && IsVisible(name)) {
      candidates[*stem].index = name;
    } else if (IsWeightFile(name, of)) {
      const std::optional<ShardName> shard = ParseShardName(name, of.suffix);
      candidates[shard.has_value() ? shard->stem : StemOfFile(name, of)].shards.push_back(name);
    }
  }
  // As for model.safetensors, the single file is preferred if both exist.
  for (auto& [stem, candidate] : candidates) {
    const std::string single = absl::StrCat(stem, of.suffix);
    if (candidate.index.empty() && absl::c_linear_search(candidate.shards, single)) candidate.shards = {single};
  }
  return candidates;
}

// Files that another index names are not candidates by themselves.
void RemoveNamedFiles(const FileSystem& fs, const std::string& folder, const FileNames& of, Candidates& candidates) {
  std::set<std::string> named;
  for (const auto& [stem, candidate] : candidates) {
    if (candidate.index.empty()) continue;
    CheckpointFiles files;
    files.names = of;
    // An index that cannot be read is an error only if it is chosen.
    if (ReadIndex(fs, folder, candidate.index, files).ok()) named.insert(files.shards.begin(), files.shards.end());
  }
  for (auto& [stem, candidate] : candidates) {
    std::erase_if(candidate.shards, [&](const std::string& name) { return named.contains(name); });
  }
  std::erase_if(candidates,
                [](const auto& entry) { return entry.second.index.empty() && entry.second.shards.empty(); });
}

// "x.fp16" is a variant of "x", which is preferred if both exist.
void RemoveVariants(Candidates& candidates) {
  const auto is_variant = [&](absl::string_view stem) {
    const size_t dot = stem.rfind('.');
    if (dot == absl::string_view::npos || !candidates.contains(std::string(stem.substr(0, dot)))) return false;
    return absl::c_linear_search(kVariants, stem.substr(dot + 1));
  };
  std::set<std::string> variants;
  for (const auto& [stem, candidate] : candidates) {
    if (is_variant(stem)) variants.insert(stem);
  }
  std::erase_if(candidates, [&](const auto& entry) { return variants.contains(entry.first); });
}

// The possible checkpoints of a folder that has neither model.safetensors nor its index, or those of another format.
absl::StatusOr<Candidates> ChooseCandidates(const FileSystem& fs, const std::string& folder,
                                            const std::vector<std::string>& names, const FileNames& of,
                                            const std::string& leave_out) {
  Candidates candidates = FindCandidates(names, of, /*adapters=*/false);
  if (candidates.empty()) candidates = FindCandidates(names, of, /*adapters=*/true);
  RemoveNamedFiles(fs, folder, of, candidates);
  if (!leave_out.empty() && candidates.size() > 1) {
    for (auto it = candidates.begin(); it != candidates.end();) {
      const Candidate& candidate = it->second;
      bool left_out = false;
      if (candidate.index.empty() && candidate.shards.size() == 1) {
        AQT_ASSIGN_OR_RETURN(left_out, SameFile(fs, JoinPath(folder, candidate.shards[0]), leave_out));
      }
      it = left_out ? candidates.erase(it) : std::next(it);
    }
  }
  RemoveVariants(candidates);
  const auto model = candidates.find(std::string(of.model));
  return model == candidates.end() ? candidates : Candidates{*model};
}

// The locations of weights, for the error message of a folder without weights.
std::string FoldersWithWeights(const FileSystem& fs, const std::string& folder, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  const auto look = [&](const std::string& path) {
    const absl::StatusOr<std::vector<std::string>> inside = fs.List(path);
    if (!inside.ok() ||
        absl::c_none_of(*inside, [](const std::string& name) { return IsWeightFile(name, kSafetensorsNames); })) {
      return;
    }
    found.push_back(Printable(path));
  };
  const auto look_in_snapshots = [&](const std::string& path) {
    const absl::StatusOr<std::vector<std::string>> snapshots = fs.List(path);
    if (!snapshots.ok()) return;
    for (const std::string& name : *snapshots) found.push_back(Printable(JoinPath(path, name)));
  };
  constexpr size_t kMaxLooked = 100;
  for (size_t i = 0; i < names.size() && i < kMaxLooked; ++i) {
    const std::string path = JoinPath(folder, names[i]);
    if (!IsVisible(names[i])) continue;
    look(path);
    if (names[i] == "snapshots") look_in_snapshots(path);
    if (absl::StartsWith(names[i], "models--")) look_in_snapshots(JoinPath(path, "snapshots"));
  }
  if (found.empty()) return "";
  const bool cache = absl::StrContains(found[0], "snapshots/");
  return absl::StrCat(
      cache ? "; this is a cache of the Hugging Face hub, with the models " : "; these folders in it have such files: ",
      ListSome(found), "; give the path of one");
}

absl::Status NoWeights(const FileSystem& fs, const std::string& folder, const std::vector<std::string>& names) {
  const std::string message = absl::StrCat("folder '", folder, "' has no ", kSafetensorsSuffix, " file");
  std::vector<std::string> adapters, foreign;
  absl::string_view format;
  for (const std::string& name : names) {
    if (!IsVisible(name)) continue;
    if (IsAdapterWeights(name)) adapters.push_back(name);
    if (name == "training_args.bin" || WeightFormatOfName(name).empty()) continue;
    if (foreign.empty()) format = WeightFormatOfName(name);
    if (WeightFormatOfName(name) == format) foreign.push_back(name);
  }
  if (!adapters.empty()) {
    return absl::NotFoundError(absl::StrCat(message, ", but an adapter, ", ListSome(adapters),
                                            ": merge it into its base model and save that as safetensors first"));
  }
  if (!foreign.empty()) {
    return absl::NotFoundError(
        absl::StrCat(message, ", but ", ListSome(foreign), " (", format, "): ", RemedyForFormat(format)));
  }
  return absl::NotFoundError(absl::StrCat(message, FoldersWithWeights(fs, folder, names)));
}

absl::Status SeveralCheckpoints(const std::string& folder, const FileNames& of, const Candidates& candidates) {
  std::vector<std::string> files;
  for (const auto& [stem, candidate] : candidates) {
    if (!candidate.index.empty()) files.push_back(candidate.index);
    files.insert(files.end(), candidate.shards.begin(), candidate.shards.end());
  }
  const std::string neither =
      of.model.empty() ? "" : absl::StrCat("neither ", ModelFileOf(of), " nor ", IndexFileOf(of), ", but ");
  return absl::FailedPreconditionError(
      absl::StrCat("folder '", folder, "' has ", neither, "several ", of.suffix, " files (", ListSome(files),
                   "), and their names do not say which belong together; if they are one model, ",
                   "download its index as well; otherwise leave one model in the folder"));
}

// DataLoss or NotFound if the index leaves out a file of the set that its files belong to.
absl::Status CheckSetsOfIndex(const FileSystem& fs, const std::string& folder, const std::vector<std::string>& names,
                              const CheckpointFiles& files) {
  std::vector<std::string> omitted, missing;
  for (const std::string& name : MissingOfSets(files.shards, files.names.suffix)) {
    if (!std::binary_search(names.begin(), names.end(), name)) {
      missing.push_back(name);
      continue;
    }
    if (files.names.suffix == kSafetensorsNames.suffix) {
      const absl::StatusOr<SafetensorsReader> reader = SafetensorsReader::Open(fs, JoinPath(folder, name));
      if (reader.ok() && reader->tensors().empty()) continue;
    }
    omitted.push_back(name);
  }
  if (!omitted.empty()) {
    return absl::DataLossError(absl::StrCat("folder '", folder, "': ", files.index, " leaves out ", ListSome(omitted),
                                            " of a set of files that it names; download the index again, or move "
                                            "away what is not part of the model"));
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat("folder '", folder, "' lacks ", ListSome(missing), ", and its index ",
                                            files.index,
                                            " does not name them either; download the model again, with its index"));
  }
  return absl::OkStatus();
}

// NotFound unless the files are a complete set, or a single file that does not belong to a set.
absl::Status CheckSet(const std::string& folder, const FileNames& of, const std::vector<std::string>& shards) {
  std::set<std::string> sets;
  for (const std::string& name : shards) {
    const std::optional<ShardName> shard = ParseShardName(name, of.suffix);
    sets.insert(shard.has_value() ? absl::StrCat(shard->before, "*", shard->after) : name);
  }
  if (sets.size() > 1) return SeveralCheckpoints(folder, of, {{"", {.index = "", .shards = shards}}});
  const std::vector<std::string> missing = MissingOfSets(shards, of.suffix);
  if (missing.empty()) return absl::OkStatus();
  const int64_t count = ParseShardName(shards[0], of.suffix)->count;
  return absl::NotFoundError(absl::StrCat("folder '", folder, "' lacks ", count - static_cast<int64_t>(shards.size()),
                                          " of ", count, " files of a checkpoint (", ListSome(missing),
                                          "), and has no index; ", "download what is missing"));
}

// The files of a format.
absl::StatusOr<CheckpointFiles> FindFilesOf(const FileNames& of, const FileSystem& fs, const std::string& folder,
                                            const std::vector<std::string>& names, const std::string& leave_out) {
  const auto has = [&](absl::string_view name) { return std::binary_search(names.begin(), names.end(), name); };
  CheckpointFiles files;
  files.names = of;
  files.stem = std::string(of.model);
  std::string index = has(IndexFileOf(of)) ? IndexFileOf(of) : "";
  if (index.empty() && has(ModelFileOf(of))) {
    files.shards = {ModelFileOf(of)};
    return files;
  }
  if (index.empty()) {
    AQT_ASSIGN_OR_RETURN(Candidates candidates, ChooseCandidates(fs, folder, names, of, leave_out));
    if (candidates.empty()) return NoWeights(fs, folder, names);
    if (candidates.size() > 1) return SeveralCheckpoints(folder, of, candidates);
    files.stem = candidates.begin()->first;
    index = candidates.begin()->second.index;
    files.shards = std::move(candidates.begin()->second.shards);
  }
  if (index.empty()) {
    AQT_RETURN_IF_ERROR(CheckSet(folder, of, files.shards));
    return files;
  }
  AQT_RETURN_IF_ERROR(ReadIndex(fs, folder, index, files));
  const std::string single = absl::StrCat(files.stem, of.suffix);
  if (has(single) && !absl::c_binary_search(files.shards, single)) {
    return absl::FailedPreconditionError(absl::StrCat("folder '", folder, "' has both ", Printable(single), " and ",
                                                      Printable(index),
                                                      ", which does not name it; remove one of the two"));
  }
  AQT_RETURN_IF_ERROR(CheckSetsOfIndex(fs, folder, names, files));
  return files;
}

}  // namespace

std::string ShardName::Name(int64_t n) const { return absl::StrFormat("%s%0*d%s", before, width, n, after); }

const FileNames* OtherNamesOf(absl::string_view file) {
  for (const FileNames& names : kOtherNames) {
    if (absl::EndsWith(file, names.suffix)) return &names;
  }
  return nullptr;
}

std::optional<ShardName> ParseShardName(absl::string_view file, absl::string_view suffix) {
  if (!absl::EndsWith(file, suffix)) return std::nullopt;
  for (const absl::string_view of : {"-of-", "_of_"}) {
    const size_t at = file.rfind(of);
    if (at == absl::string_view::npos) continue;
    const absl::string_view number = DigitsAtEnd(file.substr(0, at));
    const absl::string_view count = DigitsAtBegin(file.substr(at + of.size()));
    ShardName name;
    if (!absl::SimpleAtoi(number, &name.number) || !absl::SimpleAtoi(count, &name.count)) continue;
    if (name.count < 1 || name.number > name.count) continue;
    name.before = std::string(file.substr(0, at - number.size()));
    name.after = std::string(file.substr(at));
    name.width = static_cast<int>(number.size());
    absl::string_view head = name.before;
    while (!head.empty() && IsSeparator(head.back())) head.remove_suffix(1);
    const absl::string_view tail = file.substr(at + of.size() + count.size());
    name.stem = absl::StrCat(absl::StripSuffix(head, suffix), absl::StripSuffix(tail, suffix));
    return name;
  }
  return std::nullopt;
}

std::vector<std::string> MissingOfSets(const std::vector<std::string>& files, absl::string_view suffix) {
  struct Set {
    ShardName name;
    std::set<int64_t> numbers;
  };
  std::map<std::pair<std::string, std::string>, Set> sets;
  for (const std::string& file : files) {
    std::optional<ShardName> name = ParseShardName(file, suffix);
    if (!name.has_value()) continue;
    Set& set = sets[{name->before, name->after}];
    set.numbers.insert(name->number);
    set.name = *std::move(name);
  }
  std::vector<std::string> missing;
  for (const auto& [key, set] : sets) {
    const int64_t first = *set.numbers.begin() == 0 ? 0 : 1;
    for (int64_t n = first; n < first + set.name.count && missing.size() < kMaxMissing; ++n) {
      if (!set.numbers.contains(n)) missing.push_back(set.name.Name(n));
    }
  }
  return missing;
}

std::optional<std::string> StemOfIndex(absl::string_view file, absl::string_view suffix) {
  const std::string part = absl::StrCat(suffix, kIndexPart);
  const size_t at = file.rfind(part);
  if (at == absl::string_view::npos || at == 0) return std::nullopt;
  absl::string_view variant = file.substr(at + part.size());  // ".json" or ".fp16.json"
  if (!absl::ConsumeSuffix(&variant, ".json")) return std::nullopt;
  if (!variant.empty() && (variant.front() != '.' || variant.size() == 1)) return std::nullopt;
  return absl::StrCat(file.substr(0, at), variant);
}

bool IsAdapterWeights(absl::string_view file) {
  if (absl::StartsWith(file, "adapter_model.") || absl::StartsWith(file, "adapter_model-")) return true;
  if (absl::StartsWith(file, "pytorch_lora_weights.")) return true;
  return file == "adapters.safetensors" || absl::EndsWith(file, "_adapters.safetensors");
}

absl::StatusOr<CheckpointFiles> FindCheckpointFiles(const FileSystem& fs, const std::string& folder,
                                                    const std::vector<std::string>& names, const std::string& leave_out,
                                                    bool others) {
  if (others && FindCandidates(names, kSafetensorsNames, /*adapters=*/false).empty()) {
    for (const FileNames& of : kOtherNames) {
      if (FindCandidates(names, of, /*adapters=*/false).empty()) continue;
      AQT_ASSIGN_OR_RETURN(CheckpointFiles files, FindFilesOf(of, fs, folder, names, leave_out));
      // Loaders know the model by this name.
      if (files.stem == of.model || of.model != kOtherNames[0].model) {
        files.stem = std::string(kSafetensorsNames.model);
      }
      return files;
    }
  }
  return FindFilesOf(kSafetensorsNames, fs, folder, names, leave_out);
}

std::optional<WholeOfFile> FindWholeOfFile(const FileSystem& fs, absl::string_view file) {
  const std::string folder(FolderOf(file));
  const std::string base(BaseName(file));
  const FileNames* const other = OtherNamesOf(base);
  const FileNames& of = other == nullptr ? kSafetensorsNames : *other;
  const absl::StatusOr<std::vector<std::string>> names = fs.List(folder);
  const auto missing_of = [&](std::vector<std::string> wanted) {
    std::erase_if(wanted, [&](const std::string& name) {
      return names.ok() && std::binary_search(names->begin(), names->end(), name);
    });
    return wanted;
  };
  if (names.ok()) {
    for (const std::string& name : *names) {
      if (!IsVisible(name) || !StemOfIndex(name, of.suffix).has_value()) continue;
      CheckpointFiles files;
      files.names = of;
      if (!ReadIndex(fs, folder, name, files).ok() || files.shards.size() < 2) continue;
      if (!std::binary_search(files.shards.begin(), files.shards.end(), base)) continue;
      const int64_t num_files = static_cast<int64_t>(files.shards.size());
      return WholeOfFile{.index = name, .num_files = num_files, .missing = missing_of(std::move(files.shards))};
    }
  }
  const std::optional<ShardName> shard = ParseShardName(base, of.suffix);
  if (!shard.has_value() || shard->count == 1) return std::nullopt;
  return WholeOfFile{.index = "", .num_files = shard->count, .missing = missing_of(MissingOfSets({base}, of.suffix))};
}

std::string ListSome(const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 5;
  const auto end = names.begin() + std::min(names.size(), kMaxNames);
  const auto append = [](std::string* out, const std::string& name) { absl::StrAppend(out, Printable(name)); };
  return absl::StrCat(absl::StrJoin(names.begin(), end, ", ", append), names.size() > kMaxNames ? ", ..." : "");
}

}  // namespace aqt::io
