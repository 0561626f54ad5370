#include "aqt/transforms/precision/amp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/call.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random_programs.h"

namespace aqt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Values = absl::Span<const Value>;
using Outputs = std::vector<Value>;

const Slot kX{SlotKind::kData, "x"}, kW{SlotKind::kParam, "w"};

Program TraceOf(TracedFunction fn, DType dtype = DType::kF32) {
  return *Trace(fn, {{{kX, {dtype, {2, 3}}}, {kW, {dtype, {3, 3}}}}});
}

// "op: operand dtypes -> result dtype" for each equation except casts.
std::vector<std::string> Dtypes(const Program& program) {
  std::vector<std::string> lines;
  for (const Equation& eqn : program.eqns) {
    const std::string op = OpName(eqn.op);
    if (op == "cast" || op == "broadcast") continue;
    std::string line = op + ":";
    for (const VarId var : eqn.in) line += " " + std::string(ToString(program.aval(var).dtype));
    lines.push_back(line + " -> " + std::string(ToString(program.aval(eqn.out[0]).dtype)));
  }
  return lines;
}

TEST(Amp, DefaultPolicy) {
  const Program program = TraceOf([](Values in) {
    const Value h = ops::MatMul(in[0], in[1]) + 1.0;
    return Outputs{ops::ReduceSum(ops::Exp(ops::Max(h, 0.0)) * 2.0)};
  });
  for (const DType compute : {DType::kF16, DType::kBF16}) {
    const Program fast = *Amp(program, {.compute_dtype = compute});
    const std::string c(ToString(compute));
    EXPECT_THAT(Dtypes(fast),
                ElementsAre("dot_general: " + c + " " + c + " -> " + c, "add: " + c + " " + c + " -> " + c,
                            "max: f32 f32 -> f32", "exp: f32 -> f32", "mul: f32 f32 -> f32", "reduce_sum: f32 -> f32"));
    EXPECT_EQ(fast.aval(fast.outputs[0].var).dtype, DType::kF32);
  }
  EXPECT_EQ(ToText(*Amp(program, {.compute_dtype = DType::kF32})), ToText(program));
}

// The cast of a bias comes before its broadcast, so its gradient is summed in f16, where this one overflows.
TEST(Amp, CastsBeforeBroadcasts) {
  const Slot bias{SlotKind::kParam, "b"};
  const Program program = *Trace([](Values in) { return Outputs{ops::ReduceSum((in[0] + in[1]) * 40000.0)}; },
                                 {{{kX, {DType::kF32, {2, 3}}}, {bias, {DType::kF32, {3}}}}});
  const Program fast = *Amp(program, {.compute_dtype = DType::kF16});
  std::vector<std::string> ops;
  for (const Equation& eqn : fast.eqns) ops.push_back(OpName(eqn.op));
  EXPECT_THAT(ops, ElementsAre("cast", "cast", "broadcast", "add", "broadcast", "cast", "mul", "reduce_sum"));
  const SlotValues gradients =
      *EvalSlots(*Grad(fast, {{1}}), {{kX, Array::FromSpan<float>(std::vector<float>(6, 0.0f), {2, 3})},
                                      {bias, Array::FromSpan<float>(std::vector<float>(3, 0.0f), {3})}});
  for (const auto& [slot, gradient] : gradients) {
    if (gradient.shape().rank() == 0) continue;
    EXPECT_THAT(gradient.View<float>(), ::testing::Each(INFINITY)) << slot.ToString();
  }
}

TEST(Amp, OtherContractionsComputeInTheDtype) {
  const Program program = TraceOf([](Values in) {
    const Value conv = ops::Conv(ops::Reshape(in[0], {1, 2, 3}), ops::Reshape(in[1], {1, 3, 3}));
    return Outputs{conv, ops::Einsum("ab,bc->ca", in[0], in[1])};
  });
  const Program fast = *Amp(program, {.compute_dtype = DType::kBF16});
  EXPECT_THAT(Dtypes(fast), ElementsAre("reshape: f32 -> f32", "reshape: f32 -> f32", "conv: bf16 bf16 -> bf16",
                                        "einsum: bf16 bf16 -> bf16"));
}

// The outermost scope that the policy names decides, even one around the call of Amp.
TEST(Amp, ScopesComeFirst) {
  const Program program = TraceOf([](Values in) {
    const NamedScope mlp("mlp"), fc1("fc1");
    return Outputs{ops::MatMul(in[0], in[1])};
  });
  AmpOptions options;
  options.policy["fc1"] = UsePrecision(DType::kBF16);
  EXPECT_THAT(Dtypes(*Amp(program, options)), ElementsAre("dot_general: bf16 bf16 -> bf16"));
  options.policy["mlp/fc1"] = UsePrecision(DType::kF16);
  EXPECT_THAT(Dtypes(*Amp(program, options)), ElementsAre("dot_general: f16 f16 -> f16"));
  options.policy["mlp"] = UseOriginalPrecision();
  EXPECT_THAT(Dtypes(*Amp(program, options)), ElementsAre("dot_general: f32 f32 -> f32"));
  options.policy["train"] = UseComputePrecision();
  const NamedScope train("train");
  EXPECT_THAT(Dtypes(*Amp(program, options)), ElementsAre("dot_general: f16 f16 -> f16"));
}

