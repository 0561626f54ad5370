// Static ranges: a float classifier is quantized after its training, with ranges of the activations that are measured
// on some batches and then fixed. Serving computes no scales from activations.
//   ./bazelw run //examples/static_range

#include <cstdint>
#include <iostream>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "aqt/aqt.h"
#include "examples/digits/classifier.h"
#include "examples/digits/dataset.h"
#include "examples/digits/training.h"
#include "serving/tools/exit_code.h"

namespace {

using aqt::Program;
using aqt::SlotValues;

constexpr char kRules[] = R"pb(
  schema: 1
  rules { dot_general { base: "int8_static" } }
  arithmetic: ARITHMETIC_IEEE
)pb";
constexpr int64_t kCalibrationRows = 64, kCalibrationBatches = 8;

// The rows on which ranges are measured.
std::vector<SlotValues> CalibrationBatches(const digits::Dataset& data) {
  std::vector<SlotValues> batches;
  for (int64_t batch = 0; batch < kCalibrationBatches; ++batch) {
    std::vector<int64_t> rows(kCalibrationRows);
    std::iota(rows.begin(), rows.end(), batch * kCalibrationRows);
    batches.push_back({{digits::kPixelsSlot, digits::Pixels(data, rows)}});
  }
  return batches;
}

absl::Status Run() {
  AQT_ASSIGN_OR_RETURN(const digits::Dataset data, digits::ReadDataset("examples/digits/digits.csv"));
  const digits::Dataset train = data.Slice(0, digits::kTrainRows), test = data.Slice(digits::kTrainRows, data.rows());
  const aqt::Array pixels = digits::Pixels(test);

  // The float model.
  const digits::TrainingOptions options = {.hidden = {64}, .epochs = 8};
  AQT_ASSIGN_OR_RETURN(aqt::nn::Trainer trainer, digits::MakeTrainer(options, {}, train.rows()));
  AQT_RETURN_IF_ERROR(digits::TrainTo(trainer, train, options, 8 * digits::StepsPerEpoch(options, train.rows())));
  AQT_ASSIGN_OR_RETURN(const Program model, digits::LogitsProgram(options.hidden, test.rows()));
  AQT_ASSIGN_OR_RETURN(const aqt::Array floats, digits::Logits(model, trainer.params(), pixels));
  std::cout << absl::StrFormat("float     accuracy %.4f\n", digits::Accuracy(floats, test.labels));

  // Measured ranges.
  AQT_ASSIGN_OR_RETURN(const aqt::InjectConfig config, aqt::InjectConfigFromText(kRules));
  AQT_ASSIGN_OR_RETURN(const Program batch, digits::LogitsProgram(options.hidden, kCalibrationRows));
  AQT_ASSIGN_OR_RETURN(const SlotValues calibrated,
                       aqt::nn::Calibrate(batch, config, trainer.params(), CalibrationBatches(train)));

  // Frozen: int8 weights with their scales, and one scale for each activation.
  AQT_ASSIGN_OR_RETURN(const SlotValues frozen, aqt::Freeze(model, config, calibrated));
  for (const auto& [slot, array] : frozen) {
    std::cout << "  " << slot.ToString() << " " << array.aval();
    if (array.shape().num_elements() == 1) std::cout << absl::StrFormat(" = %.5f", array.View<float>()[0]);
    std::cout << "\n";
  }
  AQT_ASSIGN_OR_RETURN(const aqt::PreparedProgram prepared, aqt::nn::Serve({model}, config, frozen));
  AQT_ASSIGN_OR_RETURN(const SlotValues out, prepared.Eval({{digits::kPixelsSlot, pixels}}));
  std::cout << absl::StrFormat("static    accuracy %.4f\n", digits::Accuracy(out.at(digits::kLogitsSlot), test.labels));
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << "error: " << status.message() << "\n";
  return static_cast<int>(aqt::serving::ExitCodeOf(status));
}
