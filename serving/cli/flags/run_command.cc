#include "serving/cli/flags/run_command.h"

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/machine/target_name.h"
#include "aqt/core/machine/verbose.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/cli/flags/flags.h"
#include "serving/tools/command_line.h"
#include "serving/tools/parallel.h"
#include "serving/tools/version.h"

namespace aqt::serving {
namespace {

constexpr char kFooter[] = R"(Exit codes:
  0  done                       1  verify: a threshold is missed or tensors disagree; diff: a difference
  2  command line or config     3  input damaged, or values that cannot be quantized
  4  file missing, in the way,  5  legal, but not supported
     or not writable; too     130  interrupted
     little memory, no threads

A first session:
  aqt inspect model/
  aqt plan    model/ --preset w8a8_dynamic
  aqt convert model/ model-w8a8/ --preset w8a8_dynamic
  aqt verify  model/ model-w8a8/ --min-snr 30)";

// An empty value, such as that of an unset shell variable, must not turn a flag off.
absl::Status CheckNotEmpty(const CLI::App& command) {
  const auto is_empty = [](const std::string& value) { return value.empty(); };
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0) continue;                             // a flag
    if (option->get_name() == "--text" || option->get_name() == "--pair") continue;  // a text may be empty
    const std::vector<std::string>& values = option->results();
    if (std::none_of(values.begin(), values.end(), is_empty)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option->get_name(), " is empty; give it a value, or leave it out if it is optional"));
  }
  for (const CLI::App* group : command.get_subcommands({})) AQT_RETURN_IF_ERROR(CheckNotEmpty(*group));
  return absl::OkStatus();
}

ExitCode Report(const absl::Status& status, const Console& console) {
  if (!status.ok()) console.err << "error: " << io::PrintableLine(status.message()) << "\n";
  return ExitCodeOf(status);
}

std::string VersionText() {
  return absl::StrCat(
      "aqt ", kVersion, "\nSIMD target: ", kernels::ToString(kernels::BestTarget()), " (supported: ",
      absl::StrJoin(kernels::SupportedTargets(), ", ",
                    [](std::string* out, kernels::Target t) { absl::StrAppend(out, kernels::ToString(t)); }),
      ")\n");
}

// The commands that the set leaves out, for its help.
std::string OnlyInAqtText(const CommandSet& set) {
  return absl::StrCat("Only in //serving:aqt: ", absl::StrJoin(set.only_in_aqt, ", "));
}

// The error for one of them.
absl::Status OnlyInAqt(const std::string& name, const std::vector<const CLI::App*>& commands) {
  const auto append_name = [](std::string* out, const CLI::App* command) { absl::StrAppend(out, command->get_name()); };
  return absl::UnimplementedError(absl::StrCat("the command ", name, " is only in //serving:aqt; this program has ",
                                               absl::StrJoin(commands, ", ", append_name)));
}

// Reports an error of the command line.
void ReportParseError(const CLI::App& app, const std::vector<std::string>& args, const CLI::ParseError& e,
                      const Console& console) {
  const std::vector<const CLI::App*> commands = app.get_subcommands({});
  const bool known =
      args.empty() || args[0][0] == '-' ||
      std::any_of(commands.begin(), commands.end(), [&](const CLI::App* c) { return c->get_name() == args[0]; });
  if (known) {
    console.err << "error: " << io::PrintableLine(e.what()) << "\n";
  } else {
    console.err << "error: there is no command " << io::Printable(args[0]) << "; `aqt --help` lists them\n";
  }
  if (args.empty()) console.err << app.help();
}

// Defines the command line and runs one of the commands.
ExitCode Run(const CommandSet& set, const std::vector<std::string>& args, const io::FileSystem& fs,
             const Console& console) {
  CLI::App app("Quantizes checkpoints of models; runs and serves text encoders.", "aqt");
  Flags flags;
  flags.app = &app;
  app.footer(set.only_in_aqt.empty() ? kFooter : absl::StrCat(kFooter, "\n\n", OnlyInAqtText(set)));
  app.require_subcommand(1);
  bool version = false;
  app.add_flag("--version", version, "print version and SIMD target")->trigger_on_parse();
  app.set_help_all_flag("--help-all", "help of all commands");
  std::vector<const CLI::App*> commands;
  for (const Command& command : set.commands) commands.push_back(command.add(app, flags));

  if (!args.empty() && absl::c_linear_search(set.only_in_aqt, args[0])) {
    return Report(OnlyInAqt(args[0], commands), console);
  }
  if (const absl::Status status = CheckFlagValues(args); !status.ok()) return Report(status, console);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::Success& e) {  // --help
    return app.exit(e, console.out, console.err) == 0 ? ExitCode::kOk : ExitCode::kUsage;
  } catch (const CLI::ParseError& e) {
    if (version && args.size() == 1) {
      console.out << VersionText();
      return ExitCode::kOk;
    }
    ReportParseError(app, args, e, console);
    return ExitCode::kUsage;
  }
  if (const absl::Status status = CheckNotEmpty(app); !status.ok()) return Report(status, console);
  if (const auto target = kernels::MaxTargetFromEnvironment(); !target.ok()) return Report(target.status(), console);
  if (const auto verbosity = kernels::VerbosityFromEnvironment(); !verbosity.ok()) {
    return Report(verbosity.status(), console);
  }
  size_t parsed = 0;  // exactly one is, by require_subcommand
  while (!commands[parsed]->parsed()) ++parsed;
  const absl::StatusOr<ExitCode> code = set.commands[parsed].run(flags, fs, console);
  return code.ok() ? *code : Report(code.status(), console);
}

}  // namespace

int RunCommand(const CommandSet& set, const std::vector<std::string>& args, const io::FileSystem& fs,
               const Console& console) {
  ExitCode code = ExitCode::kFile;
  try {
    code = Run(set, args, fs, console);
  } catch (const std::bad_alloc&) {  // from outside ParallelRun, which returns it as a status
    console.err << "error: " << kOutOfMemory << "\n";
  }
  console.out.flush();
  const bool reader_is_gone = console.reader_is_gone != nullptr && console.reader_is_gone();
  if (!console.out && !reader_is_gone && code == ExitCode::kOk) {
    console.err << "error: standard output cannot be written\n";
    code = ExitCode::kFile;
  }
  return static_cast<int>(code);
}

}  // namespace aqt::serving
