#include "aqt/kernels/digits/digits.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/kernels/digits/reference.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t batch, m, n, k, scale_group;
  int bits;
  bool shares_weights = false;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << c.batch << " x " << c.m << " x " << c.n << " x " << c.k << ", groups of " << c.scale_group << ", " << c.bits
      << " bits";
}

// Floats of very different magnitudes, including zeros and subnormals, so that groups have one, two and three layers.
std::vector<float> WildF32(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t kind = rng() % 64;
    const float spread = i / 700 % 3 == 0 ? 0.0f : i / 700 % 3 == 1 ? 3.0f : 9.0f;
    values[i] = normal(rng) * std::exp(spread * normal(rng));
    if (kind == 0) values[i] = 0;
    if (kind == 1) values[i] *= 1e6f;
    if (kind == 2) values[i] *= 1e-30f;
    if (kind == 3) values[i] *= 1e-38f;
  }
  return values;
}

// Weights that fit `bits`.
std::vector<int8_t> Weights(int64_t n, int bits, uint32_t seed) {
  std::vector<int8_t> values = RandomS8(n, seed);
  for (int8_t& v : values) v = static_cast<int8_t>(v >> (8 - bits));
  return values;
}

// The test values in their storage format.
std::vector<char> Stored(const std::vector<float>& values, DType dtype) {
  std::vector<char> bytes(values.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kBF16) {
      const BFloat16 v = RoundToBFloat16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &v, 2);
    } else if (dtype == DType::kF16) {
      const Float16 v = RoundToFloat16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &v, 2);
    } else {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    }
  }
  return bytes;
}

std::vector<float> Rounded(std::vector<float> values, DType dtype) {
  for (float& v : values) {
    if (dtype == DType::kBF16) v = ToFloat(RoundToBFloat16(v));
    if (dtype == DType::kF16) v = ToFloat(RoundToFloat16(v));
  }
  return values;
}

struct Problem {
  explicit Problem(const Case& c, uint32_t seed = 1)
      : c(c),
        format{.bits = c.bits, .n = c.n, .k = c.k, .scale_group = c.scale_group},
        x(WildF32(c.batch * c.m * c.k, seed)),
        q(Weights((c.shares_weights ? 1 : c.batch) * c.n * c.k, c.bits, seed)),
        scales(RandomF32((c.shares_weights ? 1 : c.batch) * format.NumScaleGroups() * c.n, seed)) {}

  std::vector<float> Expected(const std::vector<float>& values) const {
    std::vector<float> sums(c.batch * c.m * c.n);
    const int64_t scale_groups = format.NumScaleGroups();
    for (int64_t b = 0; b < c.batch; ++b) {
      const int64_t w = c.shares_weights ? 0 : b;
      for (int64_t m = 0; m < c.m; ++m) {
        for (int64_t n = 0; n < c.n; ++n) {
          std::vector<float> own;
          for (int64_t g = 0; c.scale_group != 0 && g < scale_groups; ++g) {
            own.push_back(scales[(w * scale_groups + g) * c.n + n]);
          }
          sums[(b * c.m + m) * c.n + n] =
              ReferenceDigitSum(format, absl::MakeConstSpan(values).subspan((b * c.m + m) * c.k, c.k),
                                absl::MakeConstSpan(q).subspan((w * c.n + n) * c.k, c.k), own);
        }
      }
    }
    return sums;
  }

  AlignedBytes Panels(const Operand& weights, Executor* executor = nullptr) const {
    AlignedBytes panels((c.shares_weights ? 1 : c.batch) * format.PackedBytes());
    PackDigitWeights(format, weights,
                     {.data = scales.data(), .batch_stride = format.NumScaleGroups() * c.n, .group_stride = c.n},
                     panels.data(), executor);
    return panels;
  }
  AlignedBytes Panels(Executor* executor = nullptr) const {
    return Panels(Operand::Dense(q.data(), DType::kS8, c.n, c.k, c.shares_weights ? 1 : c.batch), executor);
  }

