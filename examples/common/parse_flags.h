#ifndef EXAMPLES_COMMON_PARSE_FLAGS_H_
#define EXAMPLES_COMMON_PARSE_FLAGS_H_

#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace examples {

// Reads the command line, without the program's name, into the variables of `app`. Returns the exit status if the
// program ends here: after --help, which goes to `out`, or after a mistake, which is reported on `err`.
std::optional<int> ParseFlags(CLI::App& app, const std::vector<std::string>& args, std::ostream& out,
                              std::ostream& err);

}  // namespace examples

#endif  // EXAMPLES_COMMON_PARSE_FLAGS_H_
