#include "aqt/transforms/precision/scalify.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <variant>
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
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/testing/random_programs.h"

namespace aqt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Values = absl::Span<const Value>;
using Outputs = std::vector<Value>;

const Slot kX{SlotKind::kData, "x"}, kW{SlotKind::kParam, "w"}, kY{SlotKind::kData, "0"};
const Aval kMatrix{DType::kF32, {3, 3}};

Program TraceOf(TracedFunction fn) { return *Trace(fn, {{{kX, kMatrix}, {kW, kMatrix}}}); }

ScalifyOptions Options() {
  return {.rules = {.scale_dtype = DType::kF32}, .scaled_inputs = {{kX, DType::kF32}, {kW, DType::kF32}}};
}

// The value of an output, scaled or not.
std::vector<float> ValueOf(const SlotValues& out, const Slot& slot) {
  const auto scale = out.find(ScaleSlot(slot));
  const Value value = scale == out.end() ? Value(out.at(slot))
                                         : scaled::ToArray({Value(out.at(slot)), Value(scale->second)}, DType::kF32);
  const Array array = Cast(*value.ToArray(), DType::kF32);
  return {array.View<float>().begin(), array.View<float>().end()};
}

SlotValues ScaledInputs(const Array& x, float x_scale, const Array& w, float w_scale) {
  return {{kX, x}, {ScaleSlot(kX), Array::Scalar(x_scale)}, {kW, w}, {ScaleSlot(kW), Array::Scalar(w_scale)}};
}

TEST(Scalify, SlotsOfData) {
  const Program program = TraceOf([](Values in) { return Outputs{in[0] * in[1], ops::Greater(in[0], in[1])}; });
  const Program scaled = *Scalify(program, Options());
  std::vector<std::string> inputs, outputs;
  for (const Program::Port& port : scaled.inputs) inputs.push_back(port.slot.ToString());
  for (const Program::Port& port : scaled.outputs) outputs.push_back(port.slot.ToString());
  EXPECT_THAT(inputs, ElementsAre("data \"x\"", "param \"w\"", "data \"x:scale\"", "param \"w:scale\""));
  EXPECT_THAT(outputs, ElementsAre("data \"0\"", "data \"1\"", "data \"0:scale\""));
}

TEST(Scalify, WithoutScaledInputsNothingChanges) {
  const Program program = TraceOf([](Values in) { return Outputs{ops::Exp(in[0]) + ops::Tanh(in[1]) * 2.0}; });
  EXPECT_EQ(ToText(*Scalify(program, {})), ToText(program));
}

TEST(Scalify, WhatTheOriginalRefuses) {
  const Program tanh = TraceOf([](Values in) { return Outputs{ops::Tanh(in[0])}; });
  const Program mix = TraceOf([](Values in) { return Outputs{in[0] + in[1]}; });
  ScalifyOptions options = Options();
  EXPECT_TRUE(Scalify(tanh, options).ok());
  options.scaled_inputs.erase(kW);
  EXPECT_TRUE(Scalify(mix, options).ok());
  options.rules.compat = ScalifyCompat::Original();
  EXPECT_THAT(Scalify(tanh, options).status().message(), HasSubstr("no rule for tanh"));
  EXPECT_THAT(Scalify(mix, options).status().message(), HasSubstr("a scaled array meets a plain one"));
}

TEST(Scalify, Errors) {
  const Program program = TraceOf([](Values in) { return Outputs{in[0]}; });
  ScalifyOptions options{.scaled_inputs = {{{SlotKind::kData, "z"}, DType::kF32}}};
  EXPECT_THAT(Scalify(program, options).status().message(), HasSubstr("the program has no input data \"z\""));
  options.scaled_inputs = {{kX, DType::kS32}};
  EXPECT_THAT(Scalify(program, options).status().message(), HasSubstr("expected floats"));
  options.scaled_inputs = {};
  options.rules.scale_dtype = DType::kE4M3FN;
  EXPECT_THAT(Scalify(program, options).status().message(),
              HasSubstr("scale_dtype is e4m3fn, expected f16, bf16, f32 or f64"));
}