  std::vector<float> Run(Target target, const Operand& lhs, const AlignedBytes& panels, Executor* executor = nullptr,
                         const DigitScales& lhs_scales = {}, bool flips_blocks = false) const {
    std::vector<float> sums(c.batch * c.m * c.n, -1.0f);
    AlignedBytes scratch(DigitScratchBytes(target, format, c.batch, c.m, IsInteger(lhs.dtype)));
    GemmProblem problem = GemmProblem::Dense(c.batch, c.m, c.n, c.k, DType::kF32, sums.data());
    problem.lhs = lhs;
    FlipBits flip(sums.data());
    if (flips_blocks) problem.epilogue.block = &flip;
    MultiplyDigits(target, problem,
                   {.format = format,
                    .rhs = panels.data(),
                    .rhs_batch_bytes = c.shares_weights ? 0 : format.PackedBytes(),
                    .lhs_scales = lhs_scales,
                    .scratch = scratch.data()},
                   executor);
    return sums;
  }
  Operand Lhs(const std::vector<float>& values) const {
    return Operand::Dense(values.data(), DType::kF32, c.m, c.k, c.batch);
  }

  Case c;
  DigitFormat format;
  std::vector<float> x;
  std::vector<int8_t> q;
  std::vector<float> scales;
};

// Requires equal bits; all NaNs are equal.
void ExpectSame(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << "at " << i;
    } else {
      ASSERT_EQ(__builtin_bit_cast(uint32_t, actual[i]), __builtin_bit_cast(uint32_t, expected[i]))
          << actual[i] << " instead of " << expected[i] << " at " << i;
    }
  }
}

class DigitsTest : public testing::TestWithParam<Case> {};

TEST_P(DigitsTest, EqualsTheReferenceOnEveryTarget) {
  const Problem p(GetParam());
  const std::vector<float> expected = p.Expected(p.x);
  const AlignedBytes panels = p.Panels();
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(target);
    ExpectSame(p.Run(target, p.Lhs(p.x), panels), expected);
  }
}

TEST_P(DigitsTest, DoesNotDependOnThreads) {
  const Problem p(GetParam());
  ThreadPool pool(3);
  const AlignedBytes panels = p.Panels();
  EXPECT_TRUE(p.Panels(&pool) == panels);
  ExpectSame(p.Run(BestTarget(), p.Lhs(p.x), panels, &pool), p.Run(BestTarget(), p.Lhs(p.x), panels));
}

TEST_P(DigitsTest, RunsABlockEpilogueOnceOnEachElement) {
  const Problem problem(GetParam());
  const AlignedBytes panels = problem.Panels();
  ThreadPool two(2);
  std::vector<float> expected = problem.Run(BestTarget(), problem.Lhs(problem.x), panels);
  FlipBits::Flip(reinterpret_cast<uint32_t*>(expected.data()), static_cast<int64_t>(expected.size()));
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&two)}) {
    const std::vector<float> flipped =
        problem.Run(BestTarget(), problem.Lhs(problem.x), panels, executor, {}, /*flips_blocks=*/true);
    EXPECT_EQ(std::memcmp(flipped.data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
}

TEST_P(DigitsTest, TakesBothOrientations) {
  const Case& c = GetParam();
  const Problem p(c);
  std::vector<float> x(p.x.size());
  std::vector<int8_t> q(p.q.size());
  const int64_t weight_batch = c.shares_weights ? 1 : c.batch;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t k = 0; k < c.k; ++k) {
      for (int64_t m = 0; m < c.m; ++m) x[(b * c.k + k) * c.m + m] = p.x[(b * c.m + m) * c.k + k];
      for (int64_t n = 0; n < c.n && b < weight_batch; ++n) q[(b * c.k + k) * c.n + n] = p.q[(b * c.n + n) * c.k + k];
    }
  }
  const AlignedBytes panels = p.Panels(Operand::Transposed(q.data(), DType::kS8, c.n, c.k, weight_batch));
  ASSERT_TRUE(panels == p.Panels());
  ExpectSame(p.Run(BestTarget(), Operand::Transposed(x.data(), DType::kF32, c.m, c.k, c.batch), panels),
             p.Expected(p.x));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DigitsTest,
    testing::Values(Case{1, 1, 1, 1, 0, 8}, Case{1, 1, 1, 1, 1, 4}, Case{0, 1, 1, 1, 0, 8}, Case{1, 0, 3, 3, 0, 8},
                    Case{1, 2, 0, 3, 0, 8}, Case{1, 2, 3, 0, 0, 8}, Case{1, 2, 3, 0, 4, 4}, Case{1, 2, 65, 16, 0, 8},
                    Case{1, 3, 64, 127, 0, 8}, Case{1, 2, 33, 128, 0, 4}, Case{1, 5, 31, 129, 0, 2},
                    Case{2, 3, 70, 700, 0, 8}, Case{2, 4, 130, 513, 0, 4, true}, Case{1, 7, 64, 384, 128, 4},
                    Case{1, 3, 96, 391, 128, 4}, Case{2, 2, 20, 100, 32, 8}, Case{1, 3, 20, 100, 33, 2},
                    Case{1, 4, 40, 1100, 512, 8}, Case{1, 2, 66, 700, 300, 4}, Case{1, 17, 65, 2100, 0, 8},
                    Case{1, 131, 70, 300, 64, 4}, Case{1, 131, 3, 128, 7, 8}, Case{2, 16, 64, 640, 0, 4},
                    Case{1, 79, 100, 256, 0, 2}, Case{1, 1, 640, 1024, 0, 4}, Case{3, 33, 65, 192, 0, 2},
                    // Several blocks of rows are processed together, including blocks of different matrices.
                    Case{3, 130, 66, 128, 0, 4}, Case{4, 70, 66, 100, 50, 8, true}));

