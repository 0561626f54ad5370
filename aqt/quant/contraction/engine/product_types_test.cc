#include "aqt/quant/contraction/engine/contract.h"

#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include "aqt/core/dtype.h"

namespace aqt::internal {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16, kE4 = DType::kE4M3FN, kE5 = DType::kE5M2,
                kS4 = DType::kS4, kS8 = DType::kS8, kS32 = DType::kS32;

// lax.dot_general's dtypes of products without preferred_element_type (JAX 0.10.2 on CPU).
TEST(ProductTypesOf, LargerDTypeWithoutAccumulator) {
  const struct {
    DType a, b, product;
  } cases[] = {{kF32, kF32, kF32},   {kF32, kBF16, kF32}, {kF32, kF16, kF32},  {kF32, kE4, kF32},   {kF32, kS8, kF32},
               {kBF16, kF16, kBF16}, {kBF16, kE4, kBF16}, {kBF16, kE5, kBF16}, {kBF16, kS8, kBF16}, {kF16, kE4, kF16},
               {kF16, kE5, kF16},    {kF16, kS8, kF16},   {kE4, kE4, kE4},     {kE4, kE5, kE5},     {kE4, kS8, kE4},
               {kE5, kS4, kE5},      {kS8, kS8, kS8},     {kS4, kS8, kS8},     {kS8, kS32, kS32},   {kS32, kF16, kF16}};
  for (const auto& c : cases) {
    EXPECT_EQ(ProductTypesOf(c.a, c.b, std::nullopt).product, c.product) << c.a << c.b;
    EXPECT_EQ(ProductTypesOf(c.b, c.a, std::nullopt).product, c.product) << c.b << c.a;
    EXPECT_EQ(ProductTypesOf(c.a, c.b, std::nullopt).converts_operands, c.a != c.b && IsFloat(c.product));
    const bool through_f16 = c.product == kE4 || c.product == kE5;
    EXPECT_EQ(ProductTypesOf(c.a, c.b, std::nullopt).rounds_first_to, through_f16 ? std::optional(kF16) : std::nullopt);
  }
}

TEST(ProductTypesOf, AccumulatorIsTheProduct) {
  for (const DType accumulator : {kF32, kBF16, kF16}) {
    for (const DType a : {kF32, kBF16, kF16, kE4, kE5, kS8}) {
      for (const DType b : {kF32, kBF16, kF16, kE4, kE5, kS8}) {
        const ProductTypes types = ProductTypesOf(a, b, accumulator);
        EXPECT_EQ(types.product, accumulator);
        EXPECT_EQ(types.converts_operands, a != b || (a == kF16 && accumulator == kBF16)) << a << b << accumulator;
        const bool through_bf16 = a == kBF16 && b == kBF16 && accumulator == kF16;
        EXPECT_EQ(types.rounds_first_to, through_bf16 ? std::optional(kBF16) : std::nullopt) << a << b << accumulator;
      }
    }
  }
  EXPECT_EQ(ProductTypesOf(kS4, kS8, kS32).product, kS32);
  EXPECT_FALSE(ProductTypesOf(kS4, kS8, kS32).converts_operands);
}

// Compared with the conversions themselves, over all values of the dtypes of at most 16 bits.
TEST(HoldsAllOf, IsWhetherConversionsAreExact) {
  for (const DType from : {DType::kS2, kS4, kS8, kE4, kE5, kF16, kBF16}) {
    for (const DType to : {kE4, kE5, kF16, kBF16, kF32}) {
      bool exact = true;
      VisitDType(from, [&]<class From>() {
        VisitDType(to, [&]<class To>() {
          const int count = SizeOf(from) == 1 ? 256 : 65536;
          for (int pattern = 0; pattern < count; ++pattern) {
            float x = 0;
            if constexpr (sizeof(From) == 1) {
              x = ConvertElement<float>(__builtin_bit_cast(From, static_cast<uint8_t>(pattern)));
            } else if constexpr (sizeof(From) == 2) {
              x = ConvertElement<float>(__builtin_bit_cast(From, static_cast<uint16_t>(pattern)));
            }
            const int limit = IsInteger(from) ? 1 << (BitWidth(from) - 1) : 0;
            if (limit > 0 && (x < -limit || x >= limit)) continue;  // not a value of s2 or s4
            if (!std::isfinite(x)) continue;
            exact = exact && ConvertElement<float>(ConvertElement<To>(x)) == x;
          }
        });
      });
      EXPECT_EQ(HoldsAllOf(to, from), exact) << from << " in " << to;
    }
  }
  EXPECT_TRUE(HoldsAllOf(kF32, kF32));
  EXPECT_FALSE(HoldsAllOf(kBF16, kF32));
  EXPECT_FALSE(HoldsAllOf(kF32, kS32));
}

}  // namespace
}  // namespace aqt::internal
