#ifndef AQT_RUNTIME_FUSION_FUSED_PROGRAM_H_
#define AQT_RUNTIME_FUSION_FUSED_PROGRAM_H_

// The instructions of a fused kernel. Internal.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "aqt/core/block_epilogue.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/kernels/elementwise/strip.h"

namespace aqt::internal {

// The address of a value: it advances by `row_bytes` per row, and by `element_bytes` per element of a row.
struct FusedLocation {
  enum class Where : uint8_t {
    kIn,
    kOut,
    kScratch,
    kKept,  // in scratch memory that is kept from piece to piece
  } where = Where::kScratch;
  int64_t offset = 0;  // kIn, kOut: index of the operand or result; otherwise bytes
  int64_t row_bytes = 0, element_bytes = 0;
};

// The rows that an instruction computes: first .. first + rows - 1.
struct FusedCall {
  const void* const* in;
  void* const* out;
  void* prepared;
  int64_t first, rows;
  const void* ahead;  // null, or FusedInstruction::ahead for the rows after these
  kernels::StripCall::Fraction ahead_part;
  // For a strip that computes a block of its matrices; otherwise 0.
  int64_t columns = 0, row_stride = 0;
};

inline constexpr size_t kMaxFusedOperands = kernels::StripBuilder::kMaxOperands;  // also the limit for results

struct FusedInstruction {
  std::function<void(const FusedCall&)> run;
  absl::InlinedVector<FusedLocation, 3> in;
  absl::InlinedVector<FusedLocation, 1> out;
  // An operand of another instruction to prefetch for the next piece, and the part of it to prefetch.
  std::optional<FusedLocation> ahead = std::nullopt;
  kernels::StripCall::Fraction ahead_part = {};
  // Null, or called before the first piece with its arguments: fills the memory at `prepared`.
  std::function<void(const FusedCall&)> prepare = nullptr;
  FusedLocation prepared = {};
};

struct FusedProgram {
  int64_t rows, columns, piece_rows;
  std::vector<FusedInstruction> before;  // once, before the first piece
  std::vector<FusedInstruction> each;    // for each piece
  std::vector<FusedInstruction> after;
  int64_t kept_at = 0;  // after the rest of the scratch memory
  int64_t scratch_bytes = 0;
  bool streams = false;  // whether an instruction may write past the caches

  void Run(const KernelCall& call) const;

  // Whether it is a single strip, which can compute any block of its matrices: `each` treats elements independently.
  bool is_strip() const { return before.empty() && after.empty() && each.size() == 1 && each[0].prepare != nullptr; }
  // For strips: prepares the strip, in memory of scratch_bytes, and computes a block with it.
  void PrepareStrip(const KernelCall& call, char* scratch) const;
  void RunStrip(const KernelCall& call, const OutputBlock& block, char* scratch) const;

 private:
  // Runs rows first .. end - 1.
  void RunRows(const KernelCall& call, int64_t first, int64_t end, char* scratch) const;
  // Runs a function of the instruction. `has_next`: whether a piece follows.
  void RunOne(const FusedInstruction& instruction, const std::function<void(const FusedCall&)>& function,
              const KernelCall& call, int64_t first, int64_t rows, bool has_next, char* scratch) const;
  char* Address(const FusedLocation& location, const KernelCall& call, int64_t row, int64_t column,
                char* scratch) const;
};

// A strip that runs on the blocks of a product's result as they are computed. One object per call.
class FusedEpilogue final : public BlockEpilogue {
 public:
  // `fused` must be a strip.
  FusedEpilogue(const FusedProgram& fused, const KernelCall& call)
      : fused_(fused), call_(call), call_id_(NewCallId()), caller_(std::this_thread::get_id()) {}
  void Run(const OutputBlock& block) override;
  // Computes everything, unless Run has.
  void Finish();

 private:
  static int64_t NewCallId();
  // The strip, prepared once per call by each thread: for the caller in the memory of the call.
  char* PreparedScratch();

  const FusedProgram& fused_;
  const KernelCall call_;
  const int64_t call_id_;
  const std::thread::id caller_;
  bool is_prepared_ = false;  // whether the scratch memory of the call is prepared
  std::atomic<int64_t> elements_ = 0;
};

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_FUSION_FUSED_PROGRAM_H_
