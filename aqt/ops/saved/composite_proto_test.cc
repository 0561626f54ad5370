#include "aqt/ops/saved/composite_proto.h"

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/attention/attention.h"
#include "aqt/ops/contraction/contraction_problems.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/ops/saved/composite.pb.h"
#include "aqt/ops/saved/saved_program_testing.h"
#include "aqt/ops/scaling/low_precision.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/ops/xla_sum.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
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
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// The composites in saved programs: all except those refused by their codec and those of the FP8 layers
// (fp8_composite_proto_test.cc).
std::set<std::string> AllNames() {
  std::set<std::string> names;
  for (const auto& [name, codec] : ops::ProgramCodecs()) {
    if (name != "aqt_pack" && !absl::StartsWith(name, "fp8_")) names.insert(name);
  }
  return names;
}

// The operations of scaling.h, FoldInKey, and a qvalue.
absl::StatusOr<Program> OtherComposites() {
  const auto fn = [](In in) {
    const Value key = ops::FoldInKey(Value(Array::Of<uint32_t>({3, 4}, {2})), 7);
    Value x = in[0];
    for (const Value& y :
         {ops::SetScaling(x, 2.0), ops::StopScaling(x), ops::StopScaling(x, DType::kF32), ops::DynamicRescaleMax(x),
          ops::DynamicRescaleL1(x, {.dropped_under_grad = true}), ops::DynamicRescaleL2(x),
          ops::DynamicRescaleMaxGrad(x), ops::DynamicRescaleL1Grad(x), ops::DynamicRescaleL2Grad(x),
          ops::ReducePrecisionOnForward(x, DType::kE4M3FN), ops::ReducePrecisionOnBackward(x, DType::kE5M2),
          ops::CastOnForward(x, DType::kF64), ops::CastOnBackward(x, DType::kF64),
          internal::NumericsQvalue(IntSymmetric{.bits = 6}, x, Value(), PrngLayout::kPartitionable)}) {
      x = x + ops::Cast(y, DType::kF32);
    }
    return Values{ops::ReduceSum(x * ops::Cast(ops::RandomBits(key, {3}), DType::kF32))};
  };
  return testing::TraceWith(fn, {Array::Of<float>({1.5f, -0.3f, 2}, {3})});
}

// The composites added after the first file of testdata.
absl::StatusOr<Program> DataAndScale() {
  const auto fn = [](In in) {
    const auto [data, scale] = ops::GetDataScale(in[0], DType::kF64);
    return Values{ops::ReduceSum(data * 3.0), scale};
  };
  return testing::TraceWith(fn, {Array::Of<float>({1.5f, -0.3f, 2}, {3})});
}

absl::StatusOr<Program> LowPrecisionSums() {
  const auto fn = [](In in) {
    const SmallFloat narrow = {.min_exponent = -3, .max_exponent = 4, .mantissa_bits = 2};
    return Values{ops::LowPrecisionSum(in[0], {1}, SmallFloat()), ops::LowPrecisionSum(in[0], {0, 1}, narrow)};
  };
  return testing::TraceWith(fn, {Array::Of<float>({1.5f, -0.3f, 2, 7.25f, 0.01f, 3}, {2, 3})});
}

absl::StatusOr<Program> XlaSums() {
  const auto fn = [](In in) { return Values{internal::SumAsXla(in[0], {1}), internal::SumAsXla(in[0], {0, 1})}; };
  return testing::TraceWith(fn, {Array::Of<float>({1.5f, -0.3f, 2, 7.25f, 0.01f, 3}, {2, 3})});
}

