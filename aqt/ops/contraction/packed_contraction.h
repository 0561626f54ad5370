#ifndef AQT_OPS_CONTRACTION_PACKED_CONTRACTION_H_
#define AQT_OPS_CONTRACTION_PACKED_CONTRACTION_H_

// Contractions with operands packed by their own equations:
//   aqt_pack(qvalue, scale) -> panels        or, for a side that is not quantized, aqt_pack(x) -> panels
//   aqt_dot_general(lhs, panels, scale)      instead of aqt_dot_general(lhs, qvalue, scale)
//   aqt_quantize_pack(lhs) -> panels, scale  a float lhs, quantized once for several contractions
//   aqt_dot_general(panels, scale, rhs...)   instead of aqt_dot_general(lhs, rhs...)
// Panels are bytes, u8[n], in the layout that the kernels of this machine read. They must not be saved to files, and
// such a program has no expansion and no gradient. runtime/prepared_program.h uses it.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"
#include "aqt/quant/config/call_options.h"

namespace aqt {

// Binds `op`, a contraction of AqtDot, again with its weights packed: the fixed operands that replace a side (a qvalue
// with its scale, or an operand that is not quantized). The bits are the same. Null if `op` is something else, or if
// none of its operands can be packed ahead of time (quant/contraction/dot_operand.h).
std::optional<std::vector<Value>> BindPacked(const Op& op, absl::Span<const Value> operands,
                                             absl::Span<const bool> is_fixed, const SourceLine& where);

// The program in which contractions that quantize one float lhs alike, such as the projections of an attention, read it
// from one aqt_quantize_pack. The bits are the same. Only contractions whose own call would quantize lhs into panels by
// nothing but lhs take part: bytes on both sides, a scale by row or one scale, no noise and no statistics.
absl::StatusOr<Program> WithSharedOperands(const Program& program);

// During its lifetime, counts the operands that contractions of this thread pack, weights and activations. For tests
// and profiles.
class CountPacks {
 public:
  CountPacks();
  ~CountPacks();
  CountPacks(const CountPacks&) = delete;
  CountPacks& operator=(const CountPacks&) = delete;
  const PackCounts& counts() const { return counts_; }

 private:
  PackCounts counts_;
  PackCounts* outer_;
};

}  // namespace aqt

#endif  // AQT_OPS_CONTRACTION_PACKED_CONTRACTION_H_
