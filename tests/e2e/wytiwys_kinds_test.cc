// What you train is what you serve, for the contractions that are not a dot_general: strided convolution in groups,
// dilated convolution with uneven padding, einsums whose operands the product exchanges (the weight first and second),
// and experts over groups of rows. The model is trained for some steps according to a textproto. Its parameters are
// then frozen, written to a file and loaded, and the served program runs on 1, 5 and 12 examples, on one thread and on
// two.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/layers/conv.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/functions.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/quantize/fold.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

constexpr int64_t kBatch = 12, kSize = 8, kChannels = 4, kExperts = 3, kClasses = 10;
constexpr int64_t kGroupSizes[kExperts] = {5, 0, 6};  // the last example has no expert
const Slot kX{SlotKind::kData, "x"}, kGroups{SlotKind::kData, "groups"}, kLabels{SlotKind::kData, "labels"};
const Slot kLoss{SlotKind::kData, "loss"}, kLogits{SlotKind::kData, "logits"};

Value Weight(const char* scope, DType dtype, const Shape& shape, const Axes& fan_in) {
  const NamedScope named(scope);
  return nn::Parameter("kernel", {dtype, shape}, nn::LecunUniform(fan_in));
}

// x [B,8,8,4], groups s32[3].
Value Model(const Value& x, const Value& groups) {
  const DType dtype = x.dtype();
  const ConvDims strided{.window_strides = {2, 2}, .padding = ConvPadding::kSame, .feature_group_count = 2};
  Value h = ops::Relu(nn::Conv(x, "strided", {.features = 16, .kernel_size = {3, 3}, .dims = strided}));
  const ConvDims dilated{
      .padding = ConvPadding::kExplicit, .explicit_padding = {{1, 1}, {1, 0}}, .rhs_dilation = {2, 2}};
  h = ops::Relu(nn::Conv(h, "dilated", {.features = 8, .kernel_size = {2, 2}, .dims = dilated}));  // [B,4,3,8]
  const Value second = Weight("second", dtype, {8, 4, 3, 32}, {0, 1, 2});
  {
    const NamedScope scope("second");  // the weight is the second operand, and the product's first
    h = ops::Relu(ops::Einsum("bhwc,chwf->fb", h, second));
  }
  const Value first = Weight("first", dtype, {24, 32}, {1});
  {
    const NamedScope scope("first");  // exchanged
    h = ops::Relu(ops::Einsum("gf,fb->bg", first, h));
  }
  const Value experts = Weight("experts", dtype, {kExperts, 24, kClasses}, {1});
  const NamedScope scope("experts");
  return ops::RaggedDot(h, experts, groups);
}

Values ModelFn(In in) { return {Model(in[0], in[1])}; }

Values LossFn(In in) {
  const Value logits = Model(in[0], in[1]);
  return {ops::SoftmaxCrossEntropy(logits, in[2]), logits};
}

std::vector<Input> ModelInputs(DType dtype, int64_t rows) {
  return {{kX, {dtype, {rows, kSize, kSize, kChannels}}}, {kGroups, {DType::kS32, {kExperts}}}};
}

// Some examples, and the number of examples of each expert.
SlotValues Examples(const Array& x, int64_t first, int64_t last) {
  PerAxis start(x.shape().rank(), 0), limit(x.shape().begin(), x.shape().end());
  start[0] = first;
  limit[0] = last;
  ArrayBuilder sizes(DType::kS32, {kExperts});
  int64_t begin = 0;
  for (int64_t i = 0; i < kExperts; ++i) {
    const int64_t end = begin + kGroupSizes[i];
    sizes.Mutable<int32_t>()[i] =
        static_cast<int32_t>(std::max<int64_t>(0, std::min(end, last) - std::max(begin, first)));
    begin = end;
  }
  return {{kX, *ops::Slice(Value(x), start, limit).ToArray()}, {kGroups, std::move(sizes).Build()}};
}

Array RowsOf(const Array& x, int64_t first, int64_t last) {
  return *ops::Slice(Value(x), {first, 0}, {last, x.shape()[1]}).ToArray();
}

struct Case {
  const char* name;
  const char* rules;
  DType dtype = DType::kF32;
  bool has_statistics = false;
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

constexpr char kInt8[] = R"(
  rules { ops: "conv" dot_general { base: 'int8_fwd' } }
  rules { ops: ["einsum", "ragged_dot"] dot_general { base: 'fully_quantized_int8' } }
  arithmetic: ARITHMETIC_IEEE)";
constexpr char kWeights[] = R"(
  rules {
    ops: ["conv", "einsum", "ragged_dot"]
    rhs_origin: OPERAND_ORIGIN_PARAM
    dot_general { base: 'int4_weights' }
  }
  rules {
    ops: "einsum"
    lhs_origin: OPERAND_ORIGIN_PARAM
    dot_general { fwd { lhs { quantizer { int_symmetric { bits: 8 } abs_max {} } } } }
  }
  arithmetic: ARITHMETIC_IEEE)";
