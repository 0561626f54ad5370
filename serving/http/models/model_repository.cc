#include "serving/http/models/model_repository.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"

namespace aqt::serving {
namespace {

absl::StatusOr<ModelSource> ParseModelSource(absl::string_view argument) {
  absl::string_view name, path = argument;
  if (const size_t sign = argument.find('='); sign != absl::string_view::npos) {
    name = argument.substr(0, sign);
    path = argument.substr(sign + 1);
  } else {
    while (path.size() > 1 && absl::ConsumeSuffix(&path, "/")) {
    }
    name = path.substr(path.rfind('/') + 1);
    absl::ConsumeSuffix(&name, ".aqtprog");
  }
  const auto allowed = [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-_.:/@+", c); };
  if (name.empty() || path.empty() || !absl::c_all_of(name, allowed) ||
      absl::c_all_of(name, [](char c) { return c == '.' || c == '/'; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(io::Printable(argument), " has no name for its model; write NAME=PATH, with a NAME of letters, ",
                     "digits and -_.:/@+"));
  }
  return ModelSource{std::string(name), std::string(path)};
}

absl::Status UnknownModel(absl::string_view name) {
  return absl::NotFoundError(absl::StrCat("The model `", io::Printable(name), "` does not exist"));
}

}  // namespace

absl::StatusOr<std::vector<ModelSource>> ParseModelSources(const std::vector<std::string>& arguments) {
  std::vector<ModelSource> sources;
  for (const std::string& argument : arguments) {
    AQT_ASSIGN_OR_RETURN(ModelSource source, ParseModelSource(argument));
    if (absl::c_any_of(sources, [&](const ModelSource& other) { return other.name == source.name; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("two models have the name ", source.name, "; give one of them another: NAME=PATH"));
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

ModelRepository::ModelRepository(std::vector<ModelSource> sources, Loader loader,
                                 std::function<void(const ModelSource&, const absl::Status&)> on_error)
    : loader_(std::move(loader)), on_error_(std::move(on_error)) {
  for (ModelSource& source : sources) {
    const std::string name = source.name;
    entries_[name].source = std::move(source);
  }
}

// The caller has set kLoading.
absl::Status ModelRepository::LoadEntry(Entry& entry) {
  absl::StatusOr<std::shared_ptr<const ServedModel>> model = loader_(entry.source);
  std::shared_ptr<const ServedModel> old;  // is freed without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  if (model.ok()) {
    old = std::exchange(entry.model, *std::move(model));
    entry.loaded_at = absl::ToUnixSeconds(absl::Now());
    entry.state = ModelState::kReady;
    return absl::OkStatus();
  }
  entry.state = entry.model == nullptr ? ModelState::kFailed : ModelState::kReady;
  return model.status();
}

absl::Status ModelRepository::LoadAll() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [name, entry] : entries_) entry.state = ModelState::kLoading;
  }
  for (auto& [name, entry] : entries_) {
    absl::Status status = LoadEntry(entry);
    if (status.ok()) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [other_name, other] : entries_) {
      if (other.state == ModelState::kLoading) other.state = ModelState::kUnloaded;
    }
    return status;
  }
  return absl::OkStatus();
}

absl::Status ModelRepository::Load(absl::string_view name) {
  Entry* entry = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = entries_.find(name);
    if (it == entries_.end()) return UnknownModel(name);
    entry = &it->second;
    if (entry->state == ModelState::kLoading) {
      return absl::FailedPreconditionError(absl::StrCat("the model ", name, " is being loaded already"));
    }
    entry->state = ModelState::kLoading;
    entry->wanted = true;
  }
  const absl::Status status = LoadEntry(*entry);
  if (status.ok()) return status;
  if (on_error_ != nullptr) on_error_(entry->source, status);
  return absl::InternalError(
      absl::StrCat("failed to load '", name, "': the server has written the reason to its standard error"));
}

absl::Status ModelRepository::Unload(absl::string_view name) {
  std::shared_ptr<const ServedModel> old;  // is freed without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) return UnknownModel(name);
  if (it->second.state == ModelState::kLoading) {
    return absl::FailedPreconditionError(absl::StrCat("the model ", name, " is being loaded"));
  }
  old = std::move(it->second.model);
  it->second.model = nullptr;
  it->second.state = ModelState::kUnloaded;
  it->second.wanted = false;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ModelRepository::Find(absl::string_view name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) return UnknownModel(name);
  if (it->second.model != nullptr) return it->second.model;  // also while it is loaded again
  const bool loading = it->second.state == ModelState::kLoading;
  return absl::UnavailableError(absl::StrCat("the model ", name, loading ? " is being loaded" : " is not loaded"));
}

std::vector<ModelRepository::Row> ModelRepository::List() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Row> rows;
  for (const auto& [name, entry] : entries_) rows.push_back({name, entry.state, entry.loaded_at, entry.model});
  return rows;
}

bool ModelRepository::all_ready() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return absl::c_all_of(entries_, [](const auto& item) { return item.second.model != nullptr || !item.second.wanted; });
}

}  // namespace aqt::serving