TEST(Amp, CallsAreOneOperation) {
  const Program program = TraceOf([](Values in) {
    return ops::Call(
        "inner", [](Values own) { return Outputs{ops::MatMul(own[0], own[1])}; }, in);
  });
  EXPECT_THAT(Dtypes(*Amp(program)), ElementsAre("call: f32 f32 -> f32"));
  AmpOptions options;
  options.policy["inner"] = UseComputePrecision();
  const absl::Status status = Amp(program, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("was traced with"));
}

TEST(Amp, RulesOfOnesOwn) {
  const Program program = TraceOf([](Values in) { return Outputs{in[0] * in[0], in[0] - in[0]}; });
  AmpOptions options;
  std::vector<DType> seen;
  options.policy["mul"] = {.kind = AmpRule::Kind::kFunction,
                           .function = [&](DType compute, absl::Span<const DType> original, AmpCall call) {
                             seen.assign(original.begin(), original.end());
                             call.operands[0] = ops::Cast(call.operands[0], compute);
                             call.operands[1] = ops::Cast(call.operands[1], compute);
                             return absl::StatusOr<AmpCall>(call);
                           }};
  EXPECT_THAT(Dtypes(*Amp(program, options)), ElementsAre("mul: f16 f16 -> f16", "sub: f16 f16 -> f16"));
  EXPECT_THAT(seen, ElementsAre(DType::kF32, DType::kF32));
  options.policy["mul"].function = nullptr;
  EXPECT_THAT(Amp(program, options).status().message(), HasSubstr("the rule of \"mul\" has no function"));
}

TEST(Amp, RulesThatDropOperands) {
  const Program program = TraceOf([](Values in) {
    const Value image = ops::Reshape(in[0], {1, in[0].shape().num_elements(), 1});
    return Outputs{ops::Conv(image, ops::Reshape(in[0], {in[0].shape().num_elements(), 1, 1}))};
  });
  AmpOptions options;
  options.policy["conv"] = {.kind = AmpRule::Kind::kFunction,
                            .function = [](DType, absl::Span<const DType>, AmpCall call) {
                              call.operands.clear();
                              return absl::StatusOr<AmpCall>(call);
                            }};
  EXPECT_THAT(Amp(program, options).status().message(), HasSubstr("conv"));
  EXPECT_THAT(Amp(program, options).status().message(), HasSubstr("operands"));
}

// Without a key for an operation, operands of different dtypes are converted to one that holds the numbers of both.
TEST(Amp, MixedOperandsAreWidened) {
  const Program program = TraceOf([](Values in) {
    const Value h = ops::MatMul(in[0], in[1]);
    return Outputs{ops::Max(h, in[0])};
  });
  AmpOptions options;
  options.policy = {{"dot_general", UseComputePrecision()}};
  EXPECT_THAT(Dtypes(*Amp(program, options)), ElementsAre("dot_general: f16 f16 -> f16", "max: f32 f32 -> f32"));
}

TEST(Amp, WidestPrecisionIsThatOfTheOriginal) {
  const Program program = TraceOf([](Values in) {
    const Value half = ops::Cast(in[0], DType::kF16);
    return Outputs{half * half};
  });
  AmpOptions options{.compute_dtype = DType::kBF16};
  EXPECT_THAT(Dtypes(*Amp(program, options)), ElementsAre("mul: f32 f32 -> f32"));
  options.policy["mul"] = UseWidestPrecision();
  EXPECT_THAT(Dtypes(*Amp(program, options)), ElementsAre("mul: f16 f16 -> f16"));
}

TEST(Amp, ReportsEveryCastAndUnusedKeys) {
  const Program program = TraceOf([](Values in) {
    const NamedScope fc("fc");
    return Outputs{ops::MatMul(in[0], in[1])};
  });
  AmpOptions options;
  options.policy["no_such_scope"] = UseOriginalPrecision();
  AmpReport report;
  ASSERT_TRUE(Amp(program, options, &report).ok());
  EXPECT_EQ(report.ToString(),
            "dot_general [fc]: operand 0: f32 -> f16, operand 1: f32 -> f16 (\"dot_general\": compute precision)\n"
            "the key \"no_such_scope\" decided nothing\n");
}

TEST(Amp, RefusesOtherDtypes) {
  const Program program = TraceOf([](Values in) { return Outputs{in[0]}; });
  EXPECT_THAT(Amp(program, {.compute_dtype = DType::kS8}).status().message(),
              HasSubstr("compute_dtype is s8, expected f16, bf16 or f32"));
  AmpOptions options;
  options.policy["add"] = UsePrecision(DType::kE4M3FN);
  EXPECT_THAT(Amp(program, options).status().message(), HasSubstr("expected f16, bf16, f32 or f64"));
}

