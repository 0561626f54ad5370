#include "aqt/transforms/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/collective/collective.h"
#include "aqt/collective/thread_group.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/attention/attention.h"
#include "aqt/ops/collective/collective_ops.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/random_programs.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// The rows of process `rank`, in the shape of the input of its program.
Array RowsOf(const Array& whole, const Aval& part, int rank) {
  if (whole.aval() == part) return whole;
  const auto* const data = static_cast<const char*>(whole.data()) + rank * part.num_bytes();
  return Array::CopyOf(ArrayRef(part.dtype, part.shape, data));
}

// The outputs of a program on the full batch, computed by processes with their own rows. Internal if processes differ.
absl::StatusOr<std::vector<Array>> EvalOnThreads(const Program& program, absl::Span<const Array> args, int processes,
                                                 const DataParallelOptions& options) {
  std::vector<std::vector<Array>> outputs(processes);
  AQT_RETURN_IF_ERROR(RunOnThreads(processes, [&](Collective& collective) -> absl::Status {
    const int rank = collective.rank();
    AQT_ASSIGN_OR_RETURN(const Program part, DataParallel(program, rank, processes, options));
    std::vector<Array> own;
    for (size_t i = 0; i < args.size(); ++i) own.push_back(RowsOf(args[i], part.aval(part.inputs[i].var), rank));
    const UseCollective use(&collective);
    AQT_ASSIGN_OR_RETURN(outputs[rank], Eval(part, own));
    return absl::OkStatus();
  }));
  for (const std::vector<Array>& other : outputs) {
    if (!std::equal(other.begin(), other.end(), outputs[0].begin(), SameBits)) {
      return absl::InternalError("the processes have different outputs");
    }
  }
  return outputs[0];
}

absl::Status ExpectBitsOfOneProcess(const Program& program, absl::Span<const Array> args, int processes,
                                    const DataParallelOptions& options) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> expected, Eval(program, args));
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> got, EvalOnThreads(program, args, processes, options));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (SameBits(expected[i], got[i])) continue;
    return absl::InternalError(absl::StrCat("output ", i, " of ", processes, " processes is ", ContentsText(got[i]),
                                            ", expected ", ContentsText(expected[i])));
  }
  return absl::OkStatus();
}

// Every basic operation, with any operand divided or replicated, alone and after others.
TEST(DataParallelTest, RandomProgramsHaveTheBitsOfOneProcess) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const std::vector<Array> args = testing::RandomProgramArgs(seed);
    const int processes = 2 + 2 * static_cast<int>(seed % 2);
    DataParallelOptions options{.float_sums = FloatSums::kGather};
    for (size_t i = 0; i < args.size(); ++i) {
      const bool divides = args[i].shape().rank() > 0 && args[i].shape()[0] % processes == 0;
      // The key is the last argument. Half of the others are replicated in some programs.
      if (!divides || i + 1 == args.size() || (seed % 3 == 0 && (seed >> i) % 2 == 0)) {
        options.whole.push_back(absl::StrCat(i));
      }
    }
    const auto check = [&](int steps) {
      return ExpectBitsOfOneProcess(*testing::RandomProgram(seed, steps), args, processes, options);
    };
    if (check(25).ok()) continue;
    const int steps = testing::Shrink(25, [&](int fewer) { return !check(fewer).ok(); });
    FAIL() << "seed " << seed << ": " << check(steps) << "\n"
           << *testing::RandomProgram(seed, steps) << "becomes\n"
           << *DataParallel(*testing::RandomProgram(seed, steps), 1, processes, options);
  }
}

constexpr int kRows = 8, kProcesses = 4;

Array Floats(const Shape& shape, uint64_t seed) { return testing::RandomArray({DType::kF32, shape}, seed); }
Array Ints(DType dtype, const Shape& shape, uint64_t seed) { return testing::RandomArray({dtype, shape}, seed, 0, 7); }

// One operation, and how processes compute it. A divided output costs one gather at the end.
struct Case {
  std::string name;
  std::function<Values(In)> fn;
  std::vector<Array> args;
  int gathers, reductions;
};

Values Windows(In in) {
  return {ops::ReduceWindowMax(in[0], {{1, 2, 2}, {1, 2, 2}, {}, {}}),
          ops::WindowArgMax(in[0], {{1, 2, 2}, {1, 2, 2}, {}, {}})};
}

