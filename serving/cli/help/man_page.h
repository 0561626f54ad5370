#ifndef AQT_SERVING_CLI_HELP_MAN_PAGE_H_
#define AQT_SERVING_CLI_HELP_MAN_PAGE_H_

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace aqt::serving {

// The manual page of the program, in roff with the macros of man(7).
std::string ManPage(const CLI::App& app);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_HELP_MAN_PAGE_H_
