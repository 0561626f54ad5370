#ifndef AQT_RUNTIME_FUSION_FUSED_KERNEL_H_
#define AQT_RUNTIME_FUSION_FUSED_KERNEL_H_

// Equations that run together over cache-sized pieces. Internal.
//
// A group computes on matrices of one size. Each member applies the operation's kernel to a piece, a few full rows.
// Results that only members need are in scratch memory. A reduction of rows can be read by other members, for the rows
// of the piece; one of columns, or of everything, is complete only after the group has run.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/fusion/fused_program.h"

namespace aqt::internal {

// How a member sees the group's matrices.
enum class FusedRole : uint8_t {
  kFull,           // its result is a matrix: an elementwise operation or a broadcast
  kRow,            // its result and its operands have an element for each row
  kReduceRows,     // its operand is a matrix, its result has an element for each row
  kReduceColumns,  // its operand is a matrix, its result has an element for each column
  kReduceAll,      // its operand is a matrix, its result is one number
};

struct FusedMember {
  int eqn;  // position in program.eqns
  FusedRole role;
};

struct FusedGroup {
  std::vector<FusedMember> members;  // in the order of the program
  int64_t elements = 0;              // of a matrix
  int64_t columns = 0;               // 0: any number
};

// Limits: the rows of kReduceRows and the columns of kReduceColumns must fit into a cache.
inline constexpr int64_t kMaxFusedRow = 16384;
inline constexpr int64_t kMaxFusedColumns = 2048;

// Reads the variables `in` and writes `out`, which are roots (fusion.h). Results of members that are not in `out` exist
// only in scratch memory.
OpKernel FusedKernel(const Program& program, absl::Span<const VarId> roots, const FusedGroup& group,
                     absl::Span<const VarId> in, absl::Span<const VarId> out);

// A group that runs on the blocks of a product (core/block_epilogue.h).
struct StripKernel {
  std::shared_ptr<const FusedProgram> fused;  // FusedProgram::is_strip
  std::vector<std::pair<int, int>> may_share;
};
// For matrices with `columns` columns. Null if they are not full strips, or if the group is not a strip whose blocks
// can be computed independently.
std::optional<StripKernel> StripOfBlocks(const Program& program, absl::Span<const VarId> roots, const FusedGroup& group,
                                         int64_t columns, absl::Span<const VarId> in, absl::Span<const VarId> out);

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_FUSION_FUSED_KERNEL_H_
