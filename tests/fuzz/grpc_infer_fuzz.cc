// Input: the bytes of a ModelInferRequest. A request that is accepted has tensors of their shapes, and the answer that
// returns them is read back as the same tensors.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "serving/grpc/infer_messages.h"
#include "serving/grpc/open_inference.pb.h"
#include "serving/http/api/infer_request.h"

namespace {

using aqt::serving::InferLimits;
using aqt::serving::InferRequest;
using aqt::serving::InferRequestOf;
using aqt::serving::InferResponseOf;
using aqt::serving::InferTensor;

constexpr InferLimits kLimits = {.values = 1000, .tensors = 8, .strings = 20, .string_bytes = 100};

void CheckTensor(const InferTensor& tensor) {
  int64_t count = 1;
  for (const int64_t extent : tensor.shape) count *= extent;
  if (!tensor.is_bytes) {
    AQT_CHECK(tensor.array.num_elements() == count);
    return;
  }
  AQT_CHECK(static_cast<int64_t>(tensor.strings.size()) == count && count <= kLimits.strings);
  for (const std::string& text : tensor.strings) AQT_CHECK(static_cast<int64_t>(text.size()) <= kLimits.string_bytes);
}

// The outputs of the response as the inputs of a request.
void CheckReadBack(const inference::ModelInferRequest& request, const std::vector<InferTensor>& tensors) {
  const inference::ModelInferResponse response = InferResponseOf(request, tensors);
  inference::ModelInferRequest again;
  for (const auto& output : response.outputs()) {
    auto& input = *again.add_inputs();
    input.set_name(output.name());
    input.set_datatype(output.datatype());
    *input.mutable_shape() = output.shape();
    if (output.has_contents()) *input.mutable_contents() = output.contents();
  }
  *again.mutable_raw_input_contents() = response.raw_output_contents();
  const absl::StatusOr<InferRequest> read = InferRequestOf(again, kLimits);
  AQT_CHECK(read.ok() && read->inputs.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    AQT_CHECK(read->inputs[i].shape == tensors[i].shape && read->inputs[i].strings == tensors[i].strings);
    AQT_CHECK(tensors[i].is_bytes || BitEqual(read->inputs[i].array, tensors[i].array));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<inference::ModelInferRequest> message = aqt::serving::ParseInferMessage(bytes, kLimits);
  if (!message.ok()) return 0;
  const absl::StatusOr<InferRequest> request = InferRequestOf(*message, kLimits);
  if (!request.ok()) {
    AQT_CHECK(!request.status().message().empty());
    return 0;
  }
  for (const InferTensor& tensor : request->inputs) CheckTensor(tensor);
  CheckReadBack(*message, request->inputs);
  return 0;
}