// Activations have a fixed range; weights have their own ranges.
constexpr char kStatic[] = R"(
  rules {
    ops: ["conv", "einsum", "ragged_dot"]
    rhs_origin: OPERAND_ORIGIN_PARAM
    dot_general {
      base: 'int8_fwd'
      clear: 'fwd.lhs.quantizer.abs_max'
      fwd { lhs { quantizer { constant { bound { number: 1.5 } } calib_shared_axes { per_tensor: true } } } }
    }
  }
  rules {
    ops: "einsum"
    lhs_origin: OPERAND_ORIGIN_PARAM
    dot_general {
      base: 'int8_fwd'
      clear: 'fwd.rhs.quantizer.abs_max'
      fwd { rhs { quantizer { constant { bound { number: 1.5 } } calib_shared_axes { per_tensor: true } } } }
    }
  }
  arithmetic: ARITHMETIC_IEEE)";
// Activations have ranges from calibration batches.
constexpr char kCalibrated[] = R"(
  rules {
    ops: ["conv", "einsum", "ragged_dot"]
    rhs_origin: OPERAND_ORIGIN_PARAM
    dot_general { base: 'int8_static' }
  }
  rules {
    ops: "einsum"
    lhs_origin: OPERAND_ORIGIN_PARAM
    dot_general {
      fwd {
        lhs { quantizer { int_symmetric { bits: 8 } abs_max {} } }
        rhs { quantizer { int_symmetric { bits: 8 } mean_of_abs_max {} calib_shared_axes { per_tensor: true } } }
      }
    }
  }
  arithmetic: ARITHMETIC_IEEE)";

class WytiwysKindsTest : public ::testing::TestWithParam<Case> {
 protected:
  static absl::StatusOr<Program> Injected(TracedFunction fn, absl::Span<const Input> inputs,
                                          const std::vector<Slot>& outputs, QuantMode mode,
                                          const SlotValues* frozen = nullptr) {
    AQT_ASSIGN_OR_RETURN(const Program program, Trace(fn, inputs, outputs));
    AQT_ASSIGN_OR_RETURN(InjectConfig config, InjectConfigFromText(absl::StrCat("schema: 1 ", GetParam().rules)));
    config.param_mode = config.data_mode = mode;
    return Inject(program, config, frozen);
  }
  static absl::StatusOr<Program> Rows(int64_t rows, QuantMode mode, const SlotValues* frozen = nullptr) {
    return Injected(ModelFn, ModelInputs(GetParam().dtype, rows), {kLogits}, mode, frozen);
  }

  static SlotValues Batch(uint64_t seed) {
    ArrayBuilder labels(DType::kF32, {kBatch, kClasses});
    for (int64_t i = 0; i < kBatch; ++i) labels.Mutable<float>()[i * kClasses + i % kClasses] = 1;
    SlotValues batch = Examples(testing::RandomArray(ModelInputs(GetParam().dtype, kBatch)[0].aval, seed), 0, kBatch);
    batch.emplace(kLabels, Cast(std::move(labels).Build(), GetParam().dtype));
    return batch;
  }

  // The statistics after some batches in mode CALIBRATE.
  static absl::StatusOr<SlotValues> Statistics(const SlotValues& params) {
    AQT_ASSIGN_OR_RETURN(const Program program, Rows(kBatch, QuantMode::kCalibrate));
    SlotValues stats = InitialStats(program);
    for (uint64_t batch = 0; batch < 3; ++batch) {
      SlotValues values = Batch(50 + batch);
      values.insert(stats.begin(), stats.end());
      values.insert(params.begin(), params.end());
      AQT_ASSIGN_OR_RETURN(const SlotValues out, EvalSlots(program, values));
      for (auto& [slot, array] : stats) array = out.at(slot);
    }
    return stats;
  }

  static Array Run(const Program& program, SlotValues values, const SlotValues& examples) {
    values.insert(examples.begin(), examples.end());
    values.insert_or_assign({SlotKind::kKey, "aqt"}, Array::Zeros(DType::kU32, {2}));
    absl::StatusOr<SlotValues> out = EvalSlots(program, values);
    EXPECT_THAT(out, IsOk());
    return out.ok() ? out->at(kLogits) : Array();
  }

  static Array RunPrepared(const PreparedProgram& prepared, SlotValues inputs) {
    inputs.insert_or_assign({SlotKind::kKey, "aqt"}, Array::Zeros(DType::kU32, {2}));
    const absl::StatusOr<SlotValues> out = prepared.Eval(inputs);
    EXPECT_THAT(out, IsOk());
    return out.ok() ? out->at(kLogits) : Array();
  }
};

