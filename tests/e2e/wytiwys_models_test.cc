// What you train is what you serve, for a convolutional model and for a transformer, with numbers of every kind. A
// model is trained for some steps according to a textproto, frozen, written to a file and loaded. The logits of the
// training's forward pass for a batch of 8 examples are the expected ones. 1, 3 and 8 of its examples give these bits
//   - in the trained program and in the served one,
//   - each by Eval and as an Executable, the served one also as a PreparedProgram,
//   - each on one thread and on two.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/conv.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/calibrate.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/runtime/executable.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/counting_pool.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/fold_batch_norm.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "aqt/transforms/quantize/serve.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

constexpr int64_t kBatch = 8;
const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"};
const Slot kLoss{SlotKind::kData, "loss"}, kLogits{SlotKind::kData, "logits"};

// ---- models

struct Model {
  const char* name;
  Aval x, labels;  // of one example, without the axis of the batch
  Value (*logits)(const Value& x, bool train);
  // With convolutions and batch norm, which differs in training and is folded for serving.
  bool has_conv;
  int weights;  // kernels that rules quantize
};

Value CnnBlock(const Value& x, const char* name, int64_t stride, bool train) {
  const NamedScope scope(name);
  const ConvDims dims{.window_strides = {stride, stride}, .padding = ConvPadding::kSame};
  const Value y = nn::Conv(x, "conv", {.features = 64, .kernel_size = {3, 3}, .dims = dims, .use_bias = false});
  return ops::Relu(nn::BatchNorm(y, "norm", {.train = train, .momentum = 0.9}));
}

// [rows, 8, 8, 4] -> [rows, 10]
Value CnnLogits(const Value& x, bool train) {
  const Value h = CnnBlock(CnnBlock(x, "block1", 1, train), "block2", 2, train);
  return nn::Dense(ops::Mean(h, {1, 2}), "logits", {.features = 10});
}

constexpr int64_t kBytes = 64, kLength = 16, kWidth = 64;

// s32 [rows, 16] -> [rows, 16, 64]
Value TransformerLogits(const Value& bytes, bool /*train*/) {
  const Value positions = nn::Parameter("positions", {DType::kF32, {kLength, kWidth}}, nn::Normal(0.02));
  Value x = nn::Embed(bytes, "bytes", {.entries = kBytes, .features = kWidth}) + positions;
  const Value normed = nn::LayerNorm(x, "norm1");
  x = x + nn::MultiHeadAttention(normed, normed, nn::CausalMask(kLength, kLength), "attention", {.heads = 2});
  const Value hidden = ops::Gelu(nn::Dense(nn::LayerNorm(x, "norm2"), "up", {.features = 4 * kWidth}));
  x = x + nn::Dense(hidden, "down", {.features = kWidth});
  return nn::Dense(nn::LayerNorm(x, "norm"), "logits", {.features = kBytes, .use_bias = false});
}

const Model kCnn = {.name = "cnn",
                    .x = {DType::kF32, {8, 8, 4}},
                    .labels = {DType::kF32, {10}},
                    .logits = &CnnLogits,
                    .has_conv = true,
                    .weights = 3};
const Model kTransformer = {.name = "transformer",
                            .x = {DType::kS32, {kLength}},
                            .labels = {DType::kF32, {kLength, kBytes}},
                            .logits = &TransformerLogits,
                            .has_conv = false,
                            .weights = 7};

Aval Rows(Aval example, int64_t rows) {
  Shape shape = {rows};
  for (const int64_t extent : example.shape) shape.push_back(extent);
  return {example.dtype, shape};
}

// Examples first to last of an array.
Array Examples(const Array& x, int64_t first, int64_t last) {
  PerAxis start(x.shape().rank(), 0), limit(x.shape().begin(), x.shape().end());
  start[0] = first;
  limit[0] = last;
  return *ops::Slice(Value(x), start, limit).ToArray();
}

