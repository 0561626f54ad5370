#ifndef AQT_SERVING_HTTP_API_INFERENCE_API_H_
#define AQT_SERVING_HTTP_API_INFERENCE_API_H_

// The Open Inference Protocol, version 2 (inference.h), over REST, with the extensions that Triton has: binary tensor
// data, model configuration, statistics, model repository.

#include <string>

#include "serving/http/api/api_context.h"
#include "serving/http/wire/http_message.h"

namespace aqt::serving {

// GET /v2, /v2/health/live, /v2/health/ready.
HttpResponse ServerMetadata();
HttpResponse ServerLive();
// 503 while a model is not loaded, or `stopping`.
HttpResponse ServerReady(const ApiContext& context, bool stopping);

// GET /v2/models: the names, as KServe's clients read them.
HttpResponse ListInferModels(const ApiContext& context);
// GET /v2/models/NAME, and /ready, /config, /stats below it.
HttpResponse ModelMetadata(const ApiContext& context, const std::string& name);
HttpResponse ModelReady(const ApiContext& context, const std::string& name);
HttpResponse ModelConfig(const ApiContext& context, const std::string& name);
// All models if `name` is empty: GET /v2/models/stats.
HttpResponse ModelStatistics(const ApiContext& context, const std::string& name);

// POST /v2/models/NAME/infer.
HttpResponse Infer(const ApiContext& context, const HttpRequest& request, const std::string& name);

// POST /v2/repository/index, /v2/repository/models/NAME/load and unload.
HttpResponse RepositoryIndex(const ApiContext& context, const HttpRequest& request);
HttpResponse LoadModel(const ApiContext& context, const HttpRequest& request, const std::string& name);
HttpResponse UnloadModel(const ApiContext& context, const HttpRequest& request, const std::string& name);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_INFERENCE_API_H_
