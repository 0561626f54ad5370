// Random programs of basic operations: an Executable gives the bits of Eval. Programs of contractions are tested in
// //tests/e2e:random_programs_test.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/functions.h"
#include "aqt/runtime/executable.h"
#include "aqt/testing/environment.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/random_programs.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FromEnvironment;
using ::aqt::testing::IsOk;
using ::aqt::testing::Random;
using Arrays = std::vector<Array>;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// Includes zeros of both signs, subnormal numbers and, if `special`, infinities and NaN.
Array Numbers(const Aval& aval, Random& random, bool special) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double rare[] = {0.0, -0.0, 0x1p-140, -0x1.8p-130, 1e-30, 3e38, kInf, -kInf, std::nan("")};
  std::vector<double> numbers(aval.shape.num_elements());
  for (double& x : numbers) {
    x = random.Uniform(-4, 4);
    if (random.Below(16) == 0) x = std::round(x);
    if (random.Below(16) == 0) x = rare[random.Below(special ? 9 : 6)];
  }
  return Cast(Array::FromSpan(absl::MakeConstSpan(numbers), aval.shape), aval.dtype);
}

class Generator {
 public:
  explicit Generator(Random& random) : random_(random) {
    const int64_t extents[] = {1, 2, 3, 5, 7, 16, 17, 33, 64, 100, 256, 300, 384};
    const int64_t rank = 1 + random.Below(3);
    for (int64_t i = 0; i < rank; ++i) extents_.push_back(extents[random.Below(13)]);
    while (extents_.num_elements() > 20000) extents_[random.Below(rank)] = 2;
    if (random.Below(3) != 0) dtype_ = Pick({DType::kBF16, DType::kF16, DType::kF64, DType::kS32, DType::kF32});
  }

  std::vector<Aval> Inputs() {
    std::vector<Aval> inputs = {{dtype_, extents_}};
    const int64_t more = 1 + random_.Below(3);
    for (int64_t i = 0; i < more; ++i) inputs.push_back({dtype_, PartOfShape()});
    return inputs;
  }

  Values Run(In in) {
    pool_.assign(in.begin(), in.end());
    const int64_t steps = 3 + random_.Below(30);
    for (int64_t i = 0; i < steps; ++i) Step();
    Values out = {pool_.back()};
    const int64_t more = random_.Below(5);
    for (int64_t i = 0; i < more; ++i) out.push_back(Any());
    return out;
  }

 private:
  template <class T>
  T Pick(std::initializer_list<T> list) {
    return list.begin()[random_.Below(static_cast<int64_t>(list.size()))];
  }
  // Usually one of the newest.
  const Value& Any() {
    const int64_t n = static_cast<int64_t>(pool_.size());
    return pool_[n - 1 - random_.Below(random_.Below(3) == 0 ? n : std::min<int64_t>(n, 4))];
  }
  Value AnyOf(DType dtype) {
    const Value x = Any();
    return x.dtype() == dtype ? x : ops::Cast(x, dtype);
  }
  bool IsFloating(const Value& x) { return IsFloat(x.dtype()); }
  Shape PartOfShape() {
    Shape shape;
    bool leads = true;
    for (const int64_t extent : extents_) {
      if (leads && random_.Below(3) == 0) continue;
      leads = false;
      shape.push_back(random_.Below(3) == 0 ? 1 : extent);
    }
    return shape;
  }
  static bool Fit(const Value& a, const Value& b) {
    for (int64_t i = 1; i <= std::min(a.rank(), b.rank()); ++i) {
      const int64_t x = a.shape()[a.rank() - i], y = b.shape()[b.rank() - i];
      if (x != y && x != 1 && y != 1) return false;
    }
    return true;
  }
  // y if it broadcasts with x to a shape of moderate size, otherwise x.
  Value Fitting(const Value& x, Value y) { return Fit(x, y) ? y : x; }
  Axes SomeAxes(const Value& x) {
    Axes axes;
    for (int64_t axis = 0; axis < x.rank(); ++axis) {
      if (random_.Below(2) == 0) axes.push_back(axis);
    }
    if (axes.empty() && x.rank() > 0) axes.push_back(x.rank() - 1);
    return axes;
  }

