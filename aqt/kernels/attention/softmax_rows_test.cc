#include "aqt/kernels/attention/softmax_rows.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/elementwise/convert.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/reduce/reduce.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

using testing::Random;
using Floats = std::vector<float>;

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A matrix that is added to scores or selects them: a row of it for each row of scores or one for all, and an element
// for each column or one for all.
template <class T>
struct Spread {
  std::unique_ptr<T[]> data;
  int64_t row_stride = 0, column_stride = 0;

  T At(int64_t r, int64_t c) const { return data[r * row_stride + c * column_stride]; }
  ScoreOperand<T> operand() const { return {data.get(), row_stride, column_stride}; }
};

template <class T, class F>
Spread<T> RandomSpread(int64_t rows, int64_t columns, Random& random, F draw) {
  Spread<T> spread;
  spread.column_stride = random.Below(4) == 0 ? 0 : 1;
  const int64_t width = spread.column_stride == 0 ? 1 : columns;
  spread.row_stride = random.Below(3) == 0 ? 0 : width;
  // Exactly as long as what may be read.
  const int64_t size = (spread.row_stride == 0 ? 1 : rows) * width;
  spread.data = std::make_unique<T[]>(size);
  for (int64_t i = 0; i < size; ++i) spread.data[i] = draw();
  return spread;
}

float Score(Random& random, double range, bool special) {
  if (special && random.Below(30) == 0) return kInfinity * static_cast<float>(random.Below(3) - 1);  // or NaN
  if (random.Below(10) == 0) return random.Below(2) == 0 ? 0.0f : -0.0f;
  return static_cast<float>(random.Uniform(-range, range));
}

// The same by the kernels of whole arrays.
Floats SoftmaxOfRow(Floats s, DType dtype) {
  const int64_t n = static_cast<int64_t>(s.size());
  const auto reduced = [&](ReduceKind kind) {
    float result = 0;
    Reduce(kind, ArrayRef(DType::kF32, {n}, s.data()), {0}, &result);
    return Floats(n, result);
  };
  Binary(BinaryKind::kSub, DType::kF32, s.data(), reduced(ReduceKind::kMax).data(), n, s.data());
  Unary(UnaryKind::kExp, DType::kF32, s.data(), n, s.data());
  Binary(BinaryKind::kDiv, DType::kF32, s.data(), reduced(ReduceKind::kSum).data(), n, s.data());
  if (dtype == DType::kF32) return s;
  std::vector<uint16_t> narrow(n);
  Convert(DType::kF32, s.data(), dtype, n, narrow.data());
  Convert(dtype, narrow.data(), DType::kF32, n, s.data());
  return s;
}

Array ArrayOf(const Floats& x) { return Array::FromSpan(absl::MakeConstSpan(x), {static_cast<int64_t>(x.size())}); }

// The first `columns` elements of row r.
Floats RowAt(const RowPlaces& places, int64_t r, int64_t columns) {
  Floats row;
  for (int64_t c = 0; c < columns; ++c) row.push_back(places.Row(r)[c / kRowGroup * places.step + c % kRowGroup]);
  return row;
}

void CheckSoftmax(int64_t rows, int64_t columns, uint64_t seed) {
  Random random(seed);
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  const int64_t stride = RoundUp(columns, kRowGroup), width = 1 + random.Below(6);
  const bool has_bias = random.Below(2) == 0, has_mask = random.Below(2) == 0, special = random.Below(5) == 0;
  const bool in_place = random.Below(3) == 0;
  // 100: some powers are 0 or subnormal.
  const double range = random.Below(3) == 0 ? 100 : 3;
  const Spread<float> bias = RandomSpread<float>(rows, columns, random, [&] { return Score(random, range, special); });
  const int64_t sees = random.Below(3);
  const Spread<bool> mask = RandomSpread<bool>(rows, columns, random, [&] { return random.Below(2) < sees; });
  Floats scores(rows * stride, std::numeric_limits<float>::quiet_NaN());
  std::vector<Floats> want;
  SoftmaxCall call = {.scores = scores.data(), .rows = rows, .columns = columns, .stride = stride};
  call.dtype = dtypes[random.Below(3)];
  for (int64_t r = 0; r < rows; ++r) {
    Floats s(columns);
    for (int64_t c = 0; c < columns; ++c) {
      s[c] = scores[r * stride + c] = Score(random, range, special);
      if (has_bias) s[c] += bias.At(r, c);
      if (has_mask && !mask.At(r, c)) s[c] = kLowest;
    }
    want.push_back(SoftmaxOfRow(std::move(s), call.dtype));
  }
  if (has_bias) call.bias = bias.operand();
  if (has_mask) call.mask = mask.operand();
  Floats out(CeilDiv(rows, width) * width * stride);
  call.out = {out.data(), width, width * stride, width * kRowGroup};
  if (in_place) call.out = {scores.data(), 1, stride, kRowGroup};
  const std::shared_ptr<void> buffer = AllocateUninitialized(SoftmaxBufferBytes(columns));
  call.buffer = buffer.get();
  SoftmaxRows(call);
  for (int64_t r = 0; r < rows; ++r) {
    EXPECT_TRUE(SameBits(ArrayOf(RowAt(call.out, r, columns)), ArrayOf(want[r])))
        << rows << " x " << columns << ", row " << r << ", " << ToString(call.dtype) << ", bias " << has_bias
        << ", mask " << has_mask;
    const float first = RowAt(call.out, r, 1)[0];
    for (int64_t c = columns; c < stride && first == first; ++c) EXPECT_EQ(RowAt(call.out, r, stride)[c], 0);
  }
}

