// The layer options from AQT's older stack, against values recorded from it (tests/golden/older_layers).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/functions.h"
#include "aqt/ops/scaling/low_precision.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const io::SafetensorsReader& Recording() {
  static const auto& reader = *new io::SafetensorsReader(
      *io::SafetensorsReader::Open(io::LocalFileSystem(), "tests/golden/older_layers/older_layers.safetensors"));
  return reader;
}
Array Recorded(const std::string& name) { return *Recording().ReadArray(name); }

const std::map<std::string, SmallFloat> kFormats = {
    {"e4m3", {-6, 8, 3}}, {"e5m2", {-14, 15, 2}}, {"wide", {-100, 100, 10}}};

LowPrecision PrecisionOf(const std::string& steps, const std::string& sums) {
  LowPrecision precision{.steps = kFormats.at(steps)};
  if (sums != "none") precision.sums = kFormats.at(sums);
  return precision;
}

// The function of one input. The other recorded arguments are its parameters, in the order of `params`.
void ExpectRecorded(const std::string& name, const std::function<Value(const Value&)>& fn, double tolerance,
                    const std::vector<std::string>& params = {}) {
  SCOPED_TRACE(name);
  const Slot x{SlotKind::kData, "x"};
  const Array g = Recorded(name + "/g"), want = Recorded(name + "/y");
  SlotValues values = {{x, Recorded(name + "/x0")}};
  for (size_t i = 0; i < params.size(); ++i) {
    values[{SlotKind::kParam, params[i]}] = Recorded(absl::StrCat(name, "/x", i + 1));
  }
  const absl::StatusOr<Program> program = Trace([&](In in) { return Values{fn(in[0])}; }, {{x, values.at(x).aval()}});
  ASSERT_THAT(program, IsOk());
  const absl::StatusOr<SlotValues> out = EvalSlots(*program, values);
  ASSERT_THAT(out, IsOk());
  const absl::Span<const float> y = out->begin()->second.View<float>();
  for (size_t i = 0; i < y.size(); ++i) {
    const float w = want.View<float>()[i];
    EXPECT_TRUE(std::isnan(w) ? std::isnan(y[i]) : std::abs(y[i] - w) <= tolerance * std::abs(w) || y[i] == w)
        << i << ": " << y[i] << ", recorded " << w;
  }
  const absl::StatusOr<Program> loss =
      Trace([&](In in) { return Values{ops::ReduceSum(fn(in[0]) * Value(g))}; }, {{x, values.at(x).aval()}});
  ASSERT_THAT(loss, IsOk());
  std::vector<int> wrt(loss->inputs.size());
  std::iota(wrt.begin(), wrt.end(), 0);
  std::vector<Array> args;
  for (const auto& input : loss->inputs) args.push_back(values.at(input.slot));
  const absl::StatusOr<Program> gradient = Grad(*loss, wrt);
  ASSERT_THAT(gradient, IsOk());
  const absl::StatusOr<std::vector<Array>> gradients = Eval(*gradient, args);
  ASSERT_THAT(gradients, IsOk());
  for (size_t k = 0; k < wrt.size(); ++k) {
    const Array dx = Recorded(absl::StrCat(name, "/dx", k));
    double largest = 0;
    for (const float v : dx.View<float>()) largest = std::max<double>(largest, std::abs(v));
    for (int64_t i = 0; i < dx.num_elements(); ++i) {
      EXPECT_NEAR((*gradients)[k].View<float>()[i], dx.View<float>()[i], 1e-6 * largest)
          << "gradient " << k << ", " << i;
    }
  }
}

TEST(OlderLayersTest, RoundedNumbers) {
  for (const auto& [name, format] : kFormats) {
    ExpectRecorded(
        "cast/" + name, [&](const Value& x) { return ops::RoundToSmallFloat(x, format); }, 0);
  }
}

TEST(OlderLayersTest, RoundedSums) {
  for (const auto& [name, format] : kFormats) {
    ExpectRecorded(
        "sum/" + name,
        [&](const Value& x) {
          return ops::LowPrecisionSum(x, {0, 2}, format);
        },
        0);
  }
}

TEST(OlderLayersTest, LowPrecisionSoftmax) {
  for (const auto& [steps, sums] : std::vector<std::pair<std::string, std::string>>{
           {"e4m3", "none"}, {"e4m3", "e4m3"}, {"e5m2", "e4m3"}, {"wide", "wide"}}) {
    const LowPrecision precision = PrecisionOf(steps, sums);
    ExpectRecorded(
        absl::StrCat("softmax/", steps, "/", sums),
        [&](const Value& x) { return ops::LowPrecisionSoftmax(x, precision); }, 0);
  }
}

