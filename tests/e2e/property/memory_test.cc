// Results are written completely: no bit depends on the previous content of their memory.

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/value.h"
#include "aqt/kernels/contraction.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/testing/memory_fill.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"

namespace aqt {
namespace {

using testing::FillNewMemoryWith;
using testing::RandomArray;
using Arrays = std::vector<Array>;

// As a float -2.9e-16, as an s8 -91.
constexpr uint8_t kPattern = 0xA5;

TEST(Memory, OnlyForOverwriteIsNotZeroed) {
  const Aval aval{DType::kS8, {5, 3}};
  FillNewMemoryWith(kPattern);
  ArrayBuilder zeroed(aval), raw = ArrayBuilder::ForOverwrite(aval);
  FillNewMemoryWith(0);
  EXPECT_EQ(raw.aval(), aval);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(raw.data()) % 64, 0u);
  for (const int8_t v : zeroed.Mutable<int8_t>()) EXPECT_EQ(v, 0);
  for (const int8_t v : raw.Mutable<int8_t>()) EXPECT_EQ(v, static_cast<int8_t>(kPattern));
}

// `run` gives the same bits with memory of zeros and with memory of another pattern.
void ExpectWritesAll(const std::string& what, const std::function<absl::StatusOr<Arrays>()>& run) {
  const absl::StatusOr<Arrays> want = run();
  FillNewMemoryWith(kPattern);
  const absl::StatusOr<Arrays> got = run();
  FillNewMemoryWith(0);
  ASSERT_TRUE(want.ok()) << what << ": " << want.status();
  ASSERT_EQ(got.status(), absl::OkStatus()) << what;
  ASSERT_EQ(got->size(), want->size()) << what;
  for (size_t i = 0; i < got->size(); ++i) EXPECT_TRUE(BitEqual((*got)[i], (*want)[i])) << what << ", result " << i;
}

absl::StatusOr<Arrays> List(absl::StatusOr<Array> out) {
  if (!out.ok()) return out.status();
  return Arrays{*out};
}
absl::StatusOr<Arrays> List(absl::StatusOr<DotGeneralGradients> results) {
  if (!results.ok()) return results.status();
  return Arrays{results->out, results->dlhs, results->drhs};
}

TEST(Memory, OfCopiesAndCasts) {
  const Array x = RandomArray({DType::kF32, {3, 4, 5}}, 1);
  const ArrayRef transposed(DType::kF32, {5, 3}, {1, 20}, x.data());
  for (const DType dtype : {DType::kF64, DType::kBF16, DType::kE4M3FN, DType::kS4, DType::kS2, DType::kBool}) {
    ExpectWritesAll(absl::StrCat("to ", ToString(dtype)), [&] {
      return absl::StatusOr<Arrays>(Arrays{Cast(x, dtype), Cast(transposed, dtype), Array::CopyOf(Cast(x, dtype))});
    });
  }
  ExpectWritesAll("views", [&] {
    return absl::StatusOr<Arrays>(Arrays{Array::CopyOf(transposed), Array::FromSpan<float>(x.View<float>(), {60})});
  });
}

TEST(Memory, OfQuantizedTensors) {
  const Array x = RandomArray({DType::kF32, {6, 10}}, 1);
  for (const int bits : {2, 4, 8, 12}) {
    ExpectWritesAll(absl::StrCat(bits, " bits"), [&]() -> absl::StatusOr<Arrays> {
      const absl::StatusOr<QTensor> q = Quantize(QuantizerMake(bits), x, {1});
      if (!q.ok()) return q.status();
      return Arrays{*q->qvalue, q->scale[0], *q->Dequantize(), *q->ScaledValue(x)};
    });
  }
}

TEST(Memory, OfDotGeneral) {
  DotGeneralConfig tiled = DotGeneralMake(8, 8, {.bwd_bits = 8});
  tiled.tiling = *DotTilingFromEinsum("ab,bc->ac", {{'b', 4}});
  const std::vector<DotGeneralConfig> configs = {DotGeneralMake(8, 8, {.bwd_bits = 8}), DotGeneralMake(4, 4),
                                                 DotGeneralMake(std::nullopt, 8), DefaultUnquantizedConfig(),
                                                 *FullyQuantized({.use_stochastic_rounding = false})};
  const std::vector<Shape> extents = {{3, 8, 5}, {0, 8, 5}, {3, 0, 5}, {3, 8, 0}, {1, 1, 1}, {67, 40, 33}};
  for (const Shape& e : extents) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Array lhs = RandomArray({dtype, {e[0], e[1]}}, 1), rhs = RandomArray({dtype, {e[1], e[2]}}, 2);
      const Array g = RandomArray({dtype, {e[0], e[2]}}, 3);
      for (size_t i = 0; i < configs.size(); ++i) {
        ExpectWritesAll(absl::StrCat(e.ToString(), " ", ToString(dtype), " configuration ", i),
                        [&] { return List(QuantizedDotGeneralWithGradients(configs[i], lhs, rhs, g, MatMulDims())); });
      }
    }
  }
  const Array lhs = RandomArray({DType::kF32, {3, 8}}, 1), rhs = RandomArray({DType::kF32, {8, 5}}, 2);
  const Array g = RandomArray({DType::kF32, {3, 5}}, 3);
  ExpectWritesAll("tiled", [&] { return List(QuantizedDotGeneralWithGradients(tiled, lhs, rhs, g, MatMulDims())); });
  ExpectWritesAll("forward", [&] { return List(QuantizedDotGeneral(tiled, lhs, rhs, MatMulDims())); });
}