Values Attention(In in) {
  const Value mask = ops::Less(in[2], 5.0);
  return {ops::Attention({.query = in[0], .key = in[0], .value = ops::Exp(in[0]), .bias = in[1], .mask = mask})};
}

Value ByRowOfRows(const Value& x) { return ops::DotGeneral(x, ops::Transpose(x, {0, 2, 1}), {{2}, {1}, {0}, {0}}); }

std::vector<Case> Cases() {
  const Array x = Floats({kRows, 6}, 1), y = Floats({kRows, 6}, 2), w = Floats({6, 5}, 3),
              images = Floats({kRows, 4, 6}, 4);
  const Array codes = Ints(DType::kS8, {kRows, 6}, 5), more = Ints(DType::kS8, {kRows, 5}, 6);
  const Array labels = Ints(DType::kS32, {kRows}, 7);
  const DotDims over_rows{{0}, {0}, {}, {}};
  return {
      {"add", [](In in) { return Values{in[0] + in[1] * 2.0}; }, {x, y}, 1, 0},
      {"add whole",
       [](In in) {
         return Values{in[0] + ops::Slice(in[1], {0, 0}, {1, 5}) * 3.0};
       },
       {Floats({kRows, 5}, 8), Floats({6, 5}, 3)},
       1,
       0},
      {"max of all", [](In in) { return Values{ops::ReduceMax(in[0])}; }, {x}, 0, 1},
      {"min of columns", [](In in) { return Values{ops::ReduceMin(in[0], {0}, true)}; }, {x}, 0, 1},
      {"sum of rows", [](In in) { return Values{ops::ReduceSum(in[0], {1})}; }, {x}, 1, 0},
      {"s32 sum", [](In in) { return Values{ops::ReduceSum(ops::Cast(in[0], DType::kS32), {0})}; }, {codes}, 0, 1},
      {"matmul", [](In in) { return Values{ops::MatMul(in[0], in[1])}; }, {x, w}, 1, 0},
      {"matmul, rhs divided",
       [](In in) {
         return Values{ops::MatMul(in[1], ops::Transpose(in[0], {1, 0}))};
       },
       {x, Floats({5, 6}, 9)},
       1,
       0},
      {"s32 sums of a gradient",
       [=](In in) { return Values{ops::DotGeneral(in[0], in[1], over_rows)}; },
       {codes, more},
       0,
       1},
      {"batched", [](In in) { return Values{ByRowOfRows(in[0])}; }, {images}, 1, 0},
      {"rows of tokens",
       [](In in) {
         return Values{ops::Reshape(ops::Exp(ops::Reshape(in[0], {kRows * 4, 6})), {kRows, 24})};
       },
       {images},
       1,
       0},
      {"transposed",
       [](In in) {
         return Values{ops::Transpose(in[0], {2, 0, 1})};
       },
       {images},
       1,
       0},
      {"embedding", [](In in) { return Values{ops::Take(in[1], in[0])}; }, {labels, Floats({7, 3}, 10)}, 1, 0},
      {"windows", Windows, {images}, 2, 0},
      {"concatenated",
       [](In in) {
         return Values{ops::Concatenate({in[0], in[1]}, 1)};
       },
       {x, y},
       1,
       0},
      {"padded",
       [](In in) {
         return Values{ops::Pad(ops::Slice(in[0], {0, 1}, {kRows, 4}), {0, 1}, {0, 2})};
       },
       {x},
       1,
       0},
      {"first row",
       [](In in) {
         return Values{ops::Slice(in[0], {0, 0}, {1, 6})};
       },
       {x},
       1,
       0},
      {"attention",
       Attention,
       {Floats({kRows, 3, 2, 4}, 11), Floats({1, 2, 3, 3}, 12), Ints(DType::kS32, {kRows, 1, 1, 3}, 13)},
       1,
       0},
      {"sums up to a row", [](In in) { return Values{ops::CumulativeSum(in[0], 0)}; }, {x}, 1, 0},
  };
}

TEST(DataParallelTest, OperationsAreCutAsPromised) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    const Program program = *testing::TraceWith(one.fn, one.args);
    DataParallelOptions options;
    // Parameters.
    for (size_t i = 0; i < one.args.size(); ++i) {
      if (one.args[i].shape()[0] != kRows) options.whole.push_back(absl::StrCat(i));
    }
    EXPECT_THAT(ExpectBitsOfOneProcess(program, one.args, kProcesses, options), IsOk());
    const absl::StatusOr<Program> part = DataParallel(program, 1, kProcesses, options);
    ASSERT_THAT(part, IsOk());
    EXPECT_EQ(CountOps(*part, "all_gather"), one.gathers) << *part;
    EXPECT_EQ(CountOps(*part, "all_reduce_sum") + CountOps(*part, "all_reduce_max") + CountOps(*part, "all_reduce_min"),
              one.reductions)
        << *part;
  }
}

