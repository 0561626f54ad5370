#ifndef AQT_SERVING_FORMATS_SCHEME_H_
#define AQT_SERVING_FORMATS_SCHEME_H_

// How one weight is stored: the schemes that the converter can write, and the tensors that each becomes.
//
// A weight `m.weight` of shape [o, i] and dtype T (f32, bf16, f16) becomes
//   int-quantized   m.weight I8 [o, i] (one value per byte, also for fewer than 8 bits)
//   pack-quantized  m.weight_packed I32 [o, ceil(i * bits / 32)], m.weight_shape I64 [2]
// and in both
//   m.weight_scale T: [1] per tensor, [o, 1] per channel, [o, i / group_size] per group
//   m.weight_zero_point (asymmetric only): I8 like the scale; packed, I32 [ceil(o * bits / 32), columns of the scale]
//   m.input_scale T [1] (static activations only), and m.input_zero_point I8 [1] if these are asymmetric

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/io/safetensors.h"
#include "aqt/quant/weights/compressed_tensors.h"

namespace aqt::serving {

// A weight's integers: bits, symmetry and which elements share a scale.
using WeightScheme = compressed_tensors::WeightScheme;
using WeightStrategy = compressed_tensors::Strategy;

// The elements of an activation that share one scale: a row of the input, all of it, or group_size elements of a row.
enum class InputStrategy : uint8_t { kToken, kTensor, kGroup };
// "token", "tensor" or "group", as in a quantization_config.
absl::string_view ToString(InputStrategy strategy);

// Nothing is stored for dynamic activations: the scheme tells the server what to do.
struct InputScheme {
  int num_bits = 8;  // 2 .. 8
  bool symmetric = true;
  bool dynamic = true;
  InputStrategy strategy = InputStrategy::kToken;  // static: kTensor
  int64_t group_size = 0;                          // only with kGroup
  bool operator==(const InputScheme&) const = default;
};

enum class Format : uint8_t { kIntQuantized, kPackQuantized };
// "int-quantized" or "pack-quantized".
absl::string_view ToString(Format format);

struct Scheme {
  WeightScheme weights;
  std::optional<InputScheme> input;  // null: activations stay in floating point
  Format format = Format::kIntQuantized;
  bool operator==(const Scheme&) const = default;

  bool HasStaticInput() const { return input.has_value() && !input->dynamic; }
};

// The format that the compressed-tensors package would choose: int-quantized with activations, else pack-quantized.
Format DefaultFormat(bool quantized_activations);

// InvalidArgument for a contradiction, Unimplemented for a scheme that this version cannot write; both name the field.
absl::Status Validate(const Scheme& scheme);

// "int4 g32 asymmetric, int8 per token dynamic, pack-quantized".
std::string Describe(const Scheme& scheme);

// "layers.0.fc1" for "layers.0.fc1.weight"; null if `tensor` does not end in ".weight" or has nothing before it.
std::optional<absl::string_view> ModuleOf(absl::string_view tensor);

// OK, or why `scheme` cannot be applied to such a weight, with the remedy if there is one: InvalidArgument (group size)
// or Unimplemented (rank, dtype, no elements).
absl::Status CheckApplicable(const Scheme& scheme, io::FileDType dtype, const Shape& shape);

// The shape of the scale of a weight [o, i].
Shape ScaleShape(const WeightScheme& scheme, const Shape& weight);
// The tensors that a weight becomes, in the order of the list above: the quantized tensor, then weight_shape,
// weight_scale, weight_zero_point, input_scale, input_zero_point where they exist. CheckApplicable must hold.
std::vector<io::TensorSpec> OutputTensors(const Scheme& scheme, absl::string_view module, io::FileDType dtype,
                                          const Shape& shape);

// The suffixes after the module's name.
inline constexpr char kWeight[] = ".weight";
inline constexpr char kWeightPacked[] = ".weight_packed";
inline constexpr char kWeightShape[] = ".weight_shape";
inline constexpr char kWeightScale[] = ".weight_scale";
inline constexpr char kWeightZeroPoint[] = ".weight_zero_point";
inline constexpr char kInputScale[] = ".input_scale";
inline constexpr char kInputZeroPoint[] = ".input_zero_point";

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_SCHEME_H_
