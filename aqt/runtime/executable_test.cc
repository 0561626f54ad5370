#include "aqt/runtime/executable.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::TraceWith;
using Arrays = std::vector<Array>;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Executable MakeExecutable(TracedFunction fn, absl::Span<const Array> args) {
  const absl::StatusOr<Program> program = TraceWith(fn, args);
  EXPECT_THAT(program, IsOk());
  absl::StatusOr<Executable> executable = Executable::Make(*program);
  EXPECT_THAT(executable, IsOk());
  return *executable;
}

// Run and RunInto, each called twice, give the bits of Eval.
void ExpectSameAsEval(TracedFunction fn, const Arrays& args) {
  const Executable executable = MakeExecutable(fn, args);
  const absl::StatusOr<Arrays> want = Eval(executable.program(), args);
  ASSERT_THAT(want, IsOk());
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<Arrays> got = executable.Run(args);
    ASSERT_THAT(got, IsOk());
    ASSERT_EQ(got->size(), want->size());
    std::vector<ArrayBuilder> given;
    std::vector<MutableArrayRef> memory;
    for (const Array& array : *want) given.emplace_back(array.aval());
    for (ArrayBuilder& builder : given) memory.push_back(builder.ref());
    ASSERT_THAT(executable.RunInto(args, memory), IsOk());
    for (size_t j = 0; j < want->size(); ++j) {
      EXPECT_TRUE(BitEqual((*got)[j], (*want)[j])) << executable.ToString() << "output " << j;
      EXPECT_TRUE(BitEqual(std::move(given[j]).Build(), (*want)[j])) << executable.ToString() << "output " << j;
    }
  }
}

// Returns its operand, and the operand plus one.
class Twins : public CompositeBase {
 public:
  std::string Name() const override { return "twins"; }
  int num_outputs() const override { return 2; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    return std::vector<Aval>{in[0], in[0]};
  }
  absl::StatusOr<Arrays> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    if (in[0].num_elements() == 0) return absl::OutOfRangeError("nothing is here");
    return Arrays{in[0], *(Value(in[0]) + 1.0).ToArray()};
  }
  Values Expand(In x) const override { return {x[0], x[0] + 1.0}; }
};

Values Twin(const Value& x) {
  return Bind(CompositeOp{std::make_shared<Twins>()}, {x}, std::source_location::current());
}

TEST(ExecutableTest, AliasesOfEveryPlace) {
  const Array x = RandomArray({DType::kF32, {3, 4}}, 1), constant = RandomArray({DType::kF32, {4}}, 2);
  ExpectSameAsEval(
      [&](In in) {
        const Value reshaped = ops::Reshape(in[0], {12});
        const Value fixed = ops::Reshape(Value(constant), {2, 2});
        const Value made = ops::StopGradient(ops::Reshape(in[0] * 2.0, {4, 3}));
        const Values twins = Twin(ops::Exp(in[0]));
        return Values{in[0],
                      reshaped,
                      Value(constant),
                      fixed,
                      made,
                      ops::Reshape(made, {12}),
                      made,
                      twins[0],
                      ops::Reshape(twins[0], {12}),
                      twins[1],
                      ops::Neg(twins[0])};
      },
      {x});
}

// (x, y) -> x, x + y, and whether y was a constant when the kernel was made. The sum may be in the place of y.
class Adder : public CompositeBase {
 public:
  std::string Name() const override { return "adder"; }
  int num_outputs() const override { return 3; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    return std::vector<Aval>{in[0], in[0], {DType::kBool, {}}};
  }
  bool has_expansion() const override { return false; }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    const auto run = [n = in[0].aval.shape.num_elements(), is_constant = in[1].constant.has_value(),
                      needed = std::vector<bool>(needed.begin(), needed.end())](const KernelCall& call) {
      const auto operand = [&](int i) { return static_cast<const float*>(call.in[i]); };
      if (n == 0) return absl::OutOfRangeError("nothing is here");
      for (int64_t i = 0; needed[1] && i < n; ++i) static_cast<float*>(call.out[1])[i] = operand(0)[i] + operand(1)[i];
      if (needed[2]) *static_cast<bool*>(call.out[2]) = is_constant;
      return absl::OkStatus();
    };
    return OpKernel{.run = run, .may_share = {{1, 1}}, .same = {{0, 0}}};
  }
  absl::StatusOr<Arrays> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
};

