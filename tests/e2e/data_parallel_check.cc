#include "tests/e2e/data_parallel_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/layers/conv.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/dropout.h"
#include "aqt/nn/layers/fp8_dense.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/batch_order.h"
#include "aqt/nn/train/optimizer.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/collective/collective_ops.h"
#include "aqt/ops/fp8/fp8_scaling.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/random.h"
#include "aqt/transforms/parallel/data_parallel.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"

namespace aqt::testing {
namespace {

using In = absl::Span<const Value>;
using Values = std::vector<Value>;

constexpr int64_t kExamples = 96, kRows = 32, kFeatures = 24, kClasses = 5;
const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"}, kLoss{SlotKind::kData, "loss"};
constexpr double kUnit = 0x1p-24;

struct Problem {
  std::string name;
  Values (*model)(In);
  std::string rules = "";  // of an injection
  nn::Optimizer optimizer = nn::Sgd{.learning_rate = 0.05};
  nn::StepOptions step = {};
  EvalHooks hooks = {};
  std::map<std::string, std::string> settings = {};
};

std::vector<Input> Inputs() {
  return {{kX, {DType::kF32, {kRows, kFeatures}}}, {kLabels, {DType::kF32, {kRows, kClasses}}}};
}

// The examples with these numbers. The class is the index of the largest of the first features.
SlotValues Batch(const std::vector<int64_t>& rows) {
  static const Array& all = *new Array(RandomArray({DType::kF32, {kExamples, kFeatures}}, 3));
  const auto count = static_cast<int64_t>(rows.size());
  ArrayBuilder x(DType::kF32, {count, kFeatures}), labels(DType::kF32, {count, kClasses});
  for (int64_t i = 0; i < count; ++i) {
    const float* row = all.View<float>().data() + rows[i] * kFeatures;
    std::copy(row, row + kFeatures, x.Mutable<float>().begin() + i * kFeatures);
    labels.Mutable<float>()[i * kClasses + (std::max_element(row, row + kClasses) - row)] = 1;
  }
  return {{kX, std::move(x).Build()}, {kLabels, std::move(labels).Build()}};
}

// Everything is in int8: each parameter's gradient is an s32 sum.
Values Int8Model(In in) {
  const auto dense = [](const Value& x, const char* name, int64_t features) {
    return nn::Dense(x, name, {.features = features, .use_bias = false});
  };
  const Value h = ops::Relu(dense(ops::Relu(dense(in[0], "fc1", 40)), "fc2", 24));
  return {ops::SoftmaxCrossEntropy(dense(h, "logits", kClasses), in[1])};
}

Values NormModel(In in) {
  Value h = ops::Relu(nn::BatchNorm(nn::Dense(in[0], "fc1", {.features = 40}), "bn"));
  h = nn::Dropout(nn::LayerNorm(h, "norm"), "dropout", {.rate = 0.25});
  return {ops::SoftmaxCrossEntropy(nn::Dense(h, "logits", {.features = kClasses}), in[1])};
}

Values ConvModel(In in) {
  const Value images = ops::Reshape(in[0], {kRows, 4, 6, 1});
  Value h = ops::Relu(nn::Conv(images, "conv", {.features = 4, .kernel_size = {3, 3}}));
  h = ops::MaxPool(h, {2, 2}, {2, 2});
  h = ops::Reshape(h, {h.dim(0), h.dim(1) * h.dim(2) * h.dim(3)});
  return {ops::SoftmaxCrossEntropy(nn::Dense(h, "logits", {.features = kClasses}), in[1])};
}

Values FloatModel(In in) {
  const Value h = ops::Tanh(nn::Dense(in[0], "fc1", {.features = 40}));
  return {ops::SoftmaxCrossEntropy(nn::Dense(h, "logits", {.features = kClasses}), in[1])};
}

Values Fp8Model(In in) {
  const Value h = ops::Relu(nn::Fp8Dense(in[0], "fc1", {.features = {40}}));
  return {ops::SoftmaxCrossEntropy(nn::Fp8Dense(h, "logits", {.features = {kClasses}}), in[1])};
}

absl::StatusOr<nn::Trainer> MakeTrainer(const Problem& problem, Collective* collective,
                                        const DataParallelOptions& options, uint64_t key = 1) {
  AQT_ASSIGN_OR_RETURN(Program loss, Trace(problem.model, Inputs(), std::vector<Slot>{kLoss}));
  if (!problem.rules.empty()) {
    AQT_ASSIGN_OR_RETURN(const InjectConfig config, InjectConfigFromText(absl::StrCat("schema: 1 ", problem.rules)));
    AQT_ASSIGN_OR_RETURN(loss, Inject(loss, config));
  }
  AQT_ASSIGN_OR_RETURN(const SlotValues params, nn::InitParams(problem.model, Inputs(), MakeKey(7)));
  return nn::Trainer::Make(loss, problem.optimizer, params, MakeKey(key),
                           {.step = problem.step,
                            .settings = problem.settings,
                            .hooks = problem.hooks,
                            .collective = collective,
                            .data_parallel = options});
}

// A training by all processes, and the same training in this process alone.
class Pair {
 public:
  static absl::StatusOr<Pair> Make(Collective& collective, const Problem& problem, FloatSums float_sums) {
    AQT_ASSIGN_OR_RETURN(nn::Trainer one, MakeTrainer(problem, nullptr, {}));
    AQT_ASSIGN_OR_RETURN(nn::Trainer all, MakeTrainer(problem, &collective, {.float_sums = float_sums}));
    return Pair(collective, problem, std::move(one), std::move(all));
  }

