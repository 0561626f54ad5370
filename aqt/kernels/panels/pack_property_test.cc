// Packing with noise, factors along k, rotations, and integers as numbers: every combination against plain loops.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/reference.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/kernels/quantize/hadamard_reference.h"
#include "aqt/kernels/random/noise.h"

namespace aqt::kernels {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : rng_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  template <class T>
  T Pick(const std::vector<T>& values) {
    return values[Below(static_cast<int64_t>(values.size()))];
  }

 private:
  std::mt19937_64 rng_;
};

// Axes in logical order, which is also the order of the random numbers unless axes share them. `strides` gives the
// memory order.
struct Problem {
  std::vector<int64_t> sizes;  // batch, rows (one or two axes), k (one or two)
  std::vector<int> groups;     // 0, 1 or 2, for each axis
  std::vector<int64_t> strides, numbers;
  int64_t elements = 1, draws = 1;
};

Problem DrawProblem(Random& random) {
  Problem p;
  const auto add = [&](int group, int64_t size) {
    p.sizes.push_back(size);
    p.groups.push_back(group);
  };
  const bool by_rows = random.OneIn(2);
  add(0, 1 + random.Below(2));
  if (random.OneIn(3)) add(1, 1 + random.Below(3));
  add(1, 1 + random.Below(by_rows ? 210 : 40));
  if (random.OneIn(3)) add(2, 1 + random.Below(3));
  add(2, 1 + random.Below(by_rows ? 60 : 900));
  const size_t rank = p.sizes.size();
  std::vector<size_t> memory(rank);
  for (size_t i = 0; i < rank; ++i) memory[i] = i;
  if (by_rows) std::reverse(memory.begin() + 1, memory.end());
  if (random.OneIn(3)) std::swap(memory[random.Below(rank)], memory[random.Below(rank)]);
  p.strides.resize(rank);
  p.numbers.resize(rank);
  for (size_t i = rank; i-- > 0;) {
    p.strides[memory[i]] = p.elements;
    p.elements *= p.sizes[memory[i]];
  }
  const bool transposed_numbers = random.OneIn(4);
  for (size_t j = rank; j-- > 0;) {
    const size_t i = transposed_numbers ? rank - 1 - j : j;
    const bool shared = random.OneIn(5);
    p.numbers[i] = shared ? 0 : p.draws;
    if (!shared) p.draws *= p.sizes[i];
  }
  return p;
}

template <class T>
std::vector<T> Values(int64_t n, Random& random) {
  std::vector<T> values(n);
  if constexpr (std::is_same_v<T, int8_t>) {
    for (T& v : values) v = static_cast<int8_t>(random.Below(256) - 128);
    return values;
  } else {
    const float scale = random.OneIn(6) ? 0x1p-118f : 1.0f;  // inverses that lift subnormals to the magnitude of the
                                                             // noise
    for (T& v : values) {
      float x = static_cast<float>(random.Below(2001) - 1000) * 0.001f;
      if (random.OneIn(20)) x = random.Pick<float>({0.0f, -0.0f, 0x1p-9f, -0x1p-10f, 1.0f, 0.5f});
      v = RoundTo<T>(x * scale);
    }
    if (random.OneIn(8)) {
      values[random.Below(n)] = RoundTo<T>(
          random.Pick<float>({std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}));
    }
    return values;
  }
}

RandomNumbers DrawNumbers(const Problem& p, Random& random) {
  const Key key{static_cast<uint32_t>(random.Below(1 << 30)), static_cast<uint32_t>(random.Below(1 << 30))};
  const RandomBits bits(key, p.draws + (random.OneIn(3) ? random.Below(100) : 0),
                        random.OneIn(2) ? PrngLayout::kPartitionable : PrngLayout::kOriginal);
  switch (random.Below(3)) {
    case 0: return RandomNumbers::Bits32(bits);
    case 1: return RandomNumbers::Bits16(bits);
    default: return RandomNumbers::Fast(key);
  }
}

// The rows of an operand, each transformed by the plain version.
template <class T>
std::vector<T> RotatedRows(const Operand& src, int64_t block) {
  std::vector<T> rotated;
  const int64_t k = src.k.Count();
  std::vector<float> row(k);
  for (int64_t b = 0; b < src.batch.Count(); ++b) {
    for (int64_t r = 0; r < src.rows.Count(); ++r) {
      const T* x = static_cast<const T*>(src.data) + src.batch.Offset(b) + src.rows.Offset(r);
      for (int64_t i = 0; i < k; ++i) row[i] = ToFloat(x[src.k.Offset(i)]);
      reference::HadamardRow(src.dtype, block, k, row.data());
      for (const float y : row) rotated.push_back(RoundTo<T>(y));
    }
  }
  return rotated;
}

