#include "aqt/graph/composite_base.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::TraceWith;
using ::testing::ElementsAre;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Value Call(std::shared_ptr<const Composite> composite, In operands) {
  return Bind(CompositeOp{std::move(composite)}, operands, std::source_location::current())[0];
}

// x^2, defined only by its expansion.
class Square : public CompositeBase {
 public:
  std::string Name() const override { return "square"; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 1) return absl::InvalidArgumentError("takes one operand");
    return std::vector<Aval>{in[0]};
  }
  std::vector<Value> Expand(In x) const override { return {x[0] * x[0]}; }
};

TEST(CompositeTest, WithoutAnythingElseItsExpansionIsUsed) {
  const auto fn = [](In in) {
    const NamedScope scope("layer");
    return Values{Call(std::make_shared<Square>(), {in[0] + 1.0})};
  };
  absl::StatusOr<std::vector<Array>> out = testing::RunBothWays(fn, {Array::Of<float>({1, 2}, {2})});
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual((*out)[0], Array::Of<float>({4, 9}, {2})));
  absl::StatusOr<Program> program = TraceWith(fn, {Array::Of<float>({1, 2}, {2})});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(CountOps(*program, "square"), 1);
  EXPECT_THAT(testing::CheckGradients(fn, {RandomArray({DType::kF64, {4}}, 1)}), IsOk());
}

TEST(CompositeTest, RefusalsSurface) {
  EXPECT_THAT(TraceWith(
                  [](In in) {
                    const NamedScope scope("layer");
                    return Values{Call(std::make_shared<Square>(), {in[0], in[0]})};
                  },
                  {Array::Scalar(1.0f)}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"square [layer]: takes one operand", "f32[], f32[]"}));
}

// y = x * w in a fused form, with a statistic as its second output. When a gradient is taken, another composite also
// returns the residuals; the backward pass is one equation, and its Eval is told which outputs are needed.
struct Log {
  std::vector<std::string> lines;
};

class ScaleBackward : public CompositeBase {
 public:
  explicit ScaleBackward(Log* log) : log_(log) {}
  std::string Name() const override { return "scale_backward"; }
  int num_outputs() const override { return 3; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {  // (ct, doubled x, w)
    return std::vector<Aval>{in[0], in[0], {in[0].dtype, {}}};
  }
  std::vector<Value> Expand(In in) const override {
    return {in[0] * in[2], in[0] * (in[1] / 2.0), ops::ReduceMax(in[0])};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    log_->lines.push_back(absl::StrCat("backward needs ", needed[0], needed[1], needed[2]));
    absl::StatusOr<std::vector<Array>> out = CompositeBase::Eval(in, needed);
    for (size_t i = 0; i < 3; ++i) {
      if (!needed[i]) (*out)[i] = Array();
    }
    return out;
  }

 private:
  Log* log_;
};

class Scale : public CompositeBase {
 public:
  Scale(Log* log, bool with_residual) : log_(log), with_residual_(with_residual) {}
  std::string Name() const override { return with_residual_ ? "scale_forward" : "scale"; }
  std::string Attributes() const override { return "by=w"; }
  int num_outputs() const override { return with_residual_ ? 3 : 2; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    std::vector<Aval> out = {in[0], {in[0].dtype, {}}};
    if (with_residual_) out.push_back(in[0]);
    return out;
  }
  std::vector<Value> Expand(In in) const override {
    Values out = {in[0] * in[1], ops::ReduceMax(in[0])};
    if (with_residual_) out.push_back(in[0] * 2.0);
    return out;
  }
  bool has_gradient() const override { return true; }
  Forward GradForward(In in) const override {
    Values out = Bind(CompositeOp{std::make_shared<Scale>(log_, true)}, in, std::source_location::current());
    return {.outputs = {out[0], out[1]}, .residuals = {out[2], in[1]}};
  }
  std::vector<std::optional<Value>> GradBackward(In residuals, In cts) const override {
    const Values out = Bind(CompositeOp{std::make_shared<ScaleBackward>(log_)}, {cts[0], residuals[0], residuals[1]},
                            std::source_location::current());
    WriteSlot({SlotKind::kStat, absl::StrCat(CurrentScope(), "/max")}, out[2]);
    return {out[0], out[1]};
  }