  absl::Status Step() {
    const std::vector<int64_t> rows = nn::RowsOfStep(MakeKey(5), kExamples, kRows, one_.steps());
    AQT_ASSIGN_OR_RETURN(one_out_, one_.Step(Batch(rows)));
    AQT_ASSIGN_OR_RETURN(all_out_, all_.Step(Batch(nn::ShareOf(rows, collective_->rank(), collective_->size()))));
    return absl::OkStatus();
  }

  // OK if all parts of the state with this kind and path have the same bits. Internal if not, or if there are none.
  absl::Status ExpectSameState(absl::string_view path = "") const {
    int compared = 0;
    for (const auto& [slot, expected] : one_.state()) {
      if (!absl::StrContains(slot.path, path)) continue;
      ++compared;
      if (BitEqual(all_.state().at(slot), expected)) continue;
      return Fail(absl::StrCat(slot.ToString(), " is ", ContentsText(all_.state().at(slot)), ", expected ",
                               ContentsText(expected)));
    }
    return compared > 0 ? absl::OkStatus() : Fail(absl::StrCat("no state is named ", path));
  }
  // |loss - loss of one process| <= tolerance * loss.
  absl::Status ExpectLossWithin(double tolerance) const {
    const double one = loss(one_out_), all = loss(all_out_);
    if (std::isfinite(one) && std::abs(all - one) <= tolerance * std::abs(one)) return absl::OkStatus();
    return Fail(absl::StrCat("the loss is ", all, ", expected ", one));
  }

  const nn::Trainer& one() const { return one_; }
  const nn::Trainer& all() const { return all_; }
  absl::Status Fail(absl::string_view what) const {
    return absl::InternalError(absl::StrCat(problem_, ", process ", collective_->rank(), " of ", collective_->size(),
                                            ", step ", one_.steps(), ": ", what));
  }

 private:
  Pair(Collective& collective, const Problem& problem, nn::Trainer one, nn::Trainer all)
      : collective_(&collective), problem_(problem.name), one_(std::move(one)), all_(std::move(all)) {}
  static double loss(const SlotValues& out) { return out.at(kLoss).View<float>()[0]; }

