// The composites of the FP8 layers in saved programs.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_scaling.h"
#include "aqt/ops/saved/composite.pb.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/ops/saved/saved_program_testing.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::saved::SavedComposite;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

// Small integers, whose sums are exact in any order.
Array Integers(const Aval& aval, int64_t seed) {
  ArrayBuilder x(DType::kF32, aval.shape);
  int64_t i = seed;
  for (float& v : x.Mutable<float>()) v = static_cast<float>(i++ * 5 % 13 - 6);
  return Cast(std::move(x).Build(), aval.dtype);
}

// A product with the state `name`, inside a weighted sum.
absl::StatusOr<Program> DotLoss(DType dtype, const Fp8DotOptions& options, const Shape& scale_shape) {
  const Aval x{dtype, {3, 4}}, k{dtype, {4, 2}};
  return Trace(
      [&](In in) {
        const Fp8DotState state = Fp8StateInputs(options.name, /*amax_history_length=*/3, scale_shape);
        const Value y = ops::Fp8Dot(in[0], in[1], state, options);
        return Values{ops::ReduceSum(y * Value(Integers({dtype, {3, 2}}, 2)))};
      },
      {{{SlotKind::kData, "x"}, x}, {{SlotKind::kData, "k"}, k}});
}

// Codes, also dequantized, and the update of a state.
absl::StatusOr<Program> Scaling(DType dtype, const Fp8ScaleRule& rule, std::optional<DType> compute_dtype) {
  return Trace(
      [&](In in) {
        const Value scale(Array::Of<float>({0.25f}, {1})), history(Array::Of<float>({3, 0, 7}, {3}));
        const Fp8TensorState next = ops::Fp8Update(in[0], {scale, history}, rule);
        return Values{ops::Cast(ops::Fp8Quantize(in[0], scale, rule.dtype, compute_dtype), DType::kF32),
                      ops::Fp8QuantizeDequantize(in[0], scale, rule.dtype, compute_dtype), next.scale,
                      next.amax_history};
      },
      {{{SlotKind::kData, "x"}, {dtype, {5}}}});
}

// Every operation with every field, forward and with its gradient.
std::vector<Program> Fp8Programs() {
  std::vector<absl::StatusOr<Program>> programs = {
      DotLoss(DType::kF32, {.name = "fc"}, {1}),
      DotLoss(DType::kBF16, {.name = "a/b", .compute_dtype = DType::kF32}, {}),
      DotLoss(DType::kF16, {.name = "c", .compat = Fp8Compat::Original()}, {1}),
      Scaling(DType::kF32, {}, std::nullopt),
      Scaling(DType::kBF16, {.dtype = DType::kE5M2, .margin = -2}, DType::kF16),
      Scaling(DType::kF32, {.compat = {.nan_amax_flips_scale = true}}, DType::kBF16),
  };
  for (int i = 0; i < 3; ++i) programs.push_back(ValueAndGrad(*programs[i], {0, 1}));
  std::vector<Program> good;
  for (absl::StatusOr<Program>& program : programs) {
    EXPECT_THAT(program, IsOk());
    if (program.ok()) good.push_back(*std::move(program));
  }
  return good;
}

std::set<std::string> Fp8Names() {
  std::set<std::string> names;
  for (const auto& [name, codec] : ops::ProgramCodecs()) {
    if (absl::StartsWith(name, "fp8_") && !absl::StrContains(name, "pack")) names.insert(name);
  }
  return names;
}

TEST(Fp8CompositeProtoTest, EveryCompositeComesBack) {
  std::set<std::string> seen;
  for (const Program& program : Fp8Programs()) {
    ASSERT_NO_FATAL_FAILURE(ExpectComesBack(program));
    seen.merge(CompositesOf(program));
  }
  EXPECT_EQ(seen, Fp8Names());
}

// The gradient of a loaded program updates the state of the same name.
TEST(Fp8CompositeProtoTest, ALoadedProgramHasTheSameGradient) {
  const absl::StatusOr<Program> loss = DotLoss(DType::kF32, {.name = "fc"}, {1});
  ASSERT_THAT(loss, IsOk());
  const absl::StatusOr<Program> loaded = LoadProgram(*SaveProgram(*loss, ops::ProgramCodecs()), ops::ProgramCodecs());
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(ToText(*ValueAndGrad(*loaded, {0, 1})), ToText(*ValueAndGrad(*loss, {0, 1})));
}