// One feature, and values of one bit: the bits of the sums do not depend on the target.
absl::StatusOr<Program> Attentions() {
  const auto fn = [](In in) {
    AttentionOperands operands{in[0], in[1], in[1]};
    Value sum = ops::Attention(operands);
    operands.mask = ops::Less(in[2], 0.5);
    sum = sum + ops::Attention(operands);
    operands.bias = in[2];
    sum = sum + ops::Attention(operands);
    operands.mask.reset();
    return Values{sum + ops::Attention(operands)};
  };
  const Array scores = Array::Of<float>({1, 0.25f, -2, 0, 0.5f, 3}, {2, 3});
  return testing::TraceWith(fn, {Array::Of<float>({1.5f, -0.5f, 2, 0.75f}, {1, 2, 2, 1}),
                                 Array::Of<float>({1, -1, 0.5f, 2, 0, -0.25f}, {1, 3, 2, 1}), scores});
}

// The names of composites that are newer than the first file.
std::set<std::string> LaterNames() {
  std::set<std::string> names = CompositesOf(*DataAndScale());
  names.merge(CompositesOf(*LowPrecisionSums()));
  names.merge(CompositesOf(*XlaSums()));
  names.merge(CompositesOf(*Attentions()));
  return names;
}

// Programs of one random contraction: with gradients, statistics and everything in their expansions, and the operand
// quantized ahead of time.
std::vector<Program> ProgramsOf(Random& random, ContractionProblem (*draw)(Random&)) {
  ContractionProblem problem = draw(random);
  if (!problem.is_float() && random.Below(2) == 0) {
    DotGeneralConfig config = problem.config;
    AddStates(random, config);
    problem.config.fwd = config.fwd;
    if (!std::holds_alternative<ConvDims>(problem.dims)) problem.config = config;
  }
  const absl::StatusOr<Program> loss = LossOf(problem);
  if (!loss.ok()) return {};
  std::vector<Program> programs = {*loss};
  if (const absl::StatusOr<Program> gradient = ValueAndGrad(*loss, {0, 1}); gradient.ok()) {
    programs.push_back(*gradient);
  }
  const QuantizedDotOptions convert{.config = problem.config,
                                    .lhs_mode = QuantMode::kConvert,
                                    .rhs_mode = QuantMode::kConvert,
                                    .with_gradient = false,
                                    .key_slot = "key",
                                    .semantics = problem.semantics};
  const absl::StatusOr<Program> converted = Trace(
      [&](In in) {
        return Values{QuantizedContraction(in, problem.dims, convert, "dot", std::source_location::current())};
      },
      InputsFor(problem), std::vector<Slot>{OutSlot()});
  if (converted.ok()) programs.push_back(*converted);
  for (size_t i = 0, n = programs.size(); i < n; ++i) {
    if (absl::StatusOr<Program> expanded = ExpandFully(programs[i]); expanded.ok()) programs.push_back(*expanded);
  }
  return programs;
}

constexpr ContractionProblem (*kDraws[])(Random&) = {&RandomDotContraction, &RandomConvProblem, &RandomEinsumProblem,
                                                     &RandomRaggedProblem};

TEST(CompositeProtoTest, EveryCompositeComesBack) {
  std::set<std::string> seen;
  const auto check = [&](const Program& program) {
    ASSERT_NO_FATAL_FAILURE(ExpectComesBack(program));
    seen.merge(CompositesOf(program));
  };
  for (int64_t seed = 1; seed <= 60; ++seed) {
    for (const auto draw : kDraws) {
      Random random(static_cast<uint64_t>(seed));
      for (const Program& program : ProgramsOf(random, draw)) {
        SCOPED_TRACE(seed);
        ASSERT_NO_FATAL_FAILURE(check(program));
      }
    }
  }
  const absl::StatusOr<Program> others = OtherComposites();
  ASSERT_THAT(others, IsOk());
  ASSERT_NO_FATAL_FAILURE(check(*others));
  ASSERT_NO_FATAL_FAILURE(check(*ValueAndGrad(*others, {0})));
  ASSERT_NO_FATAL_FAILURE(check(*ValueAndGrad(*DataAndScale(), {0})));
  ASSERT_NO_FATAL_FAILURE(check(*LowPrecisionSums()));
  ASSERT_NO_FATAL_FAILURE(check(*XlaSums()));
  ASSERT_NO_FATAL_FAILURE(check(*Attentions()));
  EXPECT_EQ(seen, AllNames());
}

