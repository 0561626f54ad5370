#ifndef AQT_OPS_CONTRACTION_PACKED_CONTRACTION_H_
#define AQT_OPS_CONTRACTION_PACKED_CONTRACTION_H_

// Contractions whose weights are packed by equations of their own:
//   aqt_pack(qvalue, scale) -> panels        or, of a side that is not quantized, aqt_pack(x) -> panels
//   aqt_dot_general(lhs, panels, scale)      instead of aqt_dot_general(lhs, qvalue, scale)
// Panels are bytes, u8[n], as the kernels of this machine read them. They belong into no file, and such a program has
// no expansion and no gradient. runtime/prepared_program.h makes use of it.

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/graph/op.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"
#include "aqt/quant/config/call_options.h"

namespace aqt {

// Binds `op`, a contraction of AqtDot, again with its weights packed: the operands that replace a side (a qvalue with
// its scale, or what is not quantized), and are fixed. The same bits. Null if `op` is something else, or if none of its
// operands can be packed ahead of time (quant/contraction/dot_operand.h).
std::optional<std::vector<Value>> BindPacked(const Op& op, absl::Span<const Value> operands,
                                             absl::Span<const bool> is_fixed, const SourceLine& where);

// While it lives, counts the operands that contractions of this thread pack, weights and activations: for tests and
// profiles.
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
