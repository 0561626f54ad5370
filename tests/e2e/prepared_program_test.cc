// Prepared programs of every kind of contraction and operand (aqt/runtime/prepared_program.h).

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/runtime/packed_weights.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/quantize/fold.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/serve.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::StatusIs;
using Values = std::vector<Value>;

const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "y"};

// A convolution, then a weight as rhs and one as lhs: x [B,6,6,8] -> [B,10].
Values Model(absl::Span<const Value> in) {
  const auto weight = [](const char* name, const Shape& shape) {
    return InputSlot({SlotKind::kParam, name}, {DType::kF32, shape});
  };
  Value h;
  {
    const NamedScope scope("conv");
    h = ops::Conv(in[0], weight("conv/kernel", {3, 3, 4, 16}), {.feature_group_count = 2});
  }
  const int64_t batch = in[0].shape()[0];
  h = ops::Reshape(h, {batch, 4 * 4 * 16});
  {
    const NamedScope scope("right");
    h = ops::DotGeneral(h, weight("right/kernel", {256, 40}), MatMulDims());
  }
  const NamedScope scope("left");
  return {ops::Transpose(
      ops::DotGeneral(weight("left/kernel", {10, 40}), h, {.lhs_contracting = {1}, .rhs_contracting = {1}}), {1, 0})};
}

Program ModelOf(int64_t batch) { return *Trace(Model, {{kX, {DType::kF32, {batch, 6, 6, 8}}}}, {kY}); }

SlotValues Params() {
  SlotValues params;
  uint64_t seed = 1;
  const Program program = ModelOf(1);
  for (const int i : program.InputsOfKind(SlotKind::kParam)) {
    const Program::Port& port = program.inputs[i];
    params.emplace(port.slot, RandomArray(program.aval(port.var), seed++, -0.5, 0.5));
  }
  return params;
}

// The rules that quantize everything in one way; `swapped` is for a weight as lhs.
InjectConfig Rules(const DotGeneralConfig& config, const DotGeneralConfig& swapped, QuantMode mode) {
  DotGeneralConfig conv;
  conv.fwd = config.fwd;
  InjectConfig rules;
  rules.rules.push_back({.ops = {"conv"}, .dot_general = conv});
  rules.rules.push_back({.rhs_origin = OperandOrigin::kParam, .dot_general = config});
  rules.rules.push_back({.lhs_origin = OperandOrigin::kParam, .dot_general = swapped});
  rules.param_mode = mode;
  rules.semantics.arithmetic = Arithmetic::kIeee;
  return rules;
}

struct Kind {
  const char* name;
  Bits data, weights;
};
const Kind kKinds[] = {{"int8", 8, 8},
                       {"int4", 4, 4},
                       {"fp8", Bits::E4M3(), Bits::E4M3()},
                       {"int8 weights", std::nullopt, 8},
                       {"fp8 weights", std::nullopt, Bits::E5M2()}};

struct Served {
  SlotValues frozen;
  InjectConfig rules;
  Program Of(int64_t batch) const {
    return Dce(*Inject(ModelOf(batch), rules, &frozen), {.drop_inputs = {SlotKind::kParam}});
  }
};

Served Serve(const Kind& kind) {
  const DotGeneralConfig config = DotGeneralMake(kind.data, kind.weights),
                         swapped = DotGeneralMake(kind.weights, kind.data);
  const Program convert = *Inject(ModelOf(1), Rules(config, swapped, QuantMode::kConvert));
  return {Fold(convert, Params())->values, Rules(config, swapped, QuantMode::kServe)};
}

SlotValues Data(int64_t batch, uint64_t seed) {
  return {{kX, RandomArray({DType::kF32, {batch, 6, 6, 8}}, seed, -1, 1)}};
}

Array EvalWhole(const Program& program, SlotValues values, const SlotValues& data) {
  values.insert(data.begin(), data.end());
  return EvalSlots(program, values)->at(kY);
}