// The integers q [batch, rows, k] are in the panels, and at the offsets of their sources.
void ExpectPacked(const Operand& src, const PanelFormat& format, const char* panels, const std::vector<int8_t>& qvalues,
                  const int8_t* q) {
  const int64_t rows = src.rows.Count(), k = src.k.Count();
  for (int64_t b = 0; b < src.batch.Count(); ++b) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < k; ++i, ++q) {
        const char* matrix = panels + b * format.PackedBytes(rows, k);
        ASSERT_EQ(ReferenceUnpack(format, matrix, k, r, i), *q) << b << " " << r << " " << i;
        ASSERT_EQ(qvalues[src.batch.Offset(b) + src.rows.Offset(r) + src.k.Offset(i)], *q);
      }
    }
  }
}

template <class T>
void CheckOne(uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const Problem p = DrawProblem(random);
  const std::vector<T> values = Values<T>(p.elements, random);
  NoiseOperand noise{.numbers = DrawNumbers(p, random)};
  QuantizeArgs args;
  args.src.data = values.data();
  args.src.dtype = kDTypeOf<T>;
  AxisGroup* sources[] = {&args.src.batch, &args.src.rows, &args.src.k};
  AxisGroup* draws[] = {&noise.batch, &noise.rows, &noise.k};
  for (size_t i = 0; i < p.sizes.size(); ++i) {
    AppendToBoth(p.sizes[i], p.strides[i], p.numbers[i], *sources[p.groups[i]], *draws[p.groups[i]]);
  }
  if (!random.OneIn(4)) args.noise = &noise;
  constexpr bool kInteger = std::is_same_v<T, int8_t>;
  std::vector<float> factor(p.elements);
  if constexpr (kInteger) {
    if (random.OneIn(2)) args.src.dtype = DType::kS4;
  } else {
    const float largest = random.OneIn(2) ? 1.0f : 0x1p12f;
    for (float& f : factor) {
      f = ToFloat(RoundTo<T>(random.OneIn(9) ? random.Pick<float>({0.0f, 0x1p-8f, 0x1p-14f, largest})
                                             : static_cast<float>(random.Below(1000)) * 0.001f));
    }
    if (random.OneIn(2)) args.k_factor = factor.data();
  }
  const DType own = kInteger ? random.Pick<DType>({DType::kBF16, DType::kF16}) : kDTypeOf<T>;
  const DType scale_dtype = random.Pick<DType>({own, DType::kF32});
  const bool eight = random.OneIn(2);
  const float hi = eight ? 127.0f : 7.0f;
  args.step = {.lo = random.OneIn(3) ? -hi - 1 : -hi,
               .hi = hi,
               .scale_dtype = scale_dtype,
               .product_dtype = scale_dtype,
               .subnormals_are_zero = !random.OneIn(4)};
  const AbsMaxScale rule{eight ? 127.5f : 7.5f, scale_dtype};
  args.scales = random.Pick<QuantizeArgs::Scales>({QuantizeArgs::Scales::kPerRow, QuantizeArgs::Scales::kSingle});
  const int64_t batch = args.src.batch.Count(), rows = args.src.rows.Count(), k = args.src.k.Count();
  std::vector<float> want_scale(batch * rows);
  std::vector<int8_t> want(batch * rows * k);
  args.scale = want_scale.data();
  QuantizeArgs plain = args;
  std::vector<T> rotated_rows, rotated(kInteger ? 0 : p.elements);
  if constexpr (!kInteger) {
    if (args.k_factor == nullptr && random.OneIn(2)) {
      args.hadamard_block = random.Pick<int64_t>({2, 8, 16, 64, 256});
      args.rotated = rotated.data();
      rotated_rows = RotatedRows<T>(args.src, args.hadamard_block);
      plain.src = Operand::Dense(rotated_rows.data(), args.src.dtype, rows, k, batch);
    }
  }
  ReferenceQuantize(plain, rule, want.data());

  ThreadPool pool(3);
  for (const Target target : SupportedTargets()) {
    const GemmKernel& kernel = ChooseGemm({}, target, 64);
    for (const PanelFormat& format : {kernel.lhs, kernel.rhs}) {
      SCOPED_TRACE(ToString(target));
      AlignedBytes panels(batch * format.PackedBytes(rows, k));
      std::vector<int8_t> qvalues(values.size());
      std::vector<float> scale(batch * rows);
      args.scale = scale.data();
      args.panels = panels.data();
      args.qvalues = qvalues.data();
      QuantizePack(target, format, args, rule, random.OneIn(2) ? &pool : nullptr);
      const int64_t scales = args.scales == QuantizeArgs::Scales::kSingle ? 1 : batch * rows;
      for (int64_t i = 0; i < scales; ++i) {
        ASSERT_TRUE(scale[i] == want_scale[i] || (std::isnan(scale[i]) && std::isnan(want_scale[i]))) << i;
      }
      ExpectPacked(args.src, format, panels.data(), qvalues, want.data());
    }
  }
}

template <class T>
void CheckMany(uint32_t seed) {
  for (uint32_t i = 0; i < 80 && !::testing::Test::HasFatalFailure(); ++i) CheckOne<T>(seed + i);
}