// Row i has magnitudes up to 2^(i - 125), down to subnormal ones, and some, many or no zeros.
TEST(DigitsTest, RowsOfEveryExponentEqualTheReference) {
  for (const int64_t k : {128, 100, 384}) {
    Problem p({1, 252, 5, k, 0, 8});
    std::mt19937 rng(3);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (int64_t i = 0; i < 252 * k; ++i) {
      const int64_t row = i / k, zeros = row % 3;
      const bool is_zero = zeros == 1 ? rng() % 8 == 0 : zeros == 2 && rng() % 4 != 0;
      p.x[i] = is_zero ? 0.0f
                       : std::ldexp(uniform(rng), static_cast<int>(row) - 125 -
                                                      (rng() % 16 == 0 ? 16 + static_cast<int>(rng() % 10) : 0));
    }
    const std::vector<float> expected = p.Expected(p.x);
    const AlignedBytes panels = p.Panels();
    for (const Target target : SupportedTargets()) {
      SCOPED_TRACE(target);
      ExpectSame(p.Run(target, p.Lhs(p.x), panels), expected);
    }
  }
}

// One row with weights that do not stay in the caches: panels are processed in pairs, and the last one alone. With one
// layer per group, with several, and with non-finite elements.
TEST(DigitsTest, OneRowOfLargeWeights) {
  ThreadPool pool(2);
  for (const int64_t scale_group : {0, 128}) {
    Problem p({1, 1, 66 * 64 + 6, 4096, scale_group, 8});
    const AlignedBytes panels = p.Panels();
    ASSERT_GE(panels.size(), 16'000'000);
    const std::vector<float> wild = p.x;
    std::vector<float> finite = RandomF32(4096, 5), infinite = finite;
    infinite[130] = kInf;
    infinite[131] = kNan;
    for (const std::vector<float>& x : {finite, wild, infinite}) {
      const std::vector<float> expected = p.Run(Target::kScalar, p.Lhs(x), panels);
      for (const Target target : SupportedTargets()) {
        SCOPED_TRACE(target);
        ExpectSame(p.Run(target, p.Lhs(x), panels), expected);
        ExpectSame(p.Run(target, p.Lhs(x), panels, &pool), expected);
      }
    }
  }
}

