#include "aqt/nn/layers/embed.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kIds{SlotKind::kData, "ids"};

TEST(EmbedTest, RowsAndLogitsUseOneTable) {
  const EmbedOptions options{.entries = 4, .features = 3};
  const Array table = Array::Of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {4, 3});
  const SlotValues params = {{{SlotKind::kParam, "tokens/embedding"}, table}};
  const EagerParams eager(params);
  const Value rows = Embed(Value(Array::Of<int32_t>({2, 0, 9, -1}, {2, 2})), "tokens", options);
  EXPECT_TRUE(BitEqual(*rows.ToArray(), Array::Of<float>({6, 7, 8, 0, 1, 2, 9, 10, 11, 0, 1, 2}, {2, 2, 3})));
  const Value x(Array::Of<float>({1, 0, -1}, {1, 3}));
  EXPECT_TRUE(BitEqual(*EmbedLogits(x, "tokens", options).ToArray(), Array::Of<float>({-2, -2, -2, -2}, {1, 4})));
}

TEST(EmbedTest, InitialValuesAreSmallForManyFeatures) {
  const auto model = [](In in) { return Values{Embed(in[0], "tokens", {.entries = 64, .features = 256})}; };
  const absl::StatusOr<SlotValues> params = InitParams(model, {{kIds, {DType::kS32, {1}}}}, MakeKey(1));
  ASSERT_THAT(params, IsOk());
  double square = 0;
  for (const float v : params->begin()->second.View<float>()) square += static_cast<double>(v) * v;
  // The mean of 16,384 squares of variance 2 / 256^2: four standard deviations are 4.4 %.
  EXPECT_NEAR(square / (64 * 256) * 256, 1.0, 0.045);
}

TEST(EmbedTest, Errors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto traced = [](const Aval& aval, const EmbedOptions& options) {
    return Trace([&](In in) { return Values{Embed(in[0], "tokens", options)}; }, {{kIds, aval}});
  };
  EXPECT_THAT(traced({DType::kS32, {2}}, {.features = 3}),
              FailsWith(kInvalid, {"embed [tokens]: entries = 0, features = 3", "embed_test.cc:"}));
  EXPECT_THAT(traced({DType::kS32, {2}}, {.entries = 2, .features = 3, .dtype = DType::kE5M2}),
              FailsWith(kInvalid, {"embed [tokens]: dtype = e5m2"}));
  EXPECT_THAT(traced({DType::kF32, {2}}, {.entries = 2, .features = 3}),
              FailsWith(kInvalid, {"[tokens]", "f32[2]", "embed_test.cc:"}));
  EXPECT_THAT(Trace([](In in) { return Values{EmbedLogits(in[0], "tokens", {.entries = 2, .features = 3})}; },
                    {{kIds, {DType::kF32, {2, 4}}}}),
              FailsWith(kInvalid, {"embed_logits [tokens]", "3 features", "f32[2,4]"}));
}

}  // namespace
}  // namespace aqt::nn
