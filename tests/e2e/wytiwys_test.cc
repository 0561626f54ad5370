// What you train is what you serve: the logits of a served program are those of the training's forward pass in every
// bit. One model, with a weight as rhs (fc1, logits) and one as lhs (fc2), is trained for some steps according to a
// textproto. Its parameters are then frozen, written to a file and loaded, and the served program runs on 1, 7 and 32
// examples, on one thread and on two.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/counting_pool.h"
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

constexpr int64_t kIn = 64, kWidth = 256, kClasses = 10, kBatch = 32;
const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"};
const Slot kLoss{SlotKind::kData, "loss"}, kLogits{SlotKind::kData, "logits"};

Value Model(const Value& x) {
  const NamedScope scope("mlp");
  Value h = ops::Relu(nn::Dense(x, "fc1", {.features = kWidth}));
  {
    const NamedScope fc2("fc2");
    const Value kernel = nn::Parameter("kernel", {x.dtype(), {kWidth, kWidth}}, nn::LecunUniform({1}));
    h = ops::DotGeneral(kernel, h, {.lhs_contracting = {1}, .rhs_contracting = {1}, .lhs_batch = {}, .rhs_batch = {}});
    h = ops::Relu(ops::Transpose(h, {1, 0}));
  }
  return nn::Dense(h, "logits", {.features = kClasses});
}

Values ModelFn(In in) { return {Model(in[0])}; }

Values LossFn(In in) {
  const Value logits = Model(in[0]);
  return {ops::SoftmaxCrossEntropy(logits, in[1]), logits};
}

Input XInput(DType dtype, int64_t rows) { return {kX, {dtype, {rows, kIn}}}; }

Array Rows(const Array& x, int64_t first, int64_t last) {
  return *ops::Slice(Value(x), {first, 0}, {last, x.shape()[1]}).ToArray();
}

struct Case {
  const char* name;
  const char* rules;  // of a textproto
  DType dtype = DType::kF32;
  // Whether an example has the same bits alone and in a batch, and the kernels that stay in float.
  bool per_example = true;
  std::vector<std::string> float_kernels = {};
  bool has_statistics = false;  // calibrations have state: they see some batches before training
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

constexpr char kInt8[] = "rules { dot_general { base: 'fully_quantized_int8' } } arithmetic: ARITHMETIC_IEEE";
// Activations have a fixed range; weights have their own ranges.
constexpr char kStatic[] = R"(
  rules {
    rhs_origin: OPERAND_ORIGIN_PARAM
    dot_general {
      base: 'fully_quantized_int8'
      clear: 'fwd.lhs.quantizer.abs_max'
      fwd { lhs { quantizer { constant { bound { number: 1.5 } } calib_shared_axes { per_tensor: true } } } }
    }
  }
  rules {
    lhs_origin: OPERAND_ORIGIN_PARAM
    dot_general {
      base: 'fully_quantized_int8'
      clear: 'fwd.rhs.quantizer.abs_max'
      fwd { rhs { quantizer { constant { bound { number: 1.5 } } calib_shared_axes { per_tensor: true } } } }
    }
  }
  arithmetic: ARITHMETIC_IEEE)";

// Activations have ranges from calibration batches.
constexpr char kCalibrated[] = R"(
  rules {
    rhs_origin: OPERAND_ORIGIN_PARAM
    dot_general { base: 'int8_static' }
  }
  rules {
    lhs_origin: OPERAND_ORIGIN_PARAM
    dot_general {
      fwd {
        lhs { quantizer { int_symmetric { bits: 8 } abs_max {} } }
        rhs { quantizer { int_symmetric { bits: 8 } mean_of_abs_max {} calib_shared_axes { per_tensor: true } } }
      }
    }
  }
  arithmetic: ARITHMETIC_IEEE)";