Values Add(const Value& x, const Value& y) {
  return Bind(CompositeOp{std::make_shared<Adder>()}, {x, y}, std::source_location::current());
}

TEST(ExecutableTest, CompositesInTheArena) {
  const Array x = RandomArray({DType::kF32, {32, 48}}, 1), y = RandomArray({DType::kF32, {32, 48}}, 2);
  const auto fn = [](In in) {
    const Values sum = Add(ops::Transpose(in[0], {1, 0}), ops::Transpose(in[1], {1, 0}));
    return Values{ops::Transpose(sum[0] * sum[1], {1, 0})};
  };
  ExpectSameAsEval(fn, {x, y});
  const Executable executable = *Executable::Make(*testing::TraceWith(fn, {x, y}));
  // The sum is in the place of an operand, and the first output is the other operand: two matrices, and the product in
  // the place of one.
  EXPECT_EQ(executable.arena_bytes(), 2 * x.num_bytes()) << executable.ToString();
  EXPECT_EQ(executable.peak_bytes(), 3 * x.num_bytes());
}

TEST(ExecutableTest, AnOutputThatIsAnOperandIsNotCopied) {
  const Array x = RandomArray({DType::kF32, {3, 4}}, 1);
  const Executable executable =
      *Executable::Make(*testing::TraceWith([](In in) { return Values{Add(in[0], in[0])[0]}; }, {x}));
  const absl::StatusOr<Arrays> out = executable.Run({x});
  ASSERT_THAT(out, IsOk());
  EXPECT_EQ((*out)[0].data(), x.data());
  EXPECT_EQ(executable.peak_bytes(), 0);
}

TEST(ExecutableTest, KernelsSeeConstants) {
  const Array x = RandomArray({DType::kF32, {3, 4}}, 1);
  for (const bool is_constant : {false, true}) {
    const auto fn = [&](In in) {
      const Value y = is_constant ? Value(RandomArray({DType::kF32, {12}}, 2)) : in[0] * 2.0;
      return Values{Add(in[0], ops::Reshape(y, {3, 4}))[2]};
    };
    const Executable executable = *Executable::Make(*testing::TraceWith(fn, {x}));
    EXPECT_EQ((*executable.Run({x}))[0].View<bool>()[0], is_constant) << executable.ToString();
  }
}

TEST(ExecutableTest, ErrorsOfCompositesNameTheEquation) {
  const auto fn = [](In in) {
    const NamedScope scope("layer");
    return Values{Add(in[0], in[0])[1], Twin(in[0])[1]};
  };
  const Array nothing = RandomArray({DType::kF32, {0}}, 1);
  const Executable executable = *Executable::Make(*testing::TraceWith(fn, {nothing}));
  EXPECT_THAT(executable.Run({nothing}).status(),
              FailsWith(absl::StatusCode::kOutOfRange, {"adder [layer]: nothing is here", "f32[0]"}));
}

// Arguments in memory in which outputs are computed.
class InPlaceTest : public ::testing::Test {
 protected:
  // Output i is in the memory of argument i, if `i` is in `updated`.
  absl::Status Run(const Executable& executable, const Arrays& args, absl::Span<const size_t> updated) {
    memory_.clear();
    Arrays given;
    for (const Array& arg : args) {
      memory_.emplace_back(arg.aval());
      std::memcpy(memory_.back().data(), arg.data(), arg.num_bytes());
      given.push_back(Array::Unowned(arg.aval(), memory_.back().data()));
    }
    outputs_.clear();
    const std::vector<Program::Port>& ports = executable.program().outputs;
    for (size_t i = 0; i < ports.size(); ++i) {
      const Aval& aval = executable.program().aval(ports[i].var);
      const bool in_place = absl::c_linear_search(updated, i);
      if (!in_place) memory_.emplace_back(aval);
      outputs_.emplace_back(aval.dtype, aval.shape, (in_place ? memory_[i] : memory_.back()).data());
    }
    return executable.RunInto(given, outputs_);
  }

  std::vector<ArrayBuilder> memory_;
  std::vector<MutableArrayRef> outputs_;
};

