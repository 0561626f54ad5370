#include "aqt/runtime/fusion/fused_program.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>

#include "aqt/core/array.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"

namespace aqt::internal {
namespace {

constexpr int64_t kMinPiecesPerPart = 2;
constexpr int64_t kPartsPerThread = 4;  // threads may be interrupted

// Memory of one thread, which grows to the needs of the largest group.
class ThreadMemory {
 public:
  char* Get(int64_t bytes) {
    if (size_ < bytes) {
      memory_ = AllocateUninitialized(bytes);
      size_ = bytes;
    }
    return static_cast<char*>(memory_.get());
  }

 private:
  std::shared_ptr<void> memory_;
  int64_t size_ = 0;
};

}  // namespace

char* FusedProgram::Address(const FusedLocation& location, const KernelCall& call, int64_t row, int64_t column,
                            char* scratch) const {
  using Where = FusedLocation::Where;
  const int64_t bytes = row * location.row_bytes + column * location.element_bytes;
  switch (location.where) {
    case Where::kIn: return static_cast<char*>(const_cast<void*>(call.in[location.offset])) + bytes;
    case Where::kOut: return static_cast<char*>(call.out[location.offset]) + bytes;
    case Where::kScratch: return scratch + location.offset;
    case Where::kKept: return scratch + kept_at + location.offset;
  }
  return nullptr;
}

void FusedProgram::RunOne(const FusedInstruction& instruction, const std::function<void(const FusedCall&)>& function,
                          const KernelCall& call, int64_t first, int64_t rows, bool has_next, char* scratch) const {
  const auto at = [&](const FusedLocation& location) { return Address(location, call, first, /*column=*/0, scratch); };
  const void* in[kMaxFusedOperands];
  void* out[kMaxFusedOperands];
  AQT_DCHECK(instruction.in.size() <= kMaxFusedOperands && instruction.out.size() <= kMaxFusedOperands);
  for (size_t i = 0; i < instruction.in.size(); ++i) in[i] = at(instruction.in[i]);
  for (size_t i = 0; i < instruction.out.size(); ++i) out[i] = at(instruction.out[i]);
  const bool fetches = has_next && instruction.ahead.has_value();
  const void* ahead = fetches ? at(*instruction.ahead) + rows * instruction.ahead->row_bytes : nullptr;
  function({in, out, at(instruction.prepared), first, rows, ahead, instruction.ahead_part});
}

void FusedProgram::RunRows(const KernelCall& call, int64_t first, int64_t end, char* scratch) const {
  const auto run = [&](const FusedInstruction& instruction, int64_t row, int64_t count, bool has_next) {
    RunOne(instruction, instruction.run, call, row, count, has_next, scratch);
  };
  for (const FusedInstruction& instruction : before) run(instruction, 0, piece_rows, false);
  for (const FusedInstruction& instruction : each) {
    if (instruction.prepare) RunOne(instruction, instruction.prepare, call, first, 0, false, scratch);
  }
  for (int64_t row = first; row < end; row += piece_rows) {
    const int64_t count = std::min(piece_rows, end - row);
    const bool has_next = row + piece_rows < end;
    for (const FusedInstruction& instruction : each) run(instruction, row, count, has_next);
  }
  if (streams) kernels::FinishStreams();
  for (const FusedInstruction& instruction : after) run(instruction, 0, 0, false);
}

void FusedProgram::Run(const KernelCall& call) const {
  const int64_t pieces = CeilDiv(rows, piece_rows);
  const int64_t threads = call.executor == nullptr || !after.empty() ? 1 : call.executor->NumThreads();
  const int64_t parts = threads == 1 ? 1 : std::min(threads * kPartsPerThread, pieces / kMinPiecesPerPart);
  if (parts < 2) return RunRows(call, 0, rows, static_cast<char*>(call.scratch));
  const std::thread::id caller = std::this_thread::get_id();
  call.executor->ParallelFor(parts, [&](int64_t part) {
    const bool is_caller = std::this_thread::get_id() == caller;
    thread_local ThreadMemory memory;
    char* scratch = is_caller ? static_cast<char*>(call.scratch) : memory.Get(scratch_bytes);
    const auto row = [&](int64_t i) { return std::min(rows, i * pieces / parts * piece_rows); };
    RunRows(call, row(part), row(part + 1), scratch);
  });
}

void FusedProgram::PrepareStrip(const KernelCall& call, char* scratch) const {
  RunOne(each[0], each[0].prepare, call, /*first=*/0, /*rows=*/0, /*has_next=*/false, scratch);
}

void FusedProgram::RunStrip(const KernelCall& call, const OutputBlock& block, char* scratch) const {
  const FusedInstruction& strip = each[0];
  const void* in[kMaxFusedOperands];
  void* out[kMaxFusedOperands];
  AQT_DCHECK(block.rows == 1 || block.row_stride % columns == 0);
  // A row of the product may be several of the group's.
  for (int64_t first = block.offset, left = block.columns; left > 0;) {
    const int64_t row = first / columns, column = first % columns, count = std::min(left, columns - column);
    const auto at = [&](const FusedLocation& location) { return Address(location, call, row, column, scratch); };
    for (size_t i = 0; i < strip.in.size(); ++i) in[i] = at(strip.in[i]);
    for (size_t i = 0; i < strip.out.size(); ++i) out[i] = at(strip.out[i]);
    strip.run({in, out, at(strip.prepared), row, block.rows, /*ahead=*/nullptr, {}, count, block.row_stride});
    first += count;
    left -= count;
  }
  if (streams) kernels::FinishStreams();
}

void FusedEpilogue::Run(const OutputBlock& block) {
  fused_.RunStrip(call_, block, PreparedScratch());
  elements_.fetch_add(block.rows * block.columns, std::memory_order_relaxed);
}

char* FusedEpilogue::PreparedScratch() {
  if (std::this_thread::get_id() == caller_) {
    char* const scratch = static_cast<char*>(call_.scratch);
    if (!is_prepared_) fused_.PrepareStrip(call_, scratch);
    is_prepared_ = true;
    return scratch;
  }
  thread_local ThreadMemory memory;
  thread_local int64_t prepared_for = 0;
  char* const scratch = memory.Get(fused_.scratch_bytes);
  if (prepared_for != call_id_) fused_.PrepareStrip(call_, scratch);
  prepared_for = call_id_;
  return scratch;
}

void FusedEpilogue::Finish() {
  const int64_t elements = elements_.load();
  if (elements == 0) fused_.Run(call_);
  else AQT_CHECK(elements == fused_.rows * fused_.columns);
}

int64_t FusedEpilogue::NewCallId() {
  static std::atomic<int64_t> last = 0;
  return last.fetch_add(1) + 1;
}

}  // namespace aqt::internal