TEST(Fp8CompositeProtoTest, NonsenseIsRefused) {
  const std::vector<Program> programs = Fp8Programs();
  const Program &scaling = programs[3], &gradient = programs[6];
  struct Case {
    const Program* program;
    std::string name;
    std::function<void(SavedComposite&)> change;
    std::vector<std::string> parts;
  };
  const auto dot = [](SavedComposite& m) -> saved::SavedFp8Dot& { return *m.mutable_fp8_dot(); };
  for (const Case& c : std::vector<Case>{
           {&scaling, "fp8_quantize", [](auto& m) { m.mutable_fp8_quantize()->clear_dtype(); }, {"\"\" is no dtype"}},
           {&scaling,
            "fp8_quantize",
            [](auto& m) { m.mutable_fp8_quantize()->set_dtype("f16"); },
            {"to f16, expected"}},
           {&scaling,
            "fp8_quantize_dequantize",
            [](auto& m) { m.mutable_fp8_quantize()->set_compute_dtype("s8"); },
            {"compute_dtype is s8"}},
           {&scaling, "fp8_update", [](auto& m) { m.mutable_fp8_update()->set_margin(65); }, {"margin = 65"}},
           {&scaling, "fp8_update", [](auto& m) { m.mutable_fp8_update()->set_dtype("f64"); }, {"to f64, expected"}},
           {&gradient, "fp8_dot_fwd", [&](auto& m) { dot(m).set_compute_dtype("f64"); }, {"compute_dtype is f64"}},
           {&gradient, "fp8_dot_fwd", [&](auto& m) { dot(m).clear_kernel(); }, {"\"\" is no dtype"}},
           {&gradient,
            "fp8_dot_fwd",
            [&](auto& m) { dot(m).mutable_input()->mutable_scale()->set_shape(0, 2); },
            {"input_scale is f32[2], expected one f32 number"}},
           {&gradient,
            "fp8_dot_fwd",
            [&](auto& m) { dot(m).mutable_kernel()->mutable_amax_history()->set_shape(0, (1 << 20) + 1); },
            {"kernel_amax_history is f32[1048577], expected f32[length] with a length of 1 to 1048576"}},
           {&gradient,
            "fp8_dot_bwd",
            [](auto& m) { m.mutable_fp8_backward()->mutable_output_grad()->mutable_amax_history()->clear_shape(); },
            {"output_grad_amax_history is f32[]"}},
       }) {
    SavedComposite message = MessageOf<SavedComposite>(*c.program, c.name);
    c.change(message);
    EXPECT_THAT(ops::ProgramCodecs().at(c.name).load(message.SerializeAsString()), FailsWith(kDataLoss, c.parts));
  }
}

// The statistics of a composite match its operands.
TEST(Fp8CompositeProtoTest, StatisticsAreCheckedAndCounted) {
  const absl::StatusOr<Program> loss = DotLoss(DType::kF32, {.name = "fc"}, {1});
  ASSERT_THAT(loss, IsOk());
  const std::string bytes = *SaveProgram(*loss, ops::ProgramCodecs());
  const int64_t needed = 3 * (1 + 3) * 4;
  EXPECT_THAT(LoadProgram(bytes, ops::ProgramCodecs(), {.max_statistics_bytes = needed}), IsOk());
  EXPECT_THAT(LoadProgram(bytes, ops::ProgramCodecs(), {.max_statistics_bytes = needed - 1}),
              FailsWith(absl::StatusCode::kResourceExhausted, {"fp8_dot", "max_statistics_bytes"}));
  SavedComposite message = MessageOf<SavedComposite>(*loss, "fp8_dot");
  message.mutable_fp8_dot()->mutable_kernel()->mutable_amax_history()->set_shape(0, 4);
  const auto other = ops::ProgramCodecs().at("fp8_dot").load(message.SerializeAsString());
  ASSERT_THAT(other, IsOk());
  std::vector<Aval> operands;
  for (const Program::Port& input : loss->inputs) operands.push_back(loss->aval(input.var));
  EXPECT_THAT((*other)->Infer(operands),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"kernel has the state f32[1] and f32[3], expected f32[1] and f32[4]"}));
}

// One program that holds every composite of the FP8 layers, on constants.
absl::StatusOr<Program> EveryFp8Composite() {
  return Trace(
      [](In) {
        Values out;
        for (const Program& program : Fp8Programs()) {
          const SlotValues stats = InitialStats(program);
          Values args;
          for (const Program::Port& input : program.inputs) {
            const auto it = stats.find(input.slot);
            args.push_back(Value(it != stats.end() ? it->second : Integers(program.aval(input.var), 3)));
          }
          for (const Value& value : Inline(program, args)) out.push_back(value);
        }
        return out;
      },
      {});
}

TEST(Fp8CompositeProtoTest, OldFilesLoad) {
  ExpectOldFileLoads("every_fp8_composite_v1", Fp8Names(), &EveryFp8Composite);
}

}  // namespace
}  // namespace aqt