// A bias reaches the rows without a copy for the full batch.
TEST(DataParallelTest, TheTextShowsTheExchanges) {
  const auto fn = [](In in) {
    return Values{ops::ReduceSum(in[0] + in[1], {0}), ops::ReduceMax(ops::Abs(in[0]), {0, 1})};
  };
  const Array args[] = {Floats({4, 3}, 1), Floats({3}, 2)};
  const Program program = *testing::TraceWith(fn, args);
  EXPECT_EQ(ToText(*DataParallel(program, 1, 2, {.whole = {"1"}})),
            R"(in %0: f32[2,3] data "0"
in %1: f32[3] data "1"
%2: f32[2,3] = broadcast(%1) {axes=[1]}
%3: f32[2,3] = add(%0, %2)
%4: f32[3] = reduce_sum(%3) {axes=[0]}
%5: f32[3] = all_reduce_sum(%4) {processes=2}
%6: f32[2,3] = abs(%0)
%7: f32[] = reduce_max(%6) {axes=[0,1]}
%8: f32[] = all_reduce_max(%7) {processes=2}
out %5 data "0"
out %8 data "1"
)");
}

// Two layers quantized as `config` says, their loss and the gradients with respect to all arguments.
absl::StatusOr<Program> QuantizedLayers(const DotGeneralConfig& config, Arithmetic arithmetic,
                                        absl::Span<const Array> args) {
  const auto fn = [](In in) {
    const Value hidden = ops::Max(ops::MatMul(in[0], in[1]), 0.0);
    const Value y = ops::MatMul(hidden, in[2]);
    return Values{ops::ReduceSum(y * y)};
  };
  AQT_ASSIGN_OR_RETURN(const Program traced, testing::TraceWith(fn, args));
  InjectConfig inject;
  inject.rules.push_back({.dot_general = config});
  inject.semantics.arithmetic = arithmetic;
  AQT_ASSIGN_OR_RETURN(const Program quantized, Inject(traced, inject));
  return ValueAndGrad(quantized, {0, 1, 2});
}

// Products of rows run as they are. Where rows share state, or draw noise, they become basic operations. Either way the
// bits are those of one process.
TEST(DataParallelTest, QuantizedContractionsOfRowsStayWhole) {
  struct Quantization {
    const char* name;
    DotGeneralConfig config;
    Arithmetic arithmetic;
    int processes, forward, backward;  // and the number of remaining contraction operations
  };
  const DotGeneralConfig nearest = *FullyQuantized({.use_stochastic_rounding = false});
  const DotGeneralConfig fp8 =
      *FullyQuantized({.fwd_bits = Bits::E4M3(), .bwd_bits = Bits::E5M2(), .use_stochastic_rounding = false});
  DotGeneralConfig one_scale = nearest, one_gradient_scale = nearest;
  one_scale.fwd.lhs.quantizer.calib_shared_axes.per_tensor = true;
  one_gradient_scale.dlhs.lhs.quantizer.calib_shared_axes.per_tensor = true;
  const Quantization cases[] = {
      {"nearest", nearest, Arithmetic::kIeee, 2, 2, 2},
      {"nearest, four processes", nearest, Arithmetic::kIeee, 4, 2, 2},
      {"a row for each process", nearest, Arithmetic::kIeee, kRows, 2, 2},
      {"XLA", nearest, Arithmetic::kXlaCompatible, 2, 2, 2},
      // The arithmetic of one scale differs from that of several.
      {"XLA, a row for each process", nearest, Arithmetic::kXlaCompatible, kRows, 0, 0},
      {"noise on gradients", FullyQuantized(), Arithmetic::kIeee, 2, 2, 0},
      {"fp8", fp8, Arithmetic::kIeee, 2, 2, 2},
      {"weights", DotGeneralMake(Bits(), 8), Arithmetic::kIeee, 2, 2, 2},
      {"one scale", one_scale, Arithmetic::kIeee, 2, 0, 0},
      {"one scale of gradients", one_gradient_scale, Arithmetic::kIeee, 2, 2, 0},
  };
  for (const Quantization& c : cases) {
    std::vector<Array> args = {Floats({kRows, 24}, 1), Floats({24, 16}, 2), Floats({16, 8}, 3)};
    const absl::StatusOr<Program> program = QuantizedLayers(c.config, c.arithmetic, args);
    ASSERT_THAT(program, IsOk()) << c.name;
    if (program->inputs.size() > args.size()) args.push_back(Array::Of<uint32_t>({3, 4}, {2}));
    const DataParallelOptions options{.float_sums = FloatSums::kGather, .whole = {"1", "2"}};
    EXPECT_THAT(ExpectBitsOfOneProcess(*program, args, c.processes, options), IsOk()) << c.name;
    const absl::StatusOr<Program> part = DataParallel(*program, 1, c.processes, options);
    ASSERT_THAT(part, IsOk()) << c.name;
    EXPECT_EQ(CountOps(*part, "aqt_dot_general_fwd"), c.forward) << c.name << "\n" << *part;
    EXPECT_EQ(CountOps(*part, "aqt_dot_general_bwd"), c.backward) << c.name << "\n" << *part;
  }
}

