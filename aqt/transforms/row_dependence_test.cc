#include "aqt/transforms/row_dependence.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::RandomArray;
using ::aqt::testing::RunEagerly;
using ::aqt::testing::TraceWith;
using ::testing::HasSubstr;
using In = absl::Span<const Value>;

constexpr int64_t kLength = 4, kWidth = 8;

// x [batch, length, width] to an output with the batch as axis 0.
using Model = std::function<Value(const Value&)>;

Program ProgramOf(const Model& model, int64_t batch, int64_t length = kLength) {
  const Array x = Array::Zeros(DType::kF32, {batch, length, kWidth});
  return *TraceWith([&](In in) { return std::vector<Value>{model(in[0])}; }, {x});
}

std::string Why(const Model& model) {
  const auto why = WhyRowsDepend({ProgramOf(model, 1), ProgramOf(model, 2), ProgramOf(model, 3)});
  EXPECT_TRUE(why.ok()) << why.status();
  return why.value_or("error");
}

// Whether the last of 3 rows has its bits in a batch of its own, for random data. The first row is larger.
bool RowIsTheSameAlone(const Model& model) {
  const Array all = RandomArray({DType::kF32, {3, kLength, kWidth}}, 5);
  std::vector<float> scaled(all.View<float>().begin(), all.View<float>().end());
  for (int64_t i = 0; i < kLength * kWidth; ++i) scaled[i] *= 100;
  const Array x = Array::FromSpan(absl::MakeConstSpan(scaled), all.shape());
  const Array row = Array::FromSpan(x.View<float>().subspan(2 * kLength * kWidth), {1, kLength, kWidth});
  const auto fn = [&](In in) { return std::vector<Value>{model(in[0])}; };
  const auto in_batch = RunEagerly(fn, {x}), alone = RunEagerly(fn, {row});
  EXPECT_TRUE(in_batch.ok() && alone.ok()) << in_batch.status() << alone.status();
  const int64_t bytes = (*alone)[0].num_bytes();
  if ((*in_batch)[0].num_bytes() != 3 * bytes) return false;
  return std::memcmp(static_cast<const char*>((*in_batch)[0].data()) + 2 * bytes, (*alone)[0].data(), bytes) == 0;
}

Value Weight(Shape shape) { return Value(RandomArray({DType::kF32, std::move(shape)}, 9)); }

Value QuantizedDense(const Value& x, const DotGeneralConfig& config, const Semantics& semantics = {}) {
  const int64_t axis = x.rank() - 1;
  return ops::AqtDotGeneral({x}, {Weight({kWidth, 5})}, {{axis}, {0}, {}, {}}, config, std::nullopt, semantics);
}

DotGeneralConfig PerTensor() {
  DotGeneralConfig config = DotGeneralMake(8, 8);
  config.fwd.lhs.quantizer.calib_shared_axes.per_tensor = true;
  return config;
}

Semantics Ieee() {
  Semantics semantics;
  semantics.arithmetic = Arithmetic::kIeee;
  return semantics;
}

TEST(RowDependenceTest, RowsThatAreIndependent) {
  const std::vector<std::pair<std::string, Model>> models = {
      {"elementwise", [](const Value& x) { return ops::Exp(x) + x * 0.5; }},
      {"softmax of a row", [](const Value& x) { return ops::Softmax(x); }},
      {"sum over the length", [](const Value& x) { return ops::ReduceSum(x, {1}); }},
      {"product with a weight",
       [](const Value& x) {
         return ops::MatMul(x, Weight({kWidth, 3}));
       }},
      {"product within a row", [](const Value& x) { return ops::Einsum("blw,bmw->blm", x, x); }},
      {"joined with the length, and split again",
       [](const Value& x) {
         const Value flat = ops::Reshape(x, {x.shape()[0] * kLength, kWidth});
         return ops::Reshape(ops::Softmax(flat), {x.shape()[0], kLength * kWidth});
       }},
      {"moved",
       [](const Value& x) {
         return ops::Transpose(ops::Exp(ops::Transpose(x, {2, 0, 1})), {1, 2, 0});
       }},
      {"numbers of the length",
       [](const Value& x) {
         return x + ops::Iota(DType::kF32, {kLength, kWidth}, 0);
       }},
      {"int8 by rows", [](const Value& x) { return QuantizedDense(x, DotGeneralMake(8, 8)); }},
      {"int8 of one row, divided",
       [](const Value& x) { return QuantizedDense(ops::ReduceSum(x, {1}), DotGeneralMake(8, 8), Ieee()); }},
  };
  for (const auto& [name, model] : models) {
    EXPECT_EQ(Why(model), "") << name;
    EXPECT_TRUE(RowIsTheSameAlone(model)) << name;
  }
}