// The number of runs of each operation.
struct OpCounter {
  std::map<std::string, int> counts;
  EvalHooks hooks() {
    return {.on_outputs = [this](const Equation& eqn, absl::Span<const Array>) { ++counts[OpName(eqn.op)]; }};
  }
};

TEST(PreparedProgram, GivesTheBitsOfEvalAndPacksNoWeightAgain) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const Served served = Serve(kind);
    const std::vector<Program> programs = {served.Of(1), served.Of(7)};
    const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make(programs, served.frozen);
    ASSERT_THAT(prepared, IsOk());
    EXPECT_EQ(prepared->num_programs(), 2);
    for (const int threads : {1, 2}) {
      kernels::ThreadPool pool(threads);
      const UseExecutor use(&pool);
      for (const uint64_t seed : {10u, 11u}) {
        for (int i = 0; i < 2; ++i) {
          const SlotValues data = Data(i == 0 ? 1 : 7, seed);
          OpCounter ops;
          const CountPacks packs;
          const absl::StatusOr<SlotValues> out = prepared->Eval(data, ops.hooks());
          ASSERT_THAT(out, IsOk());
          // Three activations: two on the left, the last on the right. Convolutions pack theirs in pieces.
          EXPECT_EQ(packs.counts().rhs, 1);
          EXPECT_GE(packs.counts().lhs, 2);
          EXPECT_EQ(ops.counts["aqt_pack"] + ops.counts["aqt_quantize"], 0);
          EXPECT_EQ(ops.counts["aqt_conv"], 1);
          EXPECT_EQ(ops.counts["aqt_dot_general"], 2);
          EXPECT_TRUE(BitEqual(out->at(kY), EvalWhole(programs[i], served.frozen, data)));
        }
      }
    }
  }
}

TEST(PreparedProgram, AnotherArrayGivesItsResult) {
  const Served served = Serve(kKinds[0]);
  const Program program = served.Of(2);
  const PreparedProgram prepared = *PreparedProgram::Make({program}, served.frozen);
  const SlotValues data = Data(2, 5);
  const Array before = prepared.Eval(data)->at(kY);
  const Slot weight{SlotKind::kFrozen, "right/qrhs/value"};
  ASSERT_TRUE(served.frozen.contains(weight));
  SlotValues changed = data, same = data, all = served.frozen;
  const Array other = RandomArray(served.frozen.at(weight).aval(), 77);
  changed.emplace(weight, other);
  same.insert(*served.frozen.find(weight));
  all.insert_or_assign(weight, other);
  const Array with_other = prepared.Eval(changed)->at(kY);
  EXPECT_TRUE(BitEqual(with_other, EvalWhole(program, all, data)));
  EXPECT_FALSE(BitEqual(with_other, before));
  OpCounter ops;
  EXPECT_TRUE(BitEqual(prepared.Eval(same, ops.hooks())->at(kY), before));
  EXPECT_EQ(ops.counts.size(), prepared.program(0).eqns.size() - 1);  // aqt_dot_general runs twice
  // The previous call has no effect on this one.
  EXPECT_TRUE(BitEqual(prepared.Eval(data)->at(kY), before));
}

// x [batch,5,40] with three weights, "q", "k" and "v", one of which has heads.
Program Projections(int64_t batch) {
  return *Trace(
      [](absl::Span<const Value> in) {
        Values out;
        for (const auto& [name, shape] :
             {std::pair{"q", Shape{40, 24}}, {"k", Shape{40, 24}}, {"v", Shape{40, 3, 8}}}) {
          const NamedScope scope(name);
          const Value weight = InputSlot({SlotKind::kParam, name}, {DType::kF32, shape});
          out.push_back(ops::DotGeneral(in[0], weight, {.lhs_contracting = {2}, .rhs_contracting = {0}}));
        }
        return out;
      },
      {{kX, {DType::kF32, {batch, 5, 40}}}}, {{SlotKind::kData, "q"}, {SlotKind::kData, "k"}, {SlotKind::kData, "v"}});
}