  Collective* collective_;
  std::string problem_;
  nn::Trainer one_, all_;
  SlotValues one_out_, all_out_;
};

// `rules` for each side of each product.
std::string OnAllSides(absl::string_view quantizer) {
  std::string text;
  for (const char* product : {"fwd", "dlhs", "drhs"}) {
    absl::StrAppend(&text, product, " { lhs { ", quantizer, " } rhs { ", quantizer, " } } ");
  }
  return absl::StrCat("rules { dot_general { ", text, " } }");
}

}  // namespace

absl::Status CheckInt8Training(Collective& collective) {
  const std::string noise = "int_symmetric { bits: 8 noise {} } ";
  const Problem problems[] = {
      {"int8", Int8Model, "rules { dot_general { base: 'fully_quantized_int8' } }"},
      {"int8, ieee", Int8Model, "rules { dot_general { base: 'fully_quantized_int8' } } arithmetic: ARITHMETIC_IEEE"},
      {"int8 by tensor", Int8Model,
       OnAllSides(absl::StrCat("quantizer { ", noise, "abs_max {} calib_shared_axes { per_tensor: true } }"))},
      {"int8, powers of two", Int8Model,
       OnAllSides(absl::StrCat("quantizer { ", noise, "abs_max { po2_scale: true } }"))},
  };
  for (const Problem& problem : problems) {
    AQT_ASSIGN_OR_RETURN(Pair pair, Pair::Make(collective, problem, FloatSums::kReduce));
    for (int step = 0; step < 20; ++step) {
      AQT_RETURN_IF_ERROR(pair.Step());
      AQT_RETURN_IF_ERROR(pair.ExpectSameState());
      // The mean of positive numbers: the bound of a reduce_sum (data_parallel.h), plus the division on both sides.
      AQT_RETURN_IF_ERROR(pair.ExpectLossWithin((kRows / 8.0 + collective.size() + 8 + 2) * kUnit));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGatheredTraining(Collective& collective) {
  const nn::StepOptions step = {.accumulate_steps = 2, .clip_norm = 1, .ema = nn::Ema{.decay = 0.9}};
  const Problem problems[] = {
      {"norms", NormModel, "rules { dot_general { base: 'fully_quantized_int8' } }", nn::Adam{.learning_rate = 0.01},
       step},
      {"convolution", ConvModel, "rules { ops: 'conv' dot_general { base: 'int8_fwd' } }"},
      {"fp8 layers", Fp8Model},
      {"fp8 by rule", FloatModel, "rules { dot_general { base: 'fp8_delayed' } }"},
  };
  for (const Problem& problem : problems) {
    AQT_ASSIGN_OR_RETURN(Pair pair, Pair::Make(collective, problem, FloatSums::kGather));
    for (int i = 0; i < 8; ++i) {
      AQT_RETURN_IF_ERROR(pair.Step());
      AQT_RETURN_IF_ERROR(pair.ExpectSameState());
      AQT_RETURN_IF_ERROR(pair.ExpectLossWithin(0));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFloatGradients(Collective& collective) {
  // One step of SGD from zero momentum, with a rate of 1: the momentum is the gradient.
  const Problem problem{"float", FloatModel, "", nn::Sgd{.learning_rate = 1}};
  AQT_ASSIGN_OR_RETURN(Pair pair, Pair::Make(collective, problem, FloatSums::kReduce));
  AQT_RETURN_IF_ERROR(pair.Step());
  AQT_RETURN_IF_ERROR(pair.ExpectLossWithin((kRows / 8.0 + collective.size() + 8 + 2) * kUnit));
  for (const auto& [slot, expected] : pair.one().state()) {
    if (slot.kind != SlotKind::kStat) continue;
    const bool bias = absl::StrContains(slot.path, "bias");
    const int64_t processes = collective.size();
    // Cotangents of rows are equal; their sums have the bound of data_parallel.h. The magnitudes of the logits'
    // cotangents in a row add up to at most 2 / rows (a softmax minus a label). The cotangent of a hidden value is at
    // most this times a weight, and weights are below 1. They are multiplied by features below 2.
    const double terms = bias ? kRows / 8.0 + processes + 8 : kRows + kRows / processes + processes;
    const double largest_sum = kRows * (2.0 / kRows) * 2;
    for (int64_t i = 0; i < expected.num_elements(); ++i) {
      const double difference =
          std::abs(double{expected.View<float>()[i]} - pair.all().state().at(slot).View<float>()[i]);
      if (difference > terms * kUnit * largest_sum) {
        return pair.Fail(absl::StrCat(slot.ToString(), " differs by ", difference));
      }
    }
  }
  return absl::OkStatus();
}

namespace {

// Repeated Fp8Update of tensors whose rows are divided.
absl::Status CheckShardedAmax(Collective& collective) {
  const Slot scale{SlotKind::kStat, "scale"}, history{SlotKind::kStat, "history"};
  const Aval x{DType::kBF16, {kRows, 7}};
  const Program program = *Trace(
      [](In in) {
        const Fp8TensorState next = ops::Fp8Update(in[0], {in[1], in[2]}, {.dtype = DType::kE5M2, .margin = 1});
        return Values{next.scale, next.amax_history};
      },
      {{kX, x}, {scale, {DType::kF32, {1}}}, {history, {DType::kF32, {4}}}}, {scale, history});
  AQT_ASSIGN_OR_RETURN(const Program part, DataParallel(program, collective.rank(), collective.size()));
  SlotValues one = {{scale, Array::Of<float>({1}, {1})}, {history, Array::Zeros(DType::kF32, {4})}}, all = one;
  for (int step = 0; step < 12; ++step) {
    const double size = step == 9 ? INFINITY : std::exp2(step * 5 % 13 - 6);
    const Array whole = step == 4 ? Array::Zeros(x.dtype, x.shape) : RandomArray(x, 100 + step, -size, size);
    const Aval own = part.aval(part.inputs[0].var);
    const auto* const rows = static_cast<const char*>(whole.data()) + collective.rank() * own.num_bytes();
    one[kX] = whole;
    all[kX] = Array::CopyOf(ArrayRef(own.dtype, own.shape, rows));
    const UseCollective use(&collective);
    AQT_ASSIGN_OR_RETURN(one, EvalSlots(program, one));
    AQT_ASSIGN_OR_RETURN(all, EvalSlots(part, all));
    if (!BitEqual(one.at(scale), all.at(scale)) || !BitEqual(one.at(history), all.at(history))) {
      return absl::InternalError(absl::StrCat("sharded amax, step ", step, ": scale ", ContentsText(all.at(scale)),
                                              ", expected ", ContentsText(one.at(scale))));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFp8(Collective& collective) {
  AQT_RETURN_IF_ERROR(CheckShardedAmax(collective));
  // In the first step only the parameters differ, because their gradients are float sums. The statistics are equal.
  for (const Problem& problem : {Problem{"fp8 layers", Fp8Model},
                                 Problem{"fp8 by rule", FloatModel, "rules { dot_general { base: 'fp8_delayed' } }"}}) {
    AQT_ASSIGN_OR_RETURN(Pair pair, Pair::Make(collective, problem, FloatSums::kReduce));
    AQT_RETURN_IF_ERROR(pair.Step());
    AQT_RETURN_IF_ERROR(pair.ExpectSameState("amax_history"));
    if (problem.model != Fp8Model) continue;
    // Later, scales are powers of two of largest magnitudes, which differ at most in their last bits.
    for (int step = 0; step < 10; ++step) AQT_RETURN_IF_ERROR(pair.Step());
    AQT_RETURN_IF_ERROR(pair.ExpectSameState("_scale"));
  }
  return absl::OkStatus();
}

absl::Status CheckFailures(Collective& collective) {
  const Problem problem{.name = "failures", .model = FloatModel, .hooks = {.stop_at_nan = true}};
  AQT_ASSIGN_OR_RETURN(Pair pair, Pair::Make(collective, problem, FloatSums::kGather));
  AQT_ASSIGN_OR_RETURN(nn::Trainer trainer, MakeTrainer(problem, &collective, {.float_sums = FloatSums::kGather}));
  const int failing = collective.size() - 1;
  const bool fails = collective.rank() == failing;
  for (const bool in_the_program : {false, true}) {
    AQT_RETURN_IF_ERROR(pair.Step());
    const std::vector<int64_t> rows = nn::RowsOfStep(MakeKey(5), kExamples, kRows, trainer.steps());
    SlotValues batch = Batch(nn::ShareOf(rows, collective.rank(), collective.size()));
    SlotValues wrong = batch;
    if (fails && in_the_program) {
      // Sums of infinities of both signs.
      const std::vector<float> numbers(batch.at(kX).num_elements(), std::numeric_limits<float>::infinity());
      wrong.at(kX) = Array::FromSpan<float>(numbers, batch.at(kX).shape());
    } else if (fails) {
      wrong.erase(kX);
    }
    const absl::Status status = trainer.Step(wrong).status();
    const std::string who = absl::StrCat("process ", failing, fails ? ": " : " failed: ");
    const bool is_kind = fails ? !absl::IsAborted(status) : absl::IsAborted(status);
    const char* const what = in_the_program ? "dot_general" : "no value for input data \"x\"";
    if (!is_kind || !absl::StartsWith(status.message(), who) || !absl::StrContains(status.message(), what)) {
      return pair.Fail(absl::StrCat("a failing step: ", status.ToString()));
    }
    // All continue from their state.
    AQT_RETURN_IF_ERROR(trainer.Step(batch).status());
    for (const auto& [slot, array] : pair.one().state()) {
      if (!BitEqual(array, trainer.state().at(slot))) return pair.Fail(slot.ToString() + " differs after a failure");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckResume(Collective& collective, const std::string& folder) {
  const Problem problem{"resume", Int8Model, "rules { dot_general { base: 'fully_quantized_int8' } }"};
  const std::string path = absl::StrCat(folder, "/state.safetensors");
  const auto step = [&](nn::Trainer& trainer) {
    const std::vector<int64_t> rows = nn::RowsOfStep(MakeKey(5), kExamples, kRows, trainer.steps());
    return trainer.Step(Batch(nn::ShareOf(rows, collective.rank(), collective.size()))).status();
  };
  AQT_ASSIGN_OR_RETURN(nn::Trainer first, MakeTrainer(problem, &collective, {}));
  for (int i = 0; i < 3; ++i) AQT_RETURN_IF_ERROR(step(first));
  AQT_RETURN_IF_ERROR(first.Save(io::LocalFileSystem(), path));
  for (int i = 0; i < 3; ++i) AQT_RETURN_IF_ERROR(step(first));
  AQT_ASSIGN_OR_RETURN(nn::Trainer second, MakeTrainer(problem, &collective, {}));
  AQT_RETURN_IF_ERROR(second.Restore(io::LocalFileSystem(), path));
  for (int i = 0; i < 3; ++i) AQT_RETURN_IF_ERROR(step(second));
  for (const auto& [slot, array] : first.state()) {
    if (!BitEqual(array, second.state().at(slot))) return absl::InternalError(slot.ToString() + " is not resumed");
  }
  const bool last = collective.rank() == collective.size() - 1;
  const absl::Status missing = second.Restore(io::LocalFileSystem(), last ? folder + "/none" : path);
  if (!(last ? absl::IsNotFound(missing) : absl::IsAborted(missing))) {
    return absl::InternalError(absl::StrCat("a missing file of one process: ", missing.ToString()));
  }
  if (collective.size() == 1) return absl::OkStatus();
  const auto refused = [&](absl::string_view what, const absl::StatusOr<nn::Trainer>& trainer) {
    const absl::Status& status = trainer.status();
    const std::string who = absl::StrCat("process ", collective.size() - 1);
    if (absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), who)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("another ", what, " in one process: ", status.ToString()));
  };
  AQT_RETURN_IF_ERROR(refused("key", MakeTrainer(problem, &collective, {}, /*key=*/last ? 2 : 1)));
  const FloatSums sums = last ? FloatSums::kGather : FloatSums::kReduce;
  AQT_RETURN_IF_ERROR(refused("order of sums", MakeTrainer(problem, &collective, {.float_sums = sums})));
  Problem other = problem;
  if (last) other.settings = {{"batch", "32"}};
  return refused("setting", MakeTrainer(other, &collective, {}));
}

}  // namespace aqt::testing
