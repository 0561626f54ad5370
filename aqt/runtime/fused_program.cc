#include "aqt/runtime/fused_program.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <thread>

#include "aqt/core/array.h"
#include "aqt/core/check.h"

namespace aqt::internal {
namespace {

constexpr int64_t kMinPiecesPerPart = 2;
constexpr int64_t kPartsPerThread = 4;  // threads may be interrupted

// Of other threads than the caller's; grows to what the largest group needs.
char* ScratchOfThread(int64_t bytes) {
  thread_local std::shared_ptr<void> memory;
  thread_local int64_t size = 0;
  if (size < bytes) {
    memory = AllocateUninitialized(bytes);
    size = bytes;
  }
  return static_cast<char*>(memory.get());
}

}  // namespace

void FusedProgram::RunOne(const FusedInstruction& instruction, const std::function<void(const FusedCall&)>& function,
                          const KernelCall& call, int64_t first, int64_t rows, bool has_next, char* scratch) const {
  using Where = FusedLocation::Where;
  const auto at = [&](const FusedLocation& location) -> char* {
    switch (location.where) {
      case Where::kIn:
        return static_cast<char*>(const_cast<void*>(call.in[location.offset])) + first * location.row_bytes;
      case Where::kOut: return static_cast<char*>(call.out[location.offset]) + first * location.row_bytes;
      case Where::kScratch: return scratch + location.offset;
      case Where::kKept: return scratch + kept_at + location.offset;
    }
    return nullptr;
  };
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
  const int64_t pieces = (rows + piece_rows - 1) / piece_rows;
  const int64_t threads = call.executor == nullptr || !after.empty() ? 1 : call.executor->NumThreads();
  const int64_t parts = threads == 1 ? 1 : std::min(threads * kPartsPerThread, pieces / kMinPiecesPerPart);
  if (parts < 2) return RunRows(call, 0, rows, static_cast<char*>(call.scratch));
  const std::thread::id caller = std::this_thread::get_id();
  call.executor->ParallelFor(parts, [&](int64_t part) {
    const bool is_caller = std::this_thread::get_id() == caller;
    char* scratch = is_caller ? static_cast<char*>(call.scratch) : ScratchOfThread(scratch_bytes);
    const auto row = [&](int64_t i) { return std::min(rows, i * pieces / parts * piece_rows); };
    RunRows(call, row(part), row(part + 1), scratch);
  });
}

}  // namespace aqt::internal
