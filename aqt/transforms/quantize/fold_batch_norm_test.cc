#include "aqt/transforms/quantize/fold_batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "aqt/transforms/quantize/serve.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "y"};

Value Channels(const char* name, SlotKind kind = SlotKind::kParam) {
  return InputSlot({kind, name}, {DType::kF32, {4}});
}

// The norm as nn::BatchNorm computes it with running statistics.
Value Normed(const Value& x) {
  const NamedScope scope("norm");
  const Value factor = ops::Rsqrt(Channels("var", SlotKind::kStat) + 1e-5) * Channels("scale");
  return (x - Channels("mean", SlotKind::kStat)) * factor + Channels("bias");
}

Value Convolved(const Value& x) {
  const NamedScope scope("conv");
  return ops::Conv(x, InputSlot({SlotKind::kParam, "kernel"}, {DType::kF32, {3, 3, 2, 4}}),
                   {.padding = ConvPadding::kSame}) +
         Channels("conv_bias");
}

absl::StatusOr<Program> Traced(const std::function<Value(const Value&)>& model, int64_t rows = 3) {
  return Trace([&](In in) { return Values{model(in[0])}; }, {{kX, {DType::kF32, {rows, 5, 5, 2}}}},
               std::vector<Slot>{kY});
}

SlotValues Inputs(const Program& program) {
  SlotValues values;
  uint64_t seed = 1;
  for (const Program::Port& port : program.inputs) {
    values[port.slot] = RandomArray(program.aval(port.var), seed++, port.slot.path == "var" ? 0.5 : -1, 2);
  }
  return values;
}

// Compares both programs on the same inputs; the folded kernel and its channels were rounded once more.
void ExpectEqualUpToRounding(const Program& program, const Program& folded) {
  const SlotValues inputs = Inputs(program);
  const absl::StatusOr<SlotValues> want = EvalSlots(program, inputs), got = EvalSlots(folded, inputs);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(got, IsOk());
  const absl::Span<const float> w = want->at(kY).View<float>(), g = got->at(kY).View<float>();
  double largest = 0, worst = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    largest = std::max<double>(largest, std::fabs(w[i]));
    worst = std::max<double>(worst, std::fabs(w[i] - g[i]));
  }
  // Sums of 19 products of the size of the largest result, each off by a few roundings of 2^-24.
  EXPECT_LE(worst, 19 * 8 * 0x1p-24 * largest);
}

TEST(FoldBatchNormTest, TheFactorBecomesPartOfTheKernel) {
  const absl::StatusOr<Program> program = Traced([](const Value& x) { return ops::Relu(Normed(Convolved(x))); });
  ASSERT_THAT(program, IsOk());
  std::vector<std::string> scopes;
  const absl::StatusOr<Program> folded = FoldBatchNorm(*program, &scopes);
  ASSERT_THAT(folded, IsOk());
  EXPECT_THAT(scopes, ElementsAre("conv"));
  EXPECT_EQ(ToText(*folded), R"(in %0: f32[3,5,5,2] data "x"
in %1: f32[4] param "conv_bias"
in %2: f32[3,3,2,4] param "kernel"
in %3: f32[4] param "scale"
in %4: f32[4] param "bias"
in %5: f32[4] stat "var"
in %6: f32[4] stat "mean"
const %7: f32[] = 9.999999747e-06
const %8: f32[] = 0
const %9: f32[] = 0
%10: f32[4] = broadcast(%7) {axes=[]} @norm
%11: f32[4] = add(%5, %10) @norm
%12: f32[4] = rsqrt(%11) @norm
%13: f32[4] = mul(%12, %3) @norm
%14: f32[3,5,5,4] = broadcast(%8) {axes=[]}
%15: f32[3,5,5,4] = broadcast(%9) {axes=[]}
%16: f32[4] = sub(%1, %6) @conv
%17: f32[4] = mul(%16, %13) @conv
%18: f32[4] = add(%17, %4) @conv
%19: f32[3,3,2,4] = broadcast(%13) {axes=[3]} @conv
%20: f32[3,3,2,4] = mul(%2, %19) @conv
%21: f32[3,5,5,4] = conv(%0, %20) {padding=SAME} @conv
%22: f32[3,5,5,4] = broadcast(%18) {axes=[3]} @conv
%23: f32[3,5,5,4] = add(%21, %22) @conv
%24: f32[3,5,5,4] = max(%23, %14)
%25: f32[3,5,5,4] = stop_gradient(%24)
%26: bool[3,5,5,4] = gt(%23, %15)
%27: f32[3,5,5,4] = select(%26, %23, %25)
out %27 data "y"
)");
  ExpectEqualUpToRounding(*program, *folded);
}

// A dot_general, a division, a factor before the shift, scalars, and the chain as second operand.
TEST(FoldBatchNormTest, OtherChains) {
  const auto dot = [](const Value& x) {
    return ops::MatMul(x, InputSlot({SlotKind::kParam, "matrix"}, {DType::kF32, {2, 4}}));
  };
  const std::vector<std::function<Value(const Value&)>> models = {
      [&](const Value& x) { return Normed(dot(x)); },
      [&](const Value& x) { return Channels("a") * (Channels("b") + dot(x)) / Channels("var"); },
      [&](const Value& x) { return (dot(x) * 0.5 - Channels("a")) * 3.0; },
      [&](const Value& x) { return dot(x) / Channels("var"); },
  };
  for (const auto& model : models) {
    const absl::StatusOr<Program> program = Traced(model);
    ASSERT_THAT(program, IsOk());
    std::vector<std::string> scopes;
    const absl::StatusOr<Program> folded = FoldBatchNorm(*program, &scopes);
    ASSERT_THAT(folded, IsOk());
    EXPECT_EQ(scopes.size(), 1u);
    ExpectEqualUpToRounding(*program, *folded);
  }
}

