// Extents near 2^62: no sum or product of them wraps around to a shape that looks legal. Also run with --config=ubsan,
// where each unchecked operation is an error.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/op.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t k62 = int64_t{1} << 62, k40 = int64_t{1} << 40, k32 = int64_t{1} << 32;
const Slot kX{SlotKind::kData, "x"};

Value Vector(int64_t n) { return Value(Array::Zeros(DType::kF32, {n})); }

// The error of `fn` on a traced input of this shape.
absl::Status Traced(const Shape& shape, TracedFunction fn, DType dtype = DType::kF32) {
  return Trace(fn, {{kX, {dtype, shape}}}).status();
}

TEST(ShapeOverflowTest, Pad) {
  const auto pad = [](int64_t n, int64_t low, int64_t high, int64_t interior) {
    return ops::Pad(Vector(n), {low}, {high}, {interior}).status();
  };
  // low + extent + high: 2^62 + 2 + (2^63 - 1) is a small number modulo 2^64, for example.
  EXPECT_THAT(pad(2, k62, k62, 0), FailsWith(kInvalid, {"pad", "exceeds 2^63 - 1", "low 4611686018427387904"}));
  EXPECT_THAT(pad(2, kMax, kMax, 0), FailsWith(kInvalid, {"exceeds 2^63 - 1"}));
  EXPECT_THAT(pad(2, kMax, kMax, 3), FailsWith(kInvalid, {"exceeds 2^63 - 1"}));
  EXPECT_THAT(pad(5, 0, 0, k62), FailsWith(kInvalid, {"exceeds 2^63 - 1"}));  // 4 * 2^62 = 0 modulo 2^64
  EXPECT_THAT(pad(5, 0, 0, kMax), FailsWith(kInvalid, {"exceeds 2^63 - 1"}));
  EXPECT_THAT(pad(2, k62, 0, 0), FailsWith(kInvalid, {"more elements than fit into memory"}));
  EXPECT_THAT(pad(0, 0, kMax, kMax), FailsWith(kInvalid, {"more elements"}));
  // The number of removed elements may also be large.
  EXPECT_THAT(pad(2, std::numeric_limits<int64_t>::min(), kMax, 0), FailsWith(kInvalid, {"exceeds 2^63 - 1"}));
  EXPECT_THAT(pad(2, 0, std::numeric_limits<int64_t>::min(), 0), FailsWith(kInvalid, {"takes more elements away"}));
  EXPECT_THAT(pad(2, -k62, k62, 0), IsOk());
  EXPECT_THAT(pad(2, k62, -k62, 0), IsOk());
  EXPECT_THAT(pad(2, -k62, -k62, kMax - 1), FailsWith(kInvalid, {"exceeds 2^63 - 1"}));
  EXPECT_THAT(pad(2, -k62 + 1, -k62 + 1, kMax - 2), IsOk());
  // Two axes, each of them legal.
  EXPECT_THAT(ops::Pad(Value(Array::Zeros(DType::kF32, {1, 1})), {k32 - 1, k32 - 1}, {0, 0}).status(),
              FailsWith(kInvalid, {"[4294967296,4294967296]", "more elements"}));
  // With fewer than two elements there is no interior.
  for (const int64_t interior : {k62, kMax}) {
    const Value padded = ops::Pad(Value(Array::Of<float>({7}, {1})), {1}, {2}, {interior});
    ASSERT_THAT(padded.status(), IsOk());
    EXPECT_TRUE(BitEqual(*padded.array(), Array::Of<float>({0, 7, 0, 0}, {4})));
    EXPECT_EQ(ops::Pad(Vector(0), {1}, {0}, {interior}).shape(), (Shape{1}));
  }
}

TEST(ShapeOverflowTest, GradientsOfPadAndSlice) {
  const auto gradient = [](TracedFunction fn) {
    const absl::StatusOr<Program> loss = Trace(fn, {{kX, {DType::kF32, {1}}}});
    EXPECT_THAT(loss, IsOk());
    const absl::StatusOr<Program> grad = Grad(*loss, {0});
    EXPECT_THAT(grad, IsOk());
    const absl::StatusOr<std::vector<Array>> out = Eval(*grad, {Array::Of<float>({3}, {1})});
    EXPECT_THAT(out, IsOk());
    return (*out)[0].View<float>()[0];
  };
  EXPECT_EQ(gradient([](In in) { return Values{ops::ReduceSum(ops::Pad(in[0], {1}, {2}, {kMax}))}; }), 1);
  EXPECT_EQ(gradient([](In in) { return Values{ops::ReduceSum(ops::Pad(in[0], {-k62}, {k62}))}; }), 0);
  EXPECT_EQ(gradient([](In in) { return Values{ops::ReduceSum(ops::Slice(in[0], {0}, {1}, {kMax}))}; }), 1);
}