TEST(CompositeProtoTest, PackedOperandsAreForOneMachine) {
  const DotGeneralConfig config = DotGeneralMake(8, 8);
  const auto fn = [&](In in) {
    return Values{ops::AqtDotGeneral(in[0], in[1], MatMulDims(), DotGeneralConfig{.fwd = {.lhs = config.fwd.lhs}})};
  };
  const absl::StatusOr<Program> program = testing::TraceWith(
      fn, {testing::RandomArray({DType::kF32, {2, 3}}, 1), testing::RandomArray({DType::kF32, {3, 4}}, 2)});
  ASSERT_THAT(program, IsOk());
  const absl::StatusOr<Program> packed = Rewrite(*program, [](const Equation& eqn, In operands) {
    const bool is_fixed[] = {false, true};
    return BindPacked(eqn.op, operands, is_fixed, eqn.where).value_or(Values());
  });
  ASSERT_THAT(packed, IsOk());
  EXPECT_EQ(testing::CountOps(*packed, "aqt_pack"), 1);
  EXPECT_THAT(SaveProgram(*packed, ops::ProgramCodecs()),
              FailsWith(kUnimplemented, {"aqt_pack: it cannot be saved", "the kernels of this machine"}));
}

// A quantized contraction with a statistic, and noise in its gradient.
Program WithGradient() {
  DotGeneralConfig config = DotGeneralMake(8, 8);
  config.fwd.lhs.quantizer.calibration = MeanOfAbsMax{};
  config.dlhs = DotGeneralRawMake(8, 8);
  std::get<IntSymmetric>(config.dlhs.lhs.quantizer.numerics).noise = Noise{};
  config.dlhs.rhs.quantizer.calibration = DelayedScaling{.amax_history_length = 4};
  const ContractionProblem problem{.config = config,
                                   .dims = MatMulDims(),
                                   .lhs = testing::RandomArray({DType::kF32, {2, 3}}, 1),
                                   .rhs = testing::RandomArray({DType::kF32, {3, 4}}, 2)};
  return *ValueAndGrad(*LossOf(problem), {0, 1});
}

// A change to a composite's message that makes it well formed nonsense.
struct Nonsense {
  std::string name;
  std::function<void(SavedComposite&)> change;
  std::vector<std::string> parts;
  absl::StatusCode code = kDataLoss;
};

void ExpectRefused(const Program& program, const std::vector<Nonsense>& cases) {
  for (const Nonsense& c : cases) {
    SavedComposite message = MessageOf<SavedComposite>(program, c.name);
    c.change(message);
    const CompositeCodec& codec = ops::ProgramCodecs().at(c.name);
    EXPECT_THAT(codec.load(message.SerializeAsString()), FailsWith(c.code, c.parts)) << c.name;
    EXPECT_THAT(codec.load(message.SerializeAsString() + "\xff"), FailsWith(kDataLoss, {"cannot be read"}));
  }
}

