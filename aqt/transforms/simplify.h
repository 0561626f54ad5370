#ifndef AQT_TRANSFORMS_SIMPLIFY_H_
#define AQT_TRANSFORMS_SIMPLIFY_H_

#include "aqt/graph/program.h"

namespace aqt::internal {

// The program with each product of two arrays whose axes are exchanged afterwards, dot_general and then transpose,
// computed as the product of the two in the other order. The bits are the same: a sum of products has the order of its
// contracting axes, and a product of equal dtypes does not depend on the order of its factors. Between the two may
// stand elementwise operations of one array, or of an array and a number that is broadcast; they follow the transpose
// then. A dot_general that nothing else needs stays, without use.
Program WithoutTransposedProducts(const Program& program);

// The program with each select(x > 0, x, max(x, 0)) computed as max(x, 0): ops::Relu is traced so. The bits are the
// same: where x is greater, the maximum is x. What nothing else needs stays, without use.
Program WithRelusAsMaxima(const Program& program);

}  // namespace aqt::internal

#endif  // AQT_TRANSFORMS_SIMPLIFY_H_
