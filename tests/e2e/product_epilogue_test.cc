// Elementwise operations after a product run on its blocks as they are stored (docs/runtime.md). The bits are those of
// Eval, for all kinds of products, with any other readers, and on any number of threads.
//
// AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing program; AQT_TEST_CASES=N draws more of them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/block_epilogue.h"
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/runtime/executable.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/environment.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FromEnvironment;
using ::aqt::testing::IsOk;
using ::aqt::testing::Random;
using ::aqt::testing::RandomArray;
using ::testing::HasSubstr;
using ::testing::Not;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

enum class Kind { kF32, kBf16, kInt8, kW8, kW4Groups, kConvInt8 };
constexpr Kind kKinds[] = {Kind::kF32, Kind::kBf16, Kind::kInt8, Kind::kW8, Kind::kW4Groups, Kind::kConvInt8};

// x [m, k] and w [k, n]; or [2, m / 16, 8, k] and [3, 3, k, n].
struct Product {
  Kind kind;
  int64_t m, k, n;
  int64_t feature_groups = 1;  // of a convolution

  bool is_conv() const { return kind == Kind::kConvInt8; }
  DType dtype() const { return kind == Kind::kBf16 ? DType::kBF16 : DType::kF32; }
  Aval x() const { return {dtype(), is_conv() ? Shape{2, m / 16, 8, k} : Shape{m, k}}; }
  Aval w() const { return {dtype(), is_conv() ? Shape{3, 3, k / feature_groups, n} : Shape{k, n}}; }
  Aval out() const { return {dtype(), is_conv() ? Shape{2, m / 16, 8, n} : Shape{m, n}}; }
  ConvDims conv_dims() const { return {.padding = ConvPadding::kSame, .feature_group_count = feature_groups}; }
  Value Make(const Value& x, const Value& w) const {
    return is_conv() ? ops::Conv(x, w, conv_dims()) : ops::MatMul(x, w);
  }
  DotGeneralConfig config() const {
    if (is_conv()) return {.fwd = ConvGeneralDilatedMake(/*spatial_dims=*/2, 8, 8)};
    DotGeneralConfig config =
        DotGeneralMake(kind == Kind::kInt8 ? Bits(8) : std::nullopt, kind == Kind::kW4Groups ? 4 : 8);
    if (kind == Kind::kW4Groups) config.tiling = *DotTilingFromEinsum("mk,kn->mn", {{'k', 32}});
    return config;
  }
  bool is_quantized() const { return kind != Kind::kF32 && kind != Kind::kBf16; }
  absl::StatusOr<Program> Quantized(const Program& program) const {
    if (!is_quantized()) return program;
    InjectConfig rules;
    rules.rules.push_back({.ops = {is_conv() ? "conv" : "dot_general"}, .dot_general = config()});
    return Inject(program, rules);
  }
};

// The tests' description of a program.
struct Case {
  Program program;
  std::vector<Array> args;
};

// Inputs: x, w, a row, a matrix like the product and a column.
Case CaseOf(const Product& product, uint64_t seed, const std::function<Values(const Value& y, In in)>& after) {
  const Aval out = product.out();
  const int64_t n = out.shape[out.shape.rank() - 1];
  Shape column = out.shape;
  column[column.rank() - 1] = 1;
  std::vector<Array> args = {RandomArray(product.x(), 5 * seed), RandomArray(product.w(), 5 * seed + 1)};
  const Shape shapes[] = {Shape{n}, out.shape, column};
  for (const Shape& shape : shapes) args.push_back(RandomArray({out.dtype, shape}, 5 * seed + args.size()));
  const absl::StatusOr<Program> program =
      testing::TraceWith([&](In in) { return after(product.Make(in[0], in[1]), in); }, args);
  AQT_CHECK(program.ok());
  const absl::StatusOr<Program> quantized = product.Quantized(*program);
  AQT_CHECK(quantized.ok());
  return {*quantized, std::move(args)};
}

void ExpectSame(const std::vector<Array>& got, const std::vector<Array>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_TRUE(SameBits(got[i], want[i])) << "output " << i << ", " << what;
}

