#ifndef AQT_SERVING_CLI_PROGRAM_COMMAND_NAMES_H_
#define AQT_SERVING_CLI_PROGRAM_COMMAND_NAMES_H_

// The names of ProgramCommands(), RunModelCommand() and BenchCommand(), for a command line without them.

namespace aqt::serving {

inline constexpr char kConfigCommand[] = "config";
inline constexpr char kProgramCommand[] = "program";
inline constexpr char kRunCommand[] = "run";
inline constexpr char kBenchCommand[] = "bench";

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_PROGRAM_COMMAND_NAMES_H_
