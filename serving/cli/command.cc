#include "serving/cli/command.h"

#include <string>
#include <vector>

#include "serving/cli/checkpoints/checkpoint_commands.h"
#include "serving/cli/help/describe_commands.h"
#include "serving/cli/models/bench_command.h"
#include "serving/cli/models/run_model_command.h"
#include "serving/cli/models/serve_command.h"
#include "serving/cli/programs/program_commands.h"

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