Values Adam(In in) {
  const Value m = in[1] * 0.9 + in[3] * 0.1, v = in[2] * 0.999 + in[3] * in[3] * 0.001;
  return {in[0] - m / (ops::Sqrt(v) + 1e-8) * 0.001, m, v};
}

// Large outputs would be written past the caches if they were not in place.
TEST_F(InPlaceTest, Optimizer) {
  kernels::ThreadPool pool(2);
  for (const Shape& shape : {Shape{3, 5}, Shape{100, 64}, Shape{2048, 1024}}) {
    Arrays args;
    for (int i = 0; i < 4; ++i) args.push_back(RandomArray({DType::kF32, shape}, i, 0.1, 2));
    const Executable executable = MakeExecutable(Adam, args);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(executable.MayUpdate(i, i)) << i;
    const absl::StatusOr<Arrays> want = Eval(executable.program(), args);
    ASSERT_THAT(want, IsOk());
    for (const bool threads : {false, true}) {
      const UseExecutor use(threads ? &pool : nullptr);
      for (const std::vector<size_t>& updated : {std::vector<size_t>{0, 1, 2}, {0}, {1, 2}, {}}) {
        ASSERT_THAT(Run(executable, args, updated), IsOk());
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(BitEqual(Array::CopyOf(outputs_[i]), (*want)[i])) << shape << i;
      }
    }
  }
}

TEST_F(InPlaceTest, WhatIsReadLaterMayNotBeUpdated) {
  const Arrays args = {RandomArray({DType::kF32, {4, 4}}, 1), RandomArray({DType::kF32, {4, 4}}, 2)};
  const auto may_update = [&](TracedFunction fn) { return MakeExecutable(fn, args).MayUpdate(0, 0); };
  EXPECT_TRUE(may_update([](In in) { return Values{in[0] + in[1]}; }));
  EXPECT_TRUE(may_update([](In in) { return Values{ops::Reshape(in[0] * 2.0, {16})}; }));
  // The output reads other elements of the argument than its own.
  EXPECT_FALSE(may_update([](In in) { return Values{ops::Transpose(in[0], {1, 0})}; }));
  EXPECT_FALSE(may_update([](In in) { return Values{ops::MatMul(in[0], in[1])}; }));
  // The argument is itself an output, possibly as an alias; or an output computed earlier is copied into this one.
  EXPECT_FALSE(may_update([](In in) { return Values{in[0] + in[1], in[0]}; }));
  EXPECT_FALSE(may_update([](In in) { return Values{in[0] + in[1], ops::Reshape(in[0], {16})}; }));
  EXPECT_FALSE(may_update([](In in) { return Values{in[0]}; }));
  // A later step reads the argument.
  EXPECT_FALSE(may_update([](In in) {
    const Value sum = in[0] + in[1];
    return Values{sum, ops::MatMul(sum, in[0])};
  }));
  // A composite's output that is its operand has the operand's memory; one that is a copy has not.
  EXPECT_FALSE(may_update([](In in) {
    const Value same = Add(in[0], in[0])[0];
    return Values{in[1] * 3.0, same + 1.0};
  }));
  EXPECT_TRUE(may_update([](In in) {
    const Value twin = Twin(in[0])[0];
    return Values{in[1] * 3.0, twin + 1.0};
  }));
  const Executable sum = MakeExecutable([](In in) { return Values{ops::ReduceSum(in[0])}; }, args);
  EXPECT_FALSE(sum.MayUpdate(0, 0));
  EXPECT_FALSE(sum.MayUpdate(2, 0));
  EXPECT_FALSE(sum.MayUpdate(0, 1));
}

// Eval computes all results before the first one is stored.
TEST_F(InPlaceTest, WithHooks) {
  Arrays args;
  for (int i = 0; i < 4; ++i) args.push_back(RandomArray({DType::kF32, {3, 5}}, i, 0.1, 2));
  const absl::StatusOr<Program> program = TraceWith(Adam, args);
  ASSERT_THAT(program, IsOk());
  int observed = 0;
  EvalHooks hooks;
  hooks.on_outputs = [&](const Equation&, absl::Span<const Array>) { ++observed; };
  const absl::StatusOr<Executable> executable = Executable::Make(*program, {.hooks = hooks});
  ASSERT_THAT(executable, IsOk());
  EXPECT_TRUE(executable->MayUpdate(0, 0));
  const absl::StatusOr<Arrays> want = Eval(*program, args);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(Run(*executable, args, {0, 1, 2}), IsOk());
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(BitEqual(Array::CopyOf(outputs_[i]), (*want)[i])) << i;
  EXPECT_GT(observed, 0);
}