TEST(ShapeOverflowTest, Reshape) {
  const Value x = Vector(0);
  EXPECT_THAT(ops::Reshape(x, {k40, k40}).status(), FailsWith(kInvalid, {"reshape", "more elements"}));
  EXPECT_THAT(ops::Reshape(x, {k32, k32}).status(), FailsWith(kInvalid, {"more elements"}));  // 0 modulo 2^64
  EXPECT_THAT(ops::Reshape(x, {k32, k32, -1}).status(), FailsWith(kInvalid, {"more elements"}));
  EXPECT_THAT(ops::Reshape(x, {0, k40, k40}).status(), FailsWith(kInvalid, {"more elements"}));
  EXPECT_THAT(ops::Reshape(x, {-5, 0}).status(), FailsWith(kInvalid, {"negative extent"}));
  EXPECT_THAT(ops::Reshape(x, {-1, -1}).status(), FailsWith(kInvalid, {"negative extent"}));
  EXPECT_EQ(ops::Reshape(x, {0, k40}).shape(), (Shape{0, k40}));
}

TEST(ShapeOverflowTest, OtherOperations) {
  const Value x = Vector(1);
  EXPECT_THAT(ops::BroadcastTo(x, {k40, k40}).status(), FailsWith(kInvalid, {"broadcast", "more elements"}));
  EXPECT_THAT(ops::BroadcastTo(x, {k62, 4, 1}).status(), FailsWith(kInvalid, {"more elements"}));
  // A slice with a stride near 2^63 has one element.
  EXPECT_EQ(ops::Slice(Vector(4), {1}, {4}, {kMax}).shape(), (Shape{1}));
  const Value two = Value(Array::Of<float>({1, 2, 3, 4}, {2, 2}));
  EXPECT_TRUE(BitEqual(*ops::Slice(two, {1, 1}, {2, 2}, {k62, kMax}).array(), Array::Of<float>({4}, {1, 1})));
  // The operands fit, but the result does not.
  const int64_t most = kMax / 8;
  EXPECT_THAT(Traced({most},
                     [](In in) {
                       return Values{ops::Concatenate({in[0], in[0]}, 0)};
                     }),
              FailsWith(kInvalid, {"concatenate", "more elements"}));
  EXPECT_THAT(Traced({most},
                     [](In in) {
                       return Values{ops::Concatenate(Values(17, in[0]), 0)};  // 17 / 8 * 2^63: beyond 2^64
                     }),
              FailsWith(kInvalid, {"concatenate", "add up to more than 2^63 - 1"}));
  EXPECT_THAT(Traced({k40}, [](In in) { return Values{ops::DotGeneral(in[0], in[0], DotDims())}; }),
              FailsWith(kInvalid, {"dot_general", "more elements"}));
  EXPECT_THAT(Traced(
                  {most}, [](In in) { return Values{ops::Cast(in[0], DType::kF64)}; }, DType::kS8),
              IsOk());
  EXPECT_THAT(Traced({0, k40, 1},
                     [](In in) {
                       return Values{ops::BroadcastTo(ops::ReduceSum(in[0], {0}), {k40, k40})};
                     }),
              FailsWith(kInvalid, {"more elements"}));
}

TEST(ShapeOverflowTest, Inputs) {
  const auto identity = [](In in) { return Values{in[0]}; };
  for (const Shape& shape : {Shape{k62}, Shape{k40, k40}, Shape{k32, k32}, Shape{0, k62, k62}}) {
    EXPECT_THAT(Traced(shape, identity),
                FailsWith(kInvalid, {"input data \"x\"", shape.ToString(), "more elements than fit into memory"}));
    EXPECT_THAT(Traced({1},
                       [&](In) {
                         return Values{InputSlot({SlotKind::kParam, "w"}, {DType::kF32, shape})};
                       }),
                FailsWith(kInvalid, {"input param \"w\"", shape.ToString()}));
    // A value computed from a refused input is poisoned, not computed.
    EXPECT_THAT(Traced({1},
                       [&](In) {
                         const Value w = InputSlot({SlotKind::kParam, "w"}, {DType::kF32, shape});
                         EXPECT_EQ(w.shape().num_elements(), 1);
                         return Values{ops::Reshape(ops::ReduceSum(w * 2.0 + w), {-1})};
                       }),
                FailsWith(kInvalid, {"input param \"w\""}));
  }
  EXPECT_THAT(Traced({-1}, identity), FailsWith(kInvalid, {"input data \"x\"", "negative extent"}));
}

}  // namespace
}  // namespace aqt