// With scales, subnormal products and subnormal sums count as zero; the check is skipped where they cannot occur. Pairs
// of elements of x with equal weights almost cancel, so the sums are a few units.
TEST(DigitsTest, TinyUnitsAndScales) {
  std::mt19937 random(7);
  for (const int unit : {0, -40, -50, -51, -52, -53, -60, -64, -80, -100, -126, -148}) {
    for (const int scale_exponent : {0, -50, -51, -52, -53, -60, -64, -75, -98, -126, -140}) {
      SCOPED_TRACE(testing::Message() << "unit 2^" << unit << ", scales about 2^" << scale_exponent);
      Problem p({1, 5, 70, 512, 128, 4});
      for (int64_t i = 0; i < p.c.m * p.c.k; i += 2) {
        const auto a = static_cast<int>((1 << 21) + random() % (1 << 21));
        p.x[i] = std::ldexp(static_cast<float>(a), unit);
        p.x[i + 1] = std::ldexp(static_cast<float>(-a + (random() % 64 == 0 ? 1 : 0)), unit);
      }
      for (int64_t i = 0; i < p.c.n * p.c.k; i += 2) p.q[i + 1] = p.q[i];
      for (float& s : p.scales) {
        s = std::ldexp(random() % 2 == 0 ? 1.5f : -1.0f, scale_exponent + static_cast<int>(random() % 2));
        if (random() % 128 == 0) s = random() % 2 == 0 ? 0.0f : kInf;
      }
      const std::vector<float> expected = p.Expected(p.x);
      const AlignedBytes panels = p.Panels();
      for (const Target target : SupportedTargets()) {
        SCOPED_TRACE(target);
        ExpectSame(p.Run(target, p.Lhs(p.x), panels), expected);
      }
    }
  }
}

// ---- integers

struct IntegerProblem {
  explicit IntegerProblem(const Case& c, uint32_t seed = 1)
      : floats(c, seed),
        x(RandomS8(c.batch * c.m * c.k, seed + 1)),
        units(RandomF32(c.batch * c.m * floats.format.NumScaleGroups(), seed + 2)) {
    if (!x.empty()) x[0] = -128;
    for (float& unit : units) unit = std::abs(unit) + 0x1p-20f;
  }

  // Units are [scale group, batch, row].
  float Unit(int64_t g, int64_t b, int64_t m) const { return units[(g * floats.c.batch + b) * floats.c.m + m]; }

  std::vector<float> Expected() const {
    const Case& c = floats.c;
    const int64_t groups = floats.format.NumScaleGroups();
    std::vector<float> sums;
    for (int64_t b = 0; b < c.batch; ++b) {
      const int64_t w = c.shares_weights ? 0 : b;
      for (int64_t m = 0; m < c.m; ++m) {
        std::vector<float> own_units;
        for (int64_t g = 0; g < groups; ++g) own_units.push_back(Unit(g, b, m));
        for (int64_t n = 0; n < c.n; ++n) {
          std::vector<float> scales;
          for (int64_t g = 0; g < groups; ++g) scales.push_back(floats.scales[(w * groups + g) * c.n + n]);
          sums.push_back(ReferenceIntegerSum(floats.format, absl::MakeConstSpan(x).subspan((b * c.m + m) * c.k, c.k),
                                             own_units, absl::MakeConstSpan(floats.q).subspan((w * c.n + n) * c.k, c.k),
                                             scales));
        }
      }
    }
    return sums;
  }

  std::vector<float> Run(Target target, const Operand& lhs, const AlignedBytes& panels,
                         Executor* executor = nullptr) const {
    const Case& c = floats.c;
    return floats.Run(target, lhs, panels, executor,
                      {.data = units.data(), .batch_stride = c.m, .group_stride = c.batch * c.m});
  }

  Problem floats;  // for the weights
  std::vector<int8_t> x;
  std::vector<float> units;
};

class IntegersInGroupsTest : public testing::TestWithParam<Case> {};

