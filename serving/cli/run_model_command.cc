#include "serving/cli/run_model_command.h"

#include <cstddef>
#include <deque>
#include <istream>
#include <memory>
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
#include "aqt/models/encoder_model.h"
#include "serving/cli/flags.h"
#include "serving/cli/model_flags.h"
#include "serving/cli/program_command_names.h"
#include "serving/cli/shared_flags.h"
#include "serving/engine/text_engine.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/report_json-inl.h"

namespace aqt::serving {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;
// Texts that are handed to the engine before the first of them must be done. Enough to find texts of equal length.
constexpr size_t kTextsAhead = 512;

constexpr char kExamples[] = R"(Examples:
  aqt run all-MiniLM-L6-v2/ --text 'a sentence' --text 'another one'
  aqt run all-MiniLM-L6-v2/ --preset w8a8_dynamic --file sentences.txt --json
  sort sentences.txt | aqt run all-MiniLM-L6-v2/ --file - > embeddings.txt)";

absl::StatusOr<std::string> ReadStandardInput(const Console& console) {
  if (console.in == nullptr) return absl::InvalidArgumentError("there is no standard input to read");
  std::string content;
  std::vector<char> piece(1 << 16);
  while (*console.in) {
    console.in->read(piece.data(), static_cast<std::streamsize>(piece.size()));
    content.append(piece.data(), console.in->gcount());
    AQT_RETURN_IF_ERROR(CheckCancelled(console.interrupted));
    if (static_cast<int64_t>(content.size()) <= kMaxTextBytes) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("standard input has more than ", kMaxTextBytes, " bytes; split it into several runs"));
  }
  return content;
}

// The texts of --text, then the lines of --file.
absl::StatusOr<std::vector<std::string>> Texts(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  std::vector<std::string> texts = flags.texts;
  if (!flags.texts_file.empty()) {
    AQT_ASSIGN_OR_RETURN(const std::string content, flags.texts_file == "-"
                                                        ? ReadStandardInput(console)
                                                        : io::ReadFile(fs, flags.texts_file, kMaxTextBytes));
    std::vector<std::string> lines = absl::StrSplit(content, '\n');
    if (lines.back().empty()) lines.pop_back();
    texts.insert(texts.end(), lines.begin(), lines.end());
  }
  if (!texts.empty()) return texts;
  return absl::InvalidArgumentError("there is no text; give --text TEXT, or --file FILE with a text in each line");
}

// The answers, in the order of the texts.
class Answers {
 public:
  Answers(const Flags& flags, const Console& console, const OpenedModel& model)
      : flags_(flags), console_(console), engine_(*model.engine), warnings_(model.warnings) {}

  absl::Status Add(const absl::StatusOr<TextAnswer>& answer) {
    ++count_;
    if (!answer.ok()) return Annotate(answer.status(), absl::StrCat("text ", count_));
    if (answer->truncated > 0) {
      warnings_.push_back(absl::StrCat("text ", count_, ": the last ", answer->truncated, " tokens are left out; ",
                                       "the model reads ", engine_.max_length()));
    }
    const absl::Span<const float> values = answer->outputs.at(models::kEmbeddings).View<float>();
    if (flags_.json) {
      results_.push_back({{"tokens", answer->tokens},
                          {"truncated", answer->truncated},
                          {"embedding", std::vector<float>(values.begin(), values.end())}});
    } else {
      console_.out << absl::StrJoin(values, " ", [](std::string* out, float x) {
        absl::StrAppendFormat(out, "%.9g", x);
      }) << "\n";
    }
    return absl::OkStatus();
  }

  void Finish() {
    PrintWarnings(warnings_, console_);
    if (!flags_.json) return;
    ReportJson json = NewReport();
    json["model"] = flags_.input;
    json["width"] = engine_.model().pooling().width;
    json["max_length"] = engine_.max_length();
    json["texts"] = std::move(results_);
    json["warnings"] = warnings_;
    console_.out << ReportText(json);
  }

 private:
  const Flags& flags_;
  const Console& console_;
  const TextEngine& engine_;
  std::vector<std::string> warnings_;
  ReportJson results_ = ReportJson::array();
  size_t count_ = 0;
};

// Hands the texts in ahead of their answers. Stops early if nobody reads the output any more.
absl::Status RunTexts(const std::vector<std::string>& texts, TextEngine& engine, const Console& console,
                      Progress& progress, Answers& answers) {
  std::deque<TextTicket> ahead;
  size_t next = 0;
  for (size_t done = 0; done < texts.size() && console.out; ++done) {
    while (next < texts.size() && ahead.size() < kTextsAhead) {
      ahead.push_back(engine.SubmitWhenRoom({.text = texts[next++]}));
    }
    const absl::StatusOr<TextAnswer> answer = ahead.front().Wait();
    ahead.pop_front();
    AQT_RETURN_IF_ERROR(CheckCancelled(console.interrupted));
    AQT_RETURN_IF_ERROR(answers.Add(answer));
    progress.Add(static_cast<int64_t>(texts[done].size()) + 1, absl::StrCat("text ", done + 1));
  }
  for (const TextTicket& ticket : ahead) ticket.Cancel();
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> RunModel(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(flags, fs, console));
  AQT_ASSIGN_OR_RETURN(const OpenedModel model, OpenModel(flags, fs, console));
  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size()) + 1;
  Answers answers(flags, console, model);
  {
    const std::unique_ptr<Progress> progress = ProgressMaker(flags, console)(bytes);
    AQT_RETURN_IF_ERROR(RunTexts(texts, *model.engine, console, *progress, answers));
  }
  answers.Finish();
  return ExitCode::kOk;
}

CLI::App* AddRun(CLI::App& app, Flags& flags) {
  CLI::App* run = app.add_subcommand(kRunCommand, "compute embeddings of texts with an encoder")->footer(kExamples);
  AddModel(*run, flags);
  run->add_option("--text", flags.texts, "a text; may be given several times")->type_name("TEXT");
  run->add_option("--file", flags.texts_file, "a file with a text in each line; - for standard input")
      ->type_name("FILE");
  AddJson(*run, flags);
  return run;
}

}  // namespace

Command RunModelCommand() { return {AddRun, RunModel}; }

}  // namespace aqt::serving