 private:
  Log* log_;
  bool with_residual_;
};

TEST(CompositeTest, OwnGradientWithResidualsStatisticsAndMask) {
  Log log;
  const auto loss = [&](In in) {
    Value x = in[0];
    for (const char* name : {"fc1", "fc2"}) {
      const NamedScope scope(name);
      x = Call(std::make_shared<Scale>(&log, false), {x, in[1]});
    }
    return Values{ops::ReduceSum(x)};
  };
  const std::vector<Array> args = {RandomArray({DType::kF64, {3}}, 1), RandomArray({DType::kF64, {3}}, 2)};
  absl::StatusOr<Program> program = TraceWith(loss, args);
  ASSERT_THAT(program, IsOk());
  absl::StatusOr<Program> gradient = Grad(*program, {1});
  ASSERT_THAT(gradient, IsOk());
  EXPECT_EQ(ToText(*gradient), R"text(in %0: f64[3] data "0"
in %1: f64[3] data "1"
const %2: f64[] = 1
%3: f64[3], %4: f64[], %5: f64[3] = scale_forward(%0, %1) {by=w} @fc1
%6: f64[3], %7: f64[], %8: f64[3] = scale_forward(%3, %1) {by=w} @fc2
%9: f64[] = reduce_sum(%6) {axes=[0]}
%10: f64[3] = broadcast(%2) {axes=[]} @grad()
%11: f64[3], %12: f64[3], %13: f64[] = scale_backward(%10, %8, %1) @grad(fc2)
%14: f64[3], %15: f64[3], %16: f64[] = scale_backward(%11, %5, %1) @grad(fc1)
%17: f64[3] = add(%12, %15) @grad(fc1)
out %17 data "grad(1)"
out %13 stat "grad(fc2)/max"
out %16 stat "grad(fc1)/max"
)text");
  absl::StatusOr<std::vector<Array>> got = Eval(*gradient, args);
  ASSERT_THAT(got, IsOk());
  // The first layer's input needs no gradient, and its equation's Eval is told so.
  EXPECT_THAT(log.lines, ElementsAre("backward needs 111", "backward needs 011"));

  // Compares with the gradient of the expanded program, bit for bit.
  absl::StatusOr<Program> expanded = Rewrite(*program, [](const Equation& eqn, In in) {
    const CompositeOp* op = std::get_if<CompositeOp>(&eqn.op);
    return op != nullptr ? op->impl->Expand(in) : BindAgain(eqn, in);
  });
  ASSERT_THAT(expanded, IsOk());
  EXPECT_EQ(CountOps(*expanded, "scale"), 0);
  EXPECT_EQ(expanded->scope(expanded->eqns[0]), "fc1");
  absl::StatusOr<std::vector<Array>> want = Eval(*Grad(*expanded, {1}), args);
  ASSERT_THAT(want, IsOk());
  EXPECT_TRUE(BitEqual((*got)[0], (*want)[0]));
}

// A composite whose fused form breaks its contract gives an error, not a wrong result.
class Liar : public Square {
 public:
  std::string Name() const override { return "liar"; }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array>, absl::Span<const bool>) const override {
    return std::vector<Array>{Array::Zeros(DType::kS32, {})};
  }
};

TEST(CompositeTest, AWrongEvaluationIsReported) {
  const Value out = Call(std::make_shared<Liar>(), {Value(Array::Scalar(1.0f))});
  EXPECT_THAT(out.ToArray(),
              FailsWith(absl::StatusCode::kInternal, {"liar: evaluation gave s32[]", "instead of f32[]"}));
}

// An operation with neither expansion nor gradient.
class Opaque : public CompositeBase {
 public:
  std::string Name() const override { return "opaque"; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override { return std::vector<Aval>{in[0]}; }
  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    return std::vector<Array>{in[0]};
  }
};

