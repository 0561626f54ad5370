#ifndef AQT_SERVING_CLI_COMMAND_H_
#define AQT_SERVING_CLI_COMMAND_H_

// The `aqt` command, as a function: docs/converting.md.

#include <string>
#include <vector>

#include "aqt/io/file.h"
#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

// Runs the command. `args` excludes the program's name. Returns the exit code (exit_code.h).
int AqtMain(const std::vector<std::string>& args, const io::FileSystem& fs, const Console& console);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_COMMAND_H_
