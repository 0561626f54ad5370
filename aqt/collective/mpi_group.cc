#include "aqt/collective/mpi_group.h"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "mpi.h"

namespace aqt {
namespace {

absl::Status ToStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::InternalError(absl::StrCat(call, ": ", absl::string_view(text, length)));
}

class Process final : public Collective {
 public:
  Process(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    AQT_RETURN_IF_ERROR(Agree("MPI_Allgather", bytes));
    const int count = static_cast<int>(bytes);
    return ToStatus(MPI_Allgather(in, count, MPI_BYTE, out, count, MPI_BYTE, MPI_COMM_WORLD), "MPI_Allgather");
  }
  absl::Status AllToAll(const void* in, int64_t bytes, void* out) override {
    AQT_RETURN_IF_ERROR(Agree("MPI_Alltoall", bytes));
    const int count = static_cast<int>(bytes);
    return ToStatus(MPI_Alltoall(in, count, MPI_BYTE, out, count, MPI_BYTE, MPI_COMM_WORLD), "MPI_Alltoall");
  }
  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    AQT_RETURN_IF_ERROR(Agree("MPI_Bcast", bytes));
    return ToStatus(MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, root, MPI_COMM_WORLD), "MPI_Bcast");
  }
  absl::Status Fail(const absl::Status& error) override { return Meet(&error); }

 private:
  // Before each call: whether all processes take part. Blocking calls cannot be ended from outside.
  absl::Status Agree(const char* call, int64_t bytes) const {
    if (bytes <= std::numeric_limits<int>::max()) return Meet(nullptr);
    return absl::OutOfRangeError(absl::StrCat(call, ": ", bytes, " bytes from each process; MPI counts to 2^31 - 1"));
  }
  // Aborted, with the lowest rank that has an error, if there is one.
  absl::Status Meet(const absl::Status* error) const {
    const int own = error == nullptr ? size_ : rank_;
    int first = size_;
    AQT_RETURN_IF_ERROR(ToStatus(MPI_Allreduce(&own, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce"));
    if (first == size_) return absl::OkStatus();
    char text[512] = {};
    if (own == first) error->message().copy(text, sizeof(text) - 1);
    AQT_RETURN_IF_ERROR(ToStatus(MPI_Bcast(text, sizeof(text), MPI_BYTE, first, MPI_COMM_WORLD), "MPI_Bcast"));
    return ProcessFailed(first, text);
  }

  const int rank_, size_;
};

}  // namespace

absl::Status RunOnMpi(absl::FunctionRef<absl::Status(Collective&)> body) {
  int threads = 0, rank = 0, size = 0;
  AQT_RETURN_IF_ERROR(ToStatus(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads), "MPI_Init_thread"));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  AQT_RETURN_IF_ERROR(ToStatus(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank"));
  AQT_RETURN_IF_ERROR(ToStatus(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size"));
  Process process(rank, size);
  if (const absl::Status status = body(process); !status.ok()) {
    std::fprintf(stderr, "process %d of %d: %s\n", rank, size, status.ToString().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return ToStatus(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace aqt
