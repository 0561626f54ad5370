#ifndef AQT_TRANSFORMS_DCE_H_
#define AQT_TRANSFORMS_DCE_H_

#include <vector>

#include "aqt/graph/program.h"

namespace aqt {

// The options of Dce.
struct DceOptions {
  // Kinds of inputs that are also removed if nothing uses them.
  std::vector<SlotKind> drop_inputs = {};
};

// `program` without equations and constants that no output depends on. An equation with several outputs is kept as long
// as one is used; Composite::Eval need not compute the others.
Program Dce(const Program& program, const DceOptions& options = {});

}  // namespace aqt

#endif  // AQT_TRANSFORMS_DCE_H_
