// Trains the digits classifier and writes it as a checkpoint:
//   ./bazelw run //examples/digits:train -- --out=/tmp/digits
// The checkpoint that ships with the project, examples/digits/checkpoint, is the default output of this program.

#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "aqt/io/standard_streams.h"
#include "examples/common/user_path.h"
#include "examples/digits/checkpoint.h"
#include "examples/digits/dataset.h"
#include "examples/digits/mlp.h"

ABSL_FLAG(std::string, out, "", "folder to write the checkpoint to; it must not exist. Empty: train only");
ABSL_FLAG(std::string, data, "", "the data set; empty: the project's digits.csv");
ABSL_FLAG(int, epochs, digits::TrainOptions().epochs, "passes over the 1437 training rows");
ABSL_FLAG(uint64_t, seed, digits::TrainOptions().seed, "of initial weights and order");

namespace {

absl::Status Run() {
  const std::string data = absl::GetFlag(FLAGS_data);
  const absl::StatusOr<digits::Dataset> all =
      digits::ReadDataset(data.empty() ? "examples/digits/digits.csv" : examples::UserPath(data));
  if (!all.ok()) return all.status();
  if (all->rows() <= digits::kTrainRows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d rows of data, want more than the %d that train", all->rows(), digits::kTrainRows));
  }
  const digits::Dataset test = all->Slice(digits::kTrainRows, all->rows());
  digits::TrainOptions options;
  options.epochs = absl::GetFlag(FLAGS_epochs);
  options.seed = absl::GetFlag(FLAGS_seed);
  const digits::Mlp mlp = digits::Train(all->Slice(0, digits::kTrainRows), options, [&](int epoch, double mean_loss) {
    if (epoch % 5 == 0) std::cout << absl::StrFormat("epoch %2d: loss %.5f", epoch, mean_loss) << std::endl;
  });
  std::cout << absl::StrFormat("accuracy on the %d test rows: %.4f\n", test.rows(), digits::Accuracy(mlp, test));
  const std::string out = absl::GetFlag(FLAGS_out);
  if (out.empty()) return absl::OkStatus();
  if (absl::Status status = digits::WriteMlp(mlp, examples::UserPath(out)); !status.ok()) return status;
  std::cout << "wrote " << examples::UserPath(out) << "\n";
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 1;
  absl::SetProgramUsageMessage("Trains a classifier of handwritten digits: train [--out=FOLDER]");
  if (absl::ParseCommandLine(argc, argv).size() != 1) {
    std::cerr << "usage: train [--out=FOLDER]; --help lists the flags\n";
    return 2;
  }
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << "train: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
