// DotGeneralRawConfig::hadamard against NumPy (tests/golden/hadamard): the same bits.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/kernels/quantize/hadamard.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "aqt/transforms/quantize/serve.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;

const io::SafetensorsReader& Recording() {
  static const auto& reader = *new io::SafetensorsReader(
      *io::SafetensorsReader::Open(io::LocalFileSystem(), "tests/golden/hadamard/hadamard.safetensors"));
  return reader;
}
Array Recorded(const std::string& name) { return *Recording().ReadArray(name); }

struct Case {
  std::string name;
  int64_t block;
};
const Case kCases[] = {{"5x64x7_64", 64}, {"3x128x4_64", 64},   {"4x312x6_64", 64}, {"2x100x3_32", 32},
                       {"6x7x5_2", 2},    {"1x384x9_128", 128}, {"3x16x2_16", 16},  {"2x300x2_256", 256},
                       {"4x1x3_64", 64},  {"3x40x5_8", 8}};

// What the observer of a call sees of the lhs.
struct LhsOf final : Observer {
  void OnTensor(absl::string_view name, const ArrayRef& value) override {
    if (name == "fwd.lhs.qvalue") qvalue = Array::CopyOf(value);
    if (name == "fwd.lhs.scale") scale = Array::CopyOf(value);
  }
  Array qvalue, scale;
};

TEST(Hadamard, EqualsNumPy) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto recorded = [&](const char* what) { return Recorded(absl::StrCat(c.name, "/", what)); };
    const Array lhs = recorded("lhs"), rhs = recorded("rhs"), g = recorded("g");
    DotGeneralConfig config = *FullyQuantized({.use_fwd_quant = true, .use_stochastic_rounding = false});
    config.fwd.hadamard = Hadamard{.block = c.block};
    for (const kernels::Target target : kernels::SupportedTargets()) {
      SCOPED_TRACE(target);
      const auto plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims(),
                                             {.semantics = {.arithmetic = Arithmetic::kIeee}, .target = target});
      ASSERT_THAT(plan, IsOk());
      LhsOf observer;
      for (const bool observed : {false, true}) {  // the kernels of one pass, and step by step
        const Runtime runtime{.observer = observed ? &observer : nullptr};
        ArrayBuilder out(plan->out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
        Residuals residuals;
        ASSERT_THAT(plan->Forward(lhs, rhs, {}, out.ref(), &residuals, runtime), IsOk());
        ASSERT_THAT(plan->Backward(g, residuals, {}, dlhs.ref(), drhs.ref(), runtime), IsOk());
        EXPECT_TRUE(BitEqual(std::move(out).Build(), recorded("out"))) << observed;
        EXPECT_TRUE(BitEqual(std::move(dlhs).Build(), recorded("dlhs"))) << observed;
        EXPECT_TRUE(BitEqual(std::move(drhs).Build(), recorded("drhs"))) << observed;
      }
      EXPECT_TRUE(BitEqual(observer.qvalue, recorded("qlhs")));
      EXPECT_TRUE(BitEqual(observer.scale, recorded("lhs_scale")));
    }
  }
}

TEST(Hadamard, RowsEqualNumPy) {
  const auto expect = [](const Array& x, int64_t block, const Array& want) {
    for (const kernels::Target target : kernels::SupportedTargets()) {
      ArrayBuilder out(x.aval());
      const int64_t n = x.shape()[1];
      kernels::HadamardRows({.x = x.data(),
                             .out = out.data(),
                             .dtype = x.dtype(),
                             .rows = x.shape()[0],
                             .n = n,
                             .x_row_stride = n,
                             .out_row_stride = n,
                             .block = block},
                            target);
      EXPECT_TRUE(BitEqual(std::move(out).Build(), want)) << target << " " << x.aval();
    }
  };
  for (const Case& c : kCases) expect(Recorded(c.name + "/lhs"), c.block, Recorded(c.name + "/rotated"));
  for (const std::string dtype : {"bfloat16", "float16"})
    expect(Recorded(dtype + "/x"), 64, Recorded(dtype + "/rotated"));
}

// ---- programs

const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "y"};

// Two layers, and a product of two activations: x [B,72] -> [B,B].
Program ModelOf(int64_t batch) {
  return *Trace(
      [](absl::Span<const Value> in) {
        const auto weight = [](const char* name, const Shape& shape) {
          return InputSlot({SlotKind::kParam, name}, {DType::kF32, shape});
        };
        Value h;
        {
          const NamedScope scope("first");
          h = ops::MatMul(in[0], weight("first/kernel", {72, 100}));
        }
        {
          const NamedScope scope("second");
          h = ops::MatMul(h, weight("second/kernel", {100, 64}));
        }
        const NamedScope scope("scores");
        return std::vector<Value>{ops::DotGeneral(h, h, {.lhs_contracting = {1}, .rhs_contracting = {1}})};
      },
      {{kX, {DType::kF32, {batch, 72}}}}, {kY});
}

