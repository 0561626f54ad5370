#ifndef AQT_SERVING_CLI_FLAGS_RUN_COMMAND_H_
#define AQT_SERVING_CLI_FLAGS_RUN_COMMAND_H_

// A command line made of a table of commands.

#include <atomic>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "serving/tools/exit_code.h"

namespace CLI {
class App;
}

namespace aqt::serving {

struct Flags;  // flags.h

struct Console {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;                    // allows a progress bar
  const std::atomic<bool>* interrupted = nullptr;  // set by a signal
  // True if `out` has no reader any more (`aqt inspect | head -1`): a failed write is then not an error.
  bool (*reader_is_gone)() = nullptr;
  std::istream* in = nullptr;  // standard input
};

// One command, such as `convert`.
struct Command {
  // Adds it with its arguments, which are parsed into `flags`, and returns it.
  CLI::App* (*add)(CLI::App& app, Flags& flags);
  // Runs it. An error is reported, and gives the exit code (ExitCodeOf).
  absl::StatusOr<ExitCode> (*run)(const Flags& flags, const io::FileSystem& fs, const Console& console);
};

struct CommandSet {
  std::vector<Command> commands;  // in the order of the help
  // Names of commands of //serving:aqt that the set leaves out. They are refused by name (ExitCode::kUnsupported).
  std::vector<std::string> only_in_aqt;
};

// Parses `args`, which exclude the program's name, and runs one command. Returns the exit code.
int RunCommand(const CommandSet& set, const std::vector<std::string>& args, const io::FileSystem& fs,
               const Console& console);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_FLAGS_RUN_COMMAND_H_