Array RandomClasses(const Shape& shape, int64_t classes, uint64_t seed) {
  ArrayBuilder array(DType::kS32, shape);
  const RandomBits bits(MakeKey(seed), shape.num_elements());
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    array.Mutable<int32_t>()[i] = static_cast<int32_t>(bits.Bits32(i) % classes);
  }
  return std::move(array).Build();
}

SlotValues Batch(const Model& model, uint64_t seed) {
  const Aval x = Rows(model.x, kBatch);
  const Shape& labels = model.labels.shape;
  Shape label = {kBatch};
  for (int64_t i = 0; i + 1 < labels.rank(); ++i) label.push_back(labels[i]);
  const int64_t classes = labels[labels.rank() - 1];
  return {{kX, IsFloat(x.dtype) ? testing::RandomArray(x, seed) : RandomClasses(x.shape, kBytes, seed)},
          {kLabels, *ops::OneHot(Value(RandomClasses(label, classes, seed + 1000)), classes).ToArray()}};
}

// ---- numbers

struct Numbers {
  const char* name;
  std::string conv, dot;  // how rules quantize convolutions and other products
  // Whether only products with a parameter are quantized, but not those of attention.
  bool only_weights = false;
};

std::string RulesFor(const Model& model, const Numbers& numbers) {
  const absl::string_view origin = numbers.only_weights ? "rhs_origin: OPERAND_ORIGIN_PARAM " : "";
  const auto rule = [&](absl::string_view op, absl::string_view text) {
    return absl::StrCat("rules { ops: '", op, "' ", origin, "dot_general { ", text, " } } ");
  };
  return absl::StrCat("schema: 1 ", model.has_conv ? rule("conv", numbers.conv) : "", rule("dot_general", numbers.dot),
                      "arithmetic: ARITHMETIC_IEEE");
}

std::vector<Numbers> AllNumbers() {
  const auto bits = [](int lhs, int rhs) {
    return absl::StrCat(" fwd { lhs { quantizer { int_symmetric { bits: ", lhs,
                        " } } } rhs { quantizer { int_symmetric { bits: ", rhs, " } } } }");
  };
  const std::string conv = "base: 'conv2d_int8'";
  const std::string fp8_conv =
      conv +
      " clear: 'fwd.lhs.quantizer.int_symmetric' clear: 'fwd.rhs.quantizer.int_symmetric' fwd {"
      "  lhs { quantizer { fp8 { dtype: 'e4m3fn' } } } rhs { quantizer { fp8 { dtype: 'e4m3fn' } } } }";
  // The scales of a kernel, one for each output channel, where the preset is one of dot_general.
  const std::string kernel_scales = " fwd { rhs { quantizer { calib_shared_axes { axes: [0, 1, 2] } } } }";
  const std::string fixed =
      " clear: 'fwd.lhs.quantizer.abs_max' fwd { lhs { quantizer {"
      "  constant { bound { number: 3 } } calib_shared_axes { per_tensor: true } } } }";
  return {
      {.name = "int8", .conv = conv, .dot = "base: 'fully_quantized_int8'"},
      {.name = "int4", .conv = conv + bits(4, 4), .dot = "base: 'int8_fwd'" + bits(4, 4)},
      {.name = "w4a8", .conv = conv + bits(8, 4), .dot = "base: 'w4a8'"},
      {.name = "fp8", .conv = fp8_conv, .dot = "base: 'fp8_hybrid'"},
      {"weights_int8", "base: 'int8_weights'" + kernel_scales, "base: 'int8_weights'", true},
      {"weights_int4", "base: 'int4_weights'" + kernel_scales, "base: 'int4_weights'", true},
      {"fixed_range", conv + " clear: 'fwd.lhs.quantizer.calib_shared_axes'" + fixed, "base: 'int8_fwd'" + fixed, true},
      {"measured_range", "base: 'int8_static'" + kernel_scales, "base: 'int8_static'", true},
  };
}

// ---- the test

// A function that computes the logits of some examples.
struct Form {
  const char* name;
  std::function<absl::StatusOr<SlotValues>(const SlotValues& examples)> run;
};

