#include "aqt/quant/weights/compressed_tensors.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "gtest/gtest.h"

namespace aqt::compressed_tensors {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

WeightScheme Scheme(int num_bits, Strategy strategy, bool symmetric = true, int64_t group_size = 0) {
  WeightScheme scheme;
  scheme.num_bits = num_bits;
  scheme.strategy = strategy;
  scheme.group_size = group_size;
  scheme.symmetric = symmetric;
  return scheme;
}

WeightScheme Floats(Strategy strategy, int64_t rows = 0, int64_t cols = 0) {
  WeightScheme scheme = Scheme(8, strategy);
  scheme.type = ValueType::kFloat;
  scheme.block = {rows, cols};
  return scheme;
}

WeightScheme Blocks(int num_bits, bool symmetric, int64_t rows, int64_t cols) {
  WeightScheme scheme = Scheme(num_bits, Strategy::kBlock, symmetric);
  scheme.block = {rows, cols};
  return scheme;
}

std::string Text(const WeightScheme& scheme) {
  return absl::StrCat(ToString(scheme.type), " ", scheme.num_bits, " bits ", ToString(scheme.strategy), " ",
                      scheme.group_size, " ", scheme.block[0], "x", scheme.block[1],
                      scheme.symmetric ? "" : " asymmetric");
}

// Runs each block on its own thread: the worst possible order.
class ThreadPerBlock final : public Executor {
 public:
  int NumThreads() const override { return 7; }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override {
    std::vector<std::thread> threads;
    for (int64_t i = n - 1; i >= 0; --i) threads.emplace_back([body, i] { body(i); });
    for (std::thread& t : threads) t.join();
  }
};

void ExpectEqual(const QuantizedWeight& got, const QuantizedWeight& want) {
  EXPECT_TRUE(BitEqual(got.q, want.q));
  EXPECT_TRUE(BitEqual(got.scale, want.scale));
  ASSERT_EQ(got.zero_point.has_value(), want.zero_point.has_value());
  if (!want.zero_point.has_value()) return;
  EXPECT_TRUE(BitEqual(*got.zero_point, *want.zero_point));
}

// Expects `want` with its integers packed into words.
void ExpectPacked(const ArrayRef& w, const WeightScheme& scheme, Options options, QuantizedWeight want) {
  options.packed = true;
  const auto got = QuantizeWeight(w, scheme, options);
  ASSERT_TRUE(got.ok()) << got.status();
  want.q = *PackInts(want.q, scheme.num_bits);
  ExpectEqual(*got, want);
}

// Expects all targets, with and without threads, to equal the plain loops in both directions.
void ExpectAsReference(const ArrayRef& w, const WeightScheme& scheme) {
  Options plain;
  plain.reference = true;
  const auto want = QuantizeWeight(w, scheme, plain);
  ASSERT_TRUE(want.ok()) << want.status();
  const auto want_back = DequantizeWeight(*want, scheme, plain);
  ASSERT_TRUE(want_back.ok()) << want_back.status();
  ThreadPerBlock threads;
  for (kernels::Target target : kernels::SupportedTargets()) {
    for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&threads)}) {
      SCOPED_TRACE(absl::StrCat(Text(scheme), " ", ToString(target), executor != nullptr ? " threads" : ""));
      const Options options = {target, false, executor};
      const auto got = QuantizeWeight(w, scheme, options);
      ASSERT_TRUE(got.ok()) << got.status();
      ExpectEqual(*got, *want);
      if (scheme.type == ValueType::kInt) ExpectPacked(w, scheme, options, *want);
      const auto back = DequantizeWeight(*got, scheme, options);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_TRUE(BitEqual(*back, *want_back));
    }
  }
}

template <class T>
class WeightTest : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(WeightTest, FloatTypes);

