#ifndef AQT_OPS_COLLECTIVE_COLLECTIVE_OPS_H_
#define AQT_OPS_COLLECTIVE_COLLECTIVE_OPS_H_

// Exchanges between processes (collective/collective.h) as operations of a program:
//   all_reduce_sum(x), all_reduce_max(x), all_reduce_min(x) -> the sum, maximum or minimum over the processes
//   all_gather(x) {axis=0} -> the parts of all processes, concatenated
//   sum_gradient(x) -> x, whose gradient is the sum of the gradients of the processes
// The processes run programs with the same exchanges in the same order. No gradient flows through the first two kinds:
// they are placed after gradients (transforms/parallel/data_parallel.h). They cannot be saved: save a program before
// they are placed.
//
// With `mesh_axes`, names such as "data" or "data,model", an exchange is only between the processes that differ along
// these axes of a mesh (collective/mesh.h).

#include <cstdint>

#include "absl/strings/string_view.h"
#include "aqt/collective/collective.h"
#include "aqt/collective/mesh.h"
#include "aqt/graph/value.h"

namespace aqt {

// During the lifetime of this object, exchanges that this thread evaluates go through `collective`, which must outlive
// it. Null: there is no collective.
class UseCollective {
 public:
  explicit UseCollective(Collective* collective);
  ~UseCollective();
  UseCollective(const UseCollective&) = delete;
  UseCollective& operator=(const UseCollective&) = delete;

 private:
  Collective* const saved_;
};

// The same for exchanges along axes of a mesh.
class UseMesh {
 public:
  explicit UseMesh(const MeshGroups* groups);
  ~UseMesh();
  UseMesh(const UseMesh&) = delete;
  UseMesh& operator=(const UseMesh&) = delete;

 private:
  const MeshGroups* const saved_;
};

namespace ops {

// The sum, maximum or minimum of x over the processes, with the bits of AllReduce(); x is f32, f64 or s32. Evaluation
// fails with FailedPrecondition outside a UseCollective (with `mesh_axes`, outside a UseMesh that has them), or in one
// with another number of processes.
Value AllReduce(AllReduceKind kind, const Value& x, int processes, absl::string_view mesh_axes = "");
// The parts of all processes, concatenated along `axis`; x has any dtype. Fails like AllReduce.
Value AllGather(const Value& x, int64_t axis, int processes, absl::string_view mesh_axes = "");
// x, with its gradient summed over the processes: a value that they share, each using it for its own part. x is f32 or
// f64. Fails like AllReduce.
Value SumGradient(const Value& x, int processes, absl::string_view mesh_axes = "");

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_COLLECTIVE_COLLECTIVE_OPS_H_