// The bound of data_parallel.h, for sums and products over 256 rows; f16 and bf16 results are rounded once more, by
// half a unit of 2^-11 or 2^-8 each.
TEST(DataParallelTest, FloatSumsOverTheBatchStayWithinTheirBound) {
  constexpr int64_t kN = 256;
  constexpr double kUnit = 0x1p-24;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto fn = [](In in) {
      return Values{ops::ReduceSum(in[0], {0}), ops::DotGeneral(in[0], in[1], {{0}, {0}, {}, {}})};
    };
    const Array x = testing::RandomArray({dtype, {kN, 4}}, 1), y = testing::RandomArray({dtype, {kN, 4}}, 2);
    const Array args[] = {x, y};
    const Program program = *testing::TraceWith(fn, args);
    for (const int processes : {2, 4}) {
      const std::vector<Array> one = *Eval(program, args);
      const absl::StatusOr<std::vector<Array>> all = EvalOnThreads(program, args, processes, {});
      ASSERT_THAT(all, IsOk());
      const double rounding = dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
      const Array xs = Cast(x, DType::kF64), ys = Cast(y, DType::kF64);
      for (int output = 0; output < 2; ++output) {
        const Array a = Cast(one[output], DType::kF64), b = Cast((*all)[output], DType::kF64);
        for (int64_t i = 0; i < a.num_elements(); ++i) {
          double sum = 0;
          for (int64_t n = 0; n < kN; ++n) {
            sum += output == 0 ? std::abs(xs.View<double>()[n * 4 + i])
                               : std::abs(xs.View<double>()[n * 4 + i / 4] * ys.View<double>()[n * 4 + i % 4]);
          }
          const double terms = output == 0 ? kN / 8.0 + processes + 8 : kN + kN / processes + processes;
          const double bound = terms * kUnit * sum + rounding * std::abs(a.View<double>()[i]) * 1.01;
          EXPECT_LE(std::abs(a.View<double>()[i] - b.View<double>()[i]), bound);
        }
      }
      EXPECT_THAT(ExpectBitsOfOneProcess(program, args, processes, {.float_sums = FloatSums::kGather}), IsOk());
    }
  }
}

TEST(DataParallelTest, RefusesWhatItCannotDivide) {
  const auto fn = [](In in) { return Values{ops::ReduceSum(in[0])}; };
  const Array args[] = {Floats({6, 2}, 1)};
  const Program program = *testing::TraceWith(fn, args);
  EXPECT_THAT(DataParallel(program, 0, 4), FailsWith(absl::StatusCode::kInvalidArgument,
                                                     {"data \"0\"", "f32[6,2]", "6 rows", "4 processes", "whole"}));
  EXPECT_THAT(DataParallel(program, 2, 2), FailsWith(absl::StatusCode::kInvalidArgument, {"rank 2 of 2"}));
  EXPECT_THAT(DataParallel(program, 0, 2, {.whole = {"mask"}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"`whole`", "data \"mask\""}));
  EXPECT_THAT(DataParallel(*DataParallel(program, 0, 2), 0, 2),
              FailsWith(absl::StatusCode::kInvalidArgument, {"all_reduce_sum", "exchanges already"}));
}

}  // namespace
}  // namespace aqt
