#ifndef AQT_SERVING_HTTP_API_SCORES_API_H_
#define AQT_SERVING_HTTP_API_SCORES_API_H_

// Scores of pairs of texts, and labels of texts.
//
// Each endpoint has two forms, told apart by the names of the fields: those of Cohere, Jina and vLLM ("documents",
// "input"), and those of text-embeddings-inference ("texts", "inputs").

#include "serving/http/api/api_context.h"
#include "serving/http/wire/http_message.h"

namespace aqt::serving {

// POST /rerank, /v1/rerank, /v2/rerank. Scores are 1 / (1 + e^-x) of the model's number x, or x itself with raw_scores.
// The best document comes first; equal scores keep the order of the request.
HttpResponse Rerank(const ApiContext& context, const HttpRequest& request);

// POST /classify, /predict. Probabilities are a softmax over the labels, or 1 / (1 + e^-x) if there is only one.
HttpResponse Classify(const ApiContext& context, const HttpRequest& request);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_SCORES_API_H_