TEST(OlderLayersTest, ApproximateSoftmax) {
  int cases = 0;
  for (const auto& tensor : Recording().tensors()) {
    const std::string& name = tensor.name;
    const std::vector<std::string> parts = absl::StrSplit(name, '/');
    if (parts[0] != "approximate" || parts.back() != "y") continue;
    ++cases;
    std::vector<double> numbers(5);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(absl::SimpleAtod(parts[i + 1], &numbers[i]));
    const auto given = [&](int i) { return numbers[i] == 0 ? std::nullopt : std::optional<double>(numbers[i]); };
    const SoftmaxApproximation approximation{.exp_slope = given(0),
                                             .exp_low = given(1),
                                             .sum_high = given(2),
                                             .reciprocal_slope = given(3),
                                             .reciprocal_low = numbers[4]};
    // exp of two libraries, a sum of six in another order, a quotient and a product: eight roundings.
    ExpectRecorded(
        name.substr(0, name.size() - 2), [&](const Value& x) { return ops::ApproximateSoftmax(x, approximation); },
        8 * 0x1p-24);
  }
  EXPECT_EQ(cases, 6);
}

TEST(OlderLayersTest, LowPrecisionLayerNorm) {
  for (const auto& [steps, sums, n] : std::vector<std::tuple<std::string, std::string, int>>{
           {"e4m3", "none", 12}, {"e4m3", "e4m3", 12}, {"e5m2", "wide", 600}, {"wide", "wide", 12}}) {
    const nn::LayerNormOptions options{.low_precision = PrecisionOf(steps, sums)};
    ExpectRecorded(absl::StrCat("norm/", steps, "/", sums, "/", n),
                   [&](const Value& x) { return nn::LayerNorm(x, "norm", options); }, 0, {"norm/scale", "norm/bias"});
  }
}

// The recorded argument is the table. XLA multiplies by the reciprocal of a scale instead of dividing: two roundings
// instead of one.
TEST(OlderLayersTest, EmbeddingOfIntegerRows) {
  const Value ids(Recorded("embed/ids"));
  for (const auto& [bits, half_shift] :
       std::vector<std::pair<int, bool>>{{8, false}, {4, false}, {2, false}, {1, false}, {4, true}, {1, true}}) {
    ExpectRecorded(
        absl::StrCat("embed/", bits, "/", int{half_shift}),
        [&](const Value& table) { return ops::RoundRowsToIntegers(ops::Take(table, ids), bits, half_shift); }, 0x1p-22);
    const Array table = Recorded(absl::StrCat("embed/", bits, "/", int{half_shift}, "/x0"));
    const SlotValues params = {{{SlotKind::kParam, "tokens/embedding"}, table}};
    const nn::EagerParams eager(params);
    const Value rows = nn::Embed(
        ids, "tokens",
        {.entries = 10, .features = 7, .integer_rows = nn::IntegerRows{.bits = bits, .half_shift = half_shift}});
    EXPECT_TRUE(
        BitEqual(*rows.ToArray(), *ops::RoundRowsToIntegers(ops::Take(Value(table), ids), bits, half_shift).ToArray()));
  }
}

// Without its option each layer is the standard one, and an attention follows its option.
TEST(OlderLayersTest, AttentionTakesItsSoftmax) {
  const Value q(RandomArray({DType::kF32, {2, 3, 2, 4}}, 1)), k(RandomArray({DType::kF32, {2, 5, 2, 4}}, 2)),
      v(RandomArray({DType::kF32, {2, 5, 2, 4}}, 3));
  const LowPrecision precision = PrecisionOf("e4m3", "e4m3");
  const SoftmaxApproximation lines{.exp_slope = 0.25};
  const auto by_hand = [&](const std::function<Value(const Value&)>& softmax) {
    const Value scores = ops::DotGeneral(
        q / 2.0, k, {.lhs_contracting = {3}, .rhs_contracting = {3}, .lhs_batch = {0, 2}, .rhs_batch = {0, 2}});
    const Value mixed = ops::DotGeneral(
        softmax(scores), v, {.lhs_contracting = {3}, .rhs_contracting = {1}, .lhs_batch = {0, 1}, .rhs_batch = {0, 2}});
    return *ops::Transpose(mixed, {0, 2, 1, 3}).ToArray();
  };
  const auto attention = [&](const nn::AttentionSoftmax& softmax) {
    return *nn::DotProductAttention(q, k, v, std::nullopt, "attention", {.softmax = softmax}).ToArray();
  };
  const Array exact = by_hand([](const Value& s) { return ops::Softmax(s); });
  const Array rounded = by_hand([&](const Value& s) { return ops::LowPrecisionSoftmax(s, precision); });
  const Array straight = by_hand([&](const Value& s) { return ops::ApproximateSoftmax(s, lines); });
  EXPECT_TRUE(BitEqual(attention({}), exact));
  EXPECT_TRUE(BitEqual(attention(precision), rounded));
  EXPECT_TRUE(BitEqual(attention(lines), straight));
  EXPECT_FALSE(BitEqual(exact, rounded));
  EXPECT_FALSE(BitEqual(exact, straight));
}

}  // namespace
}  // namespace aqt