  void Step() {
    Value x = Any();
    if (x.dtype() == DType::kBool) x = ops::Cast(x, dtype_);
    Value out = New(x);
    if (out.shape().num_elements() <= 100000) pool_.push_back(std::move(out));
  }

  Value New(const Value& x) {
    switch (random_.Below(19)) {
      case 0: return IsFloating(x) ? ops::Exp(x * 0.25) : ops::Abs(x);
      case 1: return IsFloating(x) ? ops::Log(ops::Abs(x) + 1.0) : ops::Neg(x);
      case 2: return IsFloating(x) ? Pick({&ops::Round, &ops::Floor, &ops::Flush})(x) : ops::Neg(x);
      case 3: return x * Fitting(x, AnyOf(x.dtype()));
      case 4: return x + Fitting(x, AnyOf(x.dtype()));
      case 5: return x - Fitting(x, AnyOf(x.dtype())) * 0.5;
      case 6: return x / Fitting(x, AnyOf(x.dtype()));
      case 7: return Pick({&ops::Max, &ops::Min})(x, Fitting(x, AnyOf(x.dtype())));
      case 8: {
        const Value y = Fitting(x, AnyOf(x.dtype()));
        return ops::Select(Pick({&ops::Less, &ops::Equal, &ops::GreaterEqual})(x, y), x, Fitting(x * y, Any0(x)));
      }
      case 9: return ops::Cast(x, Pick({DType::kF32, DType::kBF16, DType::kF16, DType::kF64, dtype_}));
      case 10: return ops::ReduceSum(x, SomeAxes(x), random_.Below(2) == 0);
      case 11: return ops::ReduceMax(x, SomeAxes(x), random_.Below(2) == 0);
      case 12: return x.rank() > 0 && IsFloating(x) ? ops::LogSoftmax(x, x.rank() - 1) : ops::Abs(x);
      case 13: {  // a norm
        if (x.rank() == 0 || !IsFloating(x)) return x * x;
        const double n = static_cast<double>(x.dim(-1));
        const Value centered = x - ops::ReduceSum(x, {-1}, true) / n;
        return centered / (ops::ReduceSum(centered * centered, {-1}, true) / n + 1e-3);
      }
      case 14: return ops::Reshape(x, {x.shape().num_elements()});
      case 15: {
        if (x.rank() < 2) return ops::StopGradient(x);
        Axes permutation;
        for (int64_t axis = 0; axis < x.rank(); ++axis) permutation.push_back(x.rank() - 1 - axis);
        return ops::Transpose(x, permutation);
      }
      case 16: {
        if (x.rank() == 0) return ops::BroadcastTo(x, extents_);
        PerAxis start, limit;
        for (const int64_t extent : x.shape()) {
          start.push_back(random_.Below(2) == 0 ? 0 : extent / 3);
          limit.push_back(extent);
        }
        return ops::Slice(x, start, limit);
      }
      case 17: {  // a product with itself, in both orders
        if (x.rank() == 0 || x.shape().num_elements() > 4096) return ops::StopGradient(x);
        const Value matrix = ops::Reshape(x, {x.dim(0), x.shape().num_elements() / x.dim(0)});
        const Value other = ops::Round(ops::Cast(matrix, DType::kF32));
        const DotDims dims = random_.Below(2) == 0 ? DotDims{{0}, {0}, {}, {}} : DotDims{{1}, {1}, {}, {}};
        const Value product = ops::DotGeneral(matrix, ops::Cast(other, x.dtype()), dims);
        return random_.Below(2) == 0 ? product : ops::Transpose(product, {1, 0});
      }
      default: return x.rank() == 0 ? ops::Neg(x) : ops::Concatenate({x, x}, random_.Below(x.rank()));
    }
  }
  Value Any0(const Value& x) { return AnyOf(x.dtype()); }

  Random& random_;
  Shape extents_;
  DType dtype_ = DType::kF32;
  Values pool_;
};