SlotValues Params() {
  return {{{SlotKind::kParam, "first/kernel"}, RandomArray({DType::kF32, {72, 100}}, 1, -0.5, 0.5)},
          {{SlotKind::kParam, "second/kernel"}, RandomArray({DType::kF32, {100, 64}}, 2, -0.5, 0.5)}};
}

Array EvalWith(const Program& program, SlotValues values, const Array& x) {
  values.insert_or_assign(kX, x);
  return EvalSlots(program, values)->at(kY);
}

TEST(HadamardPreset, RotatesProductsWithWeights) {
  const Program injected = *Inject(ModelOf(5), *InjectConfigFromPreset("int8_hadamard"));
  std::vector<bool> rotated;
  for (const absl::string_view line : absl::StrSplit(ToText(injected), '\n')) {
    if (absl::StrContains(line, "aqt_dot_general")) rotated.push_back(absl::StrContains(line, "hadamard=64"));
  }
  EXPECT_EQ(rotated, (std::vector<bool>{true, true}));
}

// Trained, served from frozen weights, and with packed weights: the same bits.
TEST(HadamardPreset, ServedProgramsHaveTheBitsOfTheTrainedOne) {
  InjectConfig config = *InjectConfigFromPreset("int8_hadamard");
  config.semantics.arithmetic = Arithmetic::kIeee;
  const Array x = RandomArray({DType::kF32, {5, 72}}, 3);
  SlotValues keyed = Params();
  const Program trained = *Inject(ModelOf(5), config);
  for (const int i : trained.InputsOfKind(SlotKind::kKey))
    keyed.emplace(trained.inputs[i].slot, Array::Of<uint32_t>({0, 1}, {2}));
  const Array want = EvalWith(trained, keyed, x);
  const absl::StatusOr<SlotValues> frozen = Freeze(ModelOf(1), config, Params());
  ASSERT_THAT(frozen, IsOk());
  EXPECT_TRUE(frozen->contains({SlotKind::kFrozen, "first/qrhs/hadamard_64/value"}));
  const absl::StatusOr<Program> served = ServeProgram(ModelOf(5), config, *frozen);
  ASSERT_THAT(served, IsOk());
  EXPECT_TRUE(BitEqual(EvalWith(*served, *frozen, x), want));
  const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make({*served}, *frozen);
  ASSERT_THAT(prepared, IsOk());
  const absl::StatusOr<SlotValues> out = prepared->Eval({{kX, x}});
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual(out->at(kY), want));
  // Saved and loaded.
  const absl::StatusOr<std::string> bytes = SaveProgram(*served, ops::ProgramCodecs());
  ASSERT_THAT(bytes, IsOk());
  const absl::StatusOr<Program> loaded = LoadProgram(*bytes, ops::ProgramCodecs());
  ASSERT_THAT(loaded, IsOk());
  EXPECT_TRUE(BitEqual(EvalWith(*loaded, *frozen, x), want));
}

// Frozen weights that are not rotated are not taken for rotated ones.
TEST(HadamardPreset, OtherFrozenWeightsAreMissed) {
  const SlotValues frozen = *Freeze(ModelOf(1), *InjectConfigFromPreset("int8_all"), Params());
  EXPECT_THAT(ServeProgram(ModelOf(5), *InjectConfigFromPreset("int8_hadamard"), frozen),
              FailsWith(absl::StatusCode::kNotFound, {"first/qrhs/hadamard_64/value", "is missing for mode SERVE"}));
}

// Packed float weights: programs of the process share the packed form of an array only if they rotate it alike.
TEST(PreparedPrograms, DoNotShareWeightsThatAreRotatedOtherwise) {
  const SlotValues params = Params();
  const Array x = RandomArray({DType::kF32, {5, 72}}, 3);
  std::vector<Program> programs;
  std::vector<PreparedProgram> prepared;  // all alive at once
  for (const int64_t block : {0, 64, 8}) {
    InjectConfig config;
    DotGeneralConfig activations = DotGeneralMake(8, std::nullopt);
    if (block != 0) activations.fwd.hadamard = Hadamard{.block = block};
    config.rules.push_back({.rhs_origin = OperandOrigin::kParam, .dot_general = activations});
    programs.push_back(*Inject(ModelOf(5), config));
    const absl::StatusOr<PreparedProgram> made = PreparedProgram::Make({programs.back()}, params);
    ASSERT_THAT(made, IsOk());
    prepared.push_back(*made);
  }
  for (size_t i = 0; i < prepared.size(); ++i) {
    const absl::StatusOr<SlotValues> out = prepared[i].Eval({{kX, x}});
    ASSERT_THAT(out, IsOk());
    EXPECT_TRUE(BitEqual(out->at(kY), EvalWith(programs[i], params, x))) << i;
  }
}

}  // namespace
}  // namespace aqt
