#include "serving/cli/run_model_command.h"

#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "aqt/io/printable.h"
#include "aqt/models/text_embedder.h"
#include "serving/cli/flags.h"
#include "serving/cli/model_quantization.h"
#include "serving/cli/program_command_names.h"
#include "serving/cli/shared_flags.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/report_json-inl.h"

namespace aqt::serving {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

constexpr char kExamples[] = R"(Examples:
  aqt run all-MiniLM-L6-v2/ --text 'a sentence' --text 'another one'
  aqt run all-MiniLM-L6-v2/ --preset w8a8_dynamic --file sentences.txt --json)";

// The texts of --text, then the lines of --file.
absl::StatusOr<std::vector<std::string>> Texts(const Flags& flags, const io::FileSystem& fs) {
  std::vector<std::string> texts = flags.texts;
  if (!flags.texts_file.empty()) {
    AQT_ASSIGN_OR_RETURN(const std::string content, io::ReadFile(fs, flags.texts_file, kMaxTextBytes));
    std::vector<std::string> lines = absl::StrSplit(content, '\n');
    if (lines.back().empty()) lines.pop_back();
    texts.insert(texts.end(), lines.begin(), lines.end());
  }
  if (!texts.empty()) return texts;
  return absl::InvalidArgumentError("there is no text; give --text TEXT, or --file FILE with a text in each line");
}

absl::StatusOr<ExitCode> RunModel(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(flags, fs));
  AQT_ASSIGN_OR_RETURN(const ModelQuantization quantization, OpenModelQuantization(flags, fs, console));
  AQT_ASSIGN_OR_RETURN(const models::TextEmbedder embedder,
                       models::TextEmbedder::Open(fs, flags.input, quantization.config, quantization.weights()));
  ReportJson results = ReportJson::array();
  std::vector<std::string> warnings = quantization.warnings;
  warnings.insert(warnings.end(), embedder.model().notes().begin(), embedder.model().notes().end());
  for (size_t i = 0; i < texts.size(); ++i) {
    AQT_RETURN_IF_ERROR(CheckCancelled(console.interrupted));
    const absl::StatusOr<models::TextEmbedding> embedding = embedder.Embed(texts[i]);
    if (!embedding.ok()) return Annotate(embedding.status(), absl::StrCat("text ", i + 1));
    if (embedding->truncated > 0) {
      warnings.push_back(absl::StrCat("text ", i + 1, ": the last ", embedding->truncated, " tokens are left out; ",
                                      "the model reads ", embedder.max_length()));
    }
    if (flags.json) {
      results.push_back(
          {{"tokens", embedding->tokens}, {"truncated", embedding->truncated}, {"embedding", embedding->values}});
    } else {
      console.out << absl::StrJoin(embedding->values, " ", [](std::string* out, float x) {
        absl::StrAppendFormat(out, "%.9g", x);
      }) << "\n";
    }
  }
  for (const std::string& warning : warnings) console.err << "warning: " << io::PrintableLine(warning) << "\n";
  if (!flags.json) return ExitCode::kOk;
  ReportJson json = NewReport();
  json["model"] = flags.input;
  json["width"] = embedder.model().pooling().width;
  json["max_length"] = embedder.max_length();
  json["texts"] = std::move(results);
  json["warnings"] = warnings;
  console.out << ReportText(json);
  return ExitCode::kOk;
}

CLI::App* AddRun(CLI::App& app, Flags& flags) {
  CLI::App* run = app.add_subcommand(kRunCommand, "compute embeddings of texts with an encoder")->footer(kExamples);
  run->add_option("DIR", flags.input, "the folder of a text encoder: config.json, weights, tokenizer")->required();
  run->add_option("--text", flags.texts, "a text; may be given several times")->type_name("TEXT");
  run->add_option("--file", flags.texts_file, "a file with a text in each line")->type_name("FILE");
  AddModelQuantization(*run, flags);
  AddJson(*run, flags);
  return run;
}

}  // namespace

Command RunModelCommand() { return {AddRun, RunModel}; }

}  // namespace aqt::serving