TEST_P(IntegersInGroupsTest, EqualTheReferenceOnEveryTarget) {
  const Case& c = GetParam();
  const IntegerProblem p(c);
  const std::vector<float> expected = p.Expected();
  const AlignedBytes panels = p.floats.Panels();
  std::vector<int8_t> transposed(p.x.size());
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t m = 0; m < c.m; ++m) {
      for (int64_t k = 0; k < c.k; ++k) transposed[(b * c.k + k) * c.m + m] = p.x[(b * c.m + m) * c.k + k];
    }
  }
  ThreadPool pool(3);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(target);
    const Operand dense = Operand::Dense(p.x.data(), DType::kS8, c.m, c.k, c.batch);
    ExpectSame(p.Run(target, dense, panels), expected);
    ExpectSame(p.Run(target, dense, panels, &pool), expected);
    ExpectSame(p.Run(target, Operand::Transposed(transposed.data(), DType::kS8, c.m, c.k, c.batch), panels), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, IntegersInGroupsTest,
    testing::Values(Case{1, 1, 1, 1, 1, 8}, Case{1, 1, 64, 128, 128, 4}, Case{1, 1, 300, 512, 128, 4},
                    Case{1, 1, 128, 96, 32, 2}, Case{1, 2, 70, 256, 64, 4}, Case{1, 3, 65, 256, 128, 8},
                    Case{1, 4, 130, 384, 128, 4}, Case{2, 5, 33, 160, 16, 8}, Case{1, 7, 64, 300, 100, 4},
                    Case{2, 8, 100, 391, 128, 4, true}, Case{1, 9, 66, 256, 128, 2}, Case{3, 16, 64, 128, 64, 8},
                    Case{1, 17, 70, 512, 128, 4}, Case{2, 131, 70, 256, 128, 4}, Case{1, 66, 200, 4096, 128, 8},
                    Case{0, 1, 1, 1, 1, 8}, Case{1, 2, 3, 0, 4, 4}));

TEST(IntegersInGroups, TinyUnitsAndScales) {
  for (const int unit : {0, -49, -51, -52, -60, -80, -100, -126, -140}) {
    for (const int scale : {0, -49, -51, -52, -60, -75, -98, -126, -140}) {
      SCOPED_TRACE(testing::Message() << "units of 2^" << unit << ", scales of 2^" << scale);
      IntegerProblem p({1, 6, 70, 512, 128, 4});
      std::mt19937 random(7);
      for (float& u : p.units) {
        u = std::ldexp(1.5f, unit);
        if (random() % 16 == 0) u = random() % 2 == 0 ? 0.0f : -u;
        if (random() % 32 == 0) u = random() % 2 == 0 ? kInf : kNan;
      }
      // Two groups that nearly cancel.
      for (int64_t i = 0; i < p.floats.c.m * p.floats.c.k; ++i) p.x[i] = p.x[i / 512 * 512 + i % 128];
      for (int64_t i = 0; i < p.floats.c.n * p.floats.c.k; ++i) p.floats.q[i] = p.floats.q[i / 512 * 512 + i % 128];
      for (float& s : p.floats.scales) {
        s = std::ldexp(random() % 2 == 0 ? 1.25f : -1.2499999f, scale);
        if (random() % 64 == 0) s = random() % 2 == 0 ? 0.0f : kInf;
      }
      const std::vector<float> expected = p.Expected();
      const AlignedBytes panels = p.floats.Panels();
      for (const Target target : SupportedTargets()) {
        SCOPED_TRACE(target);
        ExpectSame(p.Run(target, Operand::Dense(p.x.data(), DType::kS8, 6, 512), panels), expected);
      }
    }
  }
}

// Operands whose axes are not contiguous, or with several axes in a group.
TEST(DigitsTest, TakesAnyStrides) {
  const Problem p({1, 20, 64, 256, 0, 4});
  const AlignedBytes panels = p.Panels();
  std::vector<float> x(20 * 256 * 2);
  std::vector<int8_t> q(64 * 256 * 3);
  for (int64_t i = 0; i < 20 * 256; ++i) x[2 * i] = p.x[i];
  for (int64_t i = 0; i < 64 * 256; ++i) q[3 * i] = p.q[i];
  Operand lhs{x.data(), DType::kF32, {}, AxisGroup::Of(20, 512), AxisGroup::Of(256, 2)};
  Operand weights{q.data(), DType::kS8, {}, AxisGroup::Of(64, 3 * 256), AxisGroup::Of(256, 3)};
  EXPECT_TRUE(p.Panels(weights) == panels);
  ExpectSame(p.Run(BestTarget(), lhs, panels), p.Expected(p.x));

  // k is [8, 32] in the other memory order: element (i, j) of k is at j * 8 + i.
  for (int64_t r = 0; r < 64; ++r) {
    for (int64_t k = 0; k < 256; ++k) {
      q[r * 256 + k % 32 * 8 + k / 32] = p.q[r * 256 + k];
      if (r < 20) x[r * 256 + k % 32 * 8 + k / 32] = p.x[r * 256 + k];
    }
  }
  lhs.rows = AxisGroup::Of(20, 256);
  weights.rows = AxisGroup::Of(64, 256);
  lhs.k = AxisGroup::Of(8, 1);
  lhs.k.Append(32, 8);
  weights.k = lhs.k;
  ASSERT_EQ(lhs.k.rank, 2);
  EXPECT_TRUE(p.Panels(weights) == panels);
  ExpectSame(p.Run(BestTarget(), lhs, panels), p.Expected(p.x));
}

