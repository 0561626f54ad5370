#include "aqt/kernels/elementwise/strip.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/convert.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/reduce/reduce.h"
#include "aqt/kernels/reduce/reduce_kind.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float RandomFloat(std::mt19937& random) {
  constexpr float kSpecial[] = {0, -0.0f, 1, -1, kInf, -kInf, kNan, 1e-40f, -1e-40f, 3e38f};
  if (random() % 8 == 0) return kSpecial[random() % std::size(kSpecial)];
  return std::uniform_real_distribution<float>(-4, 4)(random);
}

std::vector<float> RandomFloats(int64_t n, std::mt19937& random) {
  std::vector<float> x(n);
  for (float& v : x) v = RandomFloat(random);
  return x;
}

void RunOnce(const StripFunction& function, const StripCall& call, Target target = BestTarget()) {
  const std::shared_ptr<void> prepared = AllocateUninitialized(function.PreparedBytes(target));
  function.Prepare(call, prepared.get(), target);
  StripFunction::Run(call, prepared.get());
  FinishStreams();
}

// Values in the memory format of a chain.
struct Values {
  Values(DType type, int64_t n) : dtype(type), bytes(n * SizeOf(type)) {}
  Values(DType type, const std::vector<float>& x) : Values(type, static_cast<int64_t>(x.size())) {
    Convert(DType::kF32, x.data(), dtype, n(), data());
  }
  int64_t n() const { return static_cast<int64_t>(bytes.size()) / SizeOf(dtype); }
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
  std::vector<float> floats() const {
    std::vector<float> x(n());
    Convert(dtype, data(), DType::kF32, n(), x.data());
    return x;
  }

  DType dtype;
  std::vector<char> bytes;
};

// The slow reference for a chain: every value as an array, computed by the kernels of elementwise.h.
class Chain {
 public:
  Chain(int64_t rows, int64_t columns, uint32_t seed)
      : rows_(rows), columns_(columns), n_(rows * columns), random_(seed) {}

  void AddLeaf() {
    const uint32_t which = random_() % 4;
    const DType dtype = RandomDType();
    if (which == 3) {
      const std::vector<float> row = RandomFloats(columns_, random_);
      rows_of_arrays_.emplace_back(dtype, row);
      AddArray(rows_of_arrays_.back(), /*is_row=*/true);
      std::vector<float> all(n_);
      for (int64_t i = 0; i < n_; ++i) all[i] = row[i % columns_];
      values_.emplace_back(dtype, all);
      return AddId(builder_.Array(dtype, /*is_row=*/true), /*is_leaf=*/true);
    }
    if (which == 0) {
      values_.emplace_back(dtype, RandomFloats(n_, random_));
      AddArray(values_.back(), /*is_row=*/false);
      return AddId(builder_.Array(dtype), /*is_leaf=*/true);
    }
    const bool per_row = which == 1;
    numbers_.push_back(Values(dtype, RandomFloats(per_row ? rows_ : 1, random_)).floats());
    is_per_row_.push_back(per_row);
    std::vector<float> all(n_);
    for (int64_t i = 0; i < n_; ++i) all[i] = numbers_.back()[per_row ? i / columns_ : 0];
    values_.emplace_back(dtype, all);
    AddId(builder_.Number(per_row, dtype), /*is_leaf=*/true);
  }

  void AddStep() {
    const uint32_t which = random_() % 5;
    if (which == 3) return AddSelects();
    const size_t x = Pick(), y = PickLike(x);
    const DType dtype = values_[x].dtype;
    if (which == 0) {
      const auto kind = TakenKind<UnaryKind>(kNumUnaryKinds);
      Unary(kind, dtype, values_[x].data(), n_, NewValue(dtype));
      AddId(builder_.Unary(kind, ids_[x]), /*is_leaf=*/false);
    } else if (which == 4) {
      const DType to = RandomDType();
      Convert(dtype, values_[x].data(), to, n_, NewValue(to));
      AddId(builder_.Cast(to, ids_[x]), /*is_leaf=*/false);
    } else {
      const auto kind = TakenKind<BinaryKind>(kNumBinaryKinds);
      Binary(kind, dtype, values_[x].data(), values_[y].data(), n_, NewValue(dtype));
      AddId(builder_.Binary(kind, ids_[x], ids_[y]), /*is_leaf=*/false);
    }
  }