TYPED_TEST(WeightTest, EverySchemeAsReference) {
  for (kernels::Values values : {kernels::Values::kUsual, kernels::Values::kFinite, kernels::Values::kAnyBits}) {
    const auto data = kernels::TestFloats<TypeParam>(9 * 96, values, 1);
    const ArrayRef w(data.data(), {9, 96});
    const ArrayRef transposed(w.dtype, {96, 9}, {1, 96}, w.data);
    for (int bits : {2, 3, 4, 8}) {
      for (bool symmetric : {true, false}) {
        ExpectAsReference(w, Scheme(bits, Strategy::kTensor, symmetric));
        ExpectAsReference(w, Scheme(bits, Strategy::kChannel, symmetric));
        for (int64_t group : {1, 3, 32, 96}) ExpectAsReference(w, Scheme(bits, Strategy::kGroup, symmetric, group));
        ExpectAsReference(transposed, Scheme(bits, Strategy::kChannel, symmetric));
        ExpectAsReference(transposed, Scheme(bits, Strategy::kGroup, symmetric, 3));
        ExpectAsReference(w, Blocks(bits, symmetric, 4, 64));
        ExpectAsReference(w, Blocks(bits, symmetric, 2, 7));
        ExpectAsReference(transposed, Blocks(bits, symmetric, 10, 5));
      }
    }
  }
}

TYPED_TEST(WeightTest, EveryFloatSchemeAsReference) {
  for (kernels::Values values : {kernels::Values::kUsual, kernels::Values::kFinite, kernels::Values::kAnyBits}) {
    const auto data = kernels::TestFloats<TypeParam>(9 * 96, values, 5);
    const ArrayRef w(data.data(), {9, 96});
    const ArrayRef transposed(w.dtype, {96, 9}, {1, 96}, w.data);
    for (const ArrayRef& x : {w, transposed}) {
      ExpectAsReference(x, Floats(Strategy::kTensor));
      ExpectAsReference(x, Floats(Strategy::kChannel));
      for (auto [rows, cols] : {std::pair{1, 1}, {2, 32}, {4, 7}, {9, 96}, {1000, 1000}}) {
        ExpectAsReference(x, Floats(Strategy::kBlock, rows, cols));
      }
    }
  }
  // More than one block of rows for the threads, cut through blocks of the scheme.
  const auto data = kernels::TestFloats<TypeParam>(300 * 900, kernels::Values::kUsual, 6);
  ExpectAsReference(ArrayRef(data.data(), {300, 900}), Floats(Strategy::kBlock, 128, 128));
  ExpectAsReference(ArrayRef(data.data(), {300, 900}), Floats(Strategy::kTensor));
}

TYPED_TEST(WeightTest, OddShapes) {
  // The last one has more than one block of rows.
  for (auto [o, i] : {std::pair{1, 1}, {1, 37}, {37, 1}, {5, 50}, {150, 900}}) {
    const auto data = kernels::TestFloats<TypeParam>(o * i, kernels::Values::kUsual, 2);
    const ArrayRef w(data.data(), {o, i});
    for (bool symmetric : {true, false}) {
      ExpectAsReference(w, Scheme(4, Strategy::kTensor, symmetric));
      ExpectAsReference(w, Scheme(4, Strategy::kChannel, symmetric));
      ExpectAsReference(w, Scheme(4, Strategy::kGroup, symmetric, i));
    }
  }
}

// Groups whose quotients need no division, with more rows than are quantized at once.
TYPED_TEST(WeightTest, LongGroups) {
  for (const kernels::Values values : {kernels::Values::kUsual, kernels::Values::kAnyBits}) {
    const auto data = kernels::TestFloats<TypeParam>(70 * 1024, values, 8);
    const ArrayRef w(data.data(), {70, 1024});
    for (const int bits : {4, 8}) {
      for (const int64_t group : {64, 128}) ExpectAsReference(w, Scheme(bits, Strategy::kGroup, true, group));
      ExpectAsReference(w, Scheme(bits, Strategy::kChannel));
    }
  }
}

std::vector<int> Ints(const Array& a) { return std::vector<int>(a.View<int8_t>().begin(), a.View<int8_t>().end()); }

