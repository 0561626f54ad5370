#ifndef AQT_TRANSFORMS_SIMPLIFY_H_
#define AQT_TRANSFORMS_SIMPLIFY_H_

#include "aqt/graph/program.h"

namespace aqt::internal {

// The program in which each dot_general followed by a transpose that exchanges the two operands' axes is computed as
// the product in the other order. The bits are the same: a sum of products has the order of its contracting axes, and a
// product of equal dtypes does not depend on the order of its factors. Elementwise operations of one array, or of an
// array and a broadcast number, may stand between the two; they then follow the transpose. A dot_general that is no
// longer used stays.
Program WithoutTransposedProducts(const Program& program);

// The program in which each select(x > 0, x, max(x, 0)), which is how ops::Relu is traced, is computed as max(x, 0).
// The bits are the same: where x is greater, the maximum is x. Equations that are no longer used stay.
Program WithRelusAsMaxima(const Program& program);

}  // namespace aqt::internal

#endif  // AQT_TRANSFORMS_SIMPLIFY_H_
