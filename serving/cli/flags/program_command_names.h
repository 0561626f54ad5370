#ifndef AQT_SERVING_CLI_FLAGS_PROGRAM_COMMAND_NAMES_H_
#define AQT_SERVING_CLI_FLAGS_PROGRAM_COMMAND_NAMES_H_

// The names of ProgramCommands(), RunModelCommand(), BenchCommand() and ServeCommand(), for a command line without
// them.

namespace aqt::serving {

inline constexpr char kConfigCommand[] = "config";
inline constexpr char kProgramCommand[] = "program";
inline constexpr char kRunCommand[] = "run";
inline constexpr char kBenchCommand[] = "bench";
inline constexpr char kServeCommand[] = "serve";

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_FLAGS_PROGRAM_COMMAND_NAMES_H_