TEST_F(InPlaceTest, Errors) {
  const Arrays args = {RandomArray({DType::kF32, {4, 4}}, 1), RandomArray({DType::kF32, {4, 4}}, 2)};
  const Executable both = MakeExecutable([](In in) { return Values{in[0] + in[1], ops::Exp(in[1])}; }, args);
  float memory[40] = {};
  const auto run = [&](const Array& first, const Array& second, int64_t at0, int64_t at1) {
    return both.RunInto({first, second},
                        {MutableArrayRef(memory + at0, {4, 4}), MutableArrayRef(memory + at1, {4, 4})});
  };
  const Array here = Array::Unowned({DType::kF32, {4, 4}}, memory);
  EXPECT_THAT(run(here, args[1], 0, 20), IsOk());
  const Array nothing = Array::Unowned({DType::kF32, {0}}, memory + 4);
  const Executable twice = MakeExecutable([](In in) { return Values{in[0] * 2.0}; }, {args[0], nothing});
  EXPECT_THAT(twice.RunInto({args[0], nothing}, {MutableArrayRef(memory, {4, 4})}), IsOk());
  EXPECT_THAT(run(args[0], args[1], 0, 8),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"the memory of output data \"1\" overlaps that of output data \"0\""}));
  EXPECT_THAT(run(here, args[1], 4, 24),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"the memory of output data \"0\" overlaps that of argument data \"0\", but is not the same"}));
  const Array owned({DType::kF32, {4, 4}}, std::shared_ptr<const void>(memory, [](const void*) {}));
  EXPECT_THAT(run(owned, args[1], 0, 24), FailsWith(absl::StatusCode::kInvalidArgument,
                                                    {"an array that must not change; pass it as Array::Unowned"}));
  const Executable product = MakeExecutable([](In in) { return Values{ops::MatMul(in[0], in[1])}; }, args);
  EXPECT_THAT(product.RunInto({here, args[1]}, {MutableArrayRef(memory, {4, 4})}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"overlaps that of argument data \"0\", which is still needed when the output is written"}));
}

// A sum reads products with numbers as they are computed, up to two on each side. A product that is read twice, or is a
// result, stays separate.
TEST(ExecutableTest, SumsOfProductsWithNumbers) {
  const Array x = RandomArray({DType::kF32, {50, 70}}, 1), y = RandomArray({DType::kF32, {50, 70}}, 2);
  const Array a = RandomArray({DType::kF32, {}}, 3), b = RandomArray({DType::kF32, {}}, 4);
  ExpectSameAsEval(
      [](In in) {
        const Value &p = in[0], &q = in[1], &a = in[2], &b = in[3];
        const auto times = [](const Value& v, const Value& number) { return v * ops::BroadcastTo(number, v.shape()); };
        const Value result = times(p, a), twice = times(q, b), made = ops::Exp(p);
        const Value sum = times(times(made, a), b) + q * 0.3;
        // Computed long before it is read: its memory is not reused until then.
        const Value early = times(ops::Exp(q), a);
        const Value later = times(times(times(sum, a), b), a) - times(q * 0.7, b);
        return Values{result,
                      result + times(q, b),
                      twice + twice,
                      times(later, b) - times(later, a),
                      p - times(made, b),
                      ops::ReduceMax(times(made, a) - q, {1}),
                      early + ops::Sqrt(ops::Abs(p)),
                      times(ops::Reshape(p, {3500}), a) + ops::Reshape(q, {3500}) * 2.0};
      },
      {x, y, a, b});
}

// A composite may return its operand, whose memory is then reused.
TEST(ExecutableTest, AReturnedOperandOutlivesItsPlaceInTheArena) {
  ExpectSameAsEval(
      [](In in) {
        const Value same = Twin(ops::Exp(in[0]))[0];
        Value y = in[0];
        for (int i = 0; i < 5; ++i) y = ops::Exp(y * 0.125) + in[0];
        return Values{y + same};
      },
      {RandomArray({DType::kF32, {50}}, 3)});
}

