#ifndef AQT_RUNTIME_PACKED_PRODUCT_H_
#define AQT_RUNTIME_PACKED_PRODUCT_H_

// Products of floats (dot_general) with a fixed rhs that is packed by its own equation:
//   pack_rhs(rhs) -> panels
//   packed_dot_general(lhs, panels)          instead of dot_general(lhs, rhs)
// Panels are bytes, u8[n], in the layout that the kernels of this machine read, in huge pages. As in
// ops/contraction/packed_contraction.h, such a program is not saved and has neither an expansion nor a gradient.

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/graph/op.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"

namespace aqt::internal {

// Binds a dot_general of f32, bf16 or f16 again with its rhs packed. The bits are the same. Null for anything else, and
// if rhs is not fixed, or lhs is, too.
std::optional<std::vector<Value>> BindPackedProduct(const Op& op, absl::Span<const Value> operands,
                                                    absl::Span<const bool> is_fixed, const SourceLine& where);

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_PACKED_PRODUCT_H_