TEST(QuantizePackAll, Integers) { CheckMany<int8_t>(4000); }
TEST(QuantizePackAll, F32) { CheckMany<float>(1000); }
TEST(QuantizePackAll, BF16) { CheckMany<BFloat16>(2000); }
TEST(QuantizePackAll, F16) { CheckMany<Float16>(3000); }

// A subnormal x counts as zero even if 1 / scale would lift it to the magnitude of the noise.
TEST(QuantizePackAll, SubnormalsAreZeroWithNoise) {
  constexpr int64_t kK = 4096;
  std::vector<float> x(kK, 0x1.8p-127f), zeros(kK, 0.0f);
  float scale = 0x1p-126f;
  const NoiseOperand noise{.numbers = RandomNumbers::Fast({1, 2}), .k = AxisGroup::Of(kK, 1)};
  for (const Target target : SupportedTargets()) {
    std::vector<int8_t> q[3];
    const auto run = [&](const std::vector<float>& from, bool subnormals_are_zero, std::vector<int8_t>& to) {
      QuantizeArgs args;
      to.resize(kK);
      args.src = Operand::Dense(from.data(), DType::kF32, 1, kK);
      args.scales = QuantizeArgs::Scales::kGiven;
      args.scale = &scale;
      args.step.subnormals_are_zero = subnormals_are_zero;
      args.noise = &noise;
      args.qvalues = to.data();
      QuantizePack(target, ChooseGemm({}, target, 64).lhs, args, AbsMaxScale(), nullptr);
    };
    run(x, true, q[0]);
    run(zeros, true, q[1]);
    run(x, false, q[2]);
    EXPECT_EQ(q[0], q[1]);
    EXPECT_NE(q[0], q[2]);
  }
}

// Subnormal elements and products count as zero, even if a factor or rounding lifts them.
template <class T>
void CheckFactors(const std::vector<float>& values, const std::vector<float>& factor) {
  const int64_t k = static_cast<int64_t>(factor.size()), rows = static_cast<int64_t>(values.size()) / k;
  std::vector<T> by_row, by_k(values.size());
  for (const float v : values) by_row.push_back(RoundTo<T>(v));
  for (int64_t i = 0; i < rows * k; ++i) by_k[i % k * rows + i / k] = by_row[i];
  for (const bool transposed : {false, true}) {
    QuantizeArgs args;
    args.src = transposed ? Operand::Transposed(by_k.data(), kDTypeOf<T>, rows, k)
                          : Operand::Dense(by_row.data(), kDTypeOf<T>, rows, k);
    args.step = {.scale_dtype = kDTypeOf<T>, .product_dtype = kDTypeOf<T>};
    args.k_factor = factor.data();
    const AbsMaxScale rule{127.5f, kDTypeOf<T>};
    std::vector<float> want_scale(rows), scale(rows);
    std::vector<int8_t> want(rows * k), q(rows * k);
    args.scale = want_scale.data();
    ReferenceQuantize(args, rule, want.data());
    for (const Target target : SupportedTargets()) {
      args.scale = scale.data();
      args.qvalues = q.data();
      QuantizePack(target, ChooseGemm({}, target, 64).lhs, args, rule, nullptr);
      EXPECT_EQ(scale, want_scale) << target << transposed;
      for (int64_t i = 0; i < rows * k; ++i) {
        EXPECT_EQ(q[transposed ? i % k * rows + i / k : i], want[i]) << target << transposed << i;
      }
    }
  }
}

TEST(QuantizePackAll, SubnormalsAreZeroWithFactors) {
  // A subnormal element with a normal product: alone in its row, and next to a smaller normal product.
  CheckFactors<float>({0x1.8p-127f, 0x1.8p-127f, 0x1p-118f, 0x1.8p-127f}, {1.0f, 0x1p12f});
  // Subnormal products of normal numbers, among others.
  CheckFactors<float>({0x1p-120f, 0x1p-121f, 0x1p-110f, 0x1p-121f}, {0x1p-8f, 0x1p-8f});
  // 129/128 * 127/128 < 1 rounds to 1 in bf16.
  CheckFactors<BFloat16>({0x1.02p-126f, 0x1.02p-126f, 0x1p-120f, 0x1.02p-126f}, {0x1.fcp-1f, 0x1.fcp-1f});
}

TEST(AppendToBoth, MergesOnlyWhereBothDo) {
  AxisGroup a, b;
  AppendToBoth(2, 12, 3, a, b);
  AppendToBoth(3, 4, 1, a, b);  // both merge
  EXPECT_EQ(a.rank, 1);
  EXPECT_EQ(b.size[0], 6);
  AppendToBoth(1, 77, 0, a, b);
  AppendToBoth(4, 1, 0, a, b);  // only the first could merge
  ASSERT_EQ(a.rank, 2);
  ASSERT_EQ(b.rank, 2);
  for (int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(a.Offset(i), i);
    EXPECT_EQ(b.Offset(i), i / 4);
  }
}

}  // namespace
}  // namespace aqt::kernels