  // Outputs the last value and some others, and the row sums of some values.
  void AddOutputs() {
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (is_leaf_[i]) continue;
      if (i + 1 == ids_.size() || random_() % 4 == 0) {
        builder_.Output(ids_[i]);
        outputs_.push_back(&values_[i]);
      }
      if (values_[i].dtype == DType::kF32 && random_() % 6 == 0) {
        has_sums_ = true;
        builder_.SumRows(ids_[i]);
        Values& sums = others_.emplace_back(DType::kF32, rows_);
        Reduce(ReduceKind::kSum, ArrayRef(DType::kF32, {rows_, columns_}, values_[i].data()), {1}, sums.data());
        outputs_.push_back(&sums);
      }
    }
  }

  // Runs all rows at once, and in two calls.
  void Check() && {
    const StripFunction function = std::move(builder_).Build();
    for (const Target target : SupportedTargets()) {
      const std::shared_ptr<void> prepared = AllocateUninitialized(function.PreparedBytes(target));
      function.Prepare(CallOf({}, 0, 0).call, prepared.get(), target);
      for (const int64_t first_rows : {rows_, static_cast<int64_t>(random_() % (rows_ + 1))}) {
        std::vector<std::vector<char>> got;
        for (const Values* output : outputs_) got.emplace_back(output->bytes.size() + 1, char{7});
        StripFunction::Run(CallOf(absl::MakeSpan(got), 0, first_rows).call, prepared.get());
        StripFunction::Run(CallOf(absl::MakeSpan(got), first_rows, rows_ - first_rows).call, prepared.get());
        FinishStreams();
        CheckOutputs(got, target);
        if (::testing::Test::HasFatalFailure()) return;
      }
      if (has_sums_) continue;
      // Runs a few columns at a time.
      std::vector<std::vector<char>> got;
      for (const Values* output : outputs_) got.emplace_back(output->bytes.size() + 1, char{7});
      for (int64_t first = 0, count; first < columns_; first += count) {
        count = std::min<int64_t>(columns_ - first, 1 + random_() % 300);
        StripFunction::Run(BlockOf(absl::MakeSpan(got), first, count).call, prepared.get());
      }
      FinishStreams();
      CheckOutputs(got, target);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  // Outputs bypass the caches where possible.
  void Stream() { streamed_ = ~uint32_t{0}; }

  int num_steps() const { return builder_.num_steps(); }

 private:
  struct Call {
    std::vector<const void*> arrays;
    std::vector<const float*> numbers;
    std::vector<void*> outputs;
    StripCall call;
  };
  // A call for `rows` rows starting at `first`.
  Call CallOf(absl::Span<std::vector<char>> outputs, int64_t first, int64_t rows) const {
    Call of;
    for (const auto& [values, is_row] : arrays_) {
      of.arrays.push_back(values->bytes.data() + (is_row ? 0 : first * values->bytes.size() / rows_));
    }
    for (size_t i = 0; i < numbers_.size(); ++i) of.numbers.push_back(&numbers_[i][0] + (is_per_row_[i] ? first : 0));
    for (auto& output : outputs) of.outputs.push_back(output.data() + first * (output.size() - 1) / rows_);
    of.call = {of.arrays.data(), of.numbers.data(), of.outputs.data(), rows, columns_, streamed_, /*fetched=*/~0u};
    return of;
  }

  // A call for all rows and `count` columns starting at `first`.
  Call BlockOf(absl::Span<std::vector<char>> outputs, int64_t first, int64_t count) const {
    Call of = CallOf(outputs, 0, rows_);
    const auto at = [&](const Values& values) { return first * SizeOf(values.dtype); };
    for (size_t i = 0; i < arrays_.size(); ++i) {
      of.arrays[i] = static_cast<const char*>(of.arrays[i]) + at(*arrays_[i].values);
    }
    for (size_t i = 0; i < outputs_.size(); ++i) of.outputs[i] = static_cast<char*>(of.outputs[i]) + at(*outputs_[i]);
    of.call.columns = count;
    of.call.row_stride = columns_;
    return of;
  }

  void CheckOutputs(const std::vector<std::vector<char>>& got, Target target) {
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].back(), 7) << "written past the end";
      CheckOutput(*outputs_[i], got[i], target);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  void AddArray(const Values& values, bool is_row) { arrays_.push_back({&values, is_row}); }

  // A computed or given condition, and one to three selections by it.
  void AddSelects() {
    const size_t x = Pick(), y = PickLike(x);
    const auto kind = static_cast<CompareKind>(random_() % kNumCompareKinds);
    Values& holds = others_.emplace_back(DType::kBool, n_);
    bool* const is_true = static_cast<bool*>(holds.data());
    Compare(kind, values_[x].dtype, values_[x].data(), values_[y].data(), n_, is_true);
    int condition;
    if (random_() % 2 == 0) {
      condition = builder_.BoolArray();
      AddArray(holds, /*is_row=*/false);
    } else {
      condition = builder_.Compare(kind, ids_[x], ids_[y]);
      if (random_() % 2 == 0) {
        builder_.Output(condition);
        outputs_.push_back(&holds);
      }
    }
    for (int i = random_() % 3; i >= 0; --i) {
      const size_t a = Pick(), b = PickLike(a);
      const DType dtype = values_[a].dtype;
      Select(dtype, is_true, values_[a].data(), values_[b].data(), n_, NewValue(dtype));
      AddId(builder_.Select(condition, ids_[a], ids_[b]), /*is_leaf=*/false);
    }
  }

  // Requires equal bytes, except for NaNs.
  void CheckOutput(const Values& want, const std::vector<char>& got, Target target) {
    if (want.dtype == DType::kBool) {
      ASSERT_EQ(std::memcmp(want.data(), got.data(), want.bytes.size()), 0) << "bool, " << ToString(target);
      return;
    }
    Values copy(want.dtype, want.n());
    std::memcpy(copy.data(), got.data(), copy.bytes.size());
    const std::vector<float> x = want.floats(), y = copy.floats();
    for (int64_t i = 0; i < want.n(); ++i) {
      if (x[i] != x[i] && y[i] != y[i]) continue;
      ASSERT_EQ(std::memcmp(&x[i], &y[i], sizeof(float)), 0)
          << y[i] << " at " << i << ", not " << x[i] << ", " << aqt::ToString(want.dtype) << ", " << ToString(target);
    }
  }

  template <class Kind>
  Kind TakenKind(int num_kinds) {
    for (;;) {
      const auto kind = static_cast<Kind>(random_() % num_kinds);
      if (StripBuilder::Takes(kind)) return kind;
    }
  }
  DType RandomDType() {
    constexpr DType kDTypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16};
    return kDTypes[random_() % std::size(kDTypes)];
  }
  size_t Pick() { return random_() % 2 == 0 ? ids_.size() - 1 : random_() % ids_.size(); }
  // May return `other` itself.
  size_t PickLike(size_t other) {
    for (int i = 0; i < 8; ++i) {
      if (const size_t x = Pick(); values_[x].dtype == values_[other].dtype) return x;
    }
    return other;
  }
  // The value of the next id.
  void* NewValue(DType dtype) { return values_.emplace_back(dtype, n_).data(); }
  void AddId(int id, bool is_leaf) {
    ids_.push_back(id);
    is_leaf_.push_back(is_leaf);
  }

  const int64_t rows_, columns_, n_;
  uint32_t streamed_ = 0;
  bool has_sums_ = false;
  std::mt19937 random_;
  StripBuilder builder_;
  struct Input {
    const Values* values;
    bool is_row;
  };
  std::vector<Input> arrays_;
  std::deque<Values> rows_of_arrays_;
  std::vector<std::vector<float>> numbers_;
  std::vector<bool> is_per_row_;
  std::vector<int> ids_;
  std::deque<Values> values_;  // by position in ids_
  std::vector<bool> is_leaf_;
  std::deque<Values> others_;  // conditions, sums
  std::vector<const Values*> outputs_;
};