void ExpectBitsOfEval(const Case& c) {
  const absl::StatusOr<std::vector<Array>> want = Eval(c.program, c.args);
  ASSERT_THAT(want, IsOk());
  const absl::StatusOr<Executable> executable = Executable::Make(c.program);
  ASSERT_THAT(executable, IsOk());
  SlotValues weights, data;
  for (size_t i = 0; i < c.args.size(); ++i) (i == 0 ? data : weights)[c.program.inputs[i].slot] = c.args[i];
  const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make({c.program}, weights);
  ASSERT_THAT(prepared, IsOk());
  for (const int threads : {1, 2, 3}) {
    kernels::ThreadPool pool(threads);
    const UseExecutor use(&pool);
    for (int call = 0; call < 2; ++call) {
      const absl::StatusOr<std::vector<Array>> got = executable->Run(c.args);
      ASSERT_THAT(got, IsOk());
      ExpectSame(*got, *want, absl::StrCat(threads, " threads\n", executable->ToString()));
    }
    std::vector<ArrayBuilder> outputs;
    std::vector<MutableArrayRef> memory;
    outputs.reserve(want->size());
    for (const Array& output : *want) memory.push_back(outputs.emplace_back(output.aval()).ref());
    ASSERT_THAT(executable->RunInto(c.args, memory), IsOk());
    std::vector<Array> given;
    for (ArrayBuilder& output : outputs) given.push_back(std::move(output).Build());
    ExpectSame(given, *want, absl::StrCat("into memory, ", threads, " threads"));
    const absl::StatusOr<SlotValues> served = prepared->Eval(data);
    ASSERT_THAT(served, IsOk());
    for (size_t i = 0; i < want->size(); ++i) {
      ASSERT_TRUE(SameBits(served->at(c.program.outputs[i].slot), (*want)[i])) << "prepared, output " << i;
    }
  }
}

TEST(ProductEpilogue, IsOneStepWithTheProduct) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    const Product product{kind, 512, 64, 384};
    const Case c = CaseOf(product, 1, [](const Value& y, In in) { return Values{ops::Gelu(y + in[2]) + in[3]}; });
    const absl::StatusOr<Executable> executable = Executable::Make(c.program);
    ASSERT_THAT(executable, IsOk());
    EXPECT_THAT(executable->ToString(), HasSubstr("step 0 fused"));
    EXPECT_THAT(executable->ToString(), Not(HasSubstr("step 1")));
    EXPECT_EQ(executable->peak_bytes() - executable->arena_bytes(), product.out().num_bytes());  // nothing but y
    ExpectBitsOfEval(c);
  }
}

// The columns of the product are three rows of the group.
TEST(ProductEpilogue, OfSeveralColumnAxes) {
  const std::vector<Array> args = {RandomArray({DType::kF32, {200, 64}}, 1),
                                   RandomArray({DType::kF32, {64, 3, 128}}, 2), RandomArray({DType::kF32, {128}}, 3),
                                   RandomArray({DType::kF32, {3, 128}}, 4)};
  for (const size_t bias : {2, 3}) {
    const auto fn = [&](In in) {
      return Values{ops::Relu(ops::DotGeneral(in[0], in[1], MatMulDims()) + in[bias]) * 1.5};
    };
    const absl::StatusOr<Program> program = testing::TraceWith(fn, args);
    ASSERT_THAT(program, IsOk());
    const absl::StatusOr<Executable> executable = Executable::Make(*program);
    ASSERT_THAT(executable, IsOk());
    // The second bias is not a row of the group.
    EXPECT_EQ(executable->ToString().find("step 1") == std::string::npos, bias == 2) << executable->ToString();
    ExpectBitsOfEval({*program, args});
  }
}

class CountElements final : public BlockEpilogue {
 public:
  void Run(const OutputBlock& block) override { count_ += block.rows * block.columns; }
  int64_t count() const { return count_; }

 private:
  std::atomic<int64_t> count_ = 0;
};