// The projections of x, with rows of zeros and of tiny numbers, are those of the program itself. Returns how often an
// activation was packed.
int64_t PacksOfProjections(const InjectConfig& config) {
  const Program first = Projections(1);
  SlotValues params;
  for (const int i : first.InputsOfKind(SlotKind::kParam)) {
    const Program::Port& port = first.inputs[i];
    params.emplace(port.slot, RandomArray(first.aval(port.var), 3 + i, -0.5, 0.5));
  }
  const SlotValues frozen = *Freeze(first, config, params);
  std::vector<Program> programs;
  for (const int64_t batch : {1, 7}) programs.push_back(*ServeProgram(Projections(batch), config, frozen));
  const PreparedProgram prepared = *PreparedProgram::Make(programs, frozen);
  int64_t packs_of_lhs = 0;
  for (const int64_t batch : {1, 7}) {
    const Array random = RandomArray({DType::kF32, {batch, 5, 40}}, 5, -3, 3);
    std::vector<float> x(random.View<float>().begin(), random.View<float>().end());
    for (int i = 0; i < 40; ++i) {
      x[i] = 0;
      x[40 + i] *= 1e-39f;
      x[80 + i] *= 1e-36f;
    }
    SlotValues values = {{kX, Array::FromSpan<float>(x, {batch, 5, 40})}};
    SlotValues all = frozen;
    all.insert(values.begin(), values.end());
    const SlotValues want = *EvalSlots(programs[batch == 1 ? 0 : 1], all);
    for (const int threads : {1, 3}) {
      kernels::ThreadPool pool(threads);
      const UseExecutor use(&pool);
      const CountPacks packs;
      const SlotValues got = *prepared.Eval(values);
      for (const auto& [slot, value] : want) {
        EXPECT_TRUE(BitEqual(got.at(slot), value)) << slot.ToString() << ", batch " << batch << ", " << threads;
      }
      packs_of_lhs = packs.counts().lhs;
    }
  }
  return packs_of_lhs;
}

InjectConfig RulesFor(const DotGeneralConfig& config, Arithmetic arithmetic) {
  InjectConfig rules;
  rules.rules.push_back({.rhs_origin = OperandOrigin::kParam, .dot_general = config});
  rules.semantics.arithmetic = arithmetic;
  return rules;
}

TEST(PreparedProgram, ProductsQuantizeOneArrayOnce) {
  for (const Arithmetic arithmetic : {Arithmetic::kIeee, Arithmetic::kXlaCompatible}) {
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(kind.name);
      if (!kind.data.quantized()) continue;
      DotGeneralConfig config = DotGeneralMake(kind.data, kind.weights);
      EXPECT_EQ(PacksOfProjections(RulesFor(config, arithmetic)), 1);
      config.fwd.hadamard = Hadamard{.block = 16};
      EXPECT_EQ(PacksOfProjections(RulesFor(config, arithmetic)), 1) << "rotated";
      config.fwd.lhs.quantizer.calib_shared_axes.per_tensor = true;
      EXPECT_EQ(PacksOfProjections(RulesFor(config, arithmetic)), 1) << "rotated, one scale";
    }
  }
}

TEST(PreparedProgram, ProductsThatQuantizeAnArrayOtherwiseDoItThemselves) {
  InjectConfig rules = RulesFor(DotGeneralMake(8, 8), Arithmetic::kIeee);
  InjectRule other = rules.rules[0];
  other.scope = "k";
  other.dot_general = DotGeneralMake(6, 8);
  rules.rules.insert(rules.rules.begin(), other);
  EXPECT_EQ(PacksOfProjections(rules), 2);
  other.dot_general = DotGeneralMake(8, 8);
  other.dot_general->fwd.hadamard = Hadamard{.block = 8};
  rules.rules[0] = other;
  EXPECT_EQ(PacksOfProjections(rules), 2);
}

