#ifndef AQT_TESTS_GOLDEN_CHECK_GOLDEN_CASE_H_
#define AQT_TESTS_GOLDEN_CHECK_GOLDEN_CASE_H_

// A recorded case with its configuration in the library's own structs.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "tests/golden_check/compare.h"

namespace aqt::golden {

// By name. Logical uint16 has no dtype in the library: its values are kept as u32.
using Tensors = std::map<std::string, Array, std::less<>>;

// Scale, qvalue, dequantized value and gradient of one tensor.
struct QuantizeConfig {
  Quantizer quantizer;
  Axes calibration_axes;
  std::vector<AxisTiling> tilings;
};
// Scales and states of a calibration with state, call after call: x[i] in mode steps[i].
struct StatefulConfig {
  Quantizer quantizer;
  Axes calibration_axes;
  std::vector<QuantMode> steps;
};
// Only the numerics, on scaled values.
struct NumericsConfig {
  Numerics numerics;
};
// CeilToPo2 of scales.
struct CeilToPo2Config {};
// Values rounded to a small float format, kept in their container.
struct RoundToFormatConfig {
  FpFormat format;
  DType container;
};
// All codes of an 8-bit float, and plain conversion to one.
struct DecodeConfig {
  DType dtype;
};
struct CastConfig {
  DType to;
};
struct DotConfig {
  DotGeneralConfig config;
  DotDims dims;
};
struct EinsumConfig {
  std::string equation;
  DotGeneralConfig config;
  // Whether the sides of `config` are the operands of the product rather than those of the equation.
  bool of_product = false;
};
struct ConvGeneralConfig {
  DotGeneralRawConfig config;
  ConvDims dims;
};
struct RaggedDotConfig {
  DotGeneralRawConfig config;
};
// Random numbers of a seed.
struct RandomConfig {
  uint64_t seed = 0;
  PrngLayout layout = PrngLayout::kPartitionable;
};
// The keys of the six operands of a contraction.
struct OperandKeysConfig {};
// y = x kernel + bias, then max(y, 0) if relu.
struct Layer {
  int64_t features = 0;
  bool relu = false;
};
// Layers with kernels and biases numbered from 0.
struct MlpConfig {
  std::optional<DotGeneralConfig> dot_general;  // null: the float product
  std::vector<Layer> layers;
};
// Layers quantized as in training, then served from frozen kernels, and from frozen scales of the activations if these
// were calibrated.
struct ServingConfig {
  DotGeneralConfig dot_general = {};
  std::vector<Layer> layers = {};
  std::optional<int64_t> calibration_batches = std::nullopt;
  bool train_equals_serve = false;     // bit for bit
  bool serve_ignores_kernels = false;  // the float ones
};
// One contraction, trained or calibrated, converted and served. Each operand is a parameter or data. Parameters are
// frozen by value and scale, data by the scale from their statistics.
struct ServedDotConfig {
  DotGeneralConfig config = {};
  DotDims dims = {};
  bool lhs_is_param = false, rhs_is_param = false;
  int64_t calibration_batches = 0;
  bool train_equals_serve = false;  // bit for bit
};
// Layers trained by stochastic gradient descent on the mean softmax cross entropy.
struct TrainingConfig {
  std::optional<DotGeneralConfig> dot_general = std::nullopt;  // null: the float product
  std::vector<Layer> layers = {};
  int64_t steps = 0, batch_size = 0;
  double learning_rate = 0, momentum = 0;
};
// The hand-written product of AQT's README: scales bound / max|x| multiplied onto the operands and divided out.
struct HandWrittenMatMulConfig {
  IntSymmetric numerics;
  double bound = 0;
};

// One per line.
// clang-format off
using CaseConfig = std::variant<
    QuantizeConfig,
    StatefulConfig,
    NumericsConfig,
    CeilToPo2Config,
    RoundToFormatConfig,
    DecodeConfig,
    CastConfig,
    DotConfig,
    EinsumConfig,
    ConvGeneralConfig,
    RaggedDotConfig,
    RandomConfig,
    OperandKeysConfig,
    MlpConfig,
    ServingConfig,
    ServedDotConfig,
    TrainingConfig,
    HandWrittenMatMulConfig>;
// clang-format on

struct ExpectedTensor {
  std::string name;
  Array value;
  Tolerance tolerance;
};

struct GoldenCase {
  std::string name, family, feature;
  // Unimplemented if the library has no API for the feature or the configuration.
  absl::StatusOr<CaseConfig> config;
  Tensors inputs;
  std::vector<ExpectedTensor> expected;  // in the order of the manifest
};

// A case that the original refuses: without results, with the error.
struct RefusedCase {
  GoldenCase golden_case;
  std::string error;
};

struct GoldenFamily {
  std::string name;
  std::vector<GoldenCase> cases;
  std::vector<RefusedCase> refused;
};

struct GoldenSet {
  Semantics semantics{.compat = Compat::Original()};  // that made the numbers
  std::vector<GoldenFamily> families;                 // in the order of the manifest
};

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_GOLDEN_CASE_H_