// Zeros off a diagonal, sums, rows of no group, positions without a product.
TEST(Memory, OfOtherContractions) {
  const DotGeneralConfig config = DotGeneralMake(8, 8);
  for (const char* equation : {"ab,bc->ca", "aa,ab->b", "ab,bc->c", "ab,cd->bd"}) {
    const Array lhs = RandomArray({DType::kF32, {4, 4}}, 1), rhs = RandomArray({DType::kF32, {4, 4}}, 2);
    const Array g =
        RandomArray({DType::kF32, EinsumPlan::Make(equation, config, lhs.aval(), rhs.aval())->out_aval().shape}, 3);
    ExpectWritesAll(equation, [&] { return List(QuantizedEinsumWithGradients(equation, config, lhs, rhs, g)); });
  }
  for (const DotGeneralConfig& ragged : {config, DefaultUnquantizedConfig()}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 0, 3}, {0, 0, 0}}) {
      const Array lhs = RandomArray({DType::kF32, {7, 8}}, 1), rhs = RandomArray({DType::kF32, {3, 8, 5}}, 2);
      const Array g = RandomArray({DType::kF32, {7, 5}}, 3);
      ExpectWritesAll("ragged", [&] { return List(QuantizedRaggedDotWithGradients(ragged, lhs, rhs, g, sizes)); });
    }
  }
  for (const auto& [x, kernel] : std::vector<std::pair<Shape, Shape>>{
           {{2, 7, 3}, {3, 3, 4}}, {{0, 7, 3}, {3, 3, 4}}, {{2, 7, 0}, {3, 0, 4}}, {{2, 2, 3}, {3, 3, 4}}}) {
    for (const Bits bits : {Bits(8), Bits(std::nullopt)}) {
      const DotGeneralRawConfig raw = ConvGeneralDilatedMake(1, bits, bits);
      const Array lhs = RandomArray({DType::kF32, x}, 1), rhs = RandomArray({DType::kF32, kernel}, 2);
      const absl::StatusOr<ConvGeneralPlan> plan = ConvGeneralPlan::Make(raw, lhs.aval(), rhs.aval(), {});
      ASSERT_TRUE(plan.ok()) << x << " " << kernel << " " << plan.status();
      const Array g = RandomArray({DType::kF32, plan->out_aval().shape}, 3);
      ExpectWritesAll(absl::StrCat("convolution ", x.ToString(), " ", kernel.ToString()),
                      [&] { return List(QuantizedConvGeneralWithGradients(raw, lhs, rhs, g, {})); });
    }
  }
}

TEST(Memory, OfPlainContractions) {
  const Shape extents[] = {{3, 8, 5}, {3, 0, 5}};
  for (const Shape& e : extents) {
    for (const auto& [from, to] : {std::pair{DType::kF64, DType::kF64},
                                   {DType::kF32, DType::kF32},
                                   {DType::kF32, DType::kBF16},
                                   {DType::kS8, DType::kS32},
                                   {DType::kS32, DType::kS32}}) {
      const Array lhs = Cast(RandomArray({DType::kF32, {e[0], e[1]}}, 1), from);
      const Array rhs = Cast(RandomArray({DType::kF32, {e[1], e[2]}}, 2), from);
      ExpectWritesAll(absl::StrCat(ToString(from), " ", e.ToString()), [&, to = to] {
        ArrayBuilder out = ArrayBuilder::ForOverwrite({to, {e[0], e[2]}});
        kernels::Contract(MatMulDims(), lhs, rhs, out.ref());
        return absl::StatusOr<Arrays>(Arrays{std::move(out).Build()});
      });
    }
  }
}

TEST(Memory, OfBasicOperations) {
  const Array a = RandomArray({DType::kF32, {3, 4}}, 1), b = RandomArray({DType::kF32, {3, 4}}, 2);
  const Array empty = Array::Zeros(DType::kF32, {0, 4});
  const auto all = [](absl::Span<const Value> in) {
    const Value &x = in[0], &y = in[1], &none = in[2];
    const Value integers = ops::Cast(x * 10.0, DType::kS32);
    return std::vector<Value>{x + y,
                              ops::Exp(x),
                              ops::Cast(ops::Less(x, y), DType::kF32),
                              ops::Select(ops::Less(x, y), x, y),
                              ops::ReduceSum(x, {0}),
                              ops::ReduceMax(x),
                              ops::ReduceSum(none, {0}),
                              ops::BroadcastTo(ops::ReduceSum(x, {0}), {2, 4}),
                              ops::Transpose(x, {1, 0}),
                              ops::Slice(x, {0, 1}, {3, 4}, {2, 2}),
                              ops::Pad(x, {1, 0}, {0, 2}, {1, 0}),
                              ops::Concatenate(std::vector<Value>{x, none, y}, 0),
                              ops::MatMul(x, ops::Transpose(y, {1, 0})),
                              ops::MatMul(ops::Transpose(none, {1, 0}), none),
                              ops::MatMul(integers, ops::Transpose(integers, {1, 0}))};
  };
  ExpectWritesAll("basic operations", [&] { return testing::RunBothWays(all, Arrays{a, b, empty}); });
}

}  // namespace
}  // namespace aqt
