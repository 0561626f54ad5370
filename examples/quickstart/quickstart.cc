// AQT's public examples in C++: an MLP in int8 and int4, an int8 matrix product by hand, and a standalone quantizer.
// README.md explains the output.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/quant/text/config_proto.h"
#include "examples/quickstart/kernels.h"

namespace quickstart {
namespace {

// Nine digits identify an f32 exactly; five suffice where the last bits depend on the machine's order of summation.
void PrintRows(const char* name, absl::Span<const float> values, int columns, int digits = 9) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % columns == 0) std::printf("  %-8s", i == 0 ? name : "");
    std::printf(" %14.*g%s", digits, values[i], (i + 1) % columns == 0 ? "\n" : "");
  }
}

// ---- 1. Two dense layers with a relu between them. The configuration decides how the products are computed.

absl::StatusOr<aqt::Array> Mlp(const aqt::DotGeneralConfig& config) {
  const aqt::ArrayRef x(kInputs, {3, 4}), kernel0(kKernel0, {4, 16}), kernel1(kKernel1, {16, 4});
  AQT_ASSIGN_OR_RETURN(const aqt::Array y, aqt::QuantizedDotGeneral(config, x, kernel0, aqt::MatMulDims()));
  std::vector<float> hidden;
  for (const float v : y.View<float>()) hidden.push_back(std::max(v, 0.0f));
  return aqt::QuantizedDotGeneral(config, aqt::ArrayRef(hidden.data(), {3, 16}), kernel1, aqt::MatMulDims());
}

absl::Status MlpExample() {
  AQT_ASSIGN_OR_RETURN(const aqt::DotGeneralConfig int8, aqt::DotGeneralFromPreset("fully_quantized_int8"));
  AQT_ASSIGN_OR_RETURN(const aqt::DotGeneralConfig int4, aqt::DotGeneralFromText(R"(
      schema: 1
      base: "config_v4"
      fwd {
        lhs { quantizer { int_symmetric { bits: 4 } } }
        rhs { quantizer { int_symmetric { bits: 4 } } }
      })"));
  AQT_ASSIGN_OR_RETURN(const aqt::Array y32, Mlp(aqt::DefaultUnquantizedConfig()));
  AQT_ASSIGN_OR_RETURN(const aqt::Array y8, Mlp(int8));
  AQT_ASSIGN_OR_RETURN(const aqt::Array y4, Mlp(int4));
  std::printf("1. MLP\n");
  PrintRows("fp32", y32.View<float>(), 4, 5);
  PrintRows("int8", y8.View<float>(), 4);
  PrintRows("int4", y4.View<float>(), 4);
  return absl::OkStatus();
}

// ---- 2. The steps inside, by hand: a [3,4] x w [4,5] in int8.

constexpr float kA[3 * 4] = {1.76405239f,  0.400157213f,  0.97873801f,   2.24089313f,  1.867558f,    -0.977277875f,
                             0.950088441f, -0.151357204f, -0.103218853f, 0.410598516f, 0.144043565f, 1.45427346f};
constexpr float kW[4 * 5] = {1.76405239f,   0.400157213f, 0.97873801f,   2.24089313f,   1.867558f,
                             -0.977277875f, 0.950088441f, -0.151357204f, -0.103218853f, 0.410598516f,
                             0.144043565f,  1.45427346f,  0.761037707f,  0.121675014f,  0.443863243f,
                             0.333674341f,  1.49407911f,  -0.205158263f, 0.313067704f,  -0.854095757f};

// q = round(x * scale) with scale = 127 / max|x| of n numbers, `stride` apart.
float QuantizeLine(const float* x, int n, int stride, int8_t* q) {
  float max = 0;
  for (int i = 0; i < n; ++i) max = std::max(max, std::fabs(x[i * stride]));
  const float scale = 127 / max;
  for (int i = 0; i < n; ++i) {
    q[i * stride] = static_cast<int8_t>(std::clamp(std::nearbyint(x[i * stride] * scale), -127.0f, 127.0f));
  }
  return scale;
}

absl::Status MatmulExample() {
  int8_t qa[3 * 4], qw[4 * 5];
  float a_scale[3], w_scale[5], product[3 * 5];
  for (int i = 0; i < 3; ++i) a_scale[i] = QuantizeLine(kA + 4 * i, 4, 1, qa + 4 * i);
  for (int j = 0; j < 5; ++j) w_scale[j] = QuantizeLine(kW + j, 4, 5, qw + j);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 5; ++j) {
      int32_t sum = 0;
      for (int k = 0; k < 4; ++k) sum += qa[4 * i + k] * qw[5 * k + j];
      product[5 * i + j] = static_cast<float>(sum) / (a_scale[i] * w_scale[j]);
    }
  }
  const aqt::ArrayRef a(kA, {3, 4}), w(kW, {4, 5});
  AQT_ASSIGN_OR_RETURN(const aqt::Array y32,
                       aqt::QuantizedDotGeneral(aqt::DefaultUnquantizedConfig(), a, w, aqt::MatMulDims()));
  AQT_ASSIGN_OR_RETURN(const aqt::DotGeneralConfig int8, aqt::DotGeneralFromText(R"(
      schema: 1
      base: "int8_fwd"
      fwd {
        lhs { quantizer { int_symmetric { preserve_max_val: true } } }
        rhs { quantizer { int_symmetric { preserve_max_val: true } } }
      })"));
  AQT_ASSIGN_OR_RETURN(const aqt::Array y8, aqt::QuantizedDotGeneral(int8, a, w, aqt::MatMulDims()));
  std::printf("2. int8 product\n");
  PrintRows("fp32", y32.View<float>(), 5, 5);
  PrintRows("by hand", product, 5);
  PrintRows("library", y8.View<float>(), 5);
  return absl::OkStatus();
}

// ---- 3. One tensor, quantized and dequantized, with fewer and with more bits.

absl::Status QuantizerExample() {
  float x[10];
  for (int i = 0; i < 10; ++i) x[i] = -10 + 20 * static_cast<float>(i) / 9;
  std::printf("3. Quantizer\n");
  PrintRows("x", x, 5, 5);
  for (const int bits : {4, 2, 3, 8}) {
    const aqt::Quantizer quantizer = aqt::QuantizerMake(bits, /*preserve_max_val=*/true);
    AQT_ASSIGN_OR_RETURN(const aqt::QTensor q, aqt::Quantize(quantizer, aqt::ArrayRef(x, {10}), {0}));
    AQT_ASSIGN_OR_RETURN(const aqt::Array dequantized, q.Dequantize());
    std::printf("  %d bits, scale %.9g\n", bits, q.scale[0].View<float>()[0]);
    PrintRows("qvalue", aqt::Cast(*q.qvalue, aqt::DType::kF32).View<float>(), 5);
    PrintRows("dequant", dequantized.View<float>(), 5);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace quickstart

int main() {
  absl::Status status = quickstart::MlpExample();
  if (status.ok()) status = quickstart::MatmulExample();
  if (status.ok()) status = quickstart::QuantizerExample();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
