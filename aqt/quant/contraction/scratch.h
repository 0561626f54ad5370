#ifndef AQT_QUANT_CONTRACTION_SCRATCH_H_
#define AQT_QUANT_CONTRACTION_SCRATCH_H_

// Memory for the intermediates of contractions.
//
//   Scratch scratch;                               // one for all plans of a thread
//   scratch.Reserve(plan.scratch_bytes());         // optional: now, not in the first call
//   plan.Forward(lhs, rhs, {}, out, nullptr, {.scratch = &scratch});
//
// A call takes the memory it needs and gives it back when it returns. A Scratch keeps the most that any call has
// needed, regardless of the number of plans. A nested call (in an observer or a user's product) takes its memory after
// that of the outer call.

#include <cstdint>
#include <memory>
#include <vector>

namespace aqt {
namespace internal {
class Workspace;
}  // namespace internal

// Memory that calls reuse. Not thread-safe: use one per thread that calls plans. (The threads of an Executor need
// none.)
class Scratch {
 public:
  Scratch() = default;
  // `bytes` bytes of the caller, aligned to 64. A call that needs more allocates it.
  Scratch(void* memory, int64_t bytes)
      : block_(std::shared_ptr<void>(), memory), block_bytes_(bytes), is_borrowed_(true) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // The Scratch of calls that are not given one. It exists as long as the thread.
  static Scratch& OfThisThread();

  // Allocates now what a call of a plan with at most `bytes` scratch_bytes() would allocate.
  void Reserve(int64_t bytes);
  // Frees all memory. Must not be called during a call.
  void Free();
  // Bytes that are allocated now, or that the caller gave.
  int64_t num_bytes() const;

 private:
  friend class internal::Workspace;
  // A stack: `top_` bytes are in use, those past block_bytes_ in `overflow_`.
  void* Push(int64_t bytes);
  void PopTo(int64_t top);

  std::shared_ptr<void> block_;
  int64_t block_bytes_ = 0;
  bool is_borrowed_ = false;
  std::vector<std::shared_ptr<void>> overflow_;
  int64_t overflow_bytes_ = 0;
  int64_t top_ = 0, highest_ = 0;
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_SCRATCH_H_