TEST(CompositeTest, WithoutExpansionNoGradientFlows) {
  const Array x = Array::Of<double>({3, 4}, {2});
  absl::StatusOr<Program> program =
      TraceWith([](In in) { return Values{ops::ReduceSum(in[0] * Call(std::make_shared<Opaque>(), {in[0]}))}; }, {x});
  ASSERT_THAT(program, IsOk());
  absl::StatusOr<std::vector<Array>> gradient = Eval(*Grad(*program, {0}), {x});
  ASSERT_THAT(gradient, IsOk());
  EXPECT_TRUE(BitEqual((*gradient)[0], x));
  EXPECT_EQ(OpName(program->eqns[0].op), "opaque");
}

// The kernel of `op` for operands like `in`, run on them; outputs are at `out`.
absl::Status RunKernel(const Composite& op, absl::Span<const Array> in, absl::Span<const bool> needed,
                       absl::Span<void* const> out) {
  std::vector<KernelInput> operands;
  std::vector<const void*> data;
  for (const Array& array : in) {
    operands.push_back({array.aval()});
    data.push_back(array.data());
  }
  const absl::StatusOr<OpKernel> kernel = op.MakeKernel(operands, needed);
  if (!kernel.ok()) return kernel.status();
  return kernel->run({data.data(), out.data(), /*scratch=*/nullptr, /*executor=*/nullptr});
}

TEST(CompositeTest, WithoutAKernelEvalIsCopied) {
  const Array x = Array::Of<double>({3, 4}, {2});
  double out[2] = {};
  ASSERT_THAT(RunKernel(*std::make_shared<Opaque>(), {x}, {true}, {out}), IsOk());
  EXPECT_THAT(out, ElementsAre(3, 4));
  ASSERT_THAT(RunKernel(*std::make_shared<Opaque>(), {x}, {false}, {nullptr}), IsOk());  // writes nothing
  const auto liar = std::make_shared<Liar>();
  EXPECT_THAT(RunKernel(*liar, {Array::Scalar(1.0f)}, {true}, {out}),
              FailsWith(absl::StatusCode::kInternal, {"other outputs than were inferred"}));
}

// Two outputs, defined only by a kernel: the operand itself, and its negation. The scratch memory is written.
class Mirror : public CompositeBase {
 public:
  std::string Name() const override { return "mirror"; }
  int num_outputs() const override { return 2; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    return std::vector<Aval>{in[0], in[0]};
  }
  bool has_expansion() const override { return false; }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    if (!in[0].constant.has_value()) return absl::UnimplementedError("Eval knows its operands");
    const auto run = [n = in[0].aval.shape.num_elements(), writes = needed[1]](const KernelCall& call) {
      auto* scratch = static_cast<float*>(call.scratch);
      for (int64_t i = 0; i < n; ++i) scratch[i] = -static_cast<const float*>(call.in[0])[i];
      if (writes) std::copy_n(scratch, n, static_cast<float*>(call.out[1]));
      return absl::OkStatus();
    };
    return OpKernel{.run = run, .scratch_bytes = in[0].aval.num_bytes(), .same = {{0, 0}}};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
};

TEST(CompositeTest, EvalByKernel) {
  const Array x = Array::Of<float>({3, -4}, {2});
  const auto mirror = std::make_shared<Mirror>();
  const absl::StatusOr<std::vector<Array>> both = mirror->Eval({x}, {true, true});
  ASSERT_THAT(both, IsOk());
  EXPECT_EQ((*both)[0].data(), x.data()) << "the operand, not a copy";
  EXPECT_TRUE(BitEqual((*both)[1], Array::Of<float>({-3, 4}, {2})));
  for (const bool needed : {false, true}) {
    const absl::StatusOr<std::vector<Array>> one = mirror->Eval({x}, {needed, false});
    ASSERT_THAT(one, IsOk());
    EXPECT_TRUE(BitEqual((*one)[0], x));
  }
}

TEST(CompositeTest, PoisonedOperandsPoisonEveryOutput) {
  Log log;
  const Values out =
      Bind(CompositeOp{std::make_shared<Scale>(&log, true)}, {Value(), Value()}, std::source_location::current());
  ASSERT_EQ(out.size(), 3u);
  for (const Value& value : out) EXPECT_FALSE(value.status().ok());
}

}  // namespace
}  // namespace aqt