// Forward calls run it on their complete result. If they did not run it, no other test here would fail.
TEST(ProductEpilogue, RunsInForwardCalls) {
  for (const Kind kind : kKinds) {
    const Product product{kind, 256, 64, 384};
    if (!product.is_quantized()) continue;
    SCOPED_TRACE(static_cast<int>(kind));
    const Array x = RandomArray(product.x(), 1), w = RandomArray(product.w(), 2);
    ArrayBuilder out(product.out());
    CountElements count;
    const Runtime runtime{.block_epilogue = &count};
    if (product.is_conv()) {
      const auto plan = ConvGeneralPlan::Make(product.config().fwd, x.aval(), w.aval(), product.conv_dims());
      ASSERT_THAT(plan, IsOk());
      ASSERT_THAT(plan->Forward(x, w, {}, out.ref(), nullptr, runtime), IsOk());
    } else {
      const auto plan = DotGeneralPlan::Make(product.config(), x.aval(), w.aval(), MatMulDims());
      ASSERT_THAT(plan, IsOk());
      ASSERT_THAT(plan->Forward(x, w, {}, out.ref(), nullptr, runtime), IsOk());
    }
    EXPECT_EQ(count.count(), out.aval().shape.num_elements());
  }
}

// A result must not overwrite operands that the product still reads.
TEST(ProductEpilogue, UpdatesNothingThatTheProductReads) {
  const std::vector<Array> args = {RandomArray({DType::kF32, {256, 256}}, 1),
                                   RandomArray({DType::kF32, {256, 256}}, 2)};
  const absl::StatusOr<Program> program = testing::TraceWith(
      [](In in) {
        return Values{ops::MatMul(in[0], in[1]) + in[0], in[1] * 2.0};
      },
      args);
  ASSERT_THAT(program, IsOk());
  const absl::StatusOr<Executable> executable = Executable::Make(*program);
  ASSERT_THAT(executable, IsOk());
  EXPECT_FALSE(executable->MayUpdate(0, 0)) << executable->ToString();
  ExpectBitsOfEval({*program, args});
}

TEST(ProductEpilogue, RandomPrograms) {
  const int64_t first = FromEnvironment("AQT_TEST_SEED", 1), cases = FromEnvironment("AQT_TEST_CASES", 60);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE(absl::StrCat("AQT_TEST_SEED=", seed));
    Random random(seed);
    const int64_t widths[] = {96, 128, 256, 384, 640, 1024};
    Product product{kKinds[random.Below(6)], 0, 32 * (1 + random.Below(8)), widths[random.Below(6)]};
    product.m = ((64 << 10) / product.n + 16 * (1 + random.Below(6))) / 16 * 16;
    if (product.kind == Kind::kBf16) product.m *= 2;
    product.feature_groups = 1 + random.Below(2);
    const auto after = [&](const Value& product_value, In in) {
      Values made = {product_value};
      const auto any = [&] { return made[random.Below(3) == 0 ? random.Below(made.size()) : made.size() - 1]; };
      const int64_t steps = 1 + random.Below(6);
      for (int64_t i = 0; i < steps; ++i) {
        const Value y = any();
        const Shape shape = y.shape();
        switch (random.Below(13)) {
          case 0: made.push_back(y + in[2]); break;
          case 1: made.push_back(y * in[2]); break;
          case 2: made.push_back(in[3] - y); break;
          case 3: made.push_back(ops::Relu(y)); break;
          case 4: made.push_back(ops::Gelu(y * 0.125)); break;
          case 5: made.push_back(y * 0.5 + 1.0); break;
          case 6: made.push_back(ops::Select(ops::Less(y, in[2] * 1.0), y, in[3])); break;
          case 7: made.push_back(ops::Cast(ops::Cast(y, DType::kBF16), y.dtype())); break;
          case 8: made.push_back(ops::Tanh(y) * any()); break;
          case 9: made.push_back(y * in[4]); break;  // a number for each row
          case 10: {                                 // rows of 64, with another bias
            const Value narrow = ops::Reshape(y, {shape.num_elements() / 64, 64});
            made.push_back(ops::Reshape(narrow + ops::Slice(in[2], {0}, {64}), shape));
            break;
          }
          case 11: made.push_back(y / ops::ReduceSum(ops::Abs(y), {-1}, true)); break;
          default: made.push_back(y + in[3]); break;
        }
      }
      Values out = {made.back()};
      if (random.Below(3) == 0) out.push_back(made[0]);
      if (random.Below(3) == 0) out.push_back(any());
      if (random.Below(4) == 0) out.push_back(ops::ReduceMax(any(), {0}));
      return out;
    };
    ExpectBitsOfEval(CaseOf(product, seed, after));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace aqt
