#ifndef AQT_SERVING_CLI_HELP_DESCRIBE_COMMANDS_H_
#define AQT_SERVING_CLI_HELP_DESCRIBE_COMMANDS_H_

// The commands that describe the command line itself: completion, man.

#include <vector>

#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

std::vector<Command> DescribeCommands();

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_HELP_DESCRIBE_COMMANDS_H_
