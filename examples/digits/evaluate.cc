// Prints the accuracy of a checkpoint on the 360 test rows:
//   ./bazelw run //examples/digits:evaluate -- /tmp/digits-int8
// Quantized weights are dequantized first and the products run in f32: this shows the cost of rounding the weights.

#include <iostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "examples/common/user_path.h"
#include "examples/digits/checkpoint.h"
#include "examples/digits/dataset.h"
#include "examples/digits/mlp.h"

int main(int argc, char** argv) {
  if (argc > 2) {
    std::cerr << "usage: evaluate [CHECKPOINT_FOLDER]\n";
    return 2;
  }
  const absl::StatusOr<digits::Dataset> all = digits::ReadDataset("examples/digits/digits.csv");
  const absl::StatusOr<digits::Mlp> mlp =
      digits::ReadMlp(argc == 2 ? examples::UserPath(argv[1]) : "examples/digits/checkpoint");
  if (!all.ok() || !mlp.ok()) {
    std::cerr << "evaluate: " << (all.ok() ? mlp.status() : all.status()).message() << "\n";
    return 1;
  }
  const digits::Dataset test = all->Slice(digits::kTrainRows, all->rows());
  std::cout << absl::StrFormat("accuracy on the %d test rows: %.4f\n", test.rows(), digits::Accuracy(*mlp, test));
  return 0;
}
