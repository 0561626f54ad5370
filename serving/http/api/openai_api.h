#ifndef AQT_SERVING_HTTP_API_OPENAI_API_H_
#define AQT_SERVING_HTTP_API_OPENAI_API_H_

// Embeddings and the list of models as OpenAI's API has them.
//
// Differences: lists of token ids are refused unless ApiOptions::allow_token_ids, because clients send ids of another
// tokenizer. A text that is too long is refused, as by OpenAI, or cut off if the request has `"truncate": true`, which
// OpenAI does not know.

#include <string>

#include "serving/http/api/api_context.h"
#include "serving/http/wire/http_message.h"

namespace aqt::serving {

// POST /v1/embeddings.
HttpResponse Embeddings(const ApiContext& context, const HttpRequest& request);
// GET /v1/models.
HttpResponse ListModels(const ApiContext& context);
// GET /v1/models/NAME.
HttpResponse ShowModel(const ApiContext& context, const std::string& name);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_OPENAI_API_H_
