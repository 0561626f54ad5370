#ifndef AQT_SERVING_CLI_PROGRAMS_PROGRAM_COMMANDS_H_
#define AQT_SERVING_CLI_PROGRAMS_PROGRAM_COMMANDS_H_

// The commands that need the library's programs and configurations: config, program.

#include <vector>

#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

// In the order of the help.
std::vector<Command> ProgramCommands();

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_PROGRAMS_PROGRAM_COMMANDS_H_
