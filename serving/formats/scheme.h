#ifndef AQT_SERVING_FORMATS_SCHEME_H_
#define AQT_SERVING_FORMATS_SCHEME_H_

// How one weight, and its input activations, are quantized and stored.
//
// A weight `m.weight` of shape [o, i] and dtype T (f32, bf16, f16) becomes the tensors of its layout (weight_format.h),
// and for static activations
//   m.input_scale T [1], and m.input_zero_point I8 [1] if they are asymmetric
// or for NVFP4 activations
//   m.input_global_scale F32 [1]

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/formats/plain_quantized.h"
#include "serving/formats/weight_format.h"

namespace aqt::serving {

// The elements of an activation that share one scale: a row of the input, all of it, or group_size elements of a row.
enum class InputStrategy : uint8_t { kToken, kTensor, kGroup };
// "token", "tensor" or "group", as in a quantization_config.
absl::string_view ToString(InputStrategy strategy);

// Dynamic activations store no tensors: the scheme only instructs the server. With kE4M3 (NVFP4) the scales of groups
// are dynamic, and the global scale is static.
struct InputScheme {
  int num_bits = 8;  // kInt: 2 .. 8; kFloat: 8, or as for weights of the scale type
  bool symmetric = true;
  bool dynamic = true;
  InputStrategy strategy = InputStrategy::kToken;  // static: kTensor
  int64_t group_size = 0;                          // only with kGroup
  ValueType type = ValueType::kInt;                // that of the weights; also kFloat of 8 bits with weights of kInt
  ScaleType scale_type = ScaleType::kWeight;       // others: only with kGroup
  bool operator==(const InputScheme&) const = default;
};

struct Scheme {
  WeightScheme weights;
  std::optional<InputScheme> input;              // null: activations stay in floating point
  const WeightFormat* format = &IntQuantized();  // a row of weight_formats.h, never null
  bool operator==(const Scheme&) const = default;

  // Whether the range of the activations is needed.
  bool HasStaticInput() const {
    return input.has_value() && (!input->dynamic || input->scale_type == ScaleType::kE4M3);
  }
};

// InvalidArgument for a contradiction, Unimplemented for a scheme that this version cannot write; both name the field.
absl::Status Validate(const Scheme& scheme);

// "int4 g32 asymmetric, input int8 per token dynamic, pack-quantized"; "fp8 per 128x128 block, naive-quantized";
// "mxfp4 g32, mxfp4-pack-quantized".
std::string Describe(const Scheme& scheme);

// "layers.0.fc1" for "layers.0.fc1.weight"; null if `tensor` does not end in ".weight" or has nothing before it.
std::optional<absl::string_view> ModuleOf(absl::string_view tensor);

// OK, or the reason why `scheme` cannot quantize such a weight, with the remedy if there is one: InvalidArgument (group
// size) or Unimplemented (rank, dtype, no elements).
absl::Status CheckApplicable(const Scheme& scheme, io::FileDType dtype, const Shape& shape);
// InvalidArgument if the groups of dynamic activations do not fill the rows of such a weight. The stored tensors do not
// depend on them.
absl::Status CheckInputGroups(const Scheme& scheme, const Shape& shape);

// The stored tensors of a weight: those of its layout, then those of its input where they exist.
// CheckApplicable must hold.
std::vector<io::TensorSpec> OutputTensors(const Scheme& scheme, absl::string_view module, io::FileDType dtype,
                                          const Shape& shape);

// The suffixes after the module's name.
inline constexpr char kInputScale[] = ".input_scale";
inline constexpr char kInputZeroPoint[] = ".input_zero_point";
inline constexpr char kInputGlobalScale[] = ".input_global_scale";

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_SCHEME_H_
