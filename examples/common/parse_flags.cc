#include "examples/common/parse_flags.h"

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "serving/tools/command_line.h"
#include "serving/tools/exit_code.h"

namespace examples {

std::optional<int> ParseFlags(CLI::App& app, const std::vector<std::string>& args, std::ostream& out,
                              std::ostream& err) {
  constexpr int kUsage = static_cast<int>(aqt::serving::ExitCode::kUsage);
  if (const absl::Status status = aqt::serving::CheckFlagValues(args); !status.ok()) {
    err << "error: " << status.message() << "\n";
    return kUsage;
  }
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::Success& e) {  // --help
    return app.exit(e, out, err);
  } catch (const CLI::ParseError& e) {
    err << "error: " << e.what() << "; " << app.get_name() << " --help tells more\n";
    return kUsage;
  }
  return std::nullopt;
}

}  // namespace examples
