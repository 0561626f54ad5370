#include "aqt/collective/mpi_group.h"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
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
  // Takes ownership of `comm`; frees it unless it is MPI_COMM_WORLD.
  static absl::StatusOr<std::unique_ptr<Collective>> Make(MPI_Comm comm) {
    int rank = 0, size = 0;
    AQT_RETURN_IF_ERROR(ToStatus(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank"));
    AQT_RETURN_IF_ERROR(ToStatus(MPI_Comm_size(comm, &size), "MPI_Comm_size"));
    return std::unique_ptr<Collective>(new Process(comm, rank, size));
  }
  ~Process() override {
    if (comm_ != MPI_COMM_WORLD) MPI_Comm_free(&comm_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    AQT_RETURN_IF_ERROR(Agree("MPI_Allgather", bytes));
    const int count = static_cast<int>(bytes);
    return ToStatus(MPI_Allgather(in, count, MPI_BYTE, out, count, MPI_BYTE, comm_), "MPI_Allgather");
  }
  absl::Status AllToAll(const void* in, int64_t bytes, void* out) override {
    AQT_RETURN_IF_ERROR(Agree("MPI_Alltoall", bytes));
    const int count = static_cast<int>(bytes);
    return ToStatus(MPI_Alltoall(in, count, MPI_BYTE, out, count, MPI_BYTE, comm_), "MPI_Alltoall");
  }
  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    AQT_RETURN_IF_ERROR(Agree("MPI_Bcast", bytes));
    return ToStatus(MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, root, comm_), "MPI_Bcast");
  }
  absl::StatusOr<std::unique_ptr<Collective>> Split(int color) override {
    AQT_RETURN_IF_ERROR(CheckColor(color));
    AQT_RETURN_IF_ERROR(Meet(nullptr));
    MPI_Comm part = MPI_COMM_NULL;
    AQT_RETURN_IF_ERROR(ToStatus(MPI_Comm_split(comm_, color, rank_, &part), "MPI_Comm_split"));
    MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN);
    return Make(part);
  }
  absl::Status Fail(const absl::Status& error) override { return Meet(&error); }

 private:
  Process(MPI_Comm comm, int rank, int size) : comm_(comm), rank_(rank), size_(size) {}

  // Called before each operation: checks that all processes take part. Blocking calls cannot be ended from outside.
  absl::Status Agree(const char* call, int64_t bytes) const {
    if (bytes <= std::numeric_limits<int>::max()) return Meet(nullptr);
    return absl::OutOfRangeError(absl::StrCat(call, ": ", bytes, " bytes from each process; MPI counts to 2^31 - 1"));
  }
  // Aborted, with the lowest rank that has an error, if any.
  absl::Status Meet(const absl::Status* error) const {
    const int own = error == nullptr ? size_ : rank_;
    int first = size_;
    AQT_RETURN_IF_ERROR(ToStatus(MPI_Allreduce(&own, &first, 1, MPI_INT, MPI_MIN, comm_), "MPI_Allreduce"));
    if (first == size_) return absl::OkStatus();
    char text[512] = {};
    if (own == first) error->message().copy(text, sizeof(text) - 1);
    AQT_RETURN_IF_ERROR(ToStatus(MPI_Bcast(text, sizeof(text), MPI_BYTE, first, comm_), "MPI_Bcast"));
    return ProcessFailed(first, text);
  }

  MPI_Comm comm_;
  const int rank_, size_;
};

}  // namespace

absl::Status RunOnMpi(absl::FunctionRef<absl::Status(Collective&)> body) {
  int threads = 0;
  AQT_RETURN_IF_ERROR(ToStatus(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads), "MPI_Init_thread"));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<Collective> process, Process::Make(MPI_COMM_WORLD));
  if (const absl::Status status = body(*process); !status.ok()) {
    std::fprintf(stderr, "process %d of %d: %s\n", process->rank(), process->size(), status.ToString().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return ToStatus(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace aqt