TEST(CompositeProtoTest, NonsenseContractionsAreRefused) {
  const char* fwd = "aqt_dot_general_fwd";
  ExpectRefused(
      WithGradient(),
      {
          {fwd, [](SavedComposite& m) { m.Clear(); }, {"there is no configuration"}},
          {fwd,
           [](SavedComposite& m) { m.GetReflection()->MutableUnknownFields(&m)->AddVarint(100, 1); },
           {"fields that this version does not know"},
           kUnimplemented},
          {fwd, [](SavedComposite& m) { m.mutable_forward()->clear_contraction(); }, {"\"\" is no dtype"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->mutable_contraction()->clear_dot(); },
           {"contraction: dims: nothing is set"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->mutable_contraction()->clear_config(); },
           {"contraction: \"semantics\" is set, but this operation has no such field"}},
          {fwd,
           [](SavedComposite& m) {
             saved::SavedContraction& contraction = *m.mutable_forward()->mutable_contraction();
             contraction.clear_config();
             contraction.clear_semantics();
             contraction.clear_lhs_mode();
             contraction.clear_rhs_mode();
           },
           {"a float dot_general is a basic operation"}},
          {fwd,
           [](SavedComposite& m) { m = MessageOf<SavedComposite>(WithGradient(), "aqt_dot_general_bwd"); },
           {"the configuration is that of another operation"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->mutable_contraction()->mutable_lhs()->set_shape(1, 7); },
           {"contracting sizes differ"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->mutable_contraction()->clear_lhs_mode(); },
           {"contraction: lhs_mode: 0 is no mode"}},
          {fwd,
           [](SavedComposite& m) {
             m.mutable_forward()->mutable_contraction()->mutable_config()->mutable_fwd()->mutable_local_aqt();
           },
           {"local_aqt is only supported in dlhs and drhs"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->set_lhs(static_cast<saved::SavedOperand>(3)); },
           {"lhs: 3 is no form of an operand"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->set_rhs(saved::SAVED_OPERAND_FLOAT_WITH_SCALE); },
           {"an operand has a scale, and so has no gradient"}},
          {fwd, [](SavedComposite& m) { m.mutable_forward()->set_has_key(false); }, {"no key"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->set_has_backward_state(false); },
           {"has 2 statistics, which are not operands"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->clear_backward_slots(); },
           {"names 0 statistics of the gradient, expected 2"}},
          {fwd,
           [](SavedComposite& m) { m.mutable_forward()->mutable_backward_slots(0)->set_kind("x"); },
           {"\"x\" is no kind of slot"}},
          {"aqt_dot_general_bwd",
           [](SavedComposite& m) { m.mutable_backward()->set_has_key(false); },
           {"rounds stochastically, but has no key"}},
      });
}

TEST(CompositeProtoTest, NonsenseStepsOfAContractionAreRefused) {
  ExpectRefused(
      *ExpandFully(WithGradient()),
      {
          {"aqt_operand_key", [](SavedComposite& m) { m.mutable_operand_key()->set_role(8); }, {"8 is no role"}},
          {"aqt_noise", [](SavedComposite& m) { m.mutable_noise()->clear_quantizer(); }, {"quantizes nothing"}},
          {"aqt_noise",
           [](SavedComposite& m) { m.mutable_noise()->mutable_quantizer()->mutable_int_symmetric()->clear_noise(); },
           {"there is no noise"}},
          {"aqt_noise", [](SavedComposite& m) { m.mutable_noise()->add_shape(-1); }, {"negative extent"}},
          {"aqt_calibrate",
           [](SavedComposite& m) { m.mutable_calibrate()->mutable_quantizer()->mutable_abs_max(); },
           {"state"}},
          {"aqt_calibrate", [](SavedComposite& m) { m.mutable_calibrate()->add_axes(9); }, {"axes"}},
      });
}

TEST(CompositeProtoTest, NonsenseScalingsAreRefused) {
  ExpectRefused(
      *OtherComposites(),
      {
          {"set_scaling", [](SavedComposite& m) { m.mutable_scaling()->set_kind(9); }, {"9 is no kind of scaling"}},
          {"set_scaling",
           [](SavedComposite& m) { m.mutable_scaling()->set_backward(true); },
           {"set_scaling has no backward kind"}},
          {"cast_on_forward",
           [](SavedComposite& m) { m.mutable_scaling()->clear_dtype(); },
           {"cast_on_forward needs a dtype"}},
          {"cast_on_forward",
           [](SavedComposite& m) { m.mutable_scaling()->set_dtype("f31"); },
           {"\"f31\" is no dtype"}},
      });
}