struct Case {
  const Model* model;
  Numbers numbers;
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.model->name << " " << c.numbers.name; }

class WytiwysModelsTest : public ::testing::TestWithParam<Case> {
 protected:
  static const Model& model() { return *GetParam().model; }
  static std::vector<Input> LossInputs() {
    return {{kX, Rows(model().x, kBatch)}, {kLabels, Rows(model().labels, kBatch)}};
  }
  static Values LossFn(In in) {
    const Value logits = model().logits(in[0], /*train=*/true);
    return {ops::SoftmaxCrossEntropy(logits, in[1]), logits};
  }

  // The served model for some rows.
  static absl::StatusOr<Program> Served(int64_t rows) {
    AQT_ASSIGN_OR_RETURN(const Program program,
                         Trace([](In in) { return Values{model().logits(in[0], /*train=*/false)}; },
                               {{kX, Rows(model().x, rows)}}, std::vector<Slot>{kLogits}));
    return model().has_conv ? FoldBatchNorm(program) : program;
  }

  // The content of a checkpoint after some training steps, written and read again, and the state from which it was
  // made. Sets `logits` to those of a last step for `batch`, if training computes the served logits.
  struct Trained {
    SlotValues state, stored = {};
    std::optional<Array> logits = std::nullopt;
  };
  static absl::StatusOr<Trained> Train(const InjectConfig& config, const SlotValues& batch) {
    const std::vector<Input> inputs = LossInputs();
    AQT_ASSIGN_OR_RETURN(const Program served, Served(kBatch));
    AQT_ASSIGN_OR_RETURN(SlotValues initial, nn::InitParams(&LossFn, inputs, MakeKey(3)));
    const std::vector<SlotValues> batches = {Batch(model(), 50), Batch(model(), 51)};
    AQT_ASSIGN_OR_RETURN(initial, nn::Calibrate(served, config, initial, batches));
    AQT_ASSIGN_OR_RETURN(const Program traced, Trace(&LossFn, inputs, std::vector<Slot>{kLoss, kLogits}));
    AQT_ASSIGN_OR_RETURN(const Program loss, Inject(traced, config));
    AQT_ASSIGN_OR_RETURN(nn::Trainer trainer,
                         nn::Trainer::Make(loss, nn::Sgd{.learning_rate = 0.05}, initial, MakeKey(1)));
    for (uint64_t step = 0; step < 3; ++step) AQT_RETURN_IF_ERROR(trainer.Step(Batch(model(), step)).status());
    Trained trained = {.state = trainer.state()};
    // The step computes its logits before it changes the parameters.
    AQT_ASSIGN_OR_RETURN(const SlotValues out, trainer.Step(batch));
    if (!model().has_conv) trained.logits = out.at(kLogits);

    AQT_ASSIGN_OR_RETURN(const Program one, Served(1));
    AQT_ASSIGN_OR_RETURN(const SlotValues frozen, Freeze(one, config, trained.state));
    const std::string path =
        absl::StrCat(::testing::TempDir(), "/", model().name, "_", GetParam().numbers.name, ".safetensors");
    AQT_RETURN_IF_ERROR(nn::SaveState(io::LocalFileSystem(), path, {frozen, {}}));
    AQT_ASSIGN_OR_RETURN(nn::StateFile file, nn::LoadState(io::LocalFileSystem(), path));
    trained.stored = std::move(file.state);
    return trained;
  }

  // With values for all inputs but x. Forward passes read no keys.
  static Form Evaluated(const char* name, const Program& program, SlotValues values) {
    values[{SlotKind::kKey, "aqt"}] = Array::Zeros(DType::kU32, {2});
    return {name, [program, values](SlotValues examples) {
              examples.insert(values.begin(), values.end());
              return EvalSlots(program, examples);
            }};
  }
  static absl::StatusOr<Form> Compiled(const char* name, const Program& program, SlotValues values) {
    values[{SlotKind::kKey, "aqt"}] = Array::Zeros(DType::kU32, {2});
    AQT_ASSIGN_OR_RETURN(const Executable executable, Executable::Make(program));
    return Form{name, [executable, values](SlotValues examples) {
                  examples.insert(values.begin(), values.end());
                  return executable.RunSlots(examples);
                }};
  }

