#include "serving/cli/convert_command.h"

#include <string>
#include <vector>

#include "serving/cli/checkpoints/checkpoint_commands.h"
#include "serving/cli/flags/program_command_names.h"
#include "serving/cli/help/describe_commands.h"

namespace aqt::serving {

int ConvertMain(const std::vector<std::string>& args, const io::FileSystem& fs, const Console& console) {
  CommandSet set = {.commands = CheckpointCommands(),
                    .only_in_aqt = {kConfigCommand, kProgramCommand, kRunCommand, kBenchCommand, kServeCommand}};
  for (const Command& command : DescribeCommands()) set.commands.push_back(command);
  return RunCommand(set, args, fs, console);
}

}  // namespace aqt::serving