TEST(StripTest, RandomChainsHaveTheBitsOfTheirSteps) {
  std::mt19937 random(1);
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    constexpr int64_t kColumns[] = {1, 3, 16, 65, 128, 130, 200, 520};
    Chain chain(1 + random() % 5, kColumns[random() % 8], seed);
    for (int i = 1 + random() % 6; i > 0; --i) chain.AddLeaf();
    const int steps = 1 + static_cast<int>(random() % 20);
    while (chain.num_steps() < steps) chain.AddStep();
    chain.AddOutputs();
    if (seed % 2 == 0) chain.Stream();
    std::move(chain).Check();
    if (HasFatalFailure()) return;
  }
}

TEST(StripTest, TheLongestChain) {
  Chain chain(2, 70, 5);
  chain.AddLeaf();
  while (chain.num_steps() < StripBuilder::kMaxSteps - 4) chain.AddStep();
  chain.AddOutputs();
  std::move(chain).Check();
}

TEST(StripTest, AnOutputMayBeAnArrayThatIsNotReadAgain) {
  std::vector<float> x(100), want(100);
  for (int i = 0; i < 100; ++i) x[i] = static_cast<float>(i), want[i] = x[i] * x[i] + x[i];
  StripBuilder builder;
  const int array = builder.Array();
  builder.Output(builder.Binary(BinaryKind::kAdd, builder.Binary(BinaryKind::kMul, array, array), array));
  const void* arrays[] = {x.data()};
  void* outputs[] = {x.data()};
  RunOnce(std::move(builder).Build(), {arrays, nullptr, outputs, 1, 100});
  EXPECT_EQ(x, want);
}

