#ifndef AQT_SERVING_CLI_CHECKPOINTS_CHECKPOINT_COMMANDS_H_
#define AQT_SERVING_CLI_CHECKPOINTS_CHECKPOINT_COMMANDS_H_

// The commands that need only checkpoints: inspect, plan, convert, dequantize, verify, diff,
// explain.

#include <vector>

#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

// In the order of the help.
std::vector<Command> CheckpointCommands();

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_CHECKPOINTS_CHECKPOINT_COMMANDS_H_
