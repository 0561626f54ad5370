#ifndef AQT_SERVING_CLI_HELP_COMMAND_TREE_H_
#define AQT_SERVING_CLI_HELP_COMMAND_TREE_H_

// The commands and their arguments, read from the same tree that `--help` prints.

#include <string>
#include <vector>

#include "serving/cli/flags/suggest.h"

namespace CLI {
class App;
}  // namespace CLI

namespace aqt::serving {

struct ArgumentInfo {
  std::vector<std::string> names;  // "--jobs", "-j"; empty if it is positional
  std::string value;               // what to write for its value: "IN", "N"; empty if it is a flag without one
  std::string description;
  Suggestions suggestions;
  bool files = false;  // the value may be a file
  bool required = false;
  bool repeats = false;

  bool positional() const { return names.empty(); }
};

struct CommandInfo {
  std::string name;
  std::string description;
  std::string footer;                    // examples
  std::vector<ArgumentInfo> positional;  // in order
  std::vector<ArgumentInfo> options;
};

// The value of an option is a file if its type name is FILE, PATH or CONFIG.JSON; that of a positional argument, unless
// it has another type name than TEXT, or only certain values.
CommandInfo ReadCommand(const CLI::App& command);
// In the order of the help.
std::vector<CommandInfo> ReadCommands(const CLI::App& app);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_HELP_COMMAND_TREE_H_
