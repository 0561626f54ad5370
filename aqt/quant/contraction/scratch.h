#ifndef AQT_QUANT_CONTRACTION_SCRATCH_H_
#define AQT_QUANT_CONTRACTION_SCRATCH_H_

// Memory for the intermediates of contractions.
//
//   Scratch scratch;                               // one for all plans of a thread
//   scratch.Reserve(plan.scratch_bytes());         // optional: now, not in the first call
//   plan.Forward(lhs, rhs, {}, out, nullptr, {.scratch = &scratch});
//
// A call takes what it needs and gives it back when it returns. What is kept is the most that a call has needed,
// however many plans there are. A call inside a call (of an observer, or of a user's product) takes its memory behind
// the outer one's.

#include <cstdint>
#include <memory>
#include <vector>

namespace aqt {
namespace internal {
class Workspace;
}  // namespace internal

// Not thread-safe: one per thread that calls plans. (The threads of an Executor need none.)
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // What calls use that are not given a Scratch. It lives as long as the thread.
  static Scratch& OfThisThread();

  // Allocates so that a call of a plan with at most this many scratch_bytes() does not.
  void Reserve(int64_t bytes);
  // Frees everything. Not during a call.
  void Free();
  // Bytes that are allocated now.
  int64_t num_bytes() const;

 private:
  friend class internal::Workspace;
  // A stack: `top_` bytes are in use, those past block_bytes_ in `overflow_`.
  void* Push(int64_t bytes);
  void PopTo(int64_t top);

  std::shared_ptr<void> block_;
  int64_t block_bytes_ = 0;
  std::vector<std::shared_ptr<void>> overflow_;
  int64_t overflow_bytes_ = 0;
  int64_t top_ = 0, highest_ = 0;
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_SCRATCH_H_