// exp of a known zero is 1; in the original it is 0.
TEST(Scalify, ExpOfAKnownZero) {
  const Program program = TraceOf([](Values in) {
    const Value zeros = ops::BroadcastTo(ValueOrNumber(0.0).As(DType::kF32), {3, 3});
    return Outputs{ops::Exp(zeros) * in[0]};
  });
  const Array ones = Array::FromSpan<float>(std::vector<float>(9, 1.0f), {3, 3});
  ScalifyOptions options = Options();
  EXPECT_EQ(ValueOf(*EvalSlots(*Scalify(program, options), ScaledInputs(ones, 2, ones, 1)), kY)[0], 2);
  options.rules.compat = ScalifyCompat::Original();
  EXPECT_EQ(ValueOf(*EvalSlots(*Scalify(program, options), ScaledInputs(ones, 2, ones, 1)), kY)[0], 0);
}

// A cast of the forward pass is kept under a gradient; the original drops it.
TEST(Scalify, ForwardCastsUnderAGradient) {
  for (const bool dropped : {false, true}) {
    const Program loss = TraceOf([&](Values in) {
      return Outputs{ops::ReduceSum(ops::ReducePrecisionOnForward(in[0], DType::kE4M3FN, {dropped}) * in[1])};
    });
    const Program step = *ValueAndGrad(loss, {{0, 1}});
    const Array x = Array::FromSpan<float>(std::vector<float>(9, 17.0f), {3, 3});
    const Array w = Array::FromSpan<float>(std::vector<float>(9, 1.0f), {3, 3});
    const SlotValues out = *EvalSlots(*Scalify(step, Options()), ScaledInputs(x, 1, w, 1));
    EXPECT_EQ(ValueOf(out, {SlotKind::kData, "grad(w)"})[0], dropped ? 17 : 16);
    EXPECT_EQ(ValueOf(out, {SlotKind::kData, "grad(x)"})[0], 1);
  }
}

Value RandomStep(std::mt19937& random, const Value& x, const Value& w) {
  switch (random() % 16) {
    case 0: return x + w;
    case 1: return x - w;
    case 2: return x * w;
    case 3: return ops::MatMul(x, w);
    case 4: return ops::Max(x, w);
    case 5: return ops::Min(x, 0.0);
    case 6: return ops::Select(ops::Less(x, w), x, w);
    case 7: return ops::Transpose(x, {1, 0});
    case 8: return ops::ReduceSum(x, {1}, /*keepdims=*/true) + w;
    case 9: return x * 0.5;
    case 10: return ops::ReduceMax(x, {0}, /*keepdims=*/true) - x;
    case 11: return ops::Slice(ops::Concatenate({{x, w}}, 0), {1, 0}, {4, 3});
    case 12: return ops::Abs(x);
    case 13: return ops::Call("call", [](Values own) { return Outputs{-own[0] * 2.0}; }, {x})[0];
    case 14: return ops::CumulativeSum(x, 0);
    default: return ops::DotGeneral(x, w, {{0}, {1}});
  }
}

// With power-of-two scales and small integers everything is exact: the scaled program has the values of the plain one.
TEST(Scalify, ScaledProgramsHaveTheValuesOfPlainOnes) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Program program = TraceOf([&](Values in) {
      Value x = in[0];
      for (uint32_t i = 0; i < 1 + seed % 6; ++i) {
        const NamedScope scope("step");
        x = RandomStep(random, x, in[1]);
      }
      return Outputs{x};
    });
    std::vector<float> x(9), w(9);
    for (float& v : x) v = static_cast<float>(static_cast<int>(random() % 7) - 3);
    for (float& v : w) v = static_cast<float>(static_cast<int>(random() % 7) - 3);
    const float x_scale = std::ldexp(1.0f, static_cast<int>(random() % 9) - 4);
    const float w_scale = std::ldexp(1.0f, static_cast<int>(random() % 9) - 4);
    ScalifyOptions options = Options();
    options.rules.rounding = random() % 2 == 0 ? ScaleRounding::kDown : ScaleRounding::kUp;
    const absl::StatusOr<Program> scaled = Scalify(program, options);
    ASSERT_TRUE(scaled.ok()) << scaled.status();
    const SlotValues out = *EvalSlots(
        *scaled, ScaledInputs(Array::FromSpan<float>(x, {3, 3}), x_scale, Array::FromSpan<float>(w, {3, 3}), w_scale));
    for (float& v : x) v *= x_scale;
    for (float& v : w) v *= w_scale;
    const SlotValues want =
        *EvalSlots(program, {{kX, Array::FromSpan<float>(x, {3, 3})}, {kW, Array::FromSpan<float>(w, {3, 3})}});
    EXPECT_EQ(ValueOf(out, kY), ValueOf(want, kY));
  }
}

