#include "aqt/nn/layers/einsum.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/name_key.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"

#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/initializers.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kKernel{SlotKind::kParam, "layer/kernel"}, kBias{SlotKind::kParam, "layer/bias"};

// Small integers: every order of a sum gives the same number.
Array Integers(const Shape& shape, uint64_t seed) {
  return *ops::Round(Value(RandomArray({DType::kF32, shape}, seed, -4, 4))).ToArray();
}

TEST(EinsumTest, IsTheDefinition) {
  const Array x = Integers({2, 3, 5}, 1), kernel = Integers({4, 5, 2}, 2), bias = Integers({2, 4}, 3);
  const SlotValues params = {{kKernel, kernel}, {kBias, bias}};
  const EagerParams eager(params);
  // The bias has the kernel's letters in the order of the result: k, h.
  const absl::StatusOr<Array> y = Einsum(Value(x), "btd,hdk->bkth", "layer", {.kernel = {4, 5, 2}}).ToArray();
  ASSERT_THAT(y, IsOk());
  ASSERT_EQ(y->shape(), (Shape{2, 2, 3, 4}));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t k = 0; k < 2; ++k) {
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t h = 0; h < 4; ++h) {
          float want = bias.View<float>()[k * 4 + h];
          for (int64_t d = 0; d < 5; ++d) {
            want += x.View<float>()[(b * 3 + t) * 5 + d] * kernel.View<float>()[(h * 5 + d) * 2 + k];
          }
          EXPECT_EQ(y->View<float>()[((b * 2 + k) * 3 + t) * 4 + h], want);
        }
      }
    }
  }
}

// A letter of x, kernel and result is a stack: each has its own bias.
TEST(EinsumTest, AStackOfExperts) {
  const Array x = Integers({3, 2, 4}, 1), kernel = Integers({3, 4, 5}, 2), bias = Integers({3, 5}, 3);
  const SlotValues params = {{kKernel, kernel}, {kBias, bias}};
  const EagerParams eager(params);
  const absl::StatusOr<Array> y = Einsum(Value(x), "etd,edf->etf", "layer", {.kernel = {3, 4, 5}}).ToArray();
  ASSERT_THAT(y, IsOk());
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t f = 0; f < 5; ++f) {
        float want = bias.View<float>()[e * 5 + f];
        for (int64_t d = 0; d < 4; ++d) {
          want += x.View<float>()[(e * 2 + t) * 4 + d] * kernel.View<float>()[(e * 4 + d) * 5 + f];
        }
        EXPECT_EQ(y->View<float>()[(e * 2 + t) * 5 + f], want);
      }
    }
  }
}

absl::StatusOr<Program> Layer(const std::optional<QuantizedDotOptions>& einsum) {
  return Trace(
      [&](In in) {
        return Values{Einsum(in[0], "btd,dhk->bthk", "layer", {.kernel = {6, 2, 4}, .einsum = einsum})};
      },
      {{kX, {DType::kF32, {2, 3, 6}}}});
}

TEST(EinsumTest, ExplicitAndInjectedQuantizationGiveTheSameText) {
  const DotGeneralConfig config = DotGeneralMake(8, 8, {.bwd_bits = 8});
  for (const QuantMode mode : {QuantMode::kTrain, QuantMode::kConvert, QuantMode::kServe}) {
    InjectConfig rules;
    rules.rules.push_back({.ops = {"einsum"}, .dot_general = config});
    rules.param_mode = mode;
    const absl::StatusOr<Program> injected = Inject(*Layer(std::nullopt), rules),
                                  explicit_one = Layer(AqtDotGeneral(config, mode));
    ASSERT_THAT(injected, IsOk());
    ASSERT_THAT(explicit_one, IsOk());
    EXPECT_EQ(ToText(*explicit_one), ToText(*injected));
  }
}

// The contracted axes are the inputs, whatever their positions; a stack is not a window.
TEST(EinsumTest, InitialValues) {
  const auto initial = [](const Shape& x, const char* equation, const Shape& kernel) {
    const absl::StatusOr<SlotValues> params =
        InitParams([&](In in) { return Values{Einsum(in[0], equation, "layer", {.kernel = kernel})}; },
                   {{kX, {DType::kF32, x}}}, MakeKey(5));
    EXPECT_THAT(params, IsOk());
    return *params;
  };
  const Key key = FoldInName(MakeKey(5), kKernel.path);
  const SlotValues heads = initial({2, 3, 6}, "btd,hdk->bthk", {4, 6, 5});
  EXPECT_TRUE(BitEqual(heads.at(kKernel), LecunNormal({.in = {1}, .out = {0, 2}})({DType::kF32, {4, 6, 5}}, key)));
  EXPECT_TRUE(BitEqual(heads.at(kBias), Array::Zeros(DType::kF32, {4, 5})));
  const SlotValues experts = initial({3, 2, 4}, "etd,edf->etf", {3, 4, 5});
  EXPECT_TRUE(
      BitEqual(experts.at(kKernel), LecunNormal({.in = {1}, .out = {2}, .batch = {0}})({DType::kF32, {3, 4, 5}}, key)));
}

TEST(EinsumTest, Errors) {
  const auto traced = [](const char* equation, const Shape& kernel) {
    return Trace([&](In in) { return Values{Einsum(in[0], equation, "layer", {.kernel = kernel})}; },
                 {{kX, {DType::kF32, {2, 3}}}});
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(traced("ab,bc->ac", {3, 0}), FailsWith(kInvalid, {"einsum [layer]: kernel = [3,0]", "einsum_test.cc:"}));
  EXPECT_THAT(traced("abc,bc->ac", {3, 4}), FailsWith(kInvalid, {"einsum [layer]", "abc", "einsum_test.cc:"}));
  EXPECT_THAT(traced("ab,bc->ac", {5, 4}), FailsWith(kInvalid, {"einsum [layer]", "f32[5,4]", "einsum_test.cc:"}));
}

}  // namespace
}  // namespace aqt::nn
