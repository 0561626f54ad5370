#ifndef AQT_SERVING_CLI_MODELS_SERVE_COMMAND_H_
#define AQT_SERVING_CLI_MODELS_SERVE_COMMAND_H_

// The command that answers requests over HTTP: serve.

#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

Command ServeCommand();

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_MODELS_SERVE_COMMAND_H_