// The first output overwrites the array that an operand of the second one reads.
TEST(StripTest, StepsAheadOfAnOutputReadBeforeItIsWritten) {
  std::vector<float> x(300), twice(300), x_want(300), twice_want(300);
  for (int i = 0; i < 300; ++i) x[i] = static_cast<float>(i), x_want[i] = -x[i], twice_want[i] = std::sqrt(x[i] + x[i]);
  StripBuilder builder;
  const int array = builder.Array();
  const int sum = builder.Binary(BinaryKind::kAdd, array, array);
  builder.Output(builder.Unary(UnaryKind::kNeg, array));
  builder.Output(builder.Unary(UnaryKind::kSqrt, sum));
  const void* arrays[] = {x.data()};
  void* outputs[] = {x.data(), twice.data()};
  RunOnce(std::move(builder).Build(), {arrays, nullptr, outputs, 1, 300});
  EXPECT_EQ(x, x_want);
  EXPECT_EQ(twice, twice_want);
}

// x times up to two numbers, and y times one or two, then their sum or difference: fused steps. In half of the variants
// -x replaces x, and its product is also an output.
TEST(StripTest, SumsOfProductsByNumbers) {
  constexpr int kCount = 333;
  const float numbers[] = {1.7f, 0.3f, 1.1f, 0.9f};
  std::vector<float> x(kCount), y(kCount);
  std::mt19937 random(3);
  for (int i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(random()) * 0x1p-31f - 1;
    y[i] = static_cast<float>(random()) * 0x1p-31f - 1;
  }
  for (int variant = 0; variant < 96; ++variant) {
    SCOPED_TRACE(variant);
    const bool is_sum = variant & 1, exchanged = variant & 2, number_first = variant & 4;
    const int x_factors = variant / 8 % 3, y_factors = 1 + variant / 24 % 2;
    const bool is_output = variant >= 48;
    StripBuilder builder;
    const int ids[] = {builder.Array(), builder.Array()};
    std::vector<float> want(kCount), got(kCount), a_want(kCount), a_got(kCount);
    const float* call_numbers[4];
    int num_numbers = 0;
    const auto product = [&](int id, int first, int count) {
      for (int i = first; i < first + count; ++i) {
        call_numbers[num_numbers++] = &numbers[i];
        const int number = builder.Number(false);
        id = number_first ? builder.Binary(BinaryKind::kMul, number, id) : builder.Binary(BinaryKind::kMul, id, number);
      }
      return id;
    };
    const int a = product(is_output ? builder.Unary(UnaryKind::kNeg, ids[0]) : ids[0], 0, x_factors);
    if (is_output) builder.Output(a);
    const int b = product(ids[1], 2, y_factors);
    const BinaryKind kind = is_sum ? BinaryKind::kAdd : BinaryKind::kSub;
    builder.Output(exchanged ? builder.Binary(kind, b, a) : builder.Binary(kind, a, b));
    for (int i = 0; i < kCount; ++i) {
      volatile float p = is_output ? -x[i] : x[i], q = y[i] * numbers[2];
      if (x_factors > 0) p = p * numbers[0];
      if (x_factors == 2) p = p * numbers[1];
      if (y_factors == 2) q = q * numbers[3];
      if (is_output) a_want[i] = p;
      const float left = exchanged ? q : p, right = exchanged ? p : q;
      want[i] = is_sum ? left + right : left - right;
    }
    const StripFunction function = std::move(builder).Build();
    const void* arrays[] = {x.data(), y.data()};
    std::vector<void*> outputs = {got.data()};
    if (is_output) outputs.insert(outputs.begin(), a_got.data());
    for (const Target target : SupportedTargets()) {
      RunOnce(function, {arrays, call_numbers, outputs.data(), 1, kCount}, target);
      EXPECT_EQ(got, want) << ToString(target);
      EXPECT_EQ(a_got, a_want) << ToString(target);
    }
  }
}

