#ifndef AQT_SERVING_CLI_CONVERT_COMMAND_H_
#define AQT_SERVING_CLI_CONVERT_COMMAND_H_

// The `aqt` command without the library's programs, as a function: the commands for checkpoints only, and quicker to
// build.

#include <string>
#include <vector>

#include "aqt/io/file.h"
#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

// As AqtMain, with CheckpointCommands() only.
int ConvertMain(const std::vector<std::string>& args, const io::FileSystem& fs, const Console& console);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_CONVERT_COMMAND_H_