// Whether power-of-two scales only change exponents. This excludes roots and logarithms, whose scales are other
// numbers, and operations where the smallest number matters, as in a dtype with fewer exponents than f32.
bool OnlyMovesExponents(const Program& program) {
  for (const Equation& eqn : program.eqns) {
    if (std::holds_alternative<ReducePrecisionOp>(eqn.op)) return false;
    if (const auto* unary = std::get_if<UnaryOp>(&eqn.op)) {
      const bool other = unary->kind == kernels::UnaryKind::kSqrt || unary->kind == kernels::UnaryKind::kRsqrt ||
                         unary->kind == kernels::UnaryKind::kLog;
      if (other) return false;
    }
    for (const VarId var : eqn.out) {
      const DType dtype = program.aval(var).dtype;
      if (IsFloat(dtype) && dtype != DType::kF32 && dtype != DType::kBF16) return false;
    }
  }
  return true;
}

// Rounding does not depend on exponents: a scaled program has the exact bits of the plain one, for all numbers and
// operations.
TEST(Scalify, RandomProgramsHaveTheValuesOfPlainOnes) {
  int programs = 0;
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; programs < 300; ++seed) {
    ASSERT_LT(seed, 20000u);
    const Program program = *testing::RandomProgram(seed, 8);
    if (!OnlyMovesExponents(program)) continue;
    SCOPED_TRACE(seed);
    ++programs;
    for (const Equation& eqn : program.eqns) ++seen[OpName(eqn.op)];
    const std::vector<Array> args = testing::RandomProgramArgs(seed);
    ScalifyOptions options{
        .rules = {.rounding = seed % 2 == 0 ? ScaleRounding::kDown : ScaleRounding::kUp, .scale_dtype = DType::kF32}};
    SlotValues plain, scaled;
    for (size_t i = 0; i < args.size(); ++i) {
      const Slot& slot = program.inputs[i].slot;
      plain.emplace(slot, args[i]);
      scaled.emplace(slot, args[i]);
      const bool has_exponents = args[i].dtype() == DType::kF32 || args[i].dtype() == DType::kBF16;
      if (!has_exponents || seed % 5 == i) continue;
      options.scaled_inputs[slot] = DType::kF32;
      const float scale = std::ldexp(1.0f, static_cast<int>((seed + 3 * i) % 9) - 4);
      scaled.emplace(ScaleSlot(slot), Array::Scalar(scale));
      plain.at(slot) = *(Value(args[i]) * static_cast<double>(scale)).ToArray();
    }
    const absl::StatusOr<Program> transformed = Scalify(program, options);
    ASSERT_TRUE(transformed.ok()) << transformed.status();
    const SlotValues got = *EvalSlots(*transformed, scaled), want = *EvalSlots(program, plain);
    for (const Program::Port& port : program.outputs) {
      const std::vector<float> a = ValueOf(got, port.slot), b = ValueOf(want, port.slot);
      for (size_t i = 0; i < b.size(); ++i) {
        if (std::isnan(b[i])) {
          EXPECT_TRUE(std::isnan(a[i])) << port.slot.path << "[" << i << "] = " << a[i];
        } else {
          EXPECT_EQ(a[i], b[i]) << port.slot.path << "[" << i << "]\n" << ToText(program);
        }
      }
    }
  }
  EXPECT_GE(seen.size(), 55u);
}