TEST(DigitsTest, ReadsEveryFloatDtype) {
  const Problem p({1, 5, 70, 700, 0, 8});
  const AlignedBytes panels = p.Panels();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(dtype);
    std::vector<float> values = Rounded(p.x, dtype);
    for (float& v : values) v = std::isinf(v) ? 1.0f : v;
    const std::vector<float> expected = p.Expected(values);
    const std::vector<char> x = Stored(values, dtype);
    for (const Target target : SupportedTargets()) {
      SCOPED_TRACE(target);
      ExpectSame(p.Run(target, Operand::Dense(x.data(), dtype, p.c.m, p.c.k), panels), expected);
    }
  }
}

// A row has the same bits in a batch of any size.
TEST(DigitsTest, RowsDoNotDependOnEachOther) {
  const Problem p({1, 150, 70, 600, 0, 4});
  const AlignedBytes panels = p.Panels();
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(target);
    const std::vector<float> all = p.Run(target, p.Lhs(p.x), panels);
    for (const int64_t row : {0, 1, 17, 127, 128, 149}) {
      Problem one({1, 1, 70, 600, 0, 4});
      one.x.assign(p.x.begin() + row * 600, p.x.begin() + (row + 1) * 600);
      ExpectSame(one.Run(target, one.Lhs(one.x), panels),
                 std::vector<float>(all.begin() + row * 70, all.begin() + (row + 1) * 70));
    }
  }
}

TEST(DigitsTest, KeepsTheKindOfInfiniteAndNanSums) {
  Problem p({1, 12, 70, 400, 0, 8});
  for (int64_t n = 0; n < 70; ++n) p.q[n * 400 + 300] = static_cast<int8_t>(n % 3 - 1);
  const auto row = [&](int64_t m) { return p.x.data() + m * 400; };
  row(1)[300] = kInf;
  row(2)[300] = -kInf;
  row(3)[17] = kNan;
  row(4)[300] = kInf;
  row(4)[17] = kInf;
  row(5)[300] = kInf;
  row(5)[17] = -kInf;
  row(6)[399] = kInf;
  row(7)[0] = -kNan;
  const auto kind = [](float v) { return std::isnan(v) ? 3 : std::isinf(v) ? (v > 0 ? 1 : 2) : 0; };
  const AlignedBytes panels = p.Panels();
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(target);
    const std::vector<float> sums = p.Run(target, p.Lhs(p.x), panels);
    ExpectSame(sums, p.Expected(p.x));
    for (int64_t m = 0; m < 12; ++m) {
      for (int64_t n = 0; n < 70; ++n) {
        float loop = 0;
        for (int64_t k = 0; k < 400; ++k) loop += row(m)[k] * static_cast<float>(p.q[n * 400 + k]);
        EXPECT_EQ(kind(sums[m * 70 + n]), kind(loop)) << m << ", " << n;
      }
    }
  }
}

