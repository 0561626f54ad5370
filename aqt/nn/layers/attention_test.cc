#include "aqt/nn/layers/attention.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::CheckGradients;
using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Array F64(const Shape& shape, uint64_t seed) { return RandomArray({DType::kF64, shape}, seed); }

double At(const Array& x, int64_t i, int64_t j, int64_t k, int64_t l) {
  const Shape& s = x.shape();
  return x.View<double>()[((i * s[1] + j) * s[2] + k) * s[3] + l];
}

TEST(AttentionTest, CausalMaskEndsAtTheLastKey) {
  EXPECT_TRUE(BitEqual(*CausalMask(2, 3).ToArray(), Array::Of<bool>({true, true, false, true, true, true}, {2, 3})));
  EXPECT_TRUE(BitEqual(*CausalMask(3, 2).ToArray(), Array::Of<bool>({false, false, true, false, true, true}, {3, 2})));
}

TEST(AttentionTest, WindowMaskHasTwoSides) {
  EXPECT_TRUE(BitEqual(*WindowMask(3, 3, 1).ToArray(),
                       Array::Of<bool>({true, true, false, true, true, true, false, true, true}, {3, 3})));
  // The last query is at the last key.
  EXPECT_TRUE(BitEqual(*WindowMask(1, 4, 2).ToArray(), Array::Of<bool>({false, true, true, true}, {1, 4})));
  EXPECT_TRUE(BitEqual(*WindowMask(2, 2, 0).ToArray(), Array::Of<bool>({true, false, false, true}, {2, 2})));
  EXPECT_TRUE(BitEqual(*WindowMask(2, 2, 5).ToArray(), Array::Of<bool>({true, true, true, true}, {2, 2})));
}

TEST(AttentionTest, PaddingMaskCountsKeys) {
  EXPECT_TRUE(BitEqual(*PaddingMask(Value(Array::Of<int32_t>({0, 2, 5}, {3})), 2).ToArray(),
                       Array::Of<bool>({false, false, true, true, true, true}, {3, 1, 1, 2})));
}

// Compares with the formula in plain f64 loops.
TEST(AttentionTest, Formula) {
  const int64_t batch = 2, queries = 3, keys = 4, heads = 2, features = 5, out = 3;
  const Array q = F64({batch, queries, heads, features}, 1), k = F64({batch, keys, heads, features}, 2),
              v = F64({batch, keys, heads, out}, 3);
  const Array bias = F64({1, heads, queries, keys}, 4);
  const absl::StatusOr<Array> got =
      DotProductAttention(Value(q), Value(k), Value(v), CausalMask(queries, keys), "attention", {.bias = Value(bias)})
          .ToArray();
  ASSERT_THAT(got, IsOk());
  ASSERT_EQ(got->shape(), (Shape{batch, queries, heads, out}));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> weights;
        double sum = 0;
        for (int64_t j = 0; j <= i + keys - queries; ++j) {
          double score = 0;
          for (int64_t f = 0; f < features; ++f) score += At(q, b, i, h, f) * At(k, b, j, h, f);
          weights.push_back(std::exp(score / std::sqrt(5.0) + At(bias, 0, h, i, j)));
          sum += weights.back();
        }
        for (int64_t o = 0; o < out; ++o) {
          double want = 0;
          for (size_t j = 0; j < weights.size(); ++j) want += weights[j] / sum * At(v, b, j, h, o);
          EXPECT_NEAR(At(*got, b, i, h, o), want, 1e-13);
        }
      }
    }
  }
}

// Elements past a sequence's end change no bit of its result.
TEST(AttentionTest, MaskedKeysHaveNoInfluence) {
  const Value q(RandomArray({DType::kF32, {1, 2, 2, 4}}, 1)),
      mask = PaddingMask(Value(Array::Of<int32_t>({3}, {1})), 5);
  const auto run = [&](uint64_t tail) {
    const auto padded = [&](uint64_t seed) {
      const Value parts[] = {Value(RandomArray({DType::kF32, {1, 3, 2, 4}}, seed)),
                             Value(RandomArray({DType::kF32, {1, 2, 2, 4}}, tail + seed))};
      return ops::Concatenate(parts, 1);
    };
    return *DotProductAttention(q, padded(2), padded(3), mask, "attention").ToArray();
  };
  EXPECT_TRUE(BitEqual(run(100), run(200)));
}

// A query that sees no key gets the mean of all values, not NaN.
TEST(AttentionTest, AQueryWithoutKeys) {
  const Array v = Array::Of<float>({1, 3, 5, 7}, {1, 4, 1, 1});
  const Value q(RandomArray({DType::kF32, {1, 1, 1, 2}}, 1)), k(RandomArray({DType::kF32, {1, 4, 1, 2}}, 2));
  const Value mask = PaddingMask(Value(Array::Of<int32_t>({0}, {1})), 4);
  EXPECT_TRUE(
      BitEqual(*DotProductAttention(q, k, Value(v), mask, "attention").ToArray(), Array::Of<float>({4}, {1, 1, 1, 1})));
}

