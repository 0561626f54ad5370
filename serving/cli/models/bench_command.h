#ifndef AQT_SERVING_CLI_MODELS_BENCH_COMMAND_H_
#define AQT_SERVING_CLI_MODELS_BENCH_COMMAND_H_

// The command that measures a model: bench.

#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

Command BenchCommand();

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_MODELS_BENCH_COMMAND_H_