// Weights have such ranges, too, one per channel, and gradients are quantized with noise.
constexpr char kCalibratedWeights[] = R"(
  rules {
    rhs_origin: OPERAND_ORIGIN_PARAM
    dot_general {
      base: 'fully_quantized_int8'
      clear: 'fwd.lhs.quantizer.abs_max'
      clear: 'fwd.rhs.quantizer.abs_max'
      fwd {
        lhs { quantizer { mean_of_abs_max {} calib_shared_axes { per_tensor: true } } }
        rhs { quantizer { mean_of_abs_max {} } }
      }
    }
  }
  rules {
    lhs_origin: OPERAND_ORIGIN_PARAM
    dot_general {
      base: 'fully_quantized_int8'
      clear: 'fwd.lhs.quantizer.abs_max'
      clear: 'fwd.rhs.quantizer.abs_max'
      fwd {
        lhs { quantizer { mean_of_abs_max {} } }
        rhs { quantizer { mean_of_abs_max {} calib_shared_axes { per_tensor: true } } }
      }
    }
  }
  arithmetic: ARITHMETIC_IEEE)";

class WytiwysTest : public ::testing::TestWithParam<Case> {
 protected:
  absl::StatusOr<Program> Injected(TracedFunction fn, absl::Span<const Input> inputs, const std::vector<Slot>& outputs,
                                   QuantMode mode, const SlotValues* frozen = nullptr) const {
    absl::StatusOr<Program> program = Trace(fn, inputs, outputs);
    EXPECT_THAT(program, IsOk());
    absl::StatusOr<InjectConfig> config = InjectConfigFromText(absl::StrCat("schema: 1 ", GetParam().rules));
    EXPECT_THAT(config, IsOk());
    config->param_mode = config->data_mode = mode;
    return Inject(*program, *config, frozen);
  }

  SlotValues Batch(uint64_t seed) const {
    ArrayBuilder labels(DType::kF32, {kBatch, kClasses});
    for (int64_t i = 0; i < kBatch; ++i) labels.Mutable<float>()[i * kClasses + i % kClasses] = 1;
    return {{kX, testing::RandomArray(XInput(GetParam().dtype, kBatch).aval, seed)},
            {kLabels, Cast(std::move(labels).Build(), GetParam().dtype)}};
  }

  // The statistics after some batches in mode CALIBRATE.
  absl::StatusOr<SlotValues> Statistics(const SlotValues& params) const {
    AQT_ASSIGN_OR_RETURN(const Program program,
                         Injected(ModelFn, {XInput(GetParam().dtype, kBatch)}, {kLogits}, QuantMode::kCalibrate));
    SlotValues stats = InitialStats(program);
    for (int batch = 0; batch < 3; ++batch) {
      SlotValues values = stats;
      values.insert(params.begin(), params.end());
      values.insert_or_assign(kX, Batch(50 + batch).at(kX));
      AQT_ASSIGN_OR_RETURN(const SlotValues out, EvalSlots(program, values));
      for (auto& [slot, array] : stats) array = out.at(slot);
    }
    return stats;
  }

  static absl::StatusOr<nn::StateFile> SavedAndLoaded(const SlotValues& values) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/", GetParam().name, ".safetensors");
    AQT_RETURN_IF_ERROR(nn::SaveState(io::LocalFileSystem(), path, {values, {}}));
    AQT_ASSIGN_OR_RETURN(nn::StateFile file, nn::LoadState(io::LocalFileSystem(), path));
    EXPECT_EQ(file.state.size(), values.size());
    for (const auto& [slot, array] : values) EXPECT_TRUE(BitEqual(file.state.at(slot), array)) << slot.ToString();
    return file;
  }

  // The float kernels are gone, except those that are used in float.
  static void ExpectNoFloatKernels(const nn::StateFile& file) {
    std::vector<std::string> kernels;
    for (const auto& [slot, array] : file.state) {
      if (slot.kind == SlotKind::kParam && slot.path.find("kernel") != std::string::npos) kernels.push_back(slot.path);
    }
    EXPECT_EQ(kernels, GetParam().float_kernels);
  }

  // The logits of a program of ModelFn.
  static Array Run(const Program& program, SlotValues values, const Array& x) {
    values.insert_or_assign(kX, x);
    values.insert_or_assign({SlotKind::kKey, "aqt"}, Array::Zeros(DType::kU32, {2}));
    absl::StatusOr<SlotValues> out = EvalSlots(program, values);
    EXPECT_THAT(out, IsOk());
    return out->at(kLogits);
  }

  static Array RunPrepared(const PreparedProgram& prepared, const Array& x) {
    const SlotValues inputs = {{kX, x}, {{SlotKind::kKey, "aqt"}, Array::Zeros(DType::kU32, {2})}};
    const absl::StatusOr<SlotValues> out = prepared.Eval(inputs);
    EXPECT_THAT(out, IsOk());
    return out.ok() ? out->at(kLogits) : Array();
  }
};