  static absl::StatusOr<std::vector<Form>> Forms(const InjectConfig& config, const Trained& trained, int64_t rows) {
    AQT_ASSIGN_OR_RETURN(const Program model, Served(rows));
    AQT_ASSIGN_OR_RETURN(const Program train, Inject(model, config));
    AQT_ASSIGN_OR_RETURN(const Program serve, ServeProgram(model, config, trained.stored));
    AQT_ASSIGN_OR_RETURN(const PreparedProgram prepared, PreparedProgram::Make({serve}, trained.stored));
    AQT_ASSIGN_OR_RETURN(Form trained_executable, Compiled("trained, Executable", train, trained.state));
    AQT_ASSIGN_OR_RETURN(Form served_executable, Compiled("served, Executable", serve, trained.stored));
    return std::vector<Form>{
        Evaluated("trained, Eval", train, trained.state), std::move(trained_executable),
        Evaluated("served, Eval", serve, trained.stored), std::move(served_executable),
        Form{"served, prepared", [prepared](const SlotValues& examples) { return prepared.Eval(examples); }}};
  }
};

TEST_P(WytiwysModelsTest, ServedLogitsAreTheTrainedOnes) {
  const absl::StatusOr<InjectConfig> config = InjectConfigFromText(RulesFor(model(), GetParam().numbers));
  ASSERT_THAT(config, IsOk());
  const SlotValues batch = Batch(model(), 99);
  const absl::StatusOr<Trained> trained = Train(*config, batch);
  ASSERT_THAT(trained, IsOk());
  int qvalues = 0;
  for (const auto& [slot, array] : trained->stored) {
    qvalues += slot.kind == SlotKind::kFrozen && slot.path.ends_with("/value") ? 1 : 0;
  }
  EXPECT_EQ(qvalues, model().weights);

  absl::StatusOr<std::vector<Form>> forms = Forms(*config, *trained, kBatch);
  ASSERT_THAT(forms, IsOk());
  const absl::StatusOr<SlotValues> truth = forms->front().run({{kX, batch.at(kX)}});
  ASSERT_THAT(truth, IsOk());
  const Array& want = truth->at(kLogits);
  if (trained->logits.has_value()) {
    EXPECT_TRUE(BitEqual(want, *trained->logits)) << "in a step of the training";
  }

  testing::CountingPool pool;
  for (const int64_t rows : {kBatch, int64_t{3}, int64_t{1}}) {
    forms = Forms(*config, *trained, rows);
    ASSERT_THAT(forms, IsOk());
    for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
      const UseExecutor threads(executor);
      for (const Form& form : *forms) {
        pool.calls = 0;
        for (int64_t first = 0; first + rows <= kBatch; first += rows) {
          const absl::StatusOr<SlotValues> got = form.run({{kX, Examples(batch.at(kX), first, first + rows)}});
          ASSERT_THAT(got, IsOk());
          EXPECT_TRUE(BitEqual(got->at(kLogits), Examples(want, first, first + rows)))
              << form.name << ", " << rows << " rows from " << first << ", " << (executor == nullptr ? 1 : 2)
              << " threads";
        }
        // Products of fewer rows do not use a second thread.
        if (executor != nullptr && rows == kBatch) {
          EXPECT_GT(pool.calls, 0) << form.name;
        }
      }
    }
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const Model* model : {&kCnn, &kTransformer}) {
    for (const Numbers& numbers : AllNumbers()) cases.push_back({model, numbers});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, WytiwysModelsTest, ::testing::ValuesIn(AllCases()), [](const auto& info) {
  return absl::StrCat(info.param.model->name, "_", info.param.numbers.name);
});

}  // namespace
}  // namespace aqt