// Integers x from 2^23 to below 2^24 for which x / n, for such an n, is nearest to the midpoint of two floats: x 2^e =
// m n + s for an odd m of e + 1 bits, where e is 24 or 25, and a small nonzero s.
std::vector<float> HardDividends(uint32_t n) {
  constexpr int kMostOfS = 8;
  const int zeros = std::countr_zero(n);
  const uint32_t odd = n >> zeros;
  uint32_t inverse = odd;  // modulo 2^32, by Newton's rule
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
  std::vector<float> dividends;
  for (int e = 24; e <= 25; ++e) {
    for (int s = -kMostOfS; s <= kMostOfS; ++s) {
      if (s == 0 || s % (1 << zeros) != 0) continue;
      const int64_t modulus = int64_t{1} << (e - zeros);
      int64_t m = static_cast<int64_t>(static_cast<uint32_t>(-s >> zeros) * inverse) & (modulus - 1);
      if (m % 2 == 0) continue;
      for (; m < 1 << 25; m += modulus) {
        const int64_t x = (m * n + s) >> e;
        if (m >= 1 << 24 && x >= 1 << 23 && x < 1 << 24) dividends.push_back(static_cast<float>(x));
      }
    }
  }
  return dividends;
}

// Tests the hardest dividends and others, for each kStep-th significand of a divisor. With a kStep of 1 it takes one to
// two minutes, and passes.
TEST(StripTest, QuotientsByANumberAreRoundedOnce) {
  constexpr int64_t kColumns = 256, kRows = 64;
  constexpr uint32_t kStep = 2039;
  std::mt19937 random(7);
  StripBuilder by_array, by_step;
  by_array.Output(by_array.Binary(BinaryKind::kDiv, by_array.Array(), by_array.Number(/*per_row=*/true)));
  const int negative = by_step.Unary(UnaryKind::kNeg, by_step.Array());
  by_step.Output(by_step.Binary(BinaryKind::kDiv, negative, by_step.Number(/*per_row=*/true)));
  const StripFunction functions[] = {std::move(by_array).Build(), std::move(by_step).Build()};
  std::vector<float> x(kRows * kColumns), n(kRows), want(x.size()), got(x.size());
  // From 2^-64 to 2^64, or starting at `least`; slightly beyond the range of QuotientsBy.
  const auto scale = [&](int least) {
    return std::ldexp(random() % 2 == 0 ? 1.0f : -1.0f, least + static_cast<int>(random() % (65 - least)));
  };
  for (uint32_t divisor = 1 << 23; divisor < 1 << 24;) {
    int64_t rows = 0;
    for (; rows < kRows && divisor < 1 << 24; ++rows, divisor += kStep) {
      std::vector<float> hard = HardDividends(divisor);
      ASSERT_LE(hard.size(), kColumns);
      const bool wide = rows % 8 == 0;
      n[rows] = static_cast<float>(divisor) * 0x1p-23f * scale(wide ? -64 : 0);
      for (int64_t j = 0; j < kColumns; ++j) {
        const bool is_hard = j < static_cast<int64_t>(hard.size());
        const float significand = is_hard ? hard[j] : static_cast<float>((1 << 23) + random() % (1 << 23));
        x[rows * kColumns + j] = significand * 0x1p-23f * (wide ? scale(-64) : std::ldexp(1.0f, random() % 60));
      }
    }
    const void* arrays[] = {x.data()};
    const float* numbers[] = {n.data()};
    void* outputs[] = {got.data()};
    for (const bool negates : {false, true}) {
      for (int64_t i = 0; i < rows * kColumns; ++i) want[i] = (negates ? -x[i] : x[i]) / n[i / kColumns];
      for (const Target target : SupportedTargets()) {
        RunOnce(functions[negates], {arrays, numbers, outputs, rows, kColumns}, target);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), rows * kColumns * sizeof(float)), 0)
            << "divisor below " << divisor << ", " << ToString(target);
      }
    }
  }
}

TEST(StripTest, NothingOfAnEmptyMatrix) {
  StripBuilder builder;
  builder.Output(builder.Unary(UnaryKind::kNeg, builder.Array()));
  const void* arrays[] = {nullptr};
  void* outputs[] = {nullptr};
  const StripFunction function = std::move(builder).Build();
  RunOnce(function, {arrays, nullptr, outputs, 0, 5});
  RunOnce(function, {arrays, nullptr, outputs, 5, 0});
}

}  // namespace
}  // namespace aqt::kernels
