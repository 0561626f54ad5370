#ifndef AQT_SERVING_CLI_CHECKPOINTS_DIFF_COMMAND_H_
#define AQT_SERVING_CLI_CHECKPOINTS_DIFF_COMMAND_H_

// `aqt diff`.

#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

Command DiffCommand();

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_CHECKPOINTS_DIFF_COMMAND_H_
