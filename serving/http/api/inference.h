#ifndef AQT_SERVING_HTTP_API_INFERENCE_H_
#define AQT_SERVING_HTTP_API_INFERENCE_H_

// The Open Inference Protocol, version 2, without its wire: what REST and gRPC answer. A model of texts has an input
// "text", BYTES [-1] (pairs: [-1, 2]), and an output "embedding", "logits" or "score". Every model has only the version
// kModelVersion.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/http/api/api_context.h"
#include "serving/http/api/infer_request.h"
#include "serving/http/models/model_repository.h"
#include "serving/http/models/served_model.h"

namespace aqt::serving {

constexpr char kServerName[] = "aqt";
// The extensions of the protocol, as Triton names them.
std::vector<std::string> ServerExtensions();

// The tensors of a model as the protocol sees it.
struct ModelPorts {
  struct Port {
    std::string name;
    std::string datatype;
    std::vector<int64_t> shape;
  };
  std::vector<Port> inputs, outputs;
};
ModelPorts PortsOf(const ServedModelInfo& info);
// "TYPE_FP32", and "TYPE_STRING" for BYTES.
std::string ConfigTypeOf(absl::string_view datatype);
// What the configuration of a model says besides its tensors: names and values.
std::vector<std::pair<std::string, std::string>> ConfigParameters(const ServedModelInfo& info);

InferLimits LimitsOf(const ApiOptions& options);
// The outputs that the request asks for. InvalidArgument, naming the tensor, for inputs and outputs that the model does
// not have; the errors of ServedModel.
absl::StatusOr<std::vector<InferTensor>> RunInfer(const ApiContext& context, const std::string& name,
                                                  const ServedModel& model, const InferRequest& request);

// What a model has done since it was loaded. Durations are sums.
struct InferStatistics {
  struct Duration {
    int64_t count = 0;
    int64_t ns = 0;
  };
  struct Batch {
    int64_t size = 0;
    Duration compute;
  };
  int64_t last_ms = 0;  // when the last request ended, in milliseconds since 1970; 0: there was none
  int64_t inferences = 0, executions = 0;
  Duration success, fail;   // requests
  Duration queue, compute;  // texts, or requests with tensors
  std::vector<Batch> batches;
};
// The statistics of a loaded model.
InferStatistics StatisticsOf(const ApiContext& context, const ModelRepository::Row& row);
// The rows of the models that are loaded, or of the one of this name. The errors of ModelRepository::Find.
absl::StatusOr<std::vector<ModelRepository::Row>> LoadedRows(const ApiContext& context, const std::string& name);

// A model's line in the repository index.
struct IndexLine {
  std::string name;
  std::string state;   // READY, LOADING, UNAVAILABLE
  std::string reason;  // or ""
};
std::vector<IndexLine> IndexOf(const ApiContext& context, bool only_ready);

// InvalidArgument, with the remedy, if clients may not load and unload models. `what` is "loading" or "unloading".
absl::Status CheckControl(const ApiContext& context, absl::string_view what);
// For parameters that a client sends with it.
absl::Status ControlParametersError();

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_INFERENCE_H_
