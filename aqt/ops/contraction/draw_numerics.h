#ifndef AQT_OPS_CONTRACTION_DRAW_NUMERICS_H_
#define AQT_OPS_CONTRACTION_DRAW_NUMERICS_H_

// Colours for drawings of programs (graph/draw/draw.h).

#include "aqt/graph/draw/draw.h"
#include "aqt/graph/program.h"

namespace aqt::ops {

// For DrawOptions::paint. Quantized contractions, and operands quantized ahead of time, get the colour of their
// narrowest numerics and a line that names all of them ("int8 * int8"; for a gradient, "dlhs int8 * int8, drhs float").
//   integers of 1 and 2 bits red, to 4 orange, to 8 green, more light green; 8-bit floats blue, smaller ones violet
Paint PaintNumerics(const Equation& eqn);

}  // namespace aqt::ops

#endif  // AQT_OPS_CONTRACTION_DRAW_NUMERICS_H_