// Inexact results are within the errors of their few roundings: a root of a scale that is not a square, and the sum of
// two logarithms, each half an ulp of the larger one.
TEST(Scalify, RootsAndLogarithmsAreWithinTheirRoundings) {
  const Program program = TraceOf([](Values in) {
    return Outputs{ops::Sqrt(in[0]), ops::Rsqrt(in[0]), ops::Log(in[0])};
  });
  const Program scaled = *Scalify(program, Options());
  const Array w = Array::Zeros(DType::kF32, {3, 3});
  constexpr float kUlp = 0x1p-23f;
  for (int exponent = -40; exponent <= 40; ++exponent) {
    const float scale = std::ldexp(1.0f, exponent);
    const std::vector<float> numbers = {1, 1.5f, 0.3f, 7.7f, 100, 1e-4f, 0.99f, 3, 2};
    const SlotValues out = *EvalSlots(scaled, ScaledInputs(Array::FromSpan<float>(numbers, {3, 3}), scale, w, 1));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double x = static_cast<double>(numbers[i]) * scale, root = std::sqrt(x);
      // Two functions and their product: three roundings of half an ulp, and one ulp for each function.
      EXPECT_NEAR(ValueOf(out, kY)[i], root, 4 * kUlp * root);
      EXPECT_NEAR(ValueOf(out, {SlotKind::kData, "1"})[i], 1 / root, 4 * kUlp / root);
      const double largest = std::max(std::fabs(std::log(numbers[i])), std::fabs(std::log(scale)));
      EXPECT_NEAR(ValueOf(out, {SlotKind::kData, "2"})[i], std::log(x), 4 * kUlp * largest);
    }
  }
}

// Products of small scales in f16 become 0, and so do the values; scales in f32 keep them.
TEST(Scalify, ScalesOfF16Underflow) {
  const Program program = TraceOf([](Values in) { return Outputs{in[0] * in[1]}; });
  const Array ones = Array::FromSpan<float>(std::vector<float>(9, 1.0f), {3, 3});
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    const ScalifyOptions options{.scaled_inputs = {{kX, dtype}, {kW, dtype}}};
    const Array scale = Cast(Array::Scalar(0x1p-14f), dtype);
    const SlotValues out = *EvalSlots(*Scalify(program, options),
                                      {{kX, ones}, {ScaleSlot(kX), scale}, {kW, ones}, {ScaleSlot(kW), scale}});
    EXPECT_EQ(ValueOf(out, kY)[0], dtype == DType::kF16 ? 0 : 0x1p-28f);
  }
}

// Gradients that are all 0 stay 0, with a scale that shrinks by the least factor.
TEST(Scalify, RescalingZeros) {
  const Program program = TraceOf([](Values in) { return Outputs{ops::DynamicRescaleL2(in[0]) + in[1] * 0.0}; });
  const Array zeros = Array::Zeros(DType::kF32, {3, 3});
  const SlotValues out = *EvalSlots(*Scalify(program, Options()), ScaledInputs(zeros, 2, zeros, 1));
  EXPECT_EQ(ValueOf(out, kY)[0], 0);
  const Program rescaled =
      *Scalify(TraceOf([](Values in) { return Outputs{ops::DynamicRescaleL2(in[0])}; }), Options());
  const SlotValues alone = *EvalSlots(rescaled, ScaledInputs(zeros, 2, zeros, 1));
  EXPECT_EQ(alone.at(ScaleSlot(kY)).View<float>()[0], 0x1p-13f);
}

