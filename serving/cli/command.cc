#include "serving/cli/command.h"

#include <string>
#include <vector>

#include "serving/cli/bench_command.h"
#include "serving/cli/checkpoint_commands.h"
#include "serving/cli/describe_commands.h"
#include "serving/cli/program_commands.h"
#include "serving/cli/run_model_command.h"
#include "serving/cli/serve_command.h"

namespace aqt::serving {

int AqtMain(const std::vector<std::string>& args, const io::FileSystem& fs, const Console& console) {
  CommandSet set;
  set.commands = CheckpointCommands();
  for (const Command& command : ProgramCommands()) set.commands.push_back(command);
  set.commands.push_back(RunModelCommand());
  set.commands.push_back(BenchCommand());
  set.commands.push_back(ServeCommand());
  for (const Command& command : DescribeCommands()) set.commands.push_back(command);
  return RunCommand(set, args, fs, console);
}

}  // namespace aqt::serving