TEST(QuantizeWeight, SymmetricByHand) {
  // absmax 127.5 has scale 1: -127.5 reaches -128 (clamped, then rounded to even), 127.5 is clamped to 127.
  const Array w = Array::Of<float>({127.5f, -127.5f, 0.5f, 1.5f, -2.5f, 0, 0, 0, 0, 0}, {2, 5});
  const auto got = QuantizeWeight(w, Scheme(8, Strategy::kChannel));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(Ints(got->q), (std::vector<int>{127, -128, 0, 2, -2, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(BitEqual(got->scale, Array::Of<float>({1, 0x1p-23f}, {2, 1})));
  EXPECT_FALSE(got->zero_point.has_value());
  const auto back = DequantizeWeight(*got, Scheme(8, Strategy::kChannel));
  EXPECT_TRUE(BitEqual(*back, Array::Of<float>({127, -128, 0, 2, -2, 0, 0, 0, 0, 0}, {2, 5})));
}

TEST(QuantizeWeight, AsymmetricByHand) {
  // [-1, 14] in 15 steps of 1: zero point -8 + 1. Positive rows widen to 0: zero point -8. Zeros: scale epsilon, zero
  // point 0.
  const Array w = Array::Of<float>({-1, 14, 3.5f, 15, 30, 7, 0, 0, 0}, {3, 3});
  const auto got = QuantizeWeight(w, Scheme(4, Strategy::kChannel, false));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(BitEqual(got->scale, Array::Of<float>({1, 2, 0x1p-23f}, {3, 1})));
  EXPECT_EQ(Ints(*got->zero_point), (std::vector<int>{-7, -8, 0}));
  EXPECT_EQ(Ints(got->q), (std::vector<int>{-8, 7, -4, 0, 7, -4, 0, 0, 0}));
  const auto back = DequantizeWeight(*got, Scheme(4, Strategy::kChannel, false));
  EXPECT_TRUE(BitEqual(*back, Array::Of<float>({-1, 14, 3, 16, 30, 8, 0, 0, 0}, {3, 3})));
}

std::vector<int> Codes(const Array& q) {
  std::vector<int> codes;
  for (const Float8E4M3FN value : q.View<Float8E4M3FN>()) codes.push_back(value.bits);
  return codes;
}

TEST(QuantizeWeight, FloatsByHand) {
  // absmax 448 has scale 1, 896 has 2, 0 the epsilon. 17 and 19 are between 16, 18 and 20 and round to the even code.
  // 2^-10 is half of the smallest value.
  const Array w = Array::Of<float>(
      {448, -448, 17, 19, 0x1p-9f, 0x1p-10f, -0x1p-10f, 0x1.8p-9f, 896, 1, -0.0f, 0, 2, -896, 0, 0, 0, 0, 0, 0, 0},
      {3, 7});
  const WeightScheme channel = Floats(Strategy::kChannel);
  const auto got = QuantizeWeight(w, channel);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(BitEqual(got->scale, Array::Of<float>({1, 2, 0x1p-23f}, {3, 1})));
  EXPECT_EQ(Codes(got->q), (std::vector<int>{0x7e, 0xfe, 0x58, 0x5a, 0x01, 0x00, 0x80,  //
                                             0x01, 0x7e, 0x30, 0x00, 0x00, 0x38, 0xfe,  //
                                             0,    0,    0,    0,    0,    0,    0}));
  EXPECT_FALSE(got->zero_point.has_value());
  const auto back = DequantizeWeight(*got, channel);
  EXPECT_TRUE(BitEqual(
      *back, Array::Of<float>(
                 {448, -448, 16, 20, 0x1p-9f, 0, -0.0f, 0x1p-8f, 896, 1, 0, 0, 2, -896, 0, 0, 0, 0, 0, 0, 0}, {3, 7})));
}

// With a scale of 1: every value, the midpoint of every two, and the midpoint's neighbours.
TEST(QuantizeWeight, FloatsRoundToTheNearest) {
  std::vector<float> x;
  std::vector<int> codes;
  const auto value = [](int code) { return ToFloat(Float8E4M3FN{static_cast<uint8_t>(code)}); };
  const auto add = [&](float v, int code) {
    x.insert(x.end(), {v, -v});
    codes.insert(codes.end(), {code, v == 0 ? 0 : code | 0x80});
  };
  for (int code = 0; code < 0x7e; ++code) {
    const float middle = (value(code) + value(code + 1)) / 2;  // exact
    add(value(code), code);
    add(middle, code + code % 2);
    add(std::nextafter(middle, 0.0f), code);
    add(std::nextafter(middle, 500.0f), code + 1);
  }
  add(448, 0x7e);
  const auto got =
      QuantizeWeight(Array::FromSpan<float>(x, {1, static_cast<int64_t>(x.size())}), Floats(Strategy::kChannel));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(BitEqual(got->scale, Array::Of<float>({1}, {1, 1})));
  EXPECT_EQ(Codes(got->q), codes);
}

TEST(QuantizeWeight, BlocksOfIntegersByHand) {
  // Blocks of 2 x 2 in a matrix of 3 x 3, cut off at the edges; absmax 7.5 times the scale.
  const Array w = Array::Of<float>({7.5f, 1, -15, 2, -3, 4, 0, 0, 30}, {3, 3});
  const auto got = QuantizeWeight(w, Blocks(4, true, 2, 2));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(BitEqual(got->scale, Array::Of<float>({1, 2, 0x1p-23f, 4}, {2, 2})));
  EXPECT_TRUE(BitEqual(got->q, Array::Of<int8_t>({7, 1, -8, 2, -3, 2, 0, 0, 7}, {3, 3})));
}

TEST(QuantizeWeight, BlocksByHand) {
  // Blocks of 2 x 2 in a matrix of 3 x 3: the absmax of each is 448 times its scale.
  const Array w = Array::Of<float>({448, 1, 896, 2, 3, 4, 1792, -8, 1344}, {3, 3});
  const auto got = QuantizeWeight(w, Floats(Strategy::kBlock, 2, 2));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(BitEqual(got->scale, Array::Of<float>({1, 2, 4, 3}, {2, 2})));
  EXPECT_EQ(Codes(got->q), (std::vector<int>{0x7e, 0x38, 0x7e, 0x40, 0x44, 0x40, 0x7e, 0xc0, 0x7e}));
  // A NaN affects only its own block.
  const Array bad = Array::Of<float>({448, 1, 896, kNaN, 3, 4, 1792, -8, 1344}, {3, 3});
  const auto spoilt = QuantizeWeight(bad, Floats(Strategy::kBlock, 2, 2));
  EXPECT_TRUE(std::isnan(spoilt->scale.View<float>()[0]));
  EXPECT_EQ(Codes(spoilt->q), (std::vector<int>{0x7f, 0x7f, 0x7e, 0x7f, 0x7f, 0x40, 0x7e, 0xc0, 0x7e}));
}

TEST(WeightScheme, UnitsAndRanges) {
  const Units block = *UnitsOf(Floats(Strategy::kBlock, 8, 16), 20, 50);
  EXPECT_EQ(block.scale_shape, (Shape{3, 4}));
  EXPECT_EQ(block.Of(0, 15), 0);
  EXPECT_EQ(block.Of(8, 16), 5);
  EXPECT_EQ(block.Of(19, 49), 11);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(UnitsOf(Floats(Strategy::kBlock, kHuge, kHuge), 20, 50)->scale_shape, (Shape{1, 1}));
  EXPECT_EQ(UnitsOf(Floats(Strategy::kBlock, kHuge, kHuge), 20, 50)->Of(19, 49), 0);
  EXPECT_EQ(UnitsOf(Scheme(4, Strategy::kGroup, true, 10), 20, 50)->Of(3, 49), 19);
  EXPECT_EQ(UnitsOf(Scheme(8, Strategy::kChannel), 20, 50)->Of(3, 49), 3);
  EXPECT_EQ(UnitsOf(Scheme(8, Strategy::kTensor), 20, 50)->Of(19, 49), 0);
  EXPECT_EQ(RangeOf(Scheme(4, Strategy::kChannel)).min, -8);
  EXPECT_EQ(RangeOf(Scheme(4, Strategy::kChannel)).max, 7);
  EXPECT_EQ(RangeOf(Scheme(4, Strategy::kChannel)).last_step, 1);
  EXPECT_EQ(RangeOf(Floats(Strategy::kChannel)).min, -448);
  EXPECT_EQ(RangeOf(Floats(Strategy::kChannel)).last_step, 32);
}

TEST(QuantizeWeight, EpsilonOfTheDType) {
  EXPECT_TRUE(BitEqual(QuantizeWeight(Array::Zeros(DType::kBF16, {1, 3}), {})->scale,
                       Cast(Array::Of<float>({0.0078125f}, {1, 1}), DType::kBF16)));
  EXPECT_TRUE(BitEqual(QuantizeWeight(Array::Zeros(DType::kF16, {1, 3}), {})->scale,
                       Cast(Array::Of<float>({0.0009765625f}, {1, 1}), DType::kF16)));
}

// A NaN or an infinity affects only its own unit.
TEST(QuantizeWeight, NanAndInfinity) {
  const Array w = Array::Of<float>({1, kNaN, 2, -kInfinity, 127.5f, 3}, {3, 2});
  for (bool symmetric : {true, false}) {
    const auto got = QuantizeWeight(w, Scheme(8, Strategy::kChannel, symmetric));
    ASSERT_TRUE(got.ok()) << got.status();
    const auto scale = got->scale.View<float>();
    EXPECT_TRUE(std::isnan(scale[0]));
    EXPECT_EQ(scale[1], kInfinity);
    EXPECT_EQ(scale[2], symmetric ? 1.0f : 0.5f);
    const std::vector<int> q = Ints(got->q);
    EXPECT_EQ(q[0], 0);
    EXPECT_EQ(q[1], 0);
    EXPECT_EQ(q[2], 0);  // with a range of [-inf, 2] the zero point is 0
    EXPECT_EQ(q[3], 0);
    EXPECT_EQ(q[4], 127);
  }
  const auto upward = QuantizeWeight(Array::Of<float>({1, kInfinity}, {1, 2}), Scheme(8, Strategy::kChannel, false));
  EXPECT_EQ(Ints(*upward->zero_point), std::vector<int>{-128});
  EXPECT_EQ(Ints(upward->q), (std::vector<int>{-128, 0}));
  const auto whole = QuantizeWeight(w, Scheme(8, Strategy::kTensor));
  EXPECT_TRUE(std::isnan(whole->scale.View<float>()[0]));
  EXPECT_EQ(Ints(whole->q), std::vector<int>(6, 0));
}

// |w - dequantized| <= scale / 2 within the range, for unclipped values; a full scale at the clipped upper end.
TEST(QuantizeWeight, RoundTripError) {
  const auto data = kernels::TestFloats<float>(64 * 64, kernels::Values::kUsual, 3);
  const ArrayRef w(data.data(), {64, 64});
  for (int bits = 2; bits <= 8; ++bits) {
    const WeightScheme scheme = Scheme(bits, Strategy::kGroup, true, 16);
    const auto got = QuantizeWeight(w, scheme);
    const auto back = DequantizeWeight(*got, scheme);
    for (int64_t k = 0; k < 64 * 64; ++k)
      ASSERT_LE(std::fabs(data[k] - back->View<float>()[k]), got->scale.View<float>()[k / 16] * 0.50001f) << bits;
  }
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status;
}
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(WeightScheme, Errors) {
  EXPECT_TRUE(Validate({}).ok());
  ExpectError(Validate(Scheme(1, Strategy::kChannel)), kInvalid, "num_bits is 1; expected 2 to 8");
  ExpectError(Validate(Scheme(9, Strategy::kChannel)), kInvalid, "num_bits is 9");
  ExpectError(Validate(Scheme(4, Strategy::kGroup)), kInvalid, "group_size is 0 with strategy group");
  ExpectError(Validate(Scheme(4, Strategy::kTensor, true, 8)), kInvalid, "group_size is 8 with strategy tensor");
  WeightScheme scheme;
  scheme.block = {8, 16};
  ExpectError(Validate(scheme), kInvalid, "block is [8,16] with strategy channel");
  EXPECT_TRUE(Validate(Floats(Strategy::kBlock, 8, 16)).ok());
  ExpectError(Validate(Floats(Strategy::kBlock, 8, 0)), kInvalid, "block is [8,0] with strategy block");
  ExpectError(Validate(Floats(Strategy::kGroup)), kUnimplemented, "block, and groups with scales of 8 bits");
  scheme = Floats(Strategy::kChannel);
  scheme.num_bits = 4;
  ExpectError(Validate(scheme), kUnimplemented, "floats of 4 bits with scales in the dtype of the weight; supported");
  scheme = Floats(Strategy::kChannel);
  scheme.symmetric = false;
  ExpectError(Validate(scheme), kUnimplemented, "asymmetric floats");
}

TEST(QuantizeWeight, Errors) {
  const Array w = Array::Zeros(DType::kF32, {2, 6});
  ExpectError(QuantizeWeight(w, Scheme(1, Strategy::kChannel)).status(), kInvalid, "num_bits");
  ExpectError(QuantizeWeight(w, Scheme(4, Strategy::kGroup, true, 4)).status(), kInvalid,
              "group_size 4 does not divide the 6 columns of [2,6]");
  ExpectError(QuantizeWeight(Array::Zeros(DType::kF32, {2, 3, 4}), {}).status(), kInvalid,
              "the weight is f32[2,3,4]; expected a matrix [o,i]");
  ExpectError(QuantizeWeight(Array::Zeros(DType::kF64, {2, 3}), {}).status(), kInvalid, "f64[2,3]");
  ExpectError(QuantizeWeight(Array::Zeros(DType::kF32, {2, 0}), {}).status(), kInvalid, "with elements");
  ExpectError(QuantizeWeight(w, Floats(Strategy::kChannel), {.packed = true}).status(), kInvalid,
              "packed 8-bit floats");
}

TEST(DequantizeWeight, Errors) {
  const WeightScheme channel = Scheme(8, Strategy::kChannel), asymmetric = Scheme(8, Strategy::kChannel, false);
  const Array q = Array::Zeros(DType::kS8, {2, 6}), scale = Array::Zeros(DType::kF32, {2, 1});
  EXPECT_TRUE(DequantizeWeight({q, scale, std::nullopt}, channel).ok());
  ExpectError(DequantizeWeight({scale, scale, std::nullopt}, channel).status(), kInvalid, "expected a matrix of s8");
  ExpectError(DequantizeWeight({q, scale, std::nullopt}, Floats(Strategy::kChannel)).status(), kInvalid,
              "expected a matrix of e4m3fn");
  ExpectError(DequantizeWeight({q, Array::Zeros(DType::kF32, {2}), std::nullopt}, channel).status(), kInvalid,
              "scale is f32[2]; expected f32, bf16 or f16 [2,1]");
  ExpectError(DequantizeWeight({q, Array::Zeros(DType::kF64, {2, 1}), std::nullopt}, channel).status(), kInvalid,
              "f64[2,1]");
  ExpectError(DequantizeWeight({q, scale, Array::Zeros(DType::kS8, {2, 1})}, channel).status(), kInvalid,
              "a zero point with a symmetric scheme");
  ExpectError(DequantizeWeight({q, scale, std::nullopt}, asymmetric).status(), kInvalid, "no zero point");
  ExpectError(DequantizeWeight({q, scale, Array::Zeros(DType::kS8, {1, 1})}, asymmetric).status(), kInvalid,
              "zero point is s8[1,1]; expected s8[2,1]");
}

TEST(DequantizeWeight, EmptyMatrix) {
  const Array q = Array::Zeros(DType::kS8, {2, 0}), scale = Array::Zeros(DType::kBF16, {2, 1});
  const auto got = DequantizeWeight({q, scale, std::nullopt}, Scheme(8, Strategy::kChannel));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->aval(), (Aval{DType::kBF16, {2, 0}}));
}

// ---- packing

TEST(PackInts, ByHand) {
  // 4 bits: u = q + 8 = 0, 15, 8, 1: 0x18f0. 3 bits: u = q + 4 in 0..7, eleven values take 33 bits.
  const auto nibbles = PackInts(Array::Of<int8_t>({-8, 7, 0, -7}, {1, 4}), 4);
  EXPECT_TRUE(BitEqual(*nibbles, Array::Of<int32_t>({0x18f0}, {1, 1})));
  const auto threes = PackInts(Array::Of<int8_t>({3, -4, -4, -4, -4, -4, -4, -4, -4, -4, 3}, {1, 11}), 3);
  EXPECT_TRUE(BitEqual(*threes, Array::Of<int32_t>({static_cast<int32_t>(0xc0000007), 1}, {1, 2})));
  const auto bytes = PackInts(Array::Of<int8_t>({-128, 127, 0, 1, 2}, {1, 5}), 8);
  EXPECT_TRUE(BitEqual(*bytes, Array::Of<int32_t>({static_cast<int32_t>(0x8180ff00), 0x82}, {1, 2})));
}

TEST(PackInts, RoundTripOfEveryWidth) {
  std::mt19937 random(4);
  for (int bits = 2; bits <= 8; ++bits) {
    for (int64_t cols = 0; cols <= 70; ++cols) {
      std::vector<int8_t> q(3 * cols);
      for (int8_t& v : q) v = static_cast<int8_t>(static_cast<int>(random() % (1u << bits)) - (1 << (bits - 1)));
      const ArrayRef view(q.data(), {3, cols});
      const auto words = PackInts(view, bits);
      ASSERT_TRUE(words.ok()) << words.status();
      EXPECT_EQ(words->shape(), (Shape{3, (cols * bits + 31) / 32}));
      EXPECT_TRUE(BitEqual(*UnpackInts(*words, bits, cols), Array::CopyOf(view)));
      // The same values as zero points: a column of them is a row of the transposed matrix.
      const ArrayRef columns(DType::kS8, {cols, 3}, {1, cols}, q.data());
      const auto zero_words = PackZeroPoints(columns, bits);
      ASSERT_TRUE(zero_words.ok()) << zero_words.status();
      EXPECT_TRUE(BitEqual(*zero_words, Array::CopyOf(ArrayRef(DType::kS32, {words->shape()[1], 3},
                                                               {1, words->shape()[1]}, words->data()))));
      EXPECT_TRUE(BitEqual(*UnpackZeroPoints(*zero_words, bits, cols), Array::CopyOf(columns)));
    }
  }
}

// Eight values at a time, with any values and any position of a value out of range.
TEST(PackInts, EveryValueOfEveryNibble) {
  for (int64_t at = 0; at < 19; ++at) {
    for (int value = -128; value <= 127; ++value) {
      std::vector<int8_t> q(19, -3);
      q[at] = static_cast<int8_t>(value);
      const auto words = PackInts(ArrayRef(q.data(), {1, 19}), 4);
      if (value < -8 || value > 7) {
        ExpectError(words.status(), kInvalid, absl::StrCat("value ", value, " at [0,", at, "] is outside [-8,7]"));
      } else {
        EXPECT_TRUE(BitEqual(*UnpackInts(*words, 4, 19), Array::CopyOf(ArrayRef(q.data(), {1, 19}))));
      }
    }
  }
}

TEST(PackInts, Errors) {
  const Array q = Array::Of<int8_t>({0, 7, 8, 0}, {2, 2}), words = Array::Zeros(DType::kS32, {2, 3});
  ExpectError(PackInts(q, 4).status(), kInvalid, "value 8 at [1,0] is outside [-8,7]");
  ExpectError(PackInts(q, 1).status(), kInvalid, "num_bits is 1");
  ExpectError(PackInts(words, 4).status(), kInvalid, "expected a matrix of s8");
  ExpectError(PackZeroPoints(q, 4).status(), kInvalid, "transposed: value 8 at [0,1]");
  ExpectError(UnpackInts(q, 4, 2).status(), kInvalid, "expected a matrix of s32");
  EXPECT_TRUE(UnpackInts(words, 4, 24).ok());
  EXPECT_TRUE(UnpackInts(words, 4, 17).ok());
  for (int64_t i : {int64_t{-1}, int64_t{16}, int64_t{25}, std::numeric_limits<int64_t>::max()})
    ExpectError(UnpackInts(words, 4, i).status(), kInvalid, absl::StrCat("3 words cannot hold ", i, " values"));
  ExpectError(UnpackZeroPoints(words, 4, 17).status(), kInvalid, "2 words cannot hold 17 values");
}

TEST(WeightScheme, Names) {
  std::ostringstream os;
  os << Strategy::kTensor << Strategy::kChannel << Strategy::kGroup << Strategy::kBlock << ValueType::kInt
     << ValueType::kFloat;
  EXPECT_EQ(os.str(), "tensorchannelgroupblockintfloat");
}

}  // namespace
}  // namespace aqt::compressed_tensors
