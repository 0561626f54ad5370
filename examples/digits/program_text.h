#ifndef EXAMPLES_DIGITS_PROGRAM_TEXT_H_
#define EXAMPLES_DIGITS_PROGRAM_TEXT_H_

#include <string>

#include "aqt/graph/program.h"

namespace digits {

// How a program is quantized: the lines of ToText(program) with its inputs (without statistics) and with the operations
// dot_general and aqt_..., whose attributes are cut to the contractions that they run (fwd, or dlhs and drhs). A last
// line counts the other equations.
std::string ShortText(const aqt::Program& program);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_PROGRAM_TEXT_H_