TEST_P(WytiwysKindsTest, ServedLogitsAreTheTrainedOnes) {
  const DType dtype = GetParam().dtype;
  std::vector<Input> loss_inputs = ModelInputs(dtype, kBatch);
  loss_inputs.push_back({kLabels, {dtype, {kBatch, kClasses}}});
  absl::StatusOr<Program> loss = Injected(LossFn, loss_inputs, {kLoss, kLogits}, QuantMode::kTrain);
  ASSERT_THAT(loss, IsOk());
  absl::StatusOr<SlotValues> initial = nn::InitParams(LossFn, loss_inputs, MakeKey(3));
  ASSERT_THAT(initial, IsOk());
  SlotValues stats;
  if (GetParam().has_statistics) {
    absl::StatusOr<SlotValues> found = Statistics(*initial);
    ASSERT_THAT(found, IsOk());
    ASSERT_EQ(found->size(), 10u);  // sum and count of the one activation of each of the five contractions
    stats = *std::move(found);
    initial->insert(stats.begin(), stats.end());
  }
  absl::StatusOr<nn::Trainer> trainer = nn::Trainer::Make(*loss, nn::Sgd{.learning_rate = 0.05}, *initial, MakeKey(1));
  ASSERT_THAT(trainer, IsOk());
  for (uint64_t step = 0; step < 3; ++step) ASSERT_THAT(trainer->Step(Batch(step)), IsOk());
  SlotValues params = trainer->params();
  // The step computes its logits before it changes the parameters.
  const SlotValues batch = Batch(99);
  absl::StatusOr<SlotValues> step = trainer->Step(batch);
  ASSERT_THAT(step, IsOk());
  const Array& x = batch.at(kX);
  const Array& want = step->at(kLogits);
  ASSERT_FALSE(BitEqual(trainer->params().begin()->second, params.begin()->second));
  params.insert(stats.begin(), stats.end());

  absl::StatusOr<Program> convert = Rows(1, QuantMode::kConvert);
  ASSERT_THAT(convert, IsOk());
  absl::StatusOr<Folded> folded = Fold(*convert, params);
  ASSERT_THAT(folded, IsOk());
  const std::string path = absl::StrCat(::testing::TempDir(), "/", GetParam().name, ".safetensors");
  ASSERT_THAT(nn::SaveState(io::LocalFileSystem(), path, {folded->values, {}}), IsOk());
  absl::StatusOr<nn::StateFile> file = nn::LoadState(io::LocalFileSystem(), path);
  ASSERT_THAT(file, IsOk());
  const SlotValues& stored = file->state;
  int qvalues = 0;
  for (const auto& [slot, array] : stored) {
    EXPECT_FALSE(slot.kind == SlotKind::kParam && slot.path.ends_with("kernel")) << slot.path << " is stored in float";
    qvalues += slot.kind == SlotKind::kFrozen && slot.path.ends_with("/value") ? 1 : 0;
  }
  EXPECT_EQ(qvalues, 5);

  kernels::ThreadPool pool(2);
  for (const int64_t rows : {int64_t{1}, int64_t{5}, kBatch}) {
    absl::StatusOr<Program> serve = Rows(rows, QuantMode::kServe, &stored);
    ASSERT_THAT(serve, IsOk());
    const Program served = Dce(*serve, {.drop_inputs = {SlotKind::kParam}});
    EXPECT_TRUE(served.InputsOfKind(SlotKind::kStat).empty());
    const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make({served}, stored);
    ASSERT_THAT(prepared, IsOk());
    for (int64_t first = 0; first + rows <= kBatch; first += rows) {
      const SlotValues examples = Examples(x, first, first + rows);
      const Array wanted = RowsOf(want, first, first + rows);
      EXPECT_TRUE(BitEqual(Run(served, stored, examples), wanted)) << rows << " rows from " << first;
      EXPECT_TRUE(BitEqual(RunPrepared(*prepared, examples), wanted)) << rows << " rows from " << first << ", prepared";
      const UseExecutor threads(&pool);
      EXPECT_TRUE(BitEqual(RunPrepared(*prepared, examples), wanted))
          << rows << " rows from " << first << ", prepared, two threads";
      EXPECT_TRUE(BitEqual(Run(served, stored, examples), wanted)) << rows << " rows from " << first << ", two threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configs, WytiwysKindsTest,
    ::testing::Values(
        Case{.name = "int8", .rules = kInt8}, Case{.name = "int8_bf16", .rules = kInt8, .dtype = DType::kBF16},
        Case{.name = "weights", .rules = kWeights}, Case{.name = "static_range", .rules = kStatic},
        Case{.name = "calibrated", .rules = kCalibrated, .has_statistics = true},
        Case{.name = "calibrated_bf16", .rules = kCalibrated, .dtype = DType::kBF16, .has_statistics = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace aqt
