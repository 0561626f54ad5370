#ifndef AQT_SERVING_HTTP_API_API_CONTEXT_H_
#define AQT_SERVING_HTTP_API_API_CONTEXT_H_

// What the functions that answer requests share.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "serving/http/api/access_log.h"
#include "serving/http/api/metrics.h"
#include "serving/http/models/model_repository.h"
#include "serving/http/models/served_model.h"

namespace aqt::serving {

struct ApiOptions {
  std::string api_key = "";      // none is asked for
  bool allow_token_ids = false;  // as the input of embeddings
  bool truncate = false;         // texts that are too long, unless a request says what it wants
  bool model_control = true;     // clients may load and unload
  int64_t max_texts = 2048;      // of a request
  int64_t max_text_bytes = 1 << 20;
  int64_t max_values = 1 << 20;  // of a JSON body
  // A request that waits longer for the engine is answered with 504.
  absl::Duration timeout = absl::Seconds(60);
};

struct ApiContext {
  ModelRepository& models;
  Metrics& metrics;
  const ApiOptions& options;
  AccessLog* log = nullptr;  // null: there is none
  CallOptions call = {};     // of the request; its deadline is the client's own

  // Logs and counts it.
  void Record(const AnsweredRequest& request) const;
};

// Runs texts on a model, and counts them.
absl::StatusOr<std::vector<TextOutput>> RunTexts(const ApiContext& context, const std::string& name,
                                                 const ServedModel& model, const std::vector<TextInput>& texts,
                                                 bool truncate);
// Runs tensors on a model, and counts them.
absl::StatusOr<std::vector<NamedTensor>> RunTensors(const ApiContext& context, const std::string& name,
                                                    const ServedModel& model, const std::vector<NamedTensor>& inputs);

// InvalidArgument, naming `where`, if a text is empty or too long.
absl::Status CheckText(const ApiOptions& options, absl::string_view text, absl::string_view where);

// The model of a request, with this task. The errors of ModelRepository::Find; InvalidArgument for another task.
absl::StatusOr<std::shared_ptr<const ServedModel>> FindModel(const ApiContext& context, absl::string_view name,
                                                             ModelTask task);
// If no name is given: the only model that does this task. InvalidArgument if there are none or several.
absl::StatusOr<std::string> OnlyModel(const ApiContext& context, ModelTask task);
// What a task is for, as in "it computes embeddings".
absl::string_view TaskText(ModelTask task);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_API_CONTEXT_H_