// Products of floats, one with a batch, read weights that were packed once, with the bits of the program itself.
TEST(PreparedProgram, FloatProductsReadPackedWeights) {
  const Slot kW{SlotKind::kParam, "w"}, kV{SlotKind::kParam, "v"};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(ToString(dtype));
    const auto program = [&](int64_t rows) {
      return *Trace(
          [](absl::Span<const Value> in) {
            const Value y = ops::DotGeneral(in[0], in[1], {.lhs_contracting = {2}, .rhs_contracting = {1}});
            return Values{
                ops::DotGeneral(in[2], y,
                                {.lhs_contracting = {2}, .rhs_contracting = {2}, .lhs_batch = {0}, .rhs_batch = {0}}),
                ops::DotGeneral(y, in[2],
                                {.lhs_contracting = {2}, .rhs_contracting = {2}, .lhs_batch = {0}, .rhs_batch = {0}})};
          },
          {{kX, {dtype, {2, rows, 30}}}, {kW, {dtype, {45, 30}}}, {kV, {dtype, {2, 19, 45}}}},
          {{SlotKind::kData, "left"}, kY});
    };
    const SlotValues weights = {{kW, RandomArray({dtype, {45, 30}}, 1)}, {kV, RandomArray({dtype, {2, 19, 45}}, 2)}};
    const std::vector<Program> programs = {program(1), program(7), program(40)};
    const PreparedProgram prepared = *PreparedProgram::Make(programs, weights, {.keep_values = false});
    for (int i = 0; i < 3; ++i) {
      const Aval aval = programs[i].aval(programs[i].inputs[0].var);
      for (const double scale : {1.0, 1e-37}) {
        SlotValues values = {{kX, RandomArray(aval, 3, -scale, scale)}};
        SlotValues all = weights;
        all.insert(values.begin(), values.end());
        const SlotValues want = *EvalSlots(programs[i], all);
        OpCounter ops;
        const SlotValues hooked = *prepared.Eval(values, ops.hooks());
        EXPECT_EQ(ops.counts["packed_dot_general"], 2);
        EXPECT_EQ(ops.counts["dot_general"], 1);  // whose weight is the lhs
        EXPECT_EQ(ops.counts["pack_rhs"], 0);
        for (const int threads : {1, 3}) {
          kernels::ThreadPool pool(threads);
          const UseExecutor use(&pool);
          const SlotValues got = *prepared.Eval(values);
          for (const auto& [slot, value] : want) {
            EXPECT_TRUE(BitEqual(got.at(slot), value)) << slot.ToString() << ", program " << i;
            EXPECT_TRUE(BitEqual(hooked.at(slot), value)) << slot.ToString() << ", program " << i;
          }
        }
      }
    }
  }
}

// Programs with the same weight share its panels, even if prepared separately. Without keep_values nothing else is
// kept.
TEST(PreparedProgram, HoldsPanelsOnceAndNothingElse) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Served served = Serve(kind);
    const Program one = served.Of(1), many = served.Of(64);
    const PreparedProgram first = *PreparedProgram::Make({one}, served.frozen, {.keep_values = false});
    const PreparedProgram second = *PreparedProgram::Make({many}, served.frozen, {.keep_values = false});
    std::vector<const void*> panels[2];
    for (int i = 0; i < 2; ++i) {
      for (const auto& [var, array] : (i == 0 ? first : second).program(0).consts) {
        if (array.dtype() == DType::kU8) panels[i].push_back(array.data());
      }
      EXPECT_EQ(panels[i].size(), 3u);
    }
    EXPECT_EQ(panels[0], panels[1]);
    EXPECT_EQ(first.num_bytes(), second.num_bytes());
    std::weak_ptr<const void> qvalue = served.frozen.at({SlotKind::kFrozen, "right/qrhs/value"}).buffer();
    served.frozen.clear();
    EXPECT_TRUE(qvalue.expired());
    EXPECT_THAT(first.Eval(Data(1, 3)), IsOk());
  }
}

