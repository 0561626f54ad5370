#ifndef AQT_COLLECTIVE_COLLECTIVE_H_
#define AQT_COLLECTIVE_COLLECTIVE_H_

// Computations across several processes. An engine (`Collective`) only moves bytes; their meaning is defined here, once
// for all engines, so every engine gives the same bits.
//
// Engines: OneProcess, RunOnThreads (thread_group.h) and RunOnMpi (mpi_group.h).

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"

namespace aqt {

// One process of a group. All processes of the group call the same functions in the same order, with the same sizes;
// each call returns when the process has its result. Used by one thread at a time.
//
// Errors are those of the engine. After an error that is not from Fail the group is unusable.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;  // 0 .. size() - 1
  virtual int size() const = 0;  // number of processes, at least 1

  // Fills block i of `out` (size() blocks of `bytes` bytes) with the `in` of process i.
  virtual absl::Status AllGather(const void* in, int64_t bytes, void* out) = 0;
  // Fills block i of `out` with block rank() of the `in` of process i. Both have size() blocks of `bytes` bytes.
  virtual absl::Status AllToAll(const void* in, int64_t bytes, void* out) = 0;
  // Overwrites `data` in every process with the `data` of process `root`.
  virtual absl::Status Broadcast(void* data, int64_t bytes, int root) = 0;
  // Splits the group into one group per `color` and returns this process's new group. Ranks keep their order. The new
  // group must not outlive this one, and may be split again. InvalidArgument for a negative color.
  virtual absl::StatusOr<std::unique_ptr<Collective>> Split(int color) = 0;

  // Replaces this process's next call, so that the other processes do not wait for it. In every process the call (or
  // Fail itself) returns Aborted with the lowest rank that failed and its message. The group remains usable.
  virtual absl::Status Fail(const absl::Status& error) = 0;
};

// A group of one process.
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

// The Aborted error that the processes of a group return when process `rank` fails. For engines.
absl::Status ProcessFailed(int rank, absl::string_view message);
// InvalidArgument if `color`, the argument of Split, is negative.
absl::Status CheckColor(int color);

// The reduction that AllReduce computes.
enum class AllReduceKind : uint8_t { kSum, kMax, kMin };

// Reduces x elementwise over all processes: ((x_0 + x_1) + x_2) + ..., in rank order, with the same bits in all
// processes. x_i is the x of process i; all have the same dtype (f32, f64 or s32) and shape. Each float addition rounds
// to nearest; s32 wraps. The error of a sum over n processes is at most (n - 1) u S / (1 - (n - 1) u), where S is the
// sum of the |x_i| and u is 2^-24 or 2^-53. kMax and kMin are exact; the result is NaN if any x_i is, and -0 is below
// +0. InvalidArgument for another dtype.
absl::StatusOr<Array> AllReduce(Collective& collective, AllReduceKind kind, const Array& x);

// Concatenates the x of all processes along `axis`, in rank order. All have the same dtype and shape. InvalidArgument
// if x has no such axis.
absl::StatusOr<Array> AllGather(Collective& collective, const Array& x, int64_t axis);

// Returns when all processes have called it. If any process passes an error, every process gets one: its own error, or
// Aborted with the rank and message of the first process that failed.
absl::Status AgreeOn(Collective& collective, const absl::Status& status);

}  // namespace aqt

#endif  // AQT_COLLECTIVE_COLLECTIVE_H_
