#ifndef EXAMPLES_DIGITS_COMMAND_H_
#define EXAMPLES_DIGITS_COMMAND_H_

#include <ostream>
#include <string>
#include <vector>

#include "aqt/io/file.h"

namespace digits {

// The command `digits` as a function: runs `args`, which exclude the program's name. Returns the exit code, as `aqt`
// does (serving/tools/exit_code.h).
int DigitsMain(const std::vector<std::string>& args, const aqt::io::FileSystem& fs, std::ostream& out,
               std::ostream& err);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_COMMAND_H_