// Programs that come later find panels by the names of their weights, whose own memory is free by then.
TEST(PreparedProgram, ReleasedWeightsAreFoundByName) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Served served = Serve(kind);
    const SlotValues whole = served.frozen;
    PackedWeights packed;
    for (const int64_t batch : {1, 4}) ASSERT_THAT(packed.WithPanels(served.Of(batch), served.frozen), IsOk());
    packed.Release(served.frozen);
    int released = 0;
    for (const auto& [slot, value] : served.frozen) {
      EXPECT_EQ(value.aval(), whole.at(slot).aval());
      released += value.data() == nullptr;
    }
    EXPECT_EQ(released, 3) << "the qvalues of all weights, and no scales";
    for (const int64_t batch : {1, 2, 64}) {
      const PreparedProgram want = *PreparedProgram::Make({served.Of(batch)}, whole);
      const Program program = *packed.WithPanels(served.Of(batch), served.frozen);
      const PreparedProgram got = *PreparedProgram::Make({program}, served.frozen, {.keep_values = false});
      EXPECT_TRUE(BitEqual(got.Eval(Data(batch, 3))->at(kY), want.Eval(Data(batch, 3))->at(kY)));
      EXPECT_EQ(got.num_bytes(), want.num_bytes());
    }
    // Another reader of the weight, which gets it by another operation.
    const Slot qvalue{SlotKind::kFrozen, "right/qrhs/value"};
    const auto reads = [&](absl::Span<const Value>) -> Values {
      return {ops::Cast(InputSlot(qvalue, whole.at(qvalue).aval()), DType::kF32)};
    };
    EXPECT_THAT(packed.WithPanels(*Trace(reads, std::vector<Input>{}, {kY}), served.frozen),
                StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::HasSubstr("frozen \"right/qrhs/value\"")));
  }
}

TEST(PreparedProgram, WeightsThatAreAlsoReadAsTheyAreStay) {
  const Slot w{SlotKind::kParam, "w"};
  const Aval aval{DType::kF32, {30, 20}};
  const auto fn = [&](absl::Span<const Value> in) -> Values {
    const Value weight = InputSlot(w, aval);
    return {ops::DotGeneral(in[0], weight, MatMulDims()) + ops::ReduceSum(weight)};
  };
  const Program program = *Trace(fn, {{kX, {DType::kF32, {3, 30}}}}, {kY});
  SlotValues weights = {{w, RandomArray(aval, 1)}};
  PackedWeights packed;
  ASSERT_THAT(packed.WithPanels(program, weights), IsOk());
  packed.Release(weights);
  EXPECT_NE(weights.at(w).data(), nullptr);
}

// Scales are f32: 32 + 40 + 10 numbers, for 16 output channels of the convolution in two groups.
TEST(PreparedProgram, ItsSizeIsThatOfThePanelsAndScales) {
  const Served served = Serve({"int8 weights", std::nullopt, 8});
  const PreparedProgram prepared = *PreparedProgram::Make({served.Of(1)}, served.frozen);
  int64_t scales = 0, panels = 0;
  for (const auto& [var, array] : prepared.program(0).consts) {
    (array.dtype() == DType::kU8 ? panels : scales) += array.num_bytes();
  }
  EXPECT_EQ(scales, (16 + 40 + 10) * 4);
  EXPECT_EQ(prepared.num_bytes(), panels + scales);
}

