#include "serving/cli/programs/program_commands.h"

#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/draw/draw.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"
#include "aqt/io/printable.h"
#include "aqt/ops/contraction/draw_numerics.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/program_command_names.h"
#include "serving/cli/flags/shared_flags.h"
#include "serving/cli/flags/suggest.h"
#include "serving/cli/programs/effective_config.h"
#include "serving/cli/programs/program_json.h"
#include "serving/engine/read_program.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/report_json-inl.h"

namespace aqt::serving {
namespace {

constexpr char kConfigExamples[] = R"(Examples:
  aqt config dot_general                        # the presets
  aqt config dot_general config_v4              # one of them in full
  aqt config inject my.textproto                # checked, with every base filled in
  aqt config inject int8_all --program model.txt   # what it would do to a program)";

constexpr char kProgramExamples[] = R"(Examples:
  aqt program model.aqtprog > model.txt
  aqt program model.aqtprog --draw svg --depth 2 > model.svg
  aqt program model.aqtprog --draw dot | dot -Tpdf > model.pdf
  aqt program model.aqtprog --json | jq -r '.equations[].operation' | sort | uniq -c)";

// Lines in which names can neither move a terminal's cursor nor break its display.
std::string PrintableText(absl::string_view text) {
  return absl::StrJoin(absl::StrSplit(text, '\n'), "\n",
                       [](std::string* out, absl::string_view line) { absl::StrAppend(out, io::PrintableLine(line)); });
}

// The report of `config --json`: what was asked for, then `answer`.
void PrintConfigReport(const Flags& flags, const ReportJson& answer, const Console& console) {
  ReportJson json = NewReport();
  json["kind"] = flags.kind;
  json["source"] = flags.input.empty() ? ReportJson() : ReportJson(flags.input);
  json.update(answer);
  console.out << ReportText(json);
}

absl::StatusOr<ExitCode> RunConfig(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  if (!flags.program.empty() && (flags.kind != "inject" || flags.input.empty())) {
    return absl::InvalidArgumentError(
        "--program shows what an inject configuration would do: use it as in `aqt config inject SOURCE --program "
        "FILE`");
  }
  if (flags.input.empty()) {
    if (flags.json) {
      PrintConfigReport(flags, {{"presets", PresetNames(flags.kind)}}, console);
    } else {
      console.out << absl::StrJoin(PresetNames(flags.kind), "\n") << "\n";
    }
    return ExitCode::kOk;
  }
  if (!flags.program.empty()) {
    std::vector<std::string> unmatched;
    AQT_ASSIGN_OR_RETURN(const std::string report, InjectionReport(fs, flags.input, flags.program, &unmatched));
    if (flags.json) {
      const std::vector<std::string> lines = absl::StrSplit(report, '\n', absl::SkipEmpty());
      PrintConfigReport(flags, {{"report", lines}, {"unmatched", unmatched}}, console);
    } else {
      console.out << PrintableText(report);
    }
    if (unmatched.empty()) return ExitCode::kOk;
    return absl::InvalidArgumentError(absl::StrCat(
        absl::StrJoin(unmatched, ", "), " hit nothing, which is an error unless the configuration has strict: false"));
  }
  AQT_ASSIGN_OR_RETURN(const std::string text, EffectiveConfig(fs, flags.kind, flags.input));
  if (flags.json) {
    PrintConfigReport(flags, {{"textproto", text}}, console);
  } else {
    console.out << text;
  }
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunProgram(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  if (flags.depth.has_value() && flags.draw.empty()) {
    return absl::InvalidArgumentError("--depth folds the scopes of a drawing; add --draw svg or --draw dot");
  }
  if (flags.json && !flags.draw.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--json prints the program as JSON, and --draw ", flags.draw, " a drawing; give one of them"));
  }
  AQT_ASSIGN_OR_RETURN(const Program program, ReadProgram(fs, flags.input));
  if (flags.json) {
    console.out << ProgramToJson(program, flags.input);
    return ExitCode::kOk;
  }
  const DrawOptions options{.depth = flags.depth, .paint = ops::PaintNumerics};
  console.out << PrintableText(flags.draw.empty()    ? ToText(program)
                               : flags.draw == "svg" ? DrawSvg(program, options)
                                                     : DrawDot(program, options));
  return ExitCode::kOk;
}

CLI::App* AddConfig(CLI::App& app, Flags& flags) {
  CLI::App* config =
      app.add_subcommand(kConfigCommand, "check a configuration and print it in full")->footer(kConfigExamples);
  config->add_option("KIND", flags.kind, absl::StrCat("one of ", absl::StrJoin(ConfigKinds(), ", ")))
      ->check(CLI::IsMember(ConfigKinds()))
      ->required();
  std::vector<std::string> presets;
  for (const std::string& kind : ConfigKinds()) absl::c_copy(PresetNames(kind), std::back_inserter(presets));
  config->add_option("SOURCE", flags.input, "a preset or a textproto; if it is omitted, the presets are listed")
      ->check(Suggest(presets));
  config
      ->add_option(
          "--program", flags.program,
          "inject only: a saved program (SaveProgram) or its text (ToText); show what the rules would do to it")
      ->type_name("FILE");
  AddJson(*config, flags);
  return config;
}

CLI::App* AddProgram(CLI::App& app, Flags& flags) {
  CLI::App* program = app.add_subcommand(kProgramCommand, "print or draw a saved program")->footer(kProgramExamples);
  program->add_option("FILE", flags.input, "a saved program (SaveProgram)")->required();
  program
      ->add_option("--draw", flags.draw,
                   "svg, or dot for Graphviz: quantized contractions have the colour of their numerics; by default the "
                   "program's text")
      ->check(CLI::IsMember({"svg", "dot"}))
      ->type_name("FORMAT");
  program->add_option("--depth", flags.depth, "one box for each scope of N levels, such as 1 for all of \"mlp/...\"")
      ->check(CLI::Range(0, 1000))
      ->type_name("N");
  AddJson(*program, flags);
  return program;
}

}  // namespace

std::vector<Command> ProgramCommands() { return {{AddConfig, RunConfig}, {AddProgram, RunProgram}}; }

}  // namespace aqt::serving
