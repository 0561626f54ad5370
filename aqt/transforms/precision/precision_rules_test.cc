// docs/precision-operations.md: the effect of Scalify and Amp on each operation, found by transforming one of each.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/scaling/debug_callback.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random_programs.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/precision/scaled.h"
#include "aqt/transforms/precision/scalify.h"
#include "aqt/transforms/quantize/inject.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

constexpr char kPage[] = "docs/precision-operations.md";
constexpr char kIntroduction[] = R"(# Operations under Scalify and Amp

Written by `//aqt/transforms/precision:precision_rules_test` from the behaviour of the transforms; do not edit.

*Scalify*: the scale of the result if all float operands have scales s1, s2, s3 and scales are not rounded; n is the number of
elements that are summed or multiplied, k the exponent. "plain" is a result without a scale. *jax-scalify*: the same with
`ScalifyCompat::Original()`. *Amp*: the precision of the operands under the default policy.

| operation | Scalify | jax-scalify | Amp |
|---|---|---|---|
)";

constexpr int64_t kN = 3, kExponent = 5;  // so that no two of the scales below are equal

using Values = absl::Span<const Value>;
struct Example {
  std::string name;
  std::vector<Aval> in;
  std::function<std::vector<Value>(Values)> fn;
};

const Aval kX{DType::kF32, {kN, kN}}, kFlags{DType::kBool, {kN, kN}}, kIndices{DType::kS32, {kN}};

// Gives an operation the attributes that it needs.
void SetAttributes(Op& op) {
  std::visit(Overload{
                 [](CastOp& o) { o.dtype = DType::kBF16; },
                 [](BitcastOp& o) { o.dtype = DType::kS32; },
                 [](IntegerPowOp& o) { o.exponent = kExponent; },
                 [](ReducePrecisionOp& o) {
                   o.precision = {5, 2};
                 },
                 [](ReduceOp& o) { o.axes = {1}; },
                 [](BroadcastOp& o) {
                   o = {Shape{2, kN, kN}, {1, 2}};
                 },
                 [](ReshapeOp& o) { o.shape = Shape{kN * kN}; },
                 [](TransposeOp& o) {
                   o.permutation = {1, 0};
                 },
                 [](SliceOp& o) {
                   o = {{0, 0}, {2, 2}, {1, 1}};
                 },
                 [](PadOp& o) {
                   o.low = o.high = o.interior = {1, 0};
                 },
                 [](ReverseOp& o) { o.axes = {0}; },
                 [](IotaOp& o) {
                   o = {DType::kF32, Shape{kN}, 0};
                 },
                 [](ArgReduceOp& o) { o.axis = 0; },
                 [](CumulativeSumOp& o) { o.axis = 0; },
                 [](TakeOp& o) { o.axis = 0; },
                 [](ScatterAddOp& o) { o = {.axis = 0, .extent = 4}; },
                 [](ReduceWindowOp& o) {
                   o.dims = {{2, 2}, {1, 1}, {0, 0}, {0, 0}};
                 },
                 [](ArgReduceWindowOp& o) {
                   o.dims = {{2, 2}, {1, 1}, {0, 0}, {0, 0}};
                 },
                 [](RandomBitsOp& o) { o.shape = Shape{4}; },
                 [](ConcatenateOp& o) { o.axis = 0; },
                 [](DotGeneralOp& o) {
                   o = {{{1}, {0}}, DType::kF32};
                 },
                 [](auto&) {},
             },
             op);
}

template <class... A>
std::vector<Aval> Of(const A&... avals) {
  return {avals...};
}

// An alternative without a line does not compile.
std::vector<Aval> OperandsOf(const Op& op) {
  using kernels::BinaryKind;
  const auto is_logical = [](BinaryKind kind) { return kind == BinaryKind::kAnd || kind == BinaryKind::kOr; };
  return std::visit(Overload{
                        [](const UnaryOp& o) { return Of(o.kind == kernels::UnaryKind::kNot ? kFlags : kX); },
                        [&](const BinaryOp& o) { return is_logical(o.kind) ? Of(kFlags, kFlags) : Of(kX, kX); },
                        [](const CompareOp&) { return Of(kX, kX); },
                        [](const SelectOp&) { return Of(kFlags, kX, kX); },
                        [](const CastOp&) { return Of(kX); },
                        [](const BitcastOp&) { return Of(kX); },
                        [](const ClampOp&) { return Of(kX, kX, kX); },
                        [](const IsFiniteOp&) { return Of(kX); },
                        [](const IntegerPowOp&) { return Of(kX); },
                        [](const ReducePrecisionOp&) { return Of(kX); },
                        [](const ReduceOp&) { return Of(kX); },
                        [](const BroadcastOp&) { return Of(kX); },
                        [](const ReshapeOp&) { return Of(kX); },
                        [](const TransposeOp&) { return Of(kX); },
                        [](const SliceOp&) { return Of(kX); },
                        [](const PadOp&) { return Of(kX); },
                        [](const ReverseOp&) { return Of(kX); },
                        [](const IotaOp&) { return Of(); },
                        [](const ArgReduceOp&) { return Of(kX); },
                        [](const CumulativeSumOp&) { return Of(kX); },
                        [](const TakeOp&) { return Of(kX, kIndices); },
                        [](const ScatterAddOp&) { return Of(kIndices, kX); },
                        [](const ReduceWindowOp&) { return Of(kX); },
                        [](const ArgReduceWindowOp&) { return Of(kX); },
                        [](const RandomBitsOp&) {
                          return Of(Aval{DType::kU32, {2}});
                        },
                        [](const ConcatenateOp&) { return Of(kX, kX); },
                        [](const DotGeneralOp&) { return Of(kX, kX); },
                        [](const StopGradientOp&) { return Of(kX); },
                        [](const CompositeOp&) { return Of(); },  // not among AllBasicOps
                    },
                    op);
}