TEST(CompositeProtoTest, StatisticsAreCounted) {
  const Program program = WithGradient();
  const std::string bytes = *SaveProgram(program, ops::ProgramCodecs());
  // The forward pass has f32[2,1] and a count s32[]; the gradient has f32[4] and f32[1], in both of its operations.
  const int64_t forward = 8 + 4, backward = 16 + 4, needed = forward + 2 * backward;
  EXPECT_THAT(LoadProgram(bytes, ops::ProgramCodecs(), {.max_statistics_bytes = needed}), IsOk());
  EXPECT_THAT(LoadProgram(bytes, ops::ProgramCodecs(), {.max_statistics_bytes = needed - 1}),
              FailsWith(absl::StatusCode::kResourceExhausted, {"aqt_dot_general_bwd", "max_statistics_bytes"}));
}

// One program that contains these, on constants.
absl::StatusOr<Program> OnConstants(absl::Span<const Program> programs) {
  return Trace(
      [&](In) {
        Values out;
        for (const Program& program : programs) {
          Random random(5);
          const SlotValues stats = SomeStats(program, random);
          Values args;
          for (const Program::Port& input : program.inputs) {
            const Aval& aval = program.aval(input.var);
            if (const auto it = stats.find(input.slot); it != stats.end()) args.push_back(Value(it->second));
            else if (input.slot.path == "groups") args.push_back(Value(Array::Zeros(aval.dtype, aval.shape)));
            else if (aval == KeyAval()) args.push_back(Value(KeyArray(3)));
            else args.push_back(Value(testing::RandomArray(aval, 11)));
          }
          for (const Value& value : Inline(program, args)) out.push_back(value);
        }
        return out;
      },
      {});
}

// One small program that holds every composite except the later ones, on constants, with results that are the same on
// every machine.
absl::StatusOr<Program> EveryComposite() {
  std::vector<Program> programs = {*OtherComposites(), *ValueAndGrad(*OtherComposites(), {0})};
  std::set<std::string> seen = CompositesOf(programs[0]), later = LaterNames(), names = AllNames();
  std::erase_if(names, [&](const std::string& name) { return later.contains(name); });
  for (int64_t seed = 1; seed <= 1000 && seen != names; ++seed) {
    for (const auto draw : kDraws) {
      Random random(static_cast<uint64_t>(seed));
      for (Program& program : ProgramsOf(random, draw)) {
        const std::string text = ToText(program);
        const auto has = [&](absl::string_view word) { return absl::StrContains(text, word); };
        std::set<std::string> own = CompositesOf(program);
        const size_t before = seen.size();
        if (has("xla_sum") || has("f16") || has("e4m3") || has("e5m2") || has("f64") || program.eqns.size() > 60)
          continue;
        seen.merge(own);
        if (seen.size() > before) programs.push_back(std::move(program));
      }
    }
  }
  EXPECT_EQ(seen, names);
  return OnConstants(programs);
}

// A composite that is added later needs its own file.
TEST(CompositeProtoTest, OldFilesLoad) {
  std::set<std::string> first = AllNames();
  const std::set<std::string> later = LaterNames();
  std::erase_if(first, [&](const std::string& name) { return later.contains(name); });
  ExpectOldFileLoads("every_composite_v1", first, &EveryComposite);
  ExpectOldFileLoads("data_and_scale_v1", CompositesOf(*DataAndScale()), [] { return OnConstants({*DataAndScale()}); });
  ExpectOldFileLoads("low_precision_sum_v1", CompositesOf(*LowPrecisionSums()),
                     [] { return OnConstants({*LowPrecisionSums()}); });
  ExpectOldFileLoads("xla_sum_v1", CompositesOf(*XlaSums()), [] { return OnConstants({*XlaSums()}); });
  ExpectOldFileLoads("attention_v1", CompositesOf(*Attentions()), [] { return OnConstants({*Attentions()}); });
}

}  // namespace
}  // namespace aqt
