#include "aqt/kernels/panels/decode.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {
namespace {

template <class T>
float ValueOf(T x) {
  return ConvertElement<float>(x);
}

uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }

// The specification of Decode, element by element.
template <class From>
float Expected(From x, bool subnormals_are_zero) {
  const float v = ValueOf(x);
  const bool flushes = kDTypeOf<From> == DType::kF32 || kDTypeOf<From> == DType::kBF16;
  return subnormals_are_zero && flushes && std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v;
}

float AsFloat(float x) { return x; }
float AsFloat(int8_t x) { return x; }
float AsFloat(BFloat16 x) { return ToFloat(x); }

class DecodeTest : public ::testing::TestWithParam<Target> {
 protected:
  // Decodes `values`, whose storage type is T and whose type is `dtype`, with several strides and lengths. Elements
  // outside the request keep their values.
  template <class To, class From>
  static void ExpectDecoded(const std::vector<From>& values, DType dtype = kDTypeOf<From>) {
    const int64_t size = static_cast<int64_t>(values.size());
    struct Shape {
      int64_t lines, count, src_line, src_step, start;
    };
    const std::vector<Shape> shapes = {
        {1, size, 0, 1, 0},
        {1, size, 0, -1, size - 1},
        {3, size / 3, size / 3, 1, 0},
        {2, size / 2, 1, 2, 0},
        {5, 7, 7, 1, 1},
        {2, 65, 3, 1, 1},
        {4, 33, 0, 1, 2},
        {3, 31, 31, 1, 0},
        {3, 20, 1, 0, 0},
        {2, 127, -127, 1, size / 2},
        {1, 1, 0, 1, size - 1},
        {0, 5, 1, 1, 0},
        {5, 0, 1, 1, 0},
        {2, 16, 16, 1, 3},
    };
    for (const Shape& shape : shapes) {
      for (const bool flush : {false, true}) {
        const int64_t dst_line = shape.count + 3;
        constexpr uint8_t kUntouched = 0x5a;
        std::vector<To> got(shape.lines * dst_line + 1);
        std::memset(static_cast<void*>(got.data()), kUntouched, got.size() * sizeof(To));
        To untouched;
        std::memset(static_cast<void*>(&untouched), kUntouched, sizeof(To));
        DecodeArgs args{
            values.data() + shape.start, dtype, shape.src_line, shape.src_step, shape.lines, shape.count, flush};
        Decode(GetParam(), args, got.data(), dst_line);
        for (int64_t line = 0; line < shape.lines; ++line) {
          for (int64_t i = 0; i < dst_line; ++i) {
            const float want = i < shape.count
                                   ? Expected(values[shape.start + line * shape.src_line + i * shape.src_step], flush)
                                   : AsFloat(untouched);
            ASSERT_EQ(BitsOf(AsFloat(got[line * dst_line + i])), BitsOf(want))
                << ToString(dtype) << ", " << shape.lines << " lines of " << shape.count << ", step " << shape.src_step
                << ", line " << line << ", element " << i;
          }
        }
      }
    }
  }
};

// All codes of an 8-bit type.
template <class T>
std::vector<T> AllCodes() {
  std::vector<T> codes;
  for (int i = 0; i < 256; ++i) codes.push_back(__builtin_bit_cast(T, static_cast<uint8_t>(i * 37)));
  return codes;
}

// All bf16 values, or all f16 values except NaN.
template <class T>
std::vector<T> AllHalves() {
  std::vector<T> halves;
  for (int i = 0; i < 1 << 16; ++i) {
    const T x{static_cast<uint16_t>(i)};
    if (std::is_same_v<T, BFloat16> || !std::isnan(ToFloat(x))) halves.push_back(x);
  }
  return halves;
}

TEST_P(DecodeTest, EveryE4M3FN) {
  ExpectDecoded<float>(AllCodes<Float8E4M3FN>());
  ExpectDecoded<BFloat16>(AllCodes<Float8E4M3FN>());
}

TEST_P(DecodeTest, EveryE5M2) {
  ExpectDecoded<float>(AllCodes<Float8E5M2>());
  ExpectDecoded<BFloat16>(AllCodes<Float8E5M2>());
}

TEST_P(DecodeTest, EveryInteger) {
  for (const DType dtype : {DType::kS8, DType::kS4, DType::kS2}) {
    ExpectDecoded<int8_t>(AllCodes<int8_t>(), dtype);
    ExpectDecoded<float>(AllCodes<int8_t>(), dtype);
    ExpectDecoded<BFloat16>(AllCodes<int8_t>(), dtype);
  }
}

TEST_P(DecodeTest, EveryBF16) {
  ExpectDecoded<float>(AllHalves<BFloat16>());
  ExpectDecoded<BFloat16>(AllHalves<BFloat16>());
}

TEST_P(DecodeTest, EveryF16ExceptNaN) { ExpectDecoded<float>(AllHalves<Float16>()); }

TEST_P(DecodeTest, NaNOfF16StaysNaN) {
  std::vector<Float16> nan(100, Float16{0x7e00});
  nan[3] = nan[77] = {0xfd55};
  std::vector<float> got(nan.size());
  Decode(GetParam(), {nan.data(), DType::kF16, 0, 1, 1, 100}, got.data(), 0);
  for (const float x : got) EXPECT_TRUE(std::isnan(x));
}

TEST_P(DecodeTest, F32OfEveryExponent) {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 512; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffffu}) {
      values.push_back(__builtin_bit_cast(float, upper << 23 | lower));
    }
  }
  ExpectDecoded<float>(values);
}

std::string TargetName(const ::testing::TestParamInfo<Target>& info) { return std::string(ToString(info.param)); }

INSTANTIATE_TEST_SUITE_P(Targets, DecodeTest, ::testing::ValuesIn(SupportedTargets().begin(), SupportedTargets().end()),
                         TargetName);

}  // namespace
}  // namespace aqt::kernels
