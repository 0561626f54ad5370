// Input: the body of an `infer` request. Its first byte tells how long the JSON is: 0: there are no binary data;
// otherwise the JSON ends at the last '}'. A request that is accepted has tensors of their shapes, and the answer that
// returns them is read back as the same tensors.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "serving/http/api/infer_tensors.h"

namespace {

using aqt::serving::DatatypeOf;
using aqt::serving::InferAnswer;
using aqt::serving::InferAnswerOf;
using aqt::serving::InferLimits;
using aqt::serving::InferRequest;
using aqt::serving::InferTensor;
using aqt::serving::ParseInfer;

constexpr InferLimits kLimits = {.values = 1000, .tensors = 8, .strings = 20, .string_bytes = 100};

int64_t Count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

void CheckTensor(const InferTensor& tensor) {
  const int64_t count = Count(tensor.shape);
  if (tensor.is_bytes) {
    AQT_CHECK(static_cast<int64_t>(tensor.strings.size()) == count && count <= kLimits.strings);
    for (const std::string& text : tensor.strings) AQT_CHECK(static_cast<int64_t>(text.size()) <= kLimits.string_bytes);
  } else {
    AQT_CHECK(tensor.array.num_elements() == count);
    AQT_CHECK(!DatatypeOf(tensor.array.dtype()).empty());
  }
}

// An answer names its tensors "outputs"; a request "inputs".
void CheckReadBack(const std::vector<InferTensor>& tensors) {
  InferRequest request;
  request.binary_outputs = true;
  const absl::StatusOr<InferAnswer> answer = InferAnswerOf("m", request, tensors);
  AQT_CHECK(answer.ok());
  if (tensors.empty()) return;
  std::string body = answer->body;
  const std::string head = R"({"model_name":"m","model_version":"1","outputs":)", begin = R"({"inputs":)";
  AQT_CHECK(body.compare(0, head.size(), head) == 0);
  body.replace(0, head.size(), begin);
  const int64_t json = *answer->json_bytes - static_cast<int64_t>(head.size() - begin.size());
  const absl::StatusOr<InferRequest> again = ParseInfer(body, json, kLimits);
  AQT_CHECK(again.ok() && again->inputs.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    AQT_CHECK(again->inputs[i].shape == tensors[i].shape && again->inputs[i].strings == tensors[i].strings);
    AQT_CHECK(tensors[i].is_bytes || BitEqual(again->inputs[i].array, tensors[i].array));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::optional<int64_t> json;
  if (data[0] != 0) json = static_cast<int64_t>(body.rfind('}') == absl::string_view::npos ? 0 : body.rfind('}') + 1);
  const absl::StatusOr<InferRequest> request = ParseInfer(body, json, kLimits);
  if (!request.ok()) {
    AQT_CHECK(!request.status().message().empty());
    return 0;
  }
  for (const InferTensor& tensor : request->inputs) CheckTensor(tensor);
  CheckReadBack(request->inputs);
  return 0;
}
