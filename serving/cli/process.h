#ifndef AQT_SERVING_CLI_PROCESS_H_
#define AQT_SERVING_CLI_PROCESS_H_

// What a process of the command line sets up: signals, standard streams, the allocator, the user's folder.

#include <string>
#include <vector>

#include "aqt/io/file.h"
#include "serving/cli/flags/run_command.h"

namespace aqt::serving {

// AqtMain or ConvertMain.
using CommandMain = int (*)(const std::vector<std::string>& args, const io::FileSystem& fs, const Console& console);

// Runs the command with the arguments of main(). Returns the exit code.
int RunProcess(int argc, char** argv, CommandMain command);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_PROCESS_H_
