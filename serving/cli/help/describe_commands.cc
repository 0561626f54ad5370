#include "serving/cli/help/describe_commands.h"

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/help/completion.h"
#include "serving/cli/help/man_page.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {
namespace {

constexpr char kCompletionExamples[] = R"(Examples:
  aqt completion bash > ~/.local/share/bash-completion/completions/aqt
  aqt completion zsh > ~/.zfunc/_aqt            # with fpath+=~/.zfunc before compinit
  aqt completion fish > ~/.config/fish/completions/aqt.fish)";

constexpr char kManExamples[] = R"(Examples:
  aqt man | man -l -
  aqt man > ~/.local/share/man/man1/aqt.1)";

absl::StatusOr<ExitCode> RunCompletion(const Flags& flags, const io::FileSystem&, const Console& console) {
  console.out << (flags.kind == "bash"  ? BashCompletion(*flags.app)
                  : flags.kind == "zsh" ? ZshCompletion(*flags.app)
                                        : FishCompletion(*flags.app));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunMan(const Flags& flags, const io::FileSystem&, const Console& console) {
  console.out << ManPage(*flags.app);
  return ExitCode::kOk;
}

CLI::App* AddCompletion(CLI::App& app, Flags& flags) {
  CLI::App* completion = app.add_subcommand("completion", "print a script that completes commands in a shell")
                             ->footer(kCompletionExamples);
  completion->add_option("SHELL", flags.kind, "bash, zsh or fish")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->required();
  return completion;
}

CLI::App* AddMan(CLI::App& app, Flags&) {
  return app.add_subcommand("man", "print the manual page")->footer(kManExamples);
}

}  // namespace

std::vector<Command> DescribeCommands() { return {{AddCompletion, RunCompletion}, {AddMan, RunMan}}; }

}  // namespace aqt::serving