std::vector<Example> Examples() {
  std::vector<Example> examples;
  for (Op op : testing::AllBasicOps()) {
    SetAttributes(op);
    const std::vector<Aval> in = OperandsOf(op);
    examples.push_back({OpName(op), in, [op](Values v) {
                          return std::vector<Value>{Bind(op, v, std::source_location::current())[0]};
                        }});
  }
  const auto add = [&](std::string name, std::vector<Aval> in, auto fn) {
    examples.push_back({std::move(name), std::move(in), [fn](Values v) { return std::vector<Value>{fn(v)}; }});
  };
  add("pad with another number than 0", {kX}, [](Values v) { return ops::Pad(v[0], {1, 0}, {0, 0}, {0, 0}, 1); });
  add("dot_general with batch axes", {{DType::kF32, {2, 4, kN}}, {DType::kF32, {2, kN, 4}}}, [](Values v) {
    return ops::DotGeneral(v[0], v[1], {{2}, {1}, {0}, {0}});
  });
  add("dot_general over two axes", {{DType::kF32, {4, kN, 1}}, {DType::kF32, {kN, 1, 4}}}, [](Values v) {
    return ops::DotGeneral(v[0], v[1], {{1, 2}, {0, 1}});
  });
  add("conv", {{DType::kF32, {1, 4, 4, 2}}, {DType::kF32, {2, 2, 2, 3}}}, [](Values v) {
    return ops::Conv(v[0], v[1], {.window_strides = {1, 1}, .padding = ConvPadding::kValid});
  });
  add("ragged_dot", {{DType::kF32, {4, kN}}, {DType::kF32, {2, kN, 5}}, {DType::kS32, {2}}},
      [](Values v) { return ops::RaggedDot(v[0], v[1], v[2]); });
  add("einsum", {kX, kX}, [](Values v) { return ops::Einsum("ij,jk->ik", v[0], v[1]); });
  add("set_scaling", {kX, {DType::kF32, {}}}, [](Values v) { return ops::SetScaling(v[0], v[1]); });
  add("stop_scaling", {kX}, [](Values v) { return ops::StopScaling(v[0]); });
  add("get_data", {kX}, [](Values v) { return ops::GetDataScale(v[0]).data; });
  add("get_scale", {kX}, [](Values v) { return ops::GetDataScale(v[0]).scale; });
  add("debug_callback", {kX}, [](Values v) { return ops::DebugCallback(v[0], [](const ScaledArray&) {}); });
  add("reduce_precision_on_forward", {kX}, [](Values v) { return ops::ReducePrecisionOnForward(v[0], DType::kE5M2); });
  add("reduce_precision_on_backward", {kX},
      [](Values v) { return ops::ReducePrecisionOnBackward(v[0], DType::kE5M2); });
  add("cast_on_forward", {kX}, [](Values v) { return ops::CastOnForward(v[0], DType::kF16); });
  add("cast_on_backward", {kX}, [](Values v) { return ops::CastOnBackward(v[0], DType::kF16); });
  return examples;
}

