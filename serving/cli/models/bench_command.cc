#include "serving/cli/models/bench_command.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/target_name.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/io/printable.h"
#include "aqt/models/encoder_model.h"
#include "aqt/transforms/quantize/inject.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/program_command_names.h"
#include "serving/cli/flags/shared_flags.h"
#include "serving/cli/models/model_flags.h"
#include "serving/engine/roof.h"
#include "serving/engine/text_engine.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/report_json-inl.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

constexpr char kExamples[] = R"(Examples:
  aqt bench all-MiniLM-L6-v2/ --preset int8_all
  aqt bench all-MiniLM-L6-v2/ --threads 1 --shapes 1x16,1x128 --json)";

constexpr int64_t kMaxTokens = int64_t{1} << 20;  // of a shape

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A number of texts, each of a number of tokens.
struct BenchShape {
  int64_t texts = 0, tokens = 0;
  std::string ToString() const { return absl::StrCat(texts, "x", tokens); }
};

absl::StatusOr<std::vector<BenchShape>> ShapesOf(const std::string& text, int64_t max_length) {
  std::vector<BenchShape> shapes;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> numbers = absl::StrSplit(word, 'x');
    BenchShape shape;
    if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &shape.texts) ||
        !absl::SimpleAtoi(numbers[1], &shape.tokens) || shape.texts < 1 || shape.tokens < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--shapes: ", io::Printable(word),
                                                     " is not a shape; give texts x "
                                                     "tokens, as in 1x16,8x64"));
    }
    if (shape.tokens > max_length) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shapes: ", word, " has texts of ", shape.tokens, " tokens; the model reads ", max_length));
    }
    if (shape.texts > kMaxTokens / shape.tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shapes: ", word, " has more than ", kMaxTokens, " tokens together"));
    }
    shapes.push_back(shape);
  }
  return shapes;
}

// What a shape needs.
struct Measurement {
  BenchShape shape;
  int64_t runs = 0, memory_bytes = 0;
  double compile_seconds = 0, best_seconds = 0, median_seconds = 0;
  std::optional<double> roof = std::nullopt;  // share of it; unset if the products are not known

  double texts_per_second() const { return static_cast<double>(shape.texts) / median_seconds; }
  double tokens_per_second() const { return texts_per_second() * static_cast<double>(shape.tokens); }
};

// Texts without padding, of random tokens.
std::vector<Array> ArgumentsOf(const Program& program, const BenchShape& shape, int64_t vocabulary) {
  std::mt19937 random(1);
  std::vector<Array> args;
  for (const Program::Port& port : program.inputs) {
    ArrayBuilder builder(program.aval(port.var));
    for (int32_t& x : builder.Mutable<int32_t>()) {
      if (port.slot == models::kIds) x = static_cast<int32_t>(random() % vocabulary);
      if (port.slot == models::kLengths) x = static_cast<int32_t>(shape.tokens);
    }
    args.push_back(std::move(builder).Build());
  }
  return args;
}

absl::StatusOr<Measurement> Measure(TextEngine& engine, const BenchShape& shape, double seconds,
                                    const Console& console) {
  Measurement result = {.shape = shape};
  const Clock::time_point start = Clock::now();
  AQT_ASSIGN_OR_RETURN(const Executable program, engine.engine().model().Compile(shape.texts, shape.tokens));
  result.compile_seconds = SecondsSince(start);
  result.memory_bytes = program.peak_bytes();
  const std::vector<Array> args = ArgumentsOf(program.program(), shape, engine.model().facts().vocabulary);
  AQT_RETURN_IF_ERROR(program.Run(args).status());  // takes its memory
  std::vector<double> times;
  for (double all = 0; all < seconds || times.size() < 3; all += times.back()) {
    AQT_RETURN_IF_ERROR(CheckCancelled(console.interrupted));
    const Clock::time_point run = Clock::now();
    AQT_RETURN_IF_ERROR(program.Run(args).status());
    times.push_back(std::max(SecondsSince(run), 1e-9));
  }
  std::sort(times.begin(), times.end());
  result.runs = static_cast<int64_t>(times.size());
  result.best_seconds = times.front();
  result.median_seconds = times[times.size() / 2];
  return result;
}

// The products of a shape, as they are computed; unset if that cannot be found without the weights.
std::optional<Products> ProductsOfShape(const TextEngine& engine, const InjectConfig& config, const BenchShape& shape) {
  const absl::StatusOr<Program> program = engine.model().OutputProgram(shape.texts, shape.tokens);
  if (!program.ok()) return std::nullopt;
  const absl::StatusOr<Program> quantized = Inject(*program, config);
  if (!quantized.ok()) return std::nullopt;
  const absl::StatusOr<Products> products = ProductsOf(*quantized);
  return products.ok() ? std::optional<Products>(*products) : std::nullopt;
}

int64_t PeakBytesOfProcess() {
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} * 1024 : 0;
}

std::string NumericsText(const Flags& flags) {
  if (!flags.preset.empty()) return absl::StrCat("--preset ", flags.preset);
  return flags.config.empty() ? "weights as stored" : absl::StrCat("--config ", flags.config);
}

