#ifndef AQT_SERVING_CLI_HELP_COMPLETION_H_
#define AQT_SERVING_CLI_HELP_COMPLETION_H_

// Scripts that complete the command line in a shell.

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace aqt::serving {

std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);
std::string FishCompletion(const CLI::App& app);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_HELP_COMPLETION_H_