TEST(SoftmaxRowsTest, HasTheBitsOfItsSteps) {
  uint64_t seed = 0;
  for (const int64_t columns : {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128, 300}) {
    for (const int64_t rows : {1, 2, 3, 8, 13}) {
      for (int i = 0; i < 6; ++i) CheckSoftmax(rows, columns, ++seed);
    }
  }
}

// All powers that a row can have beside a 1, in a row whose sum has many bits: small powers, and 0.
TEST(SoftmaxRowsTest, SmallPowers) {
  Floats s;
  for (float x = 0; x > -110; x -= 0.37f) s.push_back(x);
  const int64_t n = static_cast<int64_t>(s.size());
  Floats scores(RoundUp(n, kRowGroup));
  std::copy(s.begin(), s.end(), scores.begin());
  const std::shared_ptr<void> buffer = AllocateUninitialized(SoftmaxBufferBytes(n));
  SoftmaxRows({.scores = scores.data(),
               .rows = 1,
               .columns = n,
               .stride = static_cast<int64_t>(scores.size()),
               .out = {.data = scores.data()},
               .buffer = buffer.get()});
  scores.resize(n);
  EXPECT_TRUE(SameBits(ArrayOf(scores), ArrayOf(SoftmaxOfRow(s, DType::kF32))));
}

TEST(DivideRowsTest, HasTheBitsOfADivision) {
  Random random(1);
  for (int i = 0; i < 30; ++i) {
    const DType dtype = i % 3 == 0 ? DType::kF32 : i % 3 == 1 ? DType::kBF16 : DType::kF16;
    for (const int64_t columns : {1, 15, 16, 17, 64, 70}) {
      const int64_t rows = 1 + random.Below(5), stride = columns + random.Below(3), width = 1 + random.Below(4);
      // Every dtype has it. A few divisors and dividends are outside of the range of quick quotients.
      const float divisor = random.Below(5) == 0 ? 0x1p-14f : 5.5f;
      std::vector<double> numbers(rows * stride);
      for (double& number : numbers) {
        const double scales[] = {1, 1, 1, 1e-20, 1e20, 1e-40, 0, 1 / 0.0};
        number = random.Uniform(-2, 2) * scales[random.Below(random.Below(3) == 0 ? 8 : 3)];
      }
      const Array x = Cast(Array::FromSpan(absl::MakeConstSpan(numbers), {rows, stride}), dtype);
      const int64_t groups = RoundUp(columns, kRowGroup);
      Floats out(CeilDiv(rows, width) * width * groups, 1);
      const RowPlaces places = {out.data(), width, width * groups, width * kRowGroup};
      DivideRows({x.data(), dtype, rows, columns, stride, divisor, places});
      const Array divisors = Cast(ArrayOf(Floats(rows * stride, divisor)), dtype);
      ArrayBuilder quotients(dtype, {rows, stride});
      Binary(BinaryKind::kDiv, dtype, x.data(), divisors.data(), rows * stride, quotients.data());
      const Array want = Cast(std::move(quotients).Build(), DType::kF32);
      for (int64_t r = 0; r < rows; ++r) {
        const float* const row = want.View<float>().data() + r * stride;
        Floats filled(row, row + columns);
        filled.resize(groups, 0);
        EXPECT_TRUE(SameBits(ArrayOf(RowAt(places, r, groups)), ArrayOf(filled))) << x.aval() << " row " << r;
      }
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
