// The command `encoder`: ./bazelw run //examples/minilm:encoder -- --help

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "aqt/aqt.h"
#include "aqt/io/standard_streams.h"
#include "aqt/models/encoder_model.h"
#include "examples/common/parse_flags.h"
#include "examples/common/read_config.h"
#include "examples/common/user_path.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/text.h"

namespace minilm {
namespace {

using aqt::Array;
using aqt::Program;
using aqt::SlotValues;
using aqt::models::EncoderModel;
using aqt::models::kEmbeddings;
using aqt::models::kIds;
using aqt::models::kLengths;
namespace io = aqt::io;

constexpr char kFooter[] =
    R"(FOLDER has config.json and the weights of a text encoder, such as fetch.py makes.
NAME is float, int8_weights, w8a8, w8a8_g64 or w8a8_static (examples/minilm/configs), or a textproto of
aqt.config.Inject (configs/inject.proto).

Examples:
  encoder /tmp/minilm
  encoder /tmp/minilm --config w8a8_g64,my_rules.textproto --min-cosine 0.997)";

struct Flags {
  std::string folder;
  std::vector<std::string> configs = {"float", "int8_weights", "w8a8", "w8a8_g64", "w8a8_static"};
  std::string sentences;  // empty: the file beside this one
  std::optional<double> max_difference, min_cosine;
  int threads = 1;
};

// Sentences in the format of record.py.
struct Sentences {
  SlotValues batch;        // ids and lengths
  SlotValues calibration;  // the same for other sentences
  Array want;              // the embeddings of the batch
};

absl::StatusOr<Sentences> ReadSentences(const std::string& path, int64_t width) {
  AQT_ASSIGN_OR_RETURN(const aqt::nn::StateFile file, aqt::nn::LoadState(io::LocalFileSystem(), path));
  const auto get = [&](const std::string& name, aqt::DType dtype, int64_t rank) -> absl::StatusOr<Array> {
    const auto it = file.state.find({aqt::SlotKind::kData, name});
    if (it != file.state.end() && it->second.dtype() == dtype && it->second.shape().rank() == rank) return it->second;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": data/", name, " is ", it == file.state.end() ? "missing" : it->second.aval().ToString(),
                     ", expected ", aqt::ToString(dtype), " with ", rank, " axes; record.py writes such files"));
  };
  AQT_ASSIGN_OR_RETURN(Array ids, get("ids", aqt::DType::kS32, 2));
  AQT_ASSIGN_OR_RETURN(Array lengths, get("lengths", aqt::DType::kS32, 1));
  AQT_ASSIGN_OR_RETURN(Array calibration_ids, get("calibration_ids", aqt::DType::kS32, 2));
  AQT_ASSIGN_OR_RETURN(Array calibration_lengths, get("calibration_lengths", aqt::DType::kS32, 1));
  AQT_ASSIGN_OR_RETURN(Array want, get("embeddings", aqt::DType::kF32, 2));
  if (want.shape() != aqt::Shape({ids.shape()[0], width})) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": data/embeddings is ", want.aval().ToString(),
                                                   ", expected f32[", ids.shape()[0], ",", width,
                                                   "] for these ids and this model"));
  }
  return Sentences{{{kIds, std::move(ids)}, {kLengths, std::move(lengths)}},
                   {{kIds, std::move(calibration_ids)}, {kLengths, std::move(calibration_lengths)}},
                   std::move(want)};
}

absl::StatusOr<Program> ProgramFor(const EncoderModel& encoder, const SlotValues& batch) {
  const aqt::Shape& shape = batch.at(kIds).shape();
  return encoder.EmbeddingProgram(shape[0], shape[1]);
}

struct Comparison {
  double max_difference = 0, mean_cosine = 0, min_cosine = 1;
};

// Compares the rows of `got`, divided by their lengths, and `want`, which have length 1.
Comparison Compare(const Array& got, const Array& want) {
  const int64_t rows = want.shape()[0], width = want.shape()[1];
  Comparison result;
  for (int64_t row = 0; row < rows; ++row) {
    const absl::Span<const float> a = got.View<float>().subspan(row * width, width);
    const absl::Span<const float> b = want.View<float>().subspan(row * width, width);
    double got_square = 0, product = 0, want_square = 0;
    for (const double x : a) got_square += x * x;
    const double length = std::sqrt(got_square);
    for (int64_t i = 0; i < width; ++i) {
      const double difference = std::fabs(a[i] / length - b[i]);
      // The negation makes NaN the largest difference.
      if (!(difference <= result.max_difference)) result.max_difference = difference;
      product += static_cast<double>(a[i]) * b[i];
      want_square += static_cast<double>(b[i]) * b[i];
    }
    const double cosine = product / std::sqrt(got_square * want_square);
    result.mean_cosine += cosine / static_cast<double>(rows);
    if (!(cosine >= result.min_cosine)) result.min_cosine = cosine;
  }
  return result;
}