// The program is unchanged where folding would be wrong, would compute something twice, or has nothing to fold.
TEST(FoldBatchNormTest, WhatStays) {
  const std::vector<std::function<Value(const Value&)>> models = {
      [](const Value& x) { return Convolved(x); },  // no factor
      [](const Value& x) {                          // the result of the convolution is used twice
        const Value y = Convolved(x);
        return Normed(y) + y;
      },
      [](const Value& x) { return Channels("a") - Convolved(x); },
      [](const Value& x) { return Channels("a") / Convolved(x); },
      [](const Value& x) { return Convolved(x) * ops::Mean(x); },  // the factor depends on data
      [](const Value& x) {                                         // a factor for each row, not for each channel
        return Convolved(x) * InputSlot({SlotKind::kParam, "rows"}, {DType::kF32, {3, 1, 1, 1}});
      },
      [](const Value& x) {  // the last axis is not that of rhs
        const Value matrix = InputSlot({SlotKind::kParam, "matrix"}, {DType::kF32, {4, 2}});
        const Value y = ops::DotGeneral(matrix, x, {{1}, {3}, {}, {}});
        return y * InputSlot({SlotKind::kParam, "columns"}, {DType::kF32, {5}});
      },
  };
  for (size_t i = 0; i < models.size(); ++i) {
    const absl::StatusOr<Program> program = Traced(models[i]);
    ASSERT_THAT(program, IsOk()) << i;
    std::vector<std::string> scopes;
    const absl::StatusOr<Program> folded = FoldBatchNorm(*program, &scopes);
    ASSERT_THAT(folded, IsOk()) << i;
    EXPECT_THAT(scopes, IsEmpty()) << i;
    const SlotValues inputs = Inputs(*program);
    EXPECT_TRUE(BitEqual(EvalSlots(*folded, inputs)->at(kY), EvalSlots(*program, inputs)->at(kY))) << i;
  }
}

// A number has no last axis that a factor could be multiplied into.
TEST(FoldBatchNormTest, KeepsAProductWithANumber) {
  const absl::StatusOr<Program> program =
      Trace([](In in) { return Values{ops::DotGeneral(in[0], in[1], DotDims{}) * in[2]}; },
            {{kX, {DType::kF32, {2, 4}}},
             {{SlotKind::kParam, "number"}, {DType::kF32, {}}},
             {{SlotKind::kParam, "scale"}, {DType::kF32, {4}}}},
            std::vector<Slot>{kY});
  ASSERT_THAT(program, IsOk());
  std::vector<std::string> scopes;
  const absl::StatusOr<Program> folded = FoldBatchNorm(*program, &scopes);
  ASSERT_THAT(folded, IsOk());
  EXPECT_THAT(scopes, IsEmpty());
  EXPECT_EQ(folded->aval(folded->outputs[0].var), program->aval(program->outputs[0].var));
}

// Folded, quantized, frozen and served: the kernel with its factor is stored in int8, and norms and float kernels are
// gone.
TEST(FoldBatchNormTest, IsServed) {
  const auto model = [](const Value& x) { return Normed(Convolved(x)); };
  const absl::StatusOr<InjectConfig> config = InjectConfigFromText(
      "schema: 1 rules { ops: 'conv' rhs_origin: OPERAND_ORIGIN_PARAM dot_general { base: 'int8_fwd' } } "
      "arithmetic: ARITHMETIC_IEEE");
  ASSERT_THAT(config, IsOk());
  const Program one = *FoldBatchNorm(*Traced(model, 1)), three = *FoldBatchNorm(*Traced(model, 3));
  SlotValues known = Inputs(three);
  const Array x = known.at(kX);
  known.erase(kX);
  const absl::StatusOr<SlotValues> frozen = Freeze(one, *config, known);
  ASSERT_THAT(frozen, IsOk());
  EXPECT_EQ(frozen->at({SlotKind::kFrozen, "conv/qrhs/value"}).aval(), (Aval{DType::kS8, {3, 3, 2, 4}}));
  EXPECT_EQ(frozen->count({SlotKind::kParam, "kernel"}), 0u);
  const absl::StatusOr<Program> serve = ServeProgram(three, *config, *frozen);
  ASSERT_THAT(serve, IsOk());
  EXPECT_EQ(CountOps(*serve, "aqt_conv"), 1);
  SlotValues served = *frozen, trained = known;
  served[kX] = trained[kX] = x;
  const absl::StatusOr<SlotValues> got = EvalSlots(*serve, served), want = EvalSlots(*Inject(three, *config), trained);
  ASSERT_THAT(got, IsOk());
  ASSERT_THAT(want, IsOk());
  EXPECT_TRUE(BitEqual(got->at(kY), want->at(kY)));
}

}  // namespace
}  // namespace aqt