class ExecutableRandomTest : public ::testing::Test {
 protected:
  // Twice on one thread and twice on two; the second call reuses the arena.
  void ExpectSameAsEval(const Program& program, const Arrays& args) {
    const absl::StatusOr<Arrays> want = Eval(program, args);
    ASSERT_THAT(want, IsOk());
    const absl::StatusOr<Executable> executable = Executable::Make(program);
    ASSERT_THAT(executable, IsOk());
    for (int i = 0; i < 4; ++i) {
      const UseExecutor threads(i < 2 ? nullptr : &pool_);
      const absl::StatusOr<Arrays> got = executable->Run(args);
      ASSERT_THAT(got, IsOk());
      ASSERT_EQ(got->size(), want->size());
      for (size_t j = 0; j < want->size(); ++j) {
        ASSERT_TRUE(SameBits((*got)[j], (*want)[j])) << "output " << j << "\n" << program << executable->ToString();
      }
      ASSERT_NO_FATAL_FAILURE(UpdateInPlace(*executable, args, *want));
    }
  }

  // Computes each output in the memory of the first unused argument that it may update, if there is one.
  void UpdateInPlace(const Executable& executable, const Arrays& args, const Arrays& want) {
    std::vector<ArrayBuilder> memory;
    Arrays given;
    for (const Array& arg : args) {
      memory.emplace_back(arg.aval());
      std::memcpy(memory.back().data(), arg.data(), arg.num_bytes());
      given.push_back(Array::Unowned(arg.aval(), memory.back().data()));
    }
    std::vector<bool> taken(args.size(), false);
    std::vector<MutableArrayRef> outputs;
    for (size_t j = 0; j < want.size(); ++j) {
      size_t arg = 0;
      while (arg < args.size() && (taken[arg] || !executable.MayUpdate(arg, j))) ++arg;
      if (arg == args.size()) memory.emplace_back(want[j].aval());
      else ++updates_;
      void* const at = arg == args.size() ? memory.back().data() : memory[arg].data();
      if (arg < args.size()) taken[arg] = true;
      outputs.emplace_back(want[j].dtype(), want[j].shape(), at);
    }
    ASSERT_THAT(executable.RunInto(given, outputs), IsOk());
    for (size_t j = 0; j < want.size(); ++j) {
      ASSERT_TRUE(SameBits(Array::CopyOf(outputs[j]), want[j])) << "output " << j << "\n"
                                                                << executable.program() << executable.ToString();
    }
  }

  kernels::ThreadPool pool_{2};
  int64_t updates_ = 0;  // number of outputs computed in place
};

TEST_F(ExecutableRandomTest, BasicOperations) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), wanted = FromEnvironment("AQT_TEST_CASES", 150);
  int64_t gradients = 0;
  for (int64_t i = 0; i < wanted; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", first_seed + i));
    Random random(static_cast<uint64_t>(first_seed + i));
    Generator generator(random);
    const std::vector<Aval> avals = generator.Inputs();
    const bool special = random.Below(3) == 0;
    Arrays args;
    for (const Aval& aval : avals) args.push_back(Numbers(aval, random, special));
    const absl::StatusOr<Program> program = testing::TraceWith([&](In in) { return generator.Run(in); }, args);
    ASSERT_THAT(program, IsOk());
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsEval(*program, args));

    const auto loss = [&](In in) {
      const Values out = Inline(*program, in);
      return Values{ops::ReduceSum(ops::Cast(out[0], DType::kF32))};
    };
    const absl::StatusOr<Program> summed = testing::TraceWith(loss, args);
    ASSERT_THAT(summed, IsOk());
    const absl::StatusOr<Program> with_gradients = ValueAndGrad(*summed, {0});
    if (!with_gradients.ok()) continue;  // of an integer
    ++gradients;
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsEval(*with_gradients, args));
  }
  if (wanted >= 100) {
    EXPECT_GE(gradients, wanted / 2);
    EXPECT_GE(updates_, wanted / 2);
  }
}

// Every operation.
TEST_F(ExecutableRandomTest, AllOperations) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), wanted = FromEnvironment("AQT_TEST_CASES", 150);
  for (int64_t i = 0; i < wanted; ++i) {
    const uint64_t seed = static_cast<uint64_t>(first_seed + i);
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const absl::StatusOr<Program> program = testing::RandomProgram(seed, 40);
    ASSERT_THAT(program, IsOk());
    const Arrays args = testing::RandomProgramArgs(seed);
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsEval(*program, args));
    const absl::StatusOr<Program> with_gradients = ValueAndGrad(*program, {0});
    ASSERT_THAT(with_gradients, IsOk());
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsEval(*with_gradients, args));
  }
}

}  // namespace
}  // namespace aqt
