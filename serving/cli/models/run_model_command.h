#ifndef AQT_SERVING_CLI_MODELS_RUN_MODEL_COMMAND_H_
#define AQT_SERVING_CLI_MODELS_RUN_MODEL_COMMAND_H_

// The command that runs a model: run.

#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

Command RunModelCommand();

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_MODELS_RUN_MODEL_COMMAND_H_