// A number for each row: read in place by operations of two operands, on either side and as an output; also read by
// other operations; or read long after it was computed.
TEST(ExecutableTest, NumbersOfRows) {
  const auto fn = [](In in) {
    const Value sum = ops::ReduceSum(in[0], {-1}, true), max = ops::ReduceMax(in[0], {-1}, true);
    const Value centered = in[0] - sum / 37.0, below = max - in[0];
    const Value chosen = ops::Select(ops::Less(in[0], sum), centered, below);
    const Value variance = ops::ReduceSum(centered * centered, {-1}, true);
    return Values{centered / (variance + 1e-5) * in[1], chosen, max / (below + 1.0), sum, chosen * max + sum};
  };
  for (const int64_t rows : {1, 2, 7, 600}) {
    ExpectSameAsEval(fn, {RandomArray({DType::kF32, {rows, 37}}, 1), RandomArray({DType::kF32, {37}}, 2)});
  }
}

// Rows that all rows read: in full strips and in others, several at once, of other dtypes, read as another dtype, and
// also read by a reduction.
TEST(ExecutableTest, OneRowForAllRows) {
  const auto fn = [](In in) {
    const Value row = in[1] * 2.0, wide = ops::BroadcastTo(in[1], in[0].shape());
    const Value bits = ops::Cast(ops::Bitcast(ops::BroadcastTo(in[2], in[0].shape()), DType::kF16), DType::kF32);
    const Value centered = in[0] - ops::ReduceSum(in[0], {-1}, true) / 64.0;
    return Values{in[0] * in[1] + row,
                  centered / (ops::ReduceSum(centered * centered, {-1}, true) + 1e-5) * in[1] + row,
                  ops::Cast(in[0], DType::kBF16) * in[2] + in[2],
                  bits - in[0],
                  wide - ops::ReduceMax(wide, {-1}, true),
                  ops::Reshape(in[0], {in[0].shape()[0] * 2, in[0].shape()[1] / 2}) * in[3]};
  };
  for (const int64_t columns : {64, 256, 300, 384, 1024}) {
    for (const int64_t rows : {1, 7, 600}) {
      ExpectSameAsEval(fn, {RandomArray({DType::kF32, {rows, columns}}, 1), RandomArray({DType::kF32, {columns}}, 2),
                            RandomArray({DType::kBF16, {columns}}, 3), RandomArray({DType::kF32, {columns / 2}}, 4)});
    }
  }
}

// Row sums of one value: two directly, one through a reshape.
TEST(ExecutableTest, SumsOfOneValue) {
  const auto fn = [](In in) {
    const Value y = in[0] * 2.0;
    return Values{ops::ReduceSum(y, {-1}), ops::ReduceSum(y, {-1}, true) + y,
                  ops::ReduceSum(ops::Reshape(y, {y.shape()[0], 1, y.shape()[1]}), {-1})};
  };
  for (const int64_t rows : {1, 2, 7, 600}) ExpectSameAsEval(fn, {RandomArray({DType::kF32, {rows, 37}}, 1)});
}

// With one column a row sum has the shape of the row: steps and further sums read it without a broadcast.
TEST(ExecutableTest, SumsOfRowsOfOneElement) {
  const auto fn = [](In in) {
    const Value e = ops::Exp(in[0]), sum = ops::ReduceSum(e, {-1}, true);
    const Value twice = ops::ReduceSum(ops::ReduceSum(in[0] * 3.0, {-1}, true), {-1}, true);
    const Value centered = in[0] - ops::ReduceSum(in[0] * 0.5, {-1}, true);
    return Values{e / sum,
                  twice,
                  centered / (ops::ReduceSum(centered * centered, {-1}, true) + 1e-5) * in[0],
                  ops::Softmax(ops::Cast(in[0], DType::kBF16)),
                  ops::Softmax(ops::Cast(in[0], DType::kF16)),
                  ops::Reshape(sum, {sum.shape()[0]}) * 2.0};
  };
  for (const int64_t rows : {1, 2, 7, 600}) {
    for (const int64_t columns : {1, 2}) ExpectSameAsEval(fn, {RandomArray({DType::kF32, {rows, columns}}, 1)});
  }
}

