#ifndef AQT_OPS_COLLECTIVE_OPS_H_
#define AQT_OPS_COLLECTIVE_OPS_H_

// Exchanges between processes (collective/collective.h) as operations of a program:
//   all_reduce_sum(x), all_reduce_max(x), all_reduce_min(x) -> the sum, maximum or minimum over the processes
//   all_gather(x) {axis=0} -> the parts of all processes, one behind the other
// The processes run programs with the same exchanges in the same order. No gradient flows through them: they are placed
// behind gradients (transforms/data_parallel.h). They are not saved: save a program before they are placed.

#include <cstdint>

#include "aqt/collective/collective.h"
#include "aqt/graph/value.h"

namespace aqt {

// Exchanges that this thread evaluates while the object lives go through `collective`, which must outlive it; null
// means that there are none.
class UseCollective {
 public:
  explicit UseCollective(Collective* collective);
  ~UseCollective();
  UseCollective(const UseCollective&) = delete;
  UseCollective& operator=(const UseCollective&) = delete;

 private:
  Collective* const saved_;
};

namespace ops {

// x of f32, f64 or s32, with the bits of AllReduce(). Evaluation fails with FailedPrecondition outside of a
// UseCollective, or in one of another number of processes.
Value AllReduce(AllReduceKind kind, const Value& x, int processes);
// x of any dtype; the extent of `axis` times the number of processes. Fails like AllReduce.
Value AllGather(const Value& x, int64_t axis, int processes);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_COLLECTIVE_OPS_H_
