#ifndef AQT_SERVING_CLI_COMMAND_H_
#define AQT_SERVING_CLI_COMMAND_H_

// The `aqt` command, as a function: docs/converting.md.

#include <atomic>
#include <ostream>
#include <string>
#include <vector>

#include "aqt/io/file.h"

namespace aqt::serving {

struct Console {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;                    // allows a progress bar
  const std::atomic<bool>* interrupted = nullptr;  // set by a signal
  // True if `out` has no reader any more (`aqt inspect | head -1`): a failed write is then not an error.
  bool (*reader_is_gone)() = nullptr;
};

// Runs the command. `args` excludes the program's name. Returns the exit code (exit_code.h).
int AqtMain(const std::vector<std::string>& args, const io::FileSystem& fs, const Console& console);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_COMMAND_H_
