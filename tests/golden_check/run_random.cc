// Keys and noise.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/numerics/numerics.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {
namespace {

absl::StatusOr<int64_t> ToInt(absl::string_view text) {
  int64_t value;
  if (absl::SimpleAtoi(text, &value) && value >= 0) return value;
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a count"));
}

// "4x7".
absl::StatusOr<Shape> ToShape(absl::string_view text) {
  Shape shape;
  for (const absl::string_view extent : absl::StrSplit(text, 'x')) {
    AQT_ASSIGN_OR_RETURN(const int64_t value, ToInt(extent));
    shape.push_back(value);
  }
  return shape;
}

Array Split(const Key& key, int64_t count, PrngLayout layout) {
  ArrayBuilder keys(DType::kU32, {count, 2});
  for (int64_t i = 0; i < count; ++i) {
    const Key split = SplitKey(key, count, i, layout);
    keys.Mutable<uint32_t>()[2 * i] = split.hi;
    keys.Mutable<uint32_t>()[2 * i + 1] = split.lo;
  }
  return std::move(keys).Build();
}

// The tensor that `name` describes: split3, fold_in_7, bits_uint16_2x3x4, uniform_f32_5, noise_jax_uniform_4x7,
// noise_custom1_shared_ax1_4x7.
absl::StatusOr<Array> Draw(absl::string_view name, const Key& key, PrngLayout layout) {
  absl::string_view rest = name;
  if (absl::ConsumePrefix(&rest, "split")) {
    AQT_ASSIGN_OR_RETURN(const int64_t count, ToInt(rest));
    return Split(key, count, layout);
  }
  if (absl::ConsumePrefix(&rest, "fold_in_")) {
    AQT_ASSIGN_OR_RETURN(const int64_t data, ToInt(rest));
    return KeyArray(FoldIn(key, static_cast<uint32_t>(data)));
  }
  if (absl::ConsumePrefix(&rest, "bits_uint")) {
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('_', 1));
    AQT_ASSIGN_OR_RETURN(const int64_t bits, ToInt(parts.front()));
    AQT_ASSIGN_OR_RETURN(const Shape shape, ToShape(parts.back()));
    return RandomWords(static_cast<int>(bits), key, shape, layout);
  }
  if (absl::ConsumePrefix(&rest, "uniform_f32_")) {
    AQT_ASSIGN_OR_RETURN(const Shape shape, ToShape(rest));
    const RandomBits random(key, shape.num_elements(), layout);
    ArrayBuilder builder(DType::kF32, shape);
    for (int64_t i = 0; i < shape.num_elements(); ++i) builder.Mutable<float>()[i] = UniformF32(random.Bits32(i));
    return std::move(builder).Build();
  }
  if (absl::ConsumePrefix(&rest, "noise_")) {
    Noise noise;
    if (absl::ConsumePrefix(&rest, "custom1_")) {
      noise.kind = NoiseKind::kRandomCenteredUniform;
    } else if (!absl::ConsumePrefix(&rest, "jax_uniform_")) {
      return absl::UnimplementedError(absl::StrCat("no public API for ", name));
    }
    if (absl::ConsumePrefix(&rest, "shared_ax")) {
      const std::vector<absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('_', 1));
      AQT_ASSIGN_OR_RETURN(const int64_t axis, ToInt(parts.front()));
      noise.noise_sharing_axes.push_back(axis);
      rest = parts.back();
    }
    AQT_ASSIGN_OR_RETURN(const Shape shape, ToShape(rest));
    return MakeNoise(noise, shape, key, layout);
  }
  return absl::UnimplementedError(absl::StrCat("no public API for ", name));
}

}  // namespace

absl::StatusOr<Tensors> Run(const RandomConfig& config, const GoldenCase& golden_case) {
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(golden_case.inputs));
  const Key key = MakeKey(config.seed);
  if (context.key != key)
    return absl::InvalidArgumentError(absl::StrCat("MakeKey(", config.seed, ") is not the input key"));
  Tensors out;
  for (const ExpectedTensor& expected : golden_case.expected) {
    AQT_ASSIGN_OR_RETURN(Array value, Draw(expected.name, key, config.layout));
    out.emplace(expected.name, std::move(value));
  }
  return out;
}

absl::StatusOr<Tensors> Run(const OperandKeysConfig&, const Tensors& inputs, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  if (!context.key.has_value()) return absl::InvalidArgumentError("the case has no input key");
  const OperandKeys keys = SplitContextKey(*context.key, semantics.prng_layout);
  return Tensors{{"fwd.lhs", KeyArray(keys.fwd_lhs)},   {"fwd.rhs", KeyArray(keys.fwd_rhs)},
                 {"dlhs.lhs", KeyArray(keys.dlhs_lhs)}, {"dlhs.rhs", KeyArray(keys.dlhs_rhs)},
                 {"drhs.lhs", KeyArray(keys.drhs_lhs)}, {"drhs.rhs", KeyArray(keys.drhs_rhs)}};
}

}  // namespace aqt::golden
