#ifndef AQT_SERVING_HTTP_MODELS_MODEL_REPOSITORY_H_
#define AQT_SERVING_HTTP_MODELS_MODEL_REPOSITORY_H_

// The models of a server by name. Only the models that it was started with: a client cannot name a file.

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/http/models/served_model.h"

namespace aqt::serving {

// A model of the command line.
struct ModelSource {
  std::string name, path;
  bool operator==(const ModelSource&) const = default;
};
// "NAME=PATH", or "PATH", whose last part is the name: "models/bge/" is "bge". InvalidArgument for a name that is empty
// or has other characters than letters, digits and "-_.:/@+", and if a name occurs twice.
absl::StatusOr<std::vector<ModelSource>> ParseModelSources(const std::vector<std::string>& arguments);

enum class ModelState : uint8_t { kUnloaded, kLoading, kReady, kFailed };

// Thread-safe.
class ModelRepository {
 public:
  // Opens a model. May take long.
  using Loader = std::function<absl::StatusOr<std::shared_ptr<const ServedModel>>(const ModelSource&)>;
  // `on_error` gets the complete error of a load, with its paths, which clients do not see.
  ModelRepository(std::vector<ModelSource> sources, Loader loader,
                  std::function<void(const ModelSource&, const absl::Status&)> on_error = nullptr);

  // Loads all. The first error, complete.
  absl::Status LoadAll();
  // NotFound for an unknown name; FailedPrecondition if it is being loaded; Internal, without the reason, if it fails.
  // A model that is loaded already is read again, and replaces the old one when it is ready.
  absl::Status Load(absl::string_view name);
  // Requests that hold the model are not disturbed. NotFound for an unknown name.
  absl::Status Unload(absl::string_view name);

  // NotFound for an unknown name; Unavailable for a model that is not ready.
  absl::StatusOr<std::shared_ptr<const ServedModel>> Find(absl::string_view name) const;
  struct Row {
    std::string name;
    ModelState state;
    int64_t loaded_at = 0;                     // seconds since 1970
    std::shared_ptr<const ServedModel> model;  // if it is ready
  };
  std::vector<Row> List() const;  // by name
  // Whether every model is loaded, but for those that a client has unloaded.
  bool all_ready() const;

 private:
  struct Entry {
    ModelSource source;
    ModelState state = ModelState::kUnloaded;
    bool wanted = true;  // no client has unloaded it
    int64_t loaded_at = 0;
    std::shared_ptr<const ServedModel> model;
  };
  absl::Status LoadEntry(Entry& entry);

  const Loader loader_;
  const std::function<void(const ModelSource&, const absl::Status&)> on_error_;
  mutable std::mutex mutex_;
  absl::btree_map<std::string, Entry> entries_;  // the keys do not change
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_MODELS_MODEL_REPOSITORY_H_