TEST(RowDependenceTest, RowsThatDepend) {
  const std::vector<std::pair<std::string, Model>> models = {
      {"reduce_max", [](const Value& x) { return x - ops::ReduceMax(x, {0}, /*keepdims=*/true); }},
      {"dot_general", [](const Value& x) { return ops::MatMul(x, ops::Einsum("blw,blv->wv", x, x)); }},
      {"reduce_sum", [](const Value& x) { return ops::ReduceSum(ops::Einsum("blw,clw->bc", x, x), {1}); }},
      {"cumulative_sum", [](const Value& x) { return ops::CumulativeSum(x, 0); }},
      {"reverse", [](const Value& x) { return ops::Reverse(x, {0}); }},
      {"iota", [](const Value& x) { return x + ops::Iota(DType::kF32, x.shape(), 0); }},
      {"slice",
       [](const Value& x) {
         return ops::Slice(x, {0, 0, 0}, {1, kLength, kWidth}, {1, 1, 1}) + x;
       }},
      {"reshape",
       [](const Value& x) {
         const int64_t batch = x.shape()[0];
         const Value mixed = ops::Exp(ops::Reshape(x, {kLength, batch, kWidth}));
         return ops::Transpose(mixed, {1, 0, 2});
       }},
      {"reduce_max of f32[2,4,8]", [](const Value& x) { return QuantizedDense(x, PerTensor()); }},
  };
  for (const auto& [name, model] : models) {
    EXPECT_THAT(Why(model), HasSubstr(name)) << name;
    EXPECT_FALSE(RowIsTheSameAlone(model)) << name;
  }
}

// docs/bits.md: the scale of a batch of one row is divided, that of several is multiplied. Not all data show it.
TEST(RowDependenceTest, ABatchOfOneRow) {
  EXPECT_THAT(Why([](const Value& x) { return QuantizedDense(ops::ReduceSum(x, {1}), DotGeneralMake(8, 8)); }),
              HasSubstr("a batch of one row has other arithmetic: div instead of mul"));
}

TEST(RowDependenceTest, ScalesThatPaddingCouldChange) {
  const auto why = [](const Model& model) { return *WhyPaddingCounts(ProgramOf(model, 1, 4), ProgramOf(model, 1, 6)); };
  EXPECT_EQ(why([](const Value& x) { return QuantizedDense(x, DotGeneralMake(8, 8)); }), "");
  EXPECT_THAT(why([](const Value& x) { return QuantizedDense(x, PerTensor()); }), HasSubstr("aqt_dot_general"));
  // The product of an attention with its values sums over the positions, and so a scale of values is that of all.
  const auto attention = [](const Value& x, const DotGeneralConfig& config) {
    const Value weights = ops::Softmax(ops::Einsum("blw,bmw->blm", x, x));
    return ops::AqtDotGeneral({weights}, {x}, {{2}, {1}, {0}, {0}}, config);
  };
  EXPECT_THAT(why([&](const Value& x) { return attention(x, DotGeneralMake(8, 8)); }), HasSubstr("aqt_dot_general"));
  // The model's own sums over positions are its own affair.
  EXPECT_EQ(why([](const Value& x) { return ops::ReduceSum(x, {1}); }), "");
}

TEST(RowDependenceTest, OneProgramDoesNotTell) {
  EXPECT_TRUE(absl::IsInvalidArgument(WhyRowsDepend({ProgramOf([](const Value& x) { return x; }, 1)}).status()));
}

}  // namespace
}  // namespace aqt