// An einsum is replaced by its definition, and so are its gradients.
TEST(Scalify, EinsumsAreScaled) {
  const Program loss =
      TraceOf([](Values in) { return Outputs{ops::ReduceSum(ops::Einsum("ij,kj->ik", in[0], in[1]) * in[0])}; });
  const Array x = Array::FromSpan<float>(std::vector<float>(9, 3.0f), {3, 3});
  const SlotValues out = *EvalSlots(*Scalify(loss, Options()), ScaledInputs(x, 4, x, 8));
  EXPECT_TRUE(out.contains(ScaleSlot(kY)));
  EXPECT_EQ(ValueOf(out, kY)[0], 9 * 3 * 12 * 24 * 12);
  const Program step = *Scalify(*ValueAndGrad(loss, {{0, 1}}), Options());
  const SlotValues with_gradient = *EvalSlots(step, ScaledInputs(x, 4, x, 8));
  EXPECT_EQ(ValueOf(with_gradient, kY), ValueOf(out, kY));
  EXPECT_EQ(ValueOf(with_gradient, {SlotKind::kData, "grad(w)"})[0], 3 * 12 * 12);
  for (const char* gradient : {"grad(x)", "grad(w)"}) {
    EXPECT_TRUE(with_gradient.contains(ScaleSlot({SlotKind::kData, gradient}))) << gradient;
  }
}

// Operands of two dtypes are converted first.
TEST(Scalify, EinsumsOfTwoDTypes) {
  const Program program =
      TraceOf([](Values in) { return Outputs{ops::Einsum("ij,jk->ik", in[0], ops::Cast(in[1], DType::kBF16))}; });
  const Array x = Array::FromSpan<float>(std::vector<float>(9, 3.0f), {3, 3});
  const SlotValues out = *EvalSlots(*Scalify(program, Options()), ScaledInputs(x, 4, x, 8));
  EXPECT_TRUE(out.contains(ScaleSlot(kY)));
  EXPECT_EQ(ValueOf(out, kY)[0], 3 * 12 * 24);
}

// The next state of a training is scaled exactly as its state is, whatever an equation computes.
TEST(Scalify, StateKeepsItsForm) {
  const Slot plain{SlotKind::kStat, "plain"};
  const Program step = *Trace(
      [&](Values in) {
        WriteSlot(kW, ops::BroadcastTo(ValueOrNumber(2.0).As(DType::kF32), {3, 3}));
        WriteSlot(plain, in[2] + in[1]);
        return Outputs{};
      },
      {{{kX, kMatrix}, {kW, kMatrix}, {plain, kMatrix}}});
  ScalifyOptions options = Options();
  options.scaled_inputs[kW] = DType::kF16;
  const Array ones = Array::FromSpan<float>(std::vector<float>(9, 1.0f), {3, 3});
  SlotValues values = ScaledInputs(ones, 1, ones, 4);
  values[ScaleSlot(kW)] = Cast(values[ScaleSlot(kW)], DType::kF16);
  values[plain] = ones;
  const SlotValues out = *EvalSlots(*Scalify(step, options), values);
  EXPECT_EQ(out.size(), 3u);
  EXPECT_EQ(out.at(ScaleSlot(kW)).dtype(), DType::kF16);
  EXPECT_EQ(ValueOf(out, kW)[0], 2);
  EXPECT_EQ(ValueOf(out, plain)[0], 5);
}

// Programs of every basic operation: each has a rule.
TEST(Scalify, EveryOperationHasARule) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const std::vector<Array> args = testing::RandomProgramArgs(seed);
    const Program program = *testing::RandomProgram(seed, 30);
    ScalifyOptions options{.rules = {.scale_dtype = DType::kF32}};
    SlotValues values;
    for (size_t i = 0; i < args.size(); ++i) {
      const Slot& slot = program.inputs[i].slot;
      values.emplace(slot, args[i]);
      if (!IsFloat(args[i].dtype()) || seed % 3 == i % 3) continue;
      options.scaled_inputs[slot] = DType::kF32;
      values.emplace(ScaleSlot(slot), Array::Scalar(0.5f));
    }
    const absl::StatusOr<Program> scaled = Scalify(program, options);
    ASSERT_TRUE(scaled.ok()) << scaled.status();
    const absl::StatusOr<SlotValues> out = EvalSlots(*scaled, values);
    ASSERT_TRUE(out.ok()) << out.status();
    for (const Program::Port& port : program.outputs) {
      EXPECT_EQ(out->at(port.slot).aval(), program.aval(port.var)) << port.slot.path;
    }
  }
}

}  // namespace
}  // namespace aqt
