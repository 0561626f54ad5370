#ifndef AQT_NN_LAYERS_ROTARY_H_
#define AQT_NN_LAYERS_ROTARY_H_

// Rotary position embedding (Su et al. 2021): queries and keys are turned by angles that grow with their positions, so
// that their products depend on distances only.

#include <cstdint>
#include <source_location>

#include "aqt/graph/value.h"

namespace aqt::nn {

// The cosines and sines of the angles, each f32 [length, pairs].
struct RotaryAngles {
  Value cos, sin;
};

// The angles of positions 0, 1, ... for `features` features, two of which make a pair. All roundings are to f32:
//   frequency[i] = round(1 / round(theta^round(2 i / features))), angle[position, i] = round(position * frequency[i])
// and the power, the cosine and the sine are computed in f64 before they are rounded. So do the models: with other
// roundings, far positions would turn by other angles.
// Poisoned: InvalidArgument if length < 1, features is odd or below 2, or theta is not a finite number above 0.
RotaryAngles MakeRotaryAngles(int64_t length, int64_t features, double theta,
                              const std::source_location& where = std::source_location::current());

// Which features make pair i of n.
enum class RotaryPairs : uint8_t {
  kHalves,      // i and i + n, as GPT-NeoX, Llama and ModernBERT have it
  kNeighbours,  // 2 i and 2 i + 1, as the paper and GPT-J have it
};

// Turns the pairs (a, b) of x [batch, length, heads, features]:
//   (a cos - b sin, b cos + a sin)
// with the angles of the position and of the pair. Features after the last pair stay as they are. The result has the
// dtype of x; f16 and bf16 are computed in f32 and rounded once. Poisoned: InvalidArgument if x is not a float of this
// rank, or the angles have another length or more pairs than x.
Value RotaryEmbedding(const Value& x, const RotaryAngles& angles, RotaryPairs pairs = RotaryPairs::kHalves,
                      const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_ROTARY_H_
