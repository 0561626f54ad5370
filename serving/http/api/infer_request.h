#ifndef AQT_SERVING_HTTP_API_INFER_REQUEST_H_
#define AQT_SERVING_HTTP_API_INFER_REQUEST_H_

// An `infer` request of the Open Inference Protocol, version 2, as values, and what REST and gRPC share in reading one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"

namespace aqt::serving {

// A tensor: numbers, or strings if its datatype is BYTES.
struct InferTensor {
  std::string name = "";
  Array array = {};                       // of numbers
  std::vector<std::string> strings = {};  // if is_bytes, in row-major order
  bool is_bytes = false;
  std::vector<int64_t> shape = {};  // of both
};

struct InferRequest {
  std::string id;
  // What the request itself says of its model, besides its path; only in REST.
  std::optional<std::string> model_name = std::nullopt, model_version = std::nullopt;
  std::vector<InferTensor> inputs;
  struct Output {
    std::string name;
    bool binary = false;  // only in REST
  };
  std::vector<Output> outputs;  // empty: all
  bool binary_outputs = false;  // of outputs that are not named; only in REST
};

struct InferLimits {
  int64_t values = 1 << 20;  // that are not binary data
  int64_t tensors = 256;
  int64_t strings = 2048;          // of all BYTES tensors
  int64_t string_bytes = 1 << 20;  // of one of them
};

// The only version of every model.
inline constexpr char kModelVersion[] = "1";
// NotFound for another.
absl::Status CheckModelVersion(absl::string_view version);

constexpr int kMaxInferRank = 8;

// "FP32" for f32; "" for a dtype that the protocol does not have.
absl::string_view DatatypeOf(DType dtype);
// "FP32" for numbers, "BYTES" for strings.
absl::string_view DatatypeOf(const InferTensor& tensor);

// The functions below begin their messages with `where`, such as "the input 'x'", and fail with InvalidArgument.

// Null for "BYTES".
absl::StatusOr<std::optional<DType>> ParseDatatype(absl::string_view datatype, absl::string_view where);
// The number of elements of a shape.
absl::StatusOr<int64_t> CountElements(const std::vector<int64_t>& shape, absl::string_view where);
// Sets the data of a tensor with this shape from its bytes: elements in row-major order, little-endian; strings with
// their lengths (u32) before them.
absl::Status SetBytes(absl::string_view bytes, std::optional<DType> dtype, const InferLimits& limits,
                      absl::string_view where, InferTensor& tensor);
// The reverse.
std::string BytesOf(const InferTensor& tensor);

// Appends a complete input, if its name is new and all strings are within the limits.
absl::Status AddInput(InferTensor tensor, const InferLimits& limits, InferRequest& request);
// Appends an output, if its name is new.
absl::Status AddOutput(InferRequest::Output output, InferRequest& request);

// "the input 'NAME'", for messages.
std::string InputText(absl::string_view name);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_INFER_REQUEST_H_
