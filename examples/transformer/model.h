#ifndef EXAMPLES_TRANSFORMER_MODEL_H_
#define EXAMPLES_TRANSFORMER_MODEL_H_

// A language model over bytes: a transformer that predicts each byte of a text from the previous ones. It is written
// without quantization.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/graph/value.h"

namespace transformer {

struct ModelOptions {
  int64_t layers = 4, width = 160, heads = 4;
  int64_t length = 64;  // bytes of context
  double dropout = 0.0;
  aqt::DType dtype = aqt::DType::kF32;  // of parameters and logits
};

constexpr int64_t kBytes = 256;  // number of byte values

// bytes s32 [batch, length] -> logits of the byte that follows each of them [batch, length, 256]. Position i
// depends only on positions up to i.
aqt::Value Logits(const aqt::Value& bytes, const ModelOptions& options, bool train);

}  // namespace transformer

#endif  // EXAMPLES_TRANSFORMER_MODEL_H_