// Gradients flow through the conversions, in the parameter's dtype.
TEST(Amp, GradientsArriveInTheDtypeOfTheParameter) {
  const Program loss = TraceOf([](Values in) { return Outputs{ops::ReduceSum(ops::MatMul(in[0], in[1]))}; });
  const Program grad = *Grad(*Amp(loss), {{1}});
  const Array ones = Cast(Array::Of<float>({1, 1, 1, 1, 1, 1}, {2, 3}), DType::kF32);
  const Array out = *(*Eval(grad, {ones, Array::Zeros(DType::kF32, {3, 3})})).begin();
  EXPECT_EQ(out.dtype(), DType::kF32);
  for (const float g : out.View<float>()) EXPECT_EQ(g, 2);
}

// Random steps from f32 [3,3] to f32 [3,3], some of them in scopes and calls.
Value RandomStep(std::mt19937& random, const Value& x, const Value& w) {
  const NamedScope scope(random() % 2 == 0 ? "even" : "odd");
  switch (random() % 9) {
    case 0: return x + w;
    case 1: return ops::Sub(x, w) * 0.5;
    case 2: return ops::MatMul(x, w);
    case 3: return ops::Exp(ops::Min(x, 2.0));
    case 4: return ops::Log(ops::Abs(x) + 1.0);
    case 5: return ops::Select(ops::Greater(x, w), x, w);
    case 6: return x / (ops::ReduceSum(ops::Abs(x), {1}, /*keepdims=*/true) + 1.0);
    case 7: return ops::Call("call", [](Values own) { return Outputs{ops::Tanh(own[0]) - 1.0}; }, {x})[0];
    default: return ops::Cast(ops::Cast(x, DType::kF16), DType::kF32);
  }
}

// In f32 nothing changes, whatever the program; in bf16 the outputs keep their dtypes, and the program still runs.
TEST(Amp, RandomPrograms) {
  const std::vector<Array> args = {Cast(Array::Of<double>({1, -2, 3, 0.5, 0.25, -1, 2, 1, -3}, {3, 3}), DType::kF32),
                                   Cast(Array::Of<double>({2, 1, -1, 0, 1, 0.5, 1, -1, 1}, {3, 3}), DType::kF32)};
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const absl::StatusOr<Program> program = testing::TraceWith(
        [&](Values in) {
          Value x = in[0];
          for (uint32_t i = 0; i < 1 + seed % 12; ++i) x = RandomStep(random, x, in[1]);
          return Outputs{x, ops::Greater(x, 0.0)};
        },
        args);
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(ToText(*Amp(*program, {.compute_dtype = DType::kF32})), ToText(*program));
    const absl::StatusOr<Program> fast = Amp(*program, {.compute_dtype = DType::kBF16});
    ASSERT_TRUE(fast.ok()) << fast.status();
    const absl::StatusOr<std::vector<Array>> got = Eval(*fast, args), want = Eval(*program, args);
    ASSERT_TRUE(got.ok() && want.ok()) << got.status();
    for (size_t i = 0; i < want->size(); ++i) EXPECT_EQ((*got)[i].aval(), (*want)[i].aval());
  }
}

// Programs of every basic operation with f32 floats: the default policy also changes nothing.
TEST(Amp, ChangesNothingInF32) {
  int programs = 0;
  for (uint64_t seed = 0; programs < 300; ++seed) {
    ASSERT_LT(seed, 20000u);
    const Program program = *testing::RandomProgram(seed, 8);
    const bool is_f32 = std::all_of(program.eqns.begin(), program.eqns.end(), [&](const Equation& eqn) {
      const auto fits = [&](VarId var) {
        const DType dtype = program.aval(var).dtype;
        return !IsFloat(dtype) || dtype == DType::kF32;
      };
      return std::all_of(eqn.in.begin(), eqn.in.end(), fits) && std::all_of(eqn.out.begin(), eqn.out.end(), fits);
    });
    if (!is_f32) continue;
    ++programs;
    EXPECT_EQ(ToText(*Amp(program, {.compute_dtype = DType::kF32})), ToText(program)) << seed;
  }
}

// Programs of every basic operation, with operands of all dtypes.
TEST(Amp, EveryOperation) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = *testing::RandomProgram(seed, 30);
    AmpOptions original{.compute_dtype = DType::kF32};
    for (auto& [key, rule] : original.policy) rule = UseOriginalPrecision();
    EXPECT_EQ(ToText(*Amp(program, original)), ToText(program));
    for (const bool everything : {false, true}) {
      AmpOptions options{.compute_dtype = DType::kBF16};
      if (everything) options.policy = {{"amp_default", UseComputePrecision()}};
      const absl::StatusOr<Program> fast = Amp(program, options);
      ASSERT_TRUE(fast.ok()) << fast.status();
      for (size_t i = 0; i < program.outputs.size(); ++i) {
        EXPECT_EQ(fast->aval(fast->outputs[i].var), program.aval(program.outputs[i].var));
      }
    }
  }
}

}  // namespace
}  // namespace aqt
