// Trains in f32 and in three ways in f16, prints the losses, and with --out=FILE draws them:
//   ./bazelw run //examples/precision:f16_training -- --out=/tmp/f16_training.svg

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "examples/common/user_path.h"
#include "examples/digits/dataset.h"
#include "examples/precision/f16_training.h"

ABSL_FLAG(std::string, out, "", "file to draw the curves to; empty: none");

namespace {

absl::Status Run() {
  AQT_ASSIGN_OR_RETURN(const digits::Dataset data, digits::ReadDataset("examples/digits/digits.csv"));
  AQT_ASSIGN_OR_RETURN(const std::vector<precision::Curve> curves, precision::TrainInF16(data, {}));
  for (const precision::Curve& curve : curves) {
    std::printf("%-16s loss %.4f at first, %.4f after %zu steps\n", curve.name.c_str(), curve.loss.front(),
                curve.loss.back(), curve.loss.size() - 1);
  }
  const std::string out = absl::GetFlag(FLAGS_out);
  if (out.empty()) return absl::OkStatus();
  return aqt::io::WriteFile(aqt::io::LocalFileSystem(), examples::UserPath(out), precision::F16TrainingSvg(curves),
                            {.overwrite = true});
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Trains in f32 and in f16: f16_training [--out=FILE.svg]");
  if (absl::ParseCommandLine(argc, argv).size() != 1) {
    std::fprintf(stderr, "usage: f16_training [--out=FILE.svg]\n");
    return 2;
  }
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "f16_training: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