// The bits of a result, or of an operand, read as another dtype of the same size.
TEST(ExecutableTest, BitsOfOtherFloats) {
  const auto other = [](const Value& x, DType as) { return ops::Cast(ops::Bitcast(x, as), DType::kF32); };
  const auto fn = [&](In in) {
    const Value made = ops::Cast(in[0] * 2.0, DType::kBF16), half = ops::Cast(in[0] * 2.0, DType::kF16);
    const Value number = ops::Cast(in[2] * 2.0, DType::kBF16);
    return Values{other(made, DType::kF16), other(half, DType::kBF16) * 2.0 + ops::Cast(half, DType::kF32),
                  other(in[1], DType::kF16) + ops::Cast(in[1], DType::kF32),
                  other(ops::BroadcastTo(number, in[0].shape()), DType::kF16) + in[0],
                  ops::ReduceSum(ops::Bitcast(ops::Bitcast(in[0] * 2.0, DType::kS32), DType::kF32) * 3.0, {-1})};
  };
  ExpectSameAsEval(fn, {RandomArray({DType::kF32, {7, 19}}, 1), RandomArray({DType::kBF16, {7, 19}}, 2),
                        RandomArray({DType::kF32, {}}, 3)});
}

TEST(ExecutableTest, EmptyArrays) {
  ExpectSameAsEval(
      [](In in) {
        const Value row = ops::Concatenate({in[0], in[0]}, 1);
        return Values{ops::Exp(row), ops::ReduceSum(row, {0}), ops::ReduceMax(row), ops::Transpose(row, {1, 0})};
      },
      {Array::Zeros(DType::kF32, {0, 3})});
}

TEST(ExecutableTest, WhatIsNotNeededDoesNotRun) {
  const Array nothing = Array::Zeros(DType::kF32, {0});
  const auto fn = [](In in) {
    Twin(in[0]);
    return Values{in[0]};
  };
  const Executable executable = MakeExecutable(fn, {nothing});
  EXPECT_THAT(Eval(executable.program(), {nothing}).status(),
              FailsWith(absl::StatusCode::kOutOfRange, {"nothing is here"}));
  EXPECT_THAT(executable.Run({nothing}), IsOk());
}

TEST(ExecutableTest, DyingOperandsAreOverwritten) {
  const auto fn = [](In in) {
    Value y = in[0];
    for (int i = 0; i < 10; ++i) y = ops::Transpose(ops::Exp(ops::Transpose(y, {1, 0})), {1, 0});
    return Values{y};
  };
  const Executable executable = MakeExecutable(fn, {Array::Zeros(DType::kF32, {48, 16})});
  EXPECT_EQ(executable.arena_bytes(), 2 * 48 * 16 * 4);  // each transpose needs a second array, exp needs none
  EXPECT_EQ(executable.peak_bytes(), 3 * 48 * 16 * 4);
}

TEST(ExecutableTest, SeveralThreadsEachHaveAnArena) {
  const Array x = RandomArray({DType::kF32, {64, 33}}, 4);
  const auto fn = [](In in) { return Values{ops::LogSoftmax(in[0] * in[1])}; };
  const Executable executable = MakeExecutable(fn, {x, x});
  std::vector<Arrays> args, want;
  for (int i = 0; i < 4; ++i) {
    args.push_back({x, RandomArray(x.aval(), i)});
    want.push_back(*Eval(executable.program(), args.back()));
  }
  std::vector<std::thread> threads;
  std::vector<int> same(args.size(), 0);
  for (size_t i = 0; i < args.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 50; ++j) same[i] += BitEqual((*executable.Run(args[i]))[0], want[i][0]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, std::vector<int>(args.size(), 50));
}