// The weights of the folder -> calibrated -> frozen -> served.
absl::StatusOr<aqt::PreparedProgram> Quantize(const EncoderModel& encoder, const aqt::InjectConfig& config,
                                              const Sentences& sentences, int64_t& bytes) {
  const aqt::InjectConfig rules = encoder.Rules(config);
  AQT_ASSIGN_OR_RETURN(const Program calibration, ProgramFor(encoder, sentences.calibration));
  AQT_ASSIGN_OR_RETURN(const SlotValues known,
                       aqt::nn::Calibrate(calibration, rules, encoder.weights(), {sentences.calibration}));
  AQT_ASSIGN_OR_RETURN(const Program model, ProgramFor(encoder, sentences.batch));
  AQT_ASSIGN_OR_RETURN(const SlotValues frozen, aqt::Freeze(model, rules, known));
  bytes = 0;
  for (const auto& [slot, array] : frozen) bytes += array.num_bytes();
  return aqt::nn::Serve({model}, rules, frozen, {.keep_values = false});
}

// Whether the limits hold; reports it if not.
bool WithinLimits(const Flags& flags, const std::string& name, const Comparison& found) {
  const bool near = !flags.max_difference.has_value() || found.max_difference <= *flags.max_difference;
  const bool parallel = !flags.min_cosine.has_value() || found.min_cosine >= *flags.min_cosine;
  if (!near) {
    std::cerr << absl::StrFormat("encoder: %s: the largest difference is %.2e, above --max-difference %g\n", name,
                                 found.max_difference, *flags.max_difference);
  }
  if (!parallel) {
    std::cerr << absl::StrFormat("encoder: %s: the smallest cosine is %.6f, below --min-cosine %g\n", name,
                                 found.min_cosine, *flags.min_cosine);
  }
  return near && parallel;
}

// Whether all embeddings are within the limits.
absl::StatusOr<bool> Run(const Flags& flags) {
  const std::string folder = examples::UserPath(flags.folder);
  AQT_ASSIGN_OR_RETURN(const EncoderModel encoder, aqt::models::ModelFromFolder(io::LocalFileSystem(), folder));
  const std::string path =
      flags.sentences.empty() ? "examples/minilm/sentences.safetensors" : examples::UserPath(flags.sentences);
  AQT_ASSIGN_OR_RETURN(const Sentences sentences, ReadSentences(path, encoder.pooling().width));
  const int64_t rows = sentences.want.shape()[0];
  std::cout << absl::StrFormat("%d sentences, compared with those of transformers\n", rows);
  bool good = true;
  for (const std::string& name : flags.configs) {
    AQT_ASSIGN_OR_RETURN(
        const aqt::InjectConfig config,
        examples::ReadConfig(name, "examples/minilm/configs", "float, int8_weights, w8a8, w8a8_g64 and w8a8_static"));
    int64_t bytes = 0;
    absl::StatusOr<aqt::PreparedProgram> served = Quantize(encoder, config, sentences, bytes);
    if (!served.ok()) return aqt::Annotate(served.status(), name);
    const auto start = std::chrono::steady_clock::now();
    AQT_ASSIGN_OR_RETURN(const SlotValues out, served->Eval(sentences.batch));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const Comparison found = Compare(out.at(kEmbeddings), sentences.want);
    std::cout << absl::StrFormat("%-12s  max difference %.2e  cosine mean %.6f, min %.6f  %s  %.2f s\n", name,
                                 found.max_difference, found.mean_cosine, found.min_cosine,
                                 aqt::serving::HumanBytes(bytes), seconds)
              << std::flush;
    good = WithinLimits(flags, name, found) && good;
  }
  return good;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Computes sentence embeddings with an encoder of transformers, float and quantized.", "encoder");
  app.footer(kFooter);
  app.add_option("folder", flags.folder, "the checkpoint")->type_name("FOLDER")->required();
  app.add_option("--config", flags.configs, "comma-separated configurations of the quantization")
      ->type_name("NAME")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--sentences", flags.sentences, "file from record.py (default: the 50 sentences of MiniLM)")
      ->type_name("FILE");
  app.add_option("--max-difference", flags.max_difference, "fail if an element differs by more")->type_name("X");
  app.add_option("--min-cosine", flags.min_cosine, "fail if a sentence has a lower cosine")->type_name("X");
  app.add_option("--threads,-j", flags.threads, "threads of the contractions; bits do not depend on it")
      ->type_name("N")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  if (const std::optional<int> exit = examples::ParseFlags(app, {argv + 1, argv + argc}, std::cout, std::cerr);
      exit.has_value())
    return *exit;
  std::optional<aqt::kernels::ThreadPool> pool;
  if (flags.threads > 1) pool.emplace(flags.threads);
  const aqt::UseExecutor threads(pool.has_value() ? &*pool : nullptr);
  const absl::StatusOr<bool> good = Run(flags);
  if (!good.ok()) std::cerr << "error: " << good.status().message() << "\n";
  const aqt::serving::ExitCode code =
      good.ok() && !*good ? aqt::serving::ExitCode::kQuality : aqt::serving::ExitCodeOf(good.status());
  return static_cast<int>(code);
}

}  // namespace
}  // namespace minilm

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 4;
  return minilm::Main(argc, argv);
}
