#ifndef AQT_COLLECTIVE_COLLECTIVE_H_
#define AQT_COLLECTIVE_COLLECTIVE_H_

// What several processes compute together. An engine moves bytes (`Collective`); what they mean is defined here, once
// for all engines, so that every engine gives the same bits.
//
// Engines: OneProcess, RunOnThreads (thread_group.h) and RunOnMpi (mpi_group.h).

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"

namespace aqt {

// One process of a group. All processes of a group call the same functions in the same order, with the same sizes;
// each call returns when the process has its result. Used by one thread at a time.
//
// Errors are those of the engine. After an error that is not from Fail the group is unusable.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;  // 0 .. size() - 1
  virtual int size() const = 0;  // how many processes there are, at least 1

  // Block i of `out` (size() blocks of `bytes`) becomes the `in` of process i.
  virtual absl::Status AllGather(const void* in, int64_t bytes, void* out) = 0;
  // Block i of `out` becomes block rank() of the `in` of process i. Both have size() blocks of `bytes`.
  virtual absl::Status AllToAll(const void* in, int64_t bytes, void* out) = 0;
  // `data` of all processes becomes that of process `root`.
  virtual absl::Status Broadcast(void* data, int64_t bytes, int root) = 0;
  // Divides the group into groups of processes with the same `color`, and returns this process's place in its own.
  // Their ranks have the order of the ranks here. The new group must not outlive this one, and may be divided again.
  // InvalidArgument for a negative color.
  virtual absl::StatusOr<std::unique_ptr<Collective>> Split(int color) = 0;

  // Instead of the next call, so that the others do not wait for it: in every process that calls something, or calls
  // Fail itself, that call is Aborted, with the lowest rank that failed and its message. Then the group is as before.
  virtual absl::Status Fail(const absl::Status& error) = 0;
};

// The only process of its group.
class OneProcess final : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status AllGather(const void* in, int64_t bytes, void* out) override;
  absl::Status AllToAll(const void* in, int64_t bytes, void* out) override;
  absl::Status Broadcast(void*, int64_t, int) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Collective>> Split(int color) override;
  absl::Status Fail(const absl::Status& error) override;
};

// For engines: what the processes of a group get when one of them fails.
absl::Status ProcessFailed(int rank, absl::string_view message);
// InvalidArgument if `color`, the argument of Split, is negative.
absl::Status CheckColor(int color);

enum class AllReduceKind : uint8_t { kSum, kMax, kMin };

// Element by element ((x_0 + x_1) + x_2) + ... in the order of ranks, the same bits in all processes. x_i is the x of
// process i; all have one dtype, f32, f64 or s32, and one shape. Each float addition rounds to nearest; s32 wraps. Of
// a sum of n processes, the error is at most (n - 1) u S / (1 - (n - 1) u), where S is the sum of the |x_i| and u is
// 2^-24 or 2^-53. kMax and kMin are exact: NaN if there is one, and -0 is below +0.
// InvalidArgument for another dtype.
absl::StatusOr<Array> AllReduce(Collective& collective, AllReduceKind kind, const Array& x);

// The x of all processes, one behind the other along `axis`, in the order of ranks; of one dtype and shape.
// InvalidArgument if x has no such axis.
absl::StatusOr<Array> AllGather(Collective& collective, const Array& x, int64_t axis);

// Returns when all processes have called it. If `status` is an error in one of them, this is an error in all: their
// own, or else Aborted, which names the rank and the message of the first process that failed.
absl::Status AgreeOn(Collective& collective, const absl::Status& status);

}  // namespace aqt

#endif  // AQT_COLLECTIVE_COLLECTIVE_H_