// A bias is added to each row, but no array repeats it for each row. Values computed from it are stored.
TEST(PreparedProgram, BroadcastsOfKnownValuesTakeNoMemory) {
  const Aval row{DType::kF32, {64}}, matrix{DType::kF32, {100, 64}};
  const auto fn = [&](absl::Span<const Value> in) -> Values {
    const Value bias = InputSlot({SlotKind::kFrozen, "bias"}, row);
    const Value rows = ops::BroadcastTo(bias, {100, 64});
    return {ops::Tanh(in[0] + rows) * 2.0 + ops::Exp(rows)};
  };
  const Program program = *Trace(fn, {{kX, matrix}}, {kY});
  const SlotValues frozen = {{Slot{SlotKind::kFrozen, "bias"}, RandomArray(row, 1)}};
  const SlotValues data = {{kX, RandomArray(matrix, 2)}};
  const PreparedProgram prepared = *PreparedProgram::Make({program}, frozen);
  EXPECT_LT(prepared.num_bytes(), matrix.num_bytes() + row.num_bytes() + 64) << "the exponentials, and the bias";
  SlotValues all = data;
  all.insert(frozen.begin(), frozen.end());
  const absl::StatusOr<SlotValues> want = EvalSlots(program, all), got = prepared.Eval(data);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(BitEqual(got->at(kY), want->at(kY)));
}

TEST(PreparedProgram, ErrorsNameWhatDoesNotFit) {
  const Served served = Serve(kKinds[0]);
  const std::vector<Program> programs = {served.Of(1), served.Of(4)};
  EXPECT_THAT(PreparedProgram::Make({}, served.frozen),
              StatusIs(absl::StatusCode::kInvalidArgument, "prepare: there is no program"));
  SlotValues wrong = served.frozen;
  wrong.insert_or_assign({SlotKind::kFrozen, "right/qrhs/value"}, Array::Zeros(DType::kS8, {2, 2}));
  EXPECT_THAT(PreparedProgram::Make(programs, wrong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "prepare: input frozen \"right/qrhs/value\" is s8[256,40], the value is s8[2,2]"));
  const PreparedProgram prepared = *PreparedProgram::Make(programs, served.frozen);
  EXPECT_THAT(prepared.Eval(Data(2, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "no program is prepared for the inputs data \"x\" f32[2,6,6,8]; there are programs for data "
                       "\"x\" f32[1,6,6,8]; data \"x\" f32[4,6,6,8]"));
  const PreparedProgram single = *PreparedProgram::Make({programs[0]}, served.frozen, {.keep_values = false});
  EXPECT_THAT(single.Eval({}), StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("data \"x\"")));
  SlotValues changed = Data(1, 1);
  changed.emplace(Slot{SlotKind::kFrozen, "right/qrhs/value"}, Array::Zeros(DType::kS8, {256, 40}));
  EXPECT_THAT(single.Eval(changed), StatusIs(absl::StatusCode::kFailedPrecondition,
                                             ::testing::HasSubstr("is needed, too; give it, or prepare with "
                                                                  "keep_values")));
}

// A program without contraction or weight is evaluated unchanged; equations of known values run once.
TEST(PreparedProgram, TakesAnyProgram) {
  const auto fn = [](absl::Span<const Value> in) -> Values {
    const Value scale = InputSlot({SlotKind::kFrozen, "scale"}, {DType::kF32, {}});
    return {in[0] * ops::Exp(scale) + ops::DotGeneral(in[0], in[0], {.lhs_contracting = {0}, .rhs_contracting = {0}}),
            ops::Exp(scale)};
  };
  const Slot e{SlotKind::kData, "e"};
  const Program program = *Trace(fn, {{kX, {DType::kF32, {3}}}}, {kY, e});
  const SlotValues frozen = {{Slot{SlotKind::kFrozen, "scale"}, Array::Scalar(0.5f)}};
  const PreparedProgram prepared = *PreparedProgram::Make({program}, frozen);
  const SlotValues data = {{kX, Array::Of<float>({1, 2, 3}, {3})}};
  SlotValues all = data;
  all.insert(frozen.begin(), frozen.end());
  OpCounter ops;
  const absl::StatusOr<SlotValues> got = prepared.Eval(data, ops.hooks()), want = EvalSlots(program, all);
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(BitEqual(got->at(kY), want->at(kY)) && BitEqual(got->at(e), want->at(e)));
  EXPECT_EQ(ops.counts.count("exp"), 0u);
}

}  // namespace
}  // namespace aqt