// Arrays that are divided among threads, into parts of unequal sizes: groups, padding and copies.
TEST(ExecutableTest, LargeArraysHaveTheSameBitsOnThreads) {
  const auto fn = [](In in) {
    const Value softmax = ops::Softmax(ops::GeluTanh(in[0] * 2.0 + in[1]));
    const Value turned = ops::Transpose(softmax, {1, 0});
    const Value part = ops::Slice(turned, {3, 1}, {700, 501});
    return Values{ops::Pad(part, {2, 1}, {0, 3}), ops::Pad(turned, {-2, 0}, {1, 1}, {0, 1}),
                  ops::ReduceSum(softmax, {0})};
  };
  kernels::ThreadPool pool(3);
  const UseExecutor threads(&pool);
  ExpectSameAsEval(fn, {RandomArray({DType::kF32, {503, 701}}, 1), RandomArray({DType::kF32, {701}}, 2)});
}

// Large outputs are written past the caches. Some rows are not multiples of a vector, and a sum and a transpose read an
// output.
TEST(ExecutableTest, LargeOutputs) {
  for (const int64_t columns : {1024, 1031}) {
    ExpectSameAsEval(
        [](In in) {
          const Value read = in[0] * 1.5 + 0.25;
          const Value sums = ops::ReduceSum(read, {-1}, true);
          return Values{read, read - sums, ops::Neg(in[0]), ops::Transpose(read, {1, 0})};
        },
        {RandomArray({DType::kF32, {2100, columns}}, 1)});
  }
}

// The checks see equations in a fused group, and hooks change no bit.
TEST(ExecutableTest, HooksSeeEachEquation) {
  const absl::StatusOr<Program> program =
      testing::TraceWith([](absl::Span<const Value> in) { return std::vector<Value>{ops::Log(in[0] - 1.0) * 2.0}; },
                         {Array::Zeros(DType::kF32, {3})});
  ASSERT_THAT(program, IsOk());
  const Array good = Array::Of<float>({2, 3, 4}, {3}), bad = Array::Of<float>({2, 0, 4}, {3});
  const absl::StatusOr<Executable> plain = Executable::Make(*program),
                                   watched = Executable::Make(*program, {.hooks = {.stop_at_nan = true}});
  ASSERT_THAT(plain, IsOk());
  ASSERT_THAT(watched, IsOk());
  EXPECT_THAT(plain->Run({bad}), IsOk());
  ArrayBuilder memory(DType::kF32, {3});
  for (const absl::Status& status : {watched->Run({bad}).status(), watched->RunInto({bad}, {memory.ref()})}) {
    EXPECT_THAT(status, FailsWith(absl::StatusCode::kOutOfRange, {"log: a NaN appears", "at [1]"}));
  }
  EXPECT_TRUE(BitEqual((*watched->Run({good}))[0], (*plain->Run({good}))[0]));
  ASSERT_THAT(watched->RunInto({good}, {memory.ref()}), IsOk());
  EXPECT_TRUE(BitEqual(std::move(memory).Build(), (*plain->Run({good}))[0]));
}

TEST(ExecutableTest, Errors) {
  const Array x = RandomArray({DType::kF32, {2}}, 5), nothing = Array::Zeros(DType::kF32, {0});
  const auto fn = [](In in) { return Values{in[0] + 1.0}; };
  const Executable executable = MakeExecutable(fn, {x});
  EXPECT_THAT(executable.Run({}).status(), FailsWith(absl::StatusCode::kInvalidArgument, {"1 inputs, got 0"}));
  EXPECT_THAT(executable.Run({nothing}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"input data \"0\" is f32[2], got f32[0]"}));
  float memory[4];
  EXPECT_THAT(executable.RunInto({x}, {}), FailsWith(absl::StatusCode::kInvalidArgument, {"memory for 0"}));
  EXPECT_THAT(executable.RunInto({x}, {MutableArrayRef(memory, {3})}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"is f32[2], got memory for f32[3]"}));
  EXPECT_THAT(executable.RunInto({x}, {MutableArrayRef(DType::kF32, {2}, {2}, memory)}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"strided"}));
  EXPECT_THAT(executable.RunSlots({}).status(), FailsWith(absl::StatusCode::kNotFound, {"data \"0\""}));
  const auto fails = [](In in) {
    const NamedScope scope("layer");
    return Values{Twin(in[0])[1]};
  };
  EXPECT_THAT(MakeExecutable(fails, {nothing}).Run({nothing}).status(),
              FailsWith(absl::StatusCode::kOutOfRange, {"twins [layer]: nothing is here"}));
}

}  // namespace
}  // namespace aqt