// The formula for a scale, inferred from its value for these scales of the operands.
std::string FormulaOf(float scale, const std::vector<float>& s) {
  const auto is = [&](double want) { return std::fabs(scale - want) <= 1e-5 * want; };
  const double one = s.empty() ? 0 : s[0], two = s.size() > 1 ? s[1] : 0, three = s.size() > 2 ? s[2] : 0;
  const double n = static_cast<double>(kN), root = std::sqrt(n);
  if (is(1)) return "1";
  if (is(one)) return s.size() > 1 ? "s1" : "s1";
  if (s.size() == 3 && is(std::max({one, two, three}))) return "max(s1, s2, s3)";
  if (s.size() == 2 && is(std::max(one, two))) return "max(s1, s2)";
  if (is(std::hypot(one, two))) return "sqrt(s1^2 + s2^2)";
  if (is(one * two)) return "s1 s2";
  if (two != 0 && is(one / two)) return "s1 / s2";
  if (is(one * root)) return "s1 sqrt(n)";
  if (is(one * two * root)) return "s1 s2 sqrt(n)";
  if (is(std::pow(one, n))) return "s1^n";
  if (is(std::pow(one, static_cast<double>(kExponent)))) return "s1^k";
  if (is(std::sqrt(one))) return "sqrt(s1)";
  if (is(1 / std::sqrt(one))) return "1 / sqrt(s1)";
  return absl::StrCat("unknown: ", scale);
}

std::string ScaleOf(const Example& example, const Program& program, const ScalifyCompat& compat) {
  constexpr float kScales[] = {0.71f, 5.3f, 2.9f};
  ScalifyOptions options{.rules = {.rounding = ScaleRounding::kNone, .scale_dtype = DType::kF32, .compat = compat}};
  SlotValues values;
  std::vector<float> scales;
  for (const Program::Port& port : program.inputs) {
    const Aval& aval = program.aval(port.var);
    std::vector<double> numbers(aval.shape.num_elements(), 1);
    values.emplace(port.slot, Cast(Array::FromSpan<double>(numbers, aval.shape), aval.dtype));
    // The scale that set_scaling sets is a plain operand.
    if (!IsFloat(aval.dtype) || (example.name == "set_scaling" && aval.shape.rank() == 0)) continue;
    options.scaled_inputs[port.slot] = DType::kF32;
    scales.push_back(kScales[scales.size()]);
    values.emplace(ScaleSlot(port.slot), Array::Scalar(scales.back()));
  }
  const absl::StatusOr<Program> scaled = Scalify(program, options);
  if (!scaled.ok()) return "refused";
  const absl::StatusOr<SlotValues> out = EvalSlots(*scaled, values);
  if (!out.ok()) return out.status().ToString();
  const auto scale = out->find(ScaleSlot(program.outputs[0].slot));
  if (scale == out->end()) return "plain";
  return FormulaOf(scale->second.View<float>()[0], scales);
}

std::string AmpRuleOf(const Program& program) {
  AmpReport report;
  if (!Amp(program, {}, &report).ok()) return "refused";
  return report.lines.empty() ? "" : report.lines.back().rule;
}

std::string Line(const std::string& name, const std::string& scalify, const std::string& original,
                 const std::string& amp) {
  return absl::StrCat("| ", name, " | ", scalify, " | ", original == scalify ? "the same" : original, " | ", amp,
                      " |\n");
}

std::string Page() {
  std::string page = kIntroduction;
  for (const Example& example : Examples()) {
    std::vector<Array> args;
    for (const Aval& aval : example.in) args.push_back(Array::Zeros(aval.dtype, aval.shape));
    const absl::StatusOr<Program> program = testing::TraceWith(example.fn, args);
    if (!program.ok()) {
      ADD_FAILURE() << example.name << ": " << program.status();
      continue;
    }
    absl::StrAppend(&page, Line(example.name, ScaleOf(example, *program, {}),
                                ScaleOf(example, *program, ScalifyCompat::Original()), AmpRuleOf(*program)));
  }
  // A contraction that Inject quantized.
  const Example dot{"quantized contractions", {kX, kX}, [](Values v) {
                      return std::vector<Value>{ops::DotGeneral(v[0], v[1], {{1}, {0}})};
                    }};
  InjectConfig config;
  config.rules.push_back({.dot_general = FullyQuantized()});
  const std::vector<Array> args(2, Array::Zeros(DType::kF32, kX.shape));
  const Program quantized = *Inject(*testing::TraceWith(dot.fn, args), config);
  absl::StrAppend(&page, Line(dot.name, ScaleOf(dot, quantized, {}), ScaleOf(dot, quantized, ScalifyCompat::Original()),
                              AmpRuleOf(quantized)));
  return page;
}

TEST(PrecisionRules, ThePageIsWhatTheTransformsDo) {
  const std::string page = Page();
  EXPECT_EQ(page.find("unknown"), std::string::npos);
  if (const char* out = std::getenv("AQT_WRITE_PAGE"); out != nullptr) std::ofstream(out) << page;
  std::ifstream file(kPage);
  EXPECT_EQ(page, std::string(std::istreambuf_iterator<char>(file), {}))
      << "to write it: AQT_WRITE_PAGE=$PWD/" << kPage << " bazel-bin/aqt/transforms/precision_rules_test";
}

}  // namespace
}  // namespace aqt