void PrintHeader(const Flags& flags, double load_seconds, int threads, const Products& roof, const Console& console) {
  console.out << io::PrintableLine(flags.input) << ", " << io::PrintableLine(NumericsText(flags)) << ", "
              << kernels::ToString(kernels::BestTarget()) << ", " << threads << (threads == 1 ? " thread" : " threads")
              << "; loaded in " << absl::StrFormat("%.2f s\n", load_seconds)
              << absl::StrFormat("the machine: %.0f int8 and %.0f f32 products a nanosecond\n\n", roof.integer / 1e9,
                                 roof.floating / 1e9)
              << absl::StrFormat("%-14s %10s %10s %9s %10s %6s %10s\n", "texts x tokens", "best ms", "median ms",
                                 "texts/s", "tokens/s", "roof", "memory")
              << std::flush;
}

void PrintRow(const Measurement& row, const Console& console) {
  const std::string roof = row.roof.has_value() ? absl::StrFormat("%.0f %%", 100 * *row.roof) : "?";
  console.out << absl::StrFormat("%-14s %10.3f %10.3f %9.0f %10.0f %6s %10s\n", row.shape.ToString(),
                                 1000 * row.best_seconds, 1000 * row.median_seconds, row.texts_per_second(),
                                 row.tokens_per_second(), roof, HumanBytes(row.memory_bytes))
              << std::flush;
}

ReportJson RowJson(const Measurement& row) {
  ReportJson json = {{"texts", row.shape.texts},
                     {"tokens", row.shape.tokens},
                     {"runs", row.runs},
                     {"compile_seconds", row.compile_seconds},
                     {"best_seconds", row.best_seconds},
                     {"median_seconds", row.median_seconds},
                     {"texts_per_second", row.texts_per_second()},
                     {"tokens_per_second", row.tokens_per_second()}};
  json["roof"] = row.roof.has_value() ? ReportJson(*row.roof) : ReportJson();
  json["memory_bytes"] = row.memory_bytes;
  return json;
}

absl::StatusOr<ExitCode> RunBench(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  const Clock::time_point start = Clock::now();
  AQT_ASSIGN_OR_RETURN(const OpenedModel model, OpenModel(flags, fs, Tables::kRead, console));
  TextEngine* const engine = model.engine.get();
  const double load_seconds = SecondsSince(start);
  AQT_ASSIGN_OR_RETURN(const std::vector<BenchShape> shapes, ShapesOf(flags.shapes, engine->max_length()));
  PrintWarnings(model.warnings, console);
  kernels::ThreadPool pool(flags.threads > 0 ? flags.threads : NumCpus());
  const UseExecutor use(&pool);
  AQT_ASSIGN_OR_RETURN(const Products roof, MeasureRoof(&pool));
  if (!flags.json) PrintHeader(flags, load_seconds, pool.NumThreads(), roof, console);
  ReportJson rows = ReportJson::array();
  for (const BenchShape& shape : shapes) {
    AQT_ASSIGN_OR_RETURN(Measurement row, Measure(*engine, shape, flags.seconds, console));
    const std::optional<Products> products = ProductsOfShape(*engine, model.config, shape);
    if (products.has_value()) row.roof = ShareOfRoof(*products, roof, row.best_seconds);
    if (!flags.json) PrintRow(row, console);
    rows.push_back(RowJson(row));
  }
  const int64_t weight_bytes = engine->engine().model().weight_bytes();
  if (!flags.json) {
    console.out << "\nweights " << HumanBytes(weight_bytes) << ", peak memory of the process "
                << HumanBytes(PeakBytesOfProcess()) << "\n";
    return ExitCode::kOk;
  }
  ReportJson json = NewReport();
  json["model"] = flags.input;
  json["numerics"] = NumericsText(flags);
  json["target"] = std::string(kernels::ToString(kernels::BestTarget()));
  json["threads"] = pool.NumThreads();
  json["load_seconds"] = load_seconds;
  json["roof"] = {{"int8_products_per_second", roof.integer}, {"f32_products_per_second", roof.floating}};
  json["shapes"] = std::move(rows);
  json["weight_bytes"] = weight_bytes;
  json["peak_bytes"] = PeakBytesOfProcess();
  json["warnings"] = model.warnings;
  console.out << ReportText(json);
  return ExitCode::kOk;
}

CLI::App* AddBench(CLI::App& app, Flags& flags) {
  CLI::App* bench = app.add_subcommand(kBenchCommand, "measure how fast a text encoder runs")->footer(kExamples);
  AddModel(*bench, flags);
  bench->add_option("--shapes", flags.shapes, "what is measured: texts x tokens of each text, with commas between")
      ->type_name("LIST")
      ->capture_default_str();
  bench->add_option("--seconds", flags.seconds, "time for each shape; at least three runs")
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("S")
      ->capture_default_str();
  AddJson(*bench, flags);
  return bench;
}

}  // namespace

Command BenchCommand() { return {AddBench, RunBench}; }

}  // namespace aqt::serving
