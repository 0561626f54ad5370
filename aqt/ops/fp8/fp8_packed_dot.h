#ifndef AQT_OPS_FP8_FP8_PACKED_DOT_H_
#define AQT_OPS_FP8_FP8_PACKED_DOT_H_

// The product of fp8_dot.h with a kernel that is quantized and packed by its own equation:
//   fp8_pack(kernel, kernel_scale) -> codes, panels
//   fp8_packed_dot(x, codes, panels, input_scale, kernel_scale) -> y
// Panels are bytes, u8[n], in the layout that the kernels of this machine read. They must not be saved to files, and
// such a program has no gradient. runtime/prepared_program.h uses it; packed_contraction.h is the same for other
// contractions.

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/graph/op.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"

namespace aqt {

// Binds `op`, an fp8_dot, again with its kernel packed, if the kernel and its scale are fixed. The bits are the same.
// Null if `op` is something else, or if it is empty.
std::optional<std::vector<Value>> BindPackedFp8Dot(const Op& op, absl::Span<const Value> operands,
                                                   absl::Span<const bool> is_fixed, const SourceLine& where);

}  // namespace aqt

#endif  // AQT_OPS_FP8_FP8_PACKED_DOT_H_