// Each scale group is a separate sum: its non-finite elements, zeros and scale do not affect the others.
TEST(DigitsTest, ScaleGroupsAreSumsOfTheirOwn) {
  for (const int64_t scale_group : {100, 256}) {
    SCOPED_TRACE(scale_group);
    Problem p({1, 20, 70, 1000, scale_group, 4});
    const float scales[] = {kInf, kNan, 0.0f, -0.0f, 0x1p-130f, -2.5f, 0x1p-126f, 3e38f};
    for (int64_t i = 0; i < 8; ++i) {
      for (int64_t g = 0; g < p.format.NumScaleGroups(); ++g) {
        if ((g + i) % 3 == 0) p.scales[g * 70 + 8 * i + g] = scales[i];
      }
    }
    const auto row = [&](int64_t m) { return p.x.data() + m * 1000; };
    std::fill(row(1), row(1) + 300, 0.0f);
    std::fill(row(2), row(2) + 1000, 0.0f);
    row(3)[300] = kInf;
    row(4)[17] = kNan;
    row(5)[150] = kInf;
    row(5)[250] = -kInf;
    row(6)[700] = kInf;
    row(6)[1] = -kInf;
    for (int64_t k = 0; k < 1000; ++k) row(7)[k] *= 0x1p-125f;
    for (int64_t k = 0; k < 1000; ++k) row(8)[k] *= 0x1p+100f;
    row(9)[999] = -kInf;
    std::fill(row(10), row(10) + 130, 0.0f);
    const std::vector<float> expected = p.Expected(p.x);
    const AlignedBytes panels = p.Panels();
    for (const Target target : SupportedTargets()) {
      SCOPED_TRACE(target);
      ExpectSame(p.Run(target, p.Lhs(p.x), panels), expected);
    }
  }
}

TEST(DigitsTest, SubnormalsAreZero) {
  Problem p({1, 2, 3, 40, 0, 8});
  for (float& v : p.x) v = 0x1p-127f;
  const AlignedBytes panels = p.Panels();
  for (const Target target : SupportedTargets()) {
    ExpectSame(p.Run(target, p.Lhs(p.x), panels), std::vector<float>(6, 0.0f));
  }
}

// A subnormal sum of normal products is a zero of its sign, which later scale groups may change.
TEST(DigitsTest, SumsThatAreSubnormalKeepTheirSign) {
  Problem p({1, 1, 70, 300, 100, 4});
  std::fill(p.x.begin(), p.x.end(), 0.0f);
  std::fill(p.q.begin(), p.q.end(), int8_t{0});
  p.x[0] = p.x[100] = 1;
  const float scales[] = {1.0f, -1.0f};
  for (int64_t n = 0; n < 70; ++n) {
    p.q[n * 300] = 6;
    p.q[n * 300 + 100] = -6;
    p.scales[n] = 0x1p-126f;
    p.scales[70 + n] = n % 3 == 0 ? 0x1.1p-126f : 0x1p-126f;  // 6 - 6.375, or 6 - 6
    p.scales[140 + n] = scales[n % 2];                        // products are +0
  }
  const std::vector<float> expected = p.Expected(p.x);
  EXPECT_EQ(expected[3], 0);
  EXPECT_TRUE(std::signbit(expected[3]));
  const AlignedBytes panels = p.Panels();
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(target);
    ExpectSame(p.Run(target, p.Lhs(p.x), panels), expected);
  }
}

// Powers of two at both ends of the range are exact.
TEST(DigitsTest, TakesTheWholeRange) {
  for (const int exponent : {-126, -125, -110, -64, 0, 64, 104, 105, 110, 127}) {
    SCOPED_TRACE(exponent);
    Problem p({1, 1, 3, 5, 0, 8});
    for (size_t i = 0; i < p.x.size(); ++i) p.x[i] = std::ldexp(i == 2 ? -1.75f : 1.0f, exponent);
    p.q = {1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, -1, 0, 0, 0};
    const AlignedBytes panels = p.Panels();
    for (const Target target : SupportedTargets()) {
      ExpectSame(p.Run(target, p.Lhs(p.x), panels), {p.x[0], p.x[2], 0.0f});
    }
  }
}