TEST_P(WytiwysTest, ServedLogitsAreTheTrainedOnes) {
  const DType dtype = GetParam().dtype;
  const std::vector<Input> loss_inputs = {XInput(dtype, kBatch), {kLabels, {dtype, {kBatch, kClasses}}}};
  absl::StatusOr<Program> loss = Injected(LossFn, loss_inputs, {kLoss, kLogits}, QuantMode::kTrain);
  ASSERT_THAT(loss, IsOk());
  absl::StatusOr<SlotValues> initial = nn::InitParams(LossFn, loss_inputs, MakeKey(3));
  ASSERT_THAT(initial, IsOk());
  SlotValues stats;
  if (GetParam().has_statistics) {
    absl::StatusOr<SlotValues> found = Statistics(*initial);
    ASSERT_THAT(found, IsOk());
    ASSERT_FALSE(found->empty());
    stats = *std::move(found);
    initial->insert(stats.begin(), stats.end());
  }
  absl::StatusOr<nn::Trainer> trainer = nn::Trainer::Make(*loss, nn::Sgd{.learning_rate = 0.05}, *initial, MakeKey(1));
  ASSERT_THAT(trainer, IsOk());
  for (int step = 0; step < 4; ++step) ASSERT_THAT(trainer->Step(Batch(step)), IsOk());
  SlotValues params = trainer->params();
  // The step computes its logits before it changes the parameters.
  const SlotValues batch = Batch(99);
  absl::StatusOr<SlotValues> step = trainer->Step(batch);
  ASSERT_THAT(step, IsOk());
  const Array& x = batch.at(kX);
  const Array& want = step->at(kLogits);
  ASSERT_FALSE(BitEqual(trainer->params().begin()->second, params.begin()->second));
  // Training does not change the ranges.
  for (const auto& [slot, array] : stats) {
    EXPECT_TRUE(BitEqual(trainer->state().at(slot), array)) << slot.ToString();
  }
  params.insert(stats.begin(), stats.end());

  absl::StatusOr<Program> convert = Injected(ModelFn, {XInput(dtype, 1)}, {kLogits}, QuantMode::kConvert);
  ASSERT_THAT(convert, IsOk());
  absl::StatusOr<Folded> folded = Fold(*convert, params);
  ASSERT_THAT(folded, IsOk());
  const absl::StatusOr<nn::StateFile> file = SavedAndLoaded(folded->values);
  ASSERT_THAT(file, IsOk());
  ExpectNoFloatKernels(*file);
  EXPECT_TRUE(
      BitEqual(Run(folded->program, folded->values, Rows(x, 0, 1)),
               Run(*Injected(ModelFn, {XInput(dtype, 1)}, {kLogits}, QuantMode::kTrain), params, Rows(x, 0, 1))));
  for (const int64_t rows : {int64_t{1}, int64_t{7}, kBatch}) {
    absl::StatusOr<Program> serve =
        Injected(ModelFn, {XInput(dtype, rows)}, {kLogits}, QuantMode::kServe, &file->state);
    ASSERT_THAT(serve, IsOk());
    const Program served = Dce(*serve, {.drop_inputs = {SlotKind::kParam}});
    for (const int position : served.InputsOfKind(SlotKind::kParam)) {
      EXPECT_TRUE(file->state.contains(served.inputs[position].slot)) << served.inputs[position].slot.ToString();
    }
    EXPECT_TRUE(served.InputsOfKind(SlotKind::kStat).empty());
    absl::StatusOr<Program> train = Injected(ModelFn, {XInput(dtype, rows)}, {kLogits}, QuantMode::kTrain);
    ASSERT_THAT(train, IsOk());
    const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make({served}, file->state);
    ASSERT_THAT(prepared, IsOk());
    for (int64_t first = 0; first + rows <= kBatch; first += rows) {
      const Array part = Rows(x, first, first + rows), logits = Run(served, file->state, part);
      EXPECT_TRUE(BitEqual(logits, Run(*train, params, part))) << rows << " rows from " << first;
      EXPECT_TRUE(BitEqual(logits, RunPrepared(*prepared, part))) << rows << " rows from " << first << ", prepared";
      if (GetParam().per_example || rows == kBatch) {
        EXPECT_TRUE(BitEqual(logits, Rows(want, first, first + rows))) << rows << " rows from " << first;
      }
    }
    testing::CountingPool pool;
    const UseExecutor threads(&pool);
    const Array part = Rows(x, 0, rows), logits = Run(served, file->state, part);
    EXPECT_TRUE(BitEqual(logits, Run(*train, params, part))) << rows << " rows on two threads";
    EXPECT_TRUE(BitEqual(logits, RunPrepared(*prepared, part))) << rows << " rows on two threads, prepared";
    if (rows == kBatch) {
      EXPECT_TRUE(BitEqual(logits, want)) << "on two threads";
      EXPECT_GT(pool.calls, 0);  // smaller products do not use a second thread
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configs, WytiwysTest,
    ::testing::Values(
        Case{.name = "int8", .rules = kInt8}, Case{.name = "int8_bf16", .rules = kInt8, .dtype = DType::kBF16},
        // The arithmetic of the original divides one scale and multiplies several.
        Case{.name = "int8_xla",
             .rules = "rules { dot_general { base: 'fully_quantized_int8' } }",
             .per_example = false},
        Case{
            .name = "int4",
            .rules = "rules { dot_general { base: 'fully_quantized_int8' fwd {"
                     "  lhs { quantizer { int_symmetric { bits: 4 } } } rhs { quantizer { int_symmetric { bits: 4 } } }"
                     "} } } arithmetic: ARITHMETIC_IEEE"},
        Case{.name = "weights_int8",
             .rules = "rules { rhs_origin: OPERAND_ORIGIN_PARAM dot_general { base: 'int8_weights' } }"
                      "rules { lhs_origin: OPERAND_ORIGIN_PARAM dot_general {"
                      "  fwd { lhs { quantizer { int_symmetric { bits: 8 } abs_max {} } } } } }"},
        Case{.name = "weights_int4",
             .rules = "rules { rhs_origin: OPERAND_ORIGIN_PARAM dot_general { base: 'int4_weights' } }"
                      "rules { lhs_origin: OPERAND_ORIGIN_PARAM dot_general {"
                      "  fwd { lhs { quantizer { int_symmetric { bits: 4 } abs_max {} } } } } }"},
        Case{.name = "static_range", .rules = kStatic},
        Case{.name = "calibrated", .rules = kCalibrated, .has_statistics = true},
        Case{.name = "calibrated_bf16", .rules = kCalibrated, .dtype = DType::kBF16, .has_statistics = true},
        Case{.name = "calibrated_weights", .rules = kCalibratedWeights, .has_statistics = true},
        // Sub-channels of 32: each has its own scales.
        Case{.name = "tiled",
             .rules = "rules { rhs_origin: OPERAND_ORIGIN_PARAM dot_general { base: 'fully_quantized_int8' tiling {"
                      "  lhs { contraction_axes { axis: -1 tile_size: 32 } }"
                      "  rhs { contraction_axes { axis: 0 tile_size: 32 } } } } }"
                      "rules { lhs_origin: OPERAND_ORIGIN_PARAM dot_general { base: 'fully_quantized_int8' tiling {"
                      "  lhs { contraction_axes { axis: -1 tile_size: 32 } }"
                      "  rhs { contraction_axes { axis: -1 tile_size: 32 } } } } } arithmetic: ARITHMETIC_IEEE"},
        Case{.name = "mixed",
             .rules = "rules { scope: 'mlp/logits' keep: true }"
                      "rules { scope: 'mlp/fc1' dot_general { base: 'fully_quantized_int8' } }"
                      "rules { scope: 'mlp/fc2' dot_general { base: 'fully_quantized_int8' fwd {"
                      "  lhs { quantizer { int_symmetric { bits: 4 } } } } } } arithmetic: ARITHMETIC_IEEE",
             .float_kernels = {"mlp/logits/kernel"}},
        Case{.name = "float",
             .rules = "rules { keep: true }",
             .float_kernels = {"mlp/fc1/kernel", "mlp/fc2/kernel", "mlp/logits/kernel"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace aqt
