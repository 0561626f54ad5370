#ifndef AQT_GGUF_TENSOR_VALUES_H_
#define AQT_GGUF_TENSOR_VALUES_H_

// The values of a tensor of a GGUF file as f32.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/quant/weights/ggml_types.h"

namespace aqt::gguf {

// Whether values of the type are float: f32, f16, bf16, and all blocks that can be decoded.
bool HasFloats(ggml::Type type);

// Fills `values` with the elements from `first` on; HasFloats(tensor.type) holds. Every value is exact.
absl::Status ReadFloats(const GgufFile& file, const GgufTensor& tensor, int64_t first, absl::Span<float> values);

}  // namespace aqt::gguf

#endif  // AQT_GGUF_TENSOR_VALUES_H_