// Short rows of elements that are far apart: the part that a layer drops goes to the next layer, even where x / u or
// the rest is not a normal number.
TEST(DigitsTest, ShortRowsOfAnyExponents) {
  for (const int64_t scale_group : {0, 20}) {
    Problem p({1, 600, 7, 40, scale_group, 8});
    std::mt19937 rng(11);
    std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
    for (int64_t row = 0; row < 600; ++row) {
      const auto spread = std::vector<uint32_t>{4, 60, 253}[static_cast<size_t>(row % 3)];
      const int low = static_cast<int>(rng() % (254 - spread)) - 127;
      for (int64_t k = 0; k < 40; ++k) {
        p.x[static_cast<size_t>(row * 40 + k)] = std::ldexp(uniform(rng), low + static_cast<int>(rng() % (spread + 1)));
      }
    }
    const std::vector<float> expected = p.Expected(p.x);
    const AlignedBytes panels = p.Panels();
    for (const Target target : SupportedTargets()) {
      SCOPED_TRACE(target);
      ExpectSame(p.Run(target, p.Lhs(p.x), panels), expected);
    }
  }
}

// The largest magnitudes that fit three digits, and the next ones.
TEST(DigitsTest, LargestDigits) {
  for (const float largest : {8355710.0f, 8355711.0f, 8355711.5f, 8355712.0f, 8388607.5f, 8388608.0f}) {
    for (const float sign : {1.0f, -1.0f}) {
      Problem p({1, 1, 2, 4, 0, 8});
      p.x = {sign * largest, 1.0f, -1.0f, 0.5f};
      p.q = {127, -128, 127, -128, -128, 1, 1, 1};
      const AlignedBytes panels = p.Panels();
      for (const Target target : SupportedTargets()) ExpectSame(p.Run(target, p.Lhs(p.x), panels), p.Expected(p.x));
    }
  }
}

// d0 + 256 d1 near -32768 in all elements of a group: d2 is 126 and the unit 1.
TEST(DigitsTest, LowDigitsThatNeedMoreThan16Bits) {
  for (const int bits : {8, 4, 2}) {
    for (const float first : {-32896.0f, -32832.0f, -32768.0f}) {
      SCOPED_TRACE(testing::Message() << bits << " bits, from " << first);
      Problem p({1, 3, 70, 128, 128, bits});
      for (size_t i = 0; i < p.x.size(); ++i) p.x[i] = 126 * 65536.0f + first + static_cast<float>(i % 128);
      // Columns with the smallest weights, with the largest, and with others.
      const int8_t smallest = static_cast<int8_t>(-(1 << (bits - 1)));
      std::fill_n(p.q.begin(), 128, smallest);
      std::fill_n(p.q.begin() + 128, 128, static_cast<int8_t>(-1 - smallest));
      const AlignedBytes panels = p.Panels();
      for (const Target target : SupportedTargets()) ExpectSame(p.Run(target, p.Lhs(p.x), panels), p.Expected(p.x));
    }
  }
}

TEST(DigitsTest, RunsTheEpilogueAndStoresAnyLayout) {
  const Problem p({1, 3, 70, 300, 128, 4});
  const AlignedBytes panels = p.Panels();
  const std::vector<float> sums = p.Expected(p.x);
  const std::vector<float> row_scales = {0.5f, 3.0f, 1.25f};
  const std::vector<float> column_scales = RandomF32(70, 9);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(target);
    std::vector<BFloat16> out(3 * 70);
    AlignedBytes scratch(DigitScratchBytes(target, p.format, 1, 3));
    GemmProblem problem = GemmProblem::Dense(1, 3, 70, 300, DType::kBF16, out.data());
    problem.lhs = p.Lhs(p.x);
    problem.out.rows = AxisGroup::Of(3, 1);
    problem.out.cols = AxisGroup::Of(70, 3);
    problem.epilogue.lhs_scale = row_scales.data();
    problem.epilogue.rhs_scale = column_scales.data();
    MultiplyDigits(target, problem, {.format = p.format, .rhs = panels.data(), .scratch = scratch.data()}, nullptr);
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t n = 0; n < 70; ++n) {
        const float scaled = sums[m * 70 + n] * row_scales[m];
        EXPECT_EQ(out[n * 3 + m].bits, RoundToBFloat16(scaled * column_scales[n]).bits) << m << ", " << n;
      }
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
