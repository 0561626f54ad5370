#include "serving/cli/models/run_model_command.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "aqt/models/architecture.h"
#include "aqt/models/encoder_model.h"
#include "aqt/models/text/text_classifier.h"
#include "aqt/models/text/token_classifier.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/program_command_names.h"
#include "serving/cli/flags/shared_flags.h"
#include "serving/cli/models/given_text.h"
#include "serving/cli/models/model_flags.h"
#include "serving/cli/models/text_output.h"
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
  sort sentences.txt | aqt run all-MiniLM-L6-v2/ --file - > embeddings.txt
  aqt run ms-marco-MiniLM-L6-v2/ --text 'a question' --pair 'a passage that may answer it'
  aqt run bert-base-NER/ --text 'Ada Lovelace lived in London'

Prints a line for each text: its embedding; if the model has classes of texts, the best label and its score; if it is a
cross-encoder, the score. A model with classes of tokens prints a line for each token. Lines of --file with a tab are
pairs, if the model has classes of texts.)";

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
    for (std::string& line : LinesOf(content)) texts.push_back(std::move(line));
  }
  if (!texts.empty()) return texts;
  return absl::InvalidArgumentError("there is no text; give --text TEXT, or --file FILE with a text in each line");
}

bool IsUtf8(absl::string_view text) { return io::JsonQuote(text).ok(); }

// What the model says about a text.
TextOutput OutputOf(const std::optional<models::Head>& head, const GivenText& given, const TextAnswer& answer) {
  if (!head.has_value()) return EmbeddingOutput(answer.outputs.at(models::kEmbeddings).View<float>());
  const absl::Span<const float> logits = answer.outputs.at(models::kLogits).View<float>();
  if (!head->OfTokens()) return ClassesOutput(*head, models::ClassesOfText(*head, logits));
  return TokensOutput(*head, given.text, models::ClassesOfTokens(*head, answer.encoding, logits));
}

// The answers, in the order of the texts.
class Answers {
 public:
  Answers(const Flags& flags, const Console& console, const OpenedModel& model)
      : flags_(flags), console_(console), engine_(*model.engine), warnings_(model.warnings) {}

  absl::Status Add(const GivenText& given, const absl::StatusOr<TextAnswer>& answer) {
    ++count_;
    if (!answer.ok()) return Annotate(answer.status(), absl::StrCat("text ", count_));
    if (!IsUtf8(given.text) || (given.second.has_value() && !IsUtf8(*given.second))) {
      warnings_.push_back(absl::StrCat("text ", count_, ": it is not UTF-8; what is wrong is read as U+FFFD"));
    }
    if (answer->truncated() > 0) {
      warnings_.push_back(absl::StrCat("text ", count_, ": ", given.second.has_value() ? "" : "the last ",
                                       answer->truncated(), " tokens are left out; the model reads ",
                                       engine_.max_length()));
    }
    const TextOutput output = OutputOf(engine_.model().head(), given, *answer);
    if (!flags_.json) {
      console_.out << output.text;
      return absl::OkStatus();
    }
    ReportJson result = {{"tokens", answer->tokens()}, {"truncated", answer->truncated()}};
    result.update(output.fields);
    results_.push_back(std::move(result));
    return absl::OkStatus();
  }

  void Finish() {
    PrintWarnings(warnings_, console_);
    if (!flags_.json) return;
    const std::optional<models::Head>& head = engine_.model().head();
    ReportJson json = NewReport();
    json["model"] = flags_.input;
    json["width"] = head.has_value() ? static_cast<int64_t>(head->labels.size()) : engine_.model().pooling().width;
    json["labels"] = ReportJson::array();
    if (head.has_value()) {
      for (const std::string& label : head->labels) json["labels"].push_back(io::PrintableLine(label));
    }
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

// Texts that were handed in. Those that still wait at the end, after an error or an interrupt, are not computed.
struct Ahead {
  ~Ahead() {
    for (const TextTicket& ticket : tickets) ticket.Cancel();
  }
  std::deque<TextTicket> tickets;
};

// Hands the texts in ahead of their answers. Stops early if nobody reads the output any more.
absl::Status RunTexts(const std::vector<GivenText>& texts, TextEngine& engine, const Console& console,
                      Progress& progress, Answers& answers) {
  Ahead ahead;
  size_t next = 0;
  for (size_t done = 0; done < texts.size() && console.out; ++done) {
    for (; next < texts.size() && ahead.tickets.size() < kTextsAhead; ++next) {
      ahead.tickets.push_back(engine.SubmitWhenRoom({.text = texts[next].text, .second = texts[next].second}));
    }
    const absl::StatusOr<TextAnswer> answer = ahead.tickets.front().Wait();
    ahead.tickets.pop_front();
    AQT_RETURN_IF_ERROR(CheckCancelled(console.interrupted));
    AQT_RETURN_IF_ERROR(answers.Add(texts[done], answer));
    progress.Add(texts[done].bytes(), absl::StrCat("text ", done + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> RunModel(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(flags, fs, console));
  AQT_ASSIGN_OR_RETURN(const models::Architecture architecture, models::ReadArchitecture(fs, flags.input));
  AQT_ASSIGN_OR_RETURN(const std::vector<GivenText> given,
                       GivenTexts(texts, architecture.head.has_value() ? &*architecture.head : nullptr, flags));
  AQT_ASSIGN_OR_RETURN(const OpenedModel model, OpenModel(flags, fs, Tables::kMapped, console));
  int64_t bytes = 0;
  for (const GivenText& text : given) bytes += text.bytes();
  Answers answers(flags, console, model);
  {
    const std::unique_ptr<Progress> progress = ProgressMaker(flags, console)(bytes);
    AQT_RETURN_IF_ERROR(RunTexts(given, *model.engine, console, *progress, answers));
  }
  answers.Finish();
  return ExitCode::kOk;
}

CLI::App* AddRun(CLI::App& app, Flags& flags) {
  CLI::App* run = app.add_subcommand(kRunCommand, "compute embeddings, classes or scores of texts with an encoder")
                      ->footer(kExamples);
  AddModel(*run, flags);
  // With extra arguments, a text in brackets would be a list.
  run->add_option("--text", flags.texts, "a text; may be given several times")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  run->add_option("--pair", flags.pairs, "the second text of a pair; one for each --text")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  run->add_option("--file", flags.texts_file,
                  "a file with a text in each line, or a pair with a tab between its texts; - for standard input")
      ->type_name("FILE");
  AddJson(*run, flags);
  return run;
}

}  // namespace

Command RunModelCommand() { return {AddRun, RunModel}; }

}  // namespace aqt::serving
