#include "examples/digits/classifier.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/functions.h"

namespace digits {
namespace {

using aqt::Value;

aqt::Input PixelsInput(int64_t rows) { return {kPixelsSlot, {aqt::DType::kF32, {rows, kPixels}}}; }

}  // namespace

Value Model(const Value& pixels, const Hidden& hidden) {
  const aqt::NamedScope scope("mlp");
  Value x = pixels;
  for (size_t i = 0; i < hidden.size(); ++i) {
    x = aqt::ops::Relu(aqt::nn::Dense(x, absl::StrCat("fc", i + 1), {.features = hidden[i]}));
  }
  return aqt::nn::Dense(x, "logits", {.features = kClasses});
}

absl::StatusOr<aqt::Program> LogitsProgram(const Hidden& hidden, int64_t rows) {
  const std::vector<aqt::Slot> outputs = {kLogitsSlot};
  return aqt::Trace([&](absl::Span<const Value> in) { return std::vector<Value>{Model(in[0], hidden)}; },
                    {PixelsInput(rows)}, outputs);
}

absl::StatusOr<aqt::Program> LossProgram(const Hidden& hidden, int64_t rows) {
  const std::vector<aqt::Slot> outputs = {kLossSlot, kLogitsSlot};
  return aqt::Trace(
      [&](absl::Span<const Value> in) {
        const Value logits = Model(in[0], hidden);
        const aqt::NamedScope scope("loss");
        return std::vector<Value>{aqt::ops::SoftmaxCrossEntropy(logits, in[1]), logits};
      },
      {PixelsInput(rows), {kLabelsSlot, {aqt::DType::kF32, {rows, kClasses}}}}, outputs);
}

absl::StatusOr<aqt::SlotValues> InitialParams(const Hidden& hidden, uint64_t seed) {
  return aqt::nn::InitParams([&](absl::Span<const Value> in) { return std::vector<Value>{Model(in[0], hidden)}; },
                             {PixelsInput(1)}, aqt::MakeKey(seed));
}

aqt::Array Pixels(const Dataset& data, absl::Span<const int64_t> rows) {
  aqt::ArrayBuilder pixels(aqt::DType::kF32, {static_cast<int64_t>(rows.size()), kPixels});
  for (size_t i = 0; i < rows.size(); ++i) {
    const absl::Span<const float> row = data.row(rows[i]);
    std::copy(row.begin(), row.end(), pixels.Mutable<float>().begin() + i * kPixels);
  }
  return std::move(pixels).Build();
}

aqt::Array Pixels(const Dataset& data) {
  return aqt::Array::FromSpan(absl::MakeConstSpan(data.pixels), {data.rows(), kPixels});
}

aqt::Array OneHotLabels(const Dataset& data, absl::Span<const int64_t> rows) {
  aqt::ArrayBuilder labels(aqt::DType::kF32, {static_cast<int64_t>(rows.size()), kClasses});  // zeros
  for (size_t i = 0; i < rows.size(); ++i) labels.Mutable<float>()[i * kClasses + data.labels[rows[i]]] = 1;
  return std::move(labels).Build();
}

absl::StatusOr<aqt::Array> Logits(const aqt::Program& program, const aqt::SlotValues& values,
                                  const aqt::Array& pixels) {
  aqt::SlotValues inputs = values;
  inputs.insert_or_assign(kPixelsSlot, pixels);
  // The forward pass draws nothing; its key is for the gradients.
  for (const int key : program.InputsOfKind(aqt::SlotKind::kKey)) {
    const aqt::Program::Port& port = program.inputs[key];
    inputs.insert_or_assign(port.slot, aqt::Array::Zeros(program.aval(port.var).dtype, program.aval(port.var).shape));
  }
  AQT_ASSIGN_OR_RETURN(const aqt::SlotValues outputs, aqt::EvalSlots(program, inputs));
  return outputs.at(kLogitsSlot);
}

double Accuracy(const aqt::Array& logits, const std::vector<int>& labels) {
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const float* z = logits.View<float>().data() + i * kClasses;
    right += std::max_element(z, z + kClasses) - z == labels[i];
  }
  return static_cast<double>(right) / static_cast<double>(std::max<size_t>(labels.size(), 1));
}

}  // namespace digits