TEST(AttentionTest, Gradients) {
  const auto attention = [](In in) {
    return Values{DotProductAttention(in[0], in[1], in[2], CausalMask(3, 4), "attention")};
  };
  EXPECT_THAT(CheckGradients(attention, {F64({2, 3, 2, 4}, 1), F64({2, 4, 2, 4}, 2), F64({2, 4, 2, 3}, 3)}), IsOk());
}

const Slot kX{SlotKind::kData, "x"};

absl::StatusOr<Program> SelfAttention(const Shape& shape, const MultiHeadAttentionOptions& options) {
  return Trace(
      [&](In in) { return Values{MultiHeadAttention(in[0], in[0], CausalMask(shape[1], shape[1]), "mha", options)}; },
      {{kX, {DType::kF32, shape}}});
}

TEST(AttentionTest, ParametersOfMultiHeadAttention) {
  const absl::StatusOr<Program> program =
      SelfAttention({2, 5, 12}, {.heads = 3, .head_features = 8, .out_features = 6});
  ASSERT_THAT(program, IsOk());
  std::vector<std::string> params;
  for (const int i : program->InputsOfKind(SlotKind::kParam)) {
    params.push_back(program->inputs[i].slot.path + " " + program->aval(program->inputs[i].var).ToString());
  }
  EXPECT_THAT(params, ::testing::ElementsAre("mha/query/kernel f32[12,3,8]", "mha/query/bias f32[3,8]",
                                             "mha/key/kernel f32[12,3,8]", "mha/key/bias f32[3,8]",
                                             "mha/value/kernel f32[12,3,8]", "mha/value/bias f32[3,8]",
                                             "mha/out/kernel f32[3,8,6]", "mha/out/bias f32[6]"));
  EXPECT_EQ(program->aval(program->outputs[0].var), (Aval{DType::kF32, {2, 5, 6}}));
}

// A rule finds the projections and both products by their scopes.
TEST(AttentionTest, RulesQuantizeEveryProduct) {
  const absl::StatusOr<Program> program = SelfAttention({2, 5, 12}, {.heads = 3});
  const absl::StatusOr<InjectConfig> config = InjectConfigFromText(R"pb(
    schema: 1
    rules {
      scope: "mha/attention/(qk|av)"
      dot_general { base: "fully_quantized_int8" }
    }
    rules {
      scope: "mha/(query|key|value|out)"
      dot_general { base: "fully_quantized_int8" }
    })pb");
  ASSERT_THAT(config, IsOk());
  const absl::StatusOr<Program> injected = Inject(*program, *config);
  ASSERT_THAT(injected, IsOk());
  EXPECT_EQ(CountOps(*injected, "dot_general"), 0);
  EXPECT_EQ(CountOps(*injected, "aqt_dot_general"), 6);
}

TEST(AttentionTest, Errors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(SelfAttention({2, 5, 12}, {.heads = 5}),
              FailsWith(kInvalid, {"multi_head_attention [mha]", "5 heads do not divide the 12 features"}));
  EXPECT_THAT(SelfAttention({2, 5, 12}, {.heads = 0}), FailsWith(kInvalid, {"heads = 0", "attention_test.cc:"}));
  EXPECT_THAT(SelfAttention({2, 5, 12, 1}, {}), FailsWith(kInvalid, {"takes arrays [batch, length, features]"}));
  const auto attention = [](const Shape& key, const Shape& value) {
    return Trace([&](In in) { return Values{DotProductAttention(in[0], in[1], in[2], std::nullopt, "attention")}; },
                 {{kX, {DType::kF32, {2, 3, 2, 4}}},
                  {{SlotKind::kData, "key"}, {DType::kF32, key}},
                  {{SlotKind::kData, "value"}, {DType::kF32, value}}});
  };
  EXPECT_THAT(attention({2, 3, 2, 4}, {2, 3, 2, 1}), IsOk());
  for (const Shape& key :
       {Shape{1, 3, 2, 4}, Shape{2, 5, 2, 4}, Shape{2, 3, 1, 4}, Shape{2, 3, 2, 3}, Shape{2, 3, 8}}) {
    EXPECT_THAT(attention(key, {2, 3, 2, 1}),
                FailsWith(kInvalid, {"dot_product_attention [attention]", key.ToString(), "attention_test.cc:"}))
        << key;
  }
}

}  // namespace
}  // namespace aqt::nn
