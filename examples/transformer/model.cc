#include "examples/transformer/model.h"

#include "absl/strings/str_cat.h"
#include "aqt/graph/context.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/dropout.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/functions.h"

namespace transformer {

using aqt::Value;
namespace nn = aqt::nn;

namespace {

// One layer: attention, then a network for each position, each with a norm before it and a residual x around it.
Value Block(const Value& x, const Value& mask, const ModelOptions& options, bool train) {
  const nn::DropoutOptions dropout = {.rate = options.dropout, .train = train};
  const Value normed = nn::LayerNorm(x, "norm1");
  const Value attended = nn::MultiHeadAttention(normed, normed, mask, "attention", {.heads = options.heads});
  const Value mixed = x + nn::Dropout(attended, "dropout1", dropout);
  const Value hidden = aqt::ops::Gelu(nn::Dense(nn::LayerNorm(mixed, "norm2"), "fc1", {.features = 4 * options.width}));
  return mixed + nn::Dropout(nn::Dense(hidden, "fc2", {.features = options.width}), "dropout2", dropout);
}

}  // namespace

Value Logits(const Value& bytes, const ModelOptions& options, bool train) {
  const int64_t length = bytes.dim(-1);
  const Value positions = nn::Parameter("positions", {options.dtype, {length, options.width}}, nn::Normal(0.02));
  Value x =
      nn::Embed(bytes, "bytes", {.entries = kBytes, .features = options.width, .dtype = options.dtype}) + positions;
  const Value mask = nn::CausalMask(length, length);
  for (int64_t i = 0; i < options.layers; ++i) {
    const aqt::NamedScope scope(absl::StrCat("layer", i));
    x = Block(x, mask, options, train);
  }
  return nn::Dense(nn::LayerNorm(x, "norm"), "logits", {.features = kBytes, .use_bias = false});
}

}  // namespace transformer
