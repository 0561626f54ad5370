// Compares the language model with JAX: ten steps of gradient descent, recorded in tests/golden/transformer by its
// record.py. Both compute in f64; the recording is rounded to f32.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/ops/functions.h"
#include "aqt/runtime/executable.h"
#include "aqt/testing/status_matchers.h"
#include "examples/transformer/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace transformer {
namespace {

using aqt::Array;
using aqt::DType;
using aqt::Slot;
using aqt::SlotKind;
using aqt::SlotValues;
using aqt::Value;
using aqt::testing::IsOk;

constexpr ModelOptions kModel = {.layers = 2, .width = 8, .heads = 2, .length = 6, .dtype = DType::kF64};
const Slot kTokens{SlotKind::kData, "bytes"}, kTargets{SlotKind::kData, "targets"};

std::vector<Value> LossFn(absl::Span<const Value> in) {
  const Value logits = Logits(in[0], kModel, /*train=*/true);
  return {aqt::ops::SoftmaxCrossEntropy(logits, aqt::ops::OneHot(in[1], kBytes, DType::kF64)), logits};
}

SlotValues Read(const std::string& name) {
  absl::StatusOr<aqt::nn::StateFile> file =
      aqt::nn::LoadState(aqt::io::LocalFileSystem(), absl::StrCat("tests/golden/transformer/", name));
  EXPECT_THAT(file, IsOk());
  return file->state;
}

double Largest(const Array& x) {
  double largest = 0;
  for (const float v : x.View<float>()) largest = std::max<double>(largest, std::fabs(v));
  return largest;
}

// The recording was rounded to f32, which is off by at most 2^-24 of a number, or 2^-149. The remaining difference
// between two computations in f64 is far smaller: some thousand roundings of 2^-53, relative to numbers of the size
// `scale`, some of which cancel (keys with a bias have the attention of those without, so its gradient is 0).
void ExpectNear(const Array& got, const Array& want, double scale, const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  double worst = 0;
  for (int64_t i = 0; i < want.shape().num_elements(); ++i) {
    const double w = want.View<float>()[i];
    worst = std::max(worst, std::fabs(got.View<double>()[i] - w) - 0x1p-24 * std::fabs(w));
  }
  EXPECT_LE(worst, 1e-12 * scale + 0x1p-149) << what;
}

TEST(TransformerGolden, LossLogitsAndGradientsOfTenSteps) {
  const SlotValues initial = Read("initial.safetensors"), steps = Read("steps.safetensors");
  const aqt::Aval bytes{DType::kS32, {3, kModel.length}};
  const std::vector<Slot> outputs = {{SlotKind::kData, "loss"}, {SlotKind::kData, "logits"}};
  const absl::StatusOr<aqt::Program> loss = aqt::Trace(LossFn, {{kTokens, bytes}, {kTargets, bytes}}, outputs);
  ASSERT_THAT(loss, IsOk());
  const std::vector<int> params = loss->InputsOfKind(SlotKind::kParam);
  EXPECT_EQ(params.size(), 5u + 2u * 16u);
  const absl::StatusOr<aqt::Program> gradients = aqt::ValueAndGrad(*loss, params);
  ASSERT_THAT(gradients, IsOk());
  const absl::StatusOr<aqt::Program> step =
      aqt::nn::TrainStep(*loss, aqt::nn::Sgd{.learning_rate = 0.5, .momentum = 0});
  ASSERT_THAT(step, IsOk());
  const absl::StatusOr<aqt::Executable> executable = aqt::Executable::Make(*step);
  ASSERT_THAT(executable, IsOk());

  SlotValues values;
  for (const auto& [slot, array] : initial) {
    if (slot.kind == SlotKind::kParam) values[slot] = aqt::Cast(array, DType::kF64);
  }
  for (int i = 0; i < 10; ++i) {
    const auto recorded = [&](const std::string& name) { return Slot{SlotKind::kData, absl::StrCat(i, "/", name)}; };
    values[kTokens] = initial.at(recorded("bytes"));
    values[kTargets] = initial.at(recorded("targets"));
    std::vector<Array> args;
    for (const aqt::Program::Port& port : gradients->inputs) args.push_back(values.at(port.slot));
    const absl::StatusOr<std::vector<Array>> out = aqt::Eval(*gradients, args);
    ASSERT_THAT(out, IsOk());
    const Array& loss_wanted = steps.at(recorded("loss"));
    const Array& logits_wanted = steps.at(recorded("logits"));
    ExpectNear((*out)[0], loss_wanted, Largest(loss_wanted), absl::StrCat("loss of step ", i));
    ExpectNear((*out)[1], logits_wanted, Largest(logits_wanted), absl::StrCat("logits of step ", i));
    double largest_gradient = 0;
    for (const int p : params) {
      largest_gradient = std::max(largest_gradient, Largest(steps.at(recorded(loss->inputs[p].slot.path))));
    }
    for (size_t p = 0; p < params.size(); ++p) {
      const std::string& path = loss->inputs[params[p]].slot.path;
      ExpectNear((*out)[2 + p], steps.at(recorded(path)), largest_gradient,
                 absl::StrCat("gradient of ", path, " in step ", i));
    }
    args.clear();
    for (const aqt::Program::Port& port : step->inputs) args.push_back(values.at(port.slot));
    const absl::StatusOr<std::vector<Array>> updated = executable->Run(args);
    ASSERT_THAT(updated, IsOk());
    for (size_t o = 0; o < updated->size(); ++o) values[step->outputs[o].slot] = (*updated)[o];
  }
}

}  // namespace
}  // namespace transformer
