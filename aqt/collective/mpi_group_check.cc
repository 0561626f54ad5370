// Run by mpi_group_test: checks the MPI engine. With the argument "fail", process 0 fails.

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "aqt/collective/collective.h"
#include "aqt/collective/collective_testing.h"
#include "aqt/collective/mpi_group.h"
#include "aqt/core/status_macros.h"

int main(int argc, char** argv) {
  const bool fails = argc > 1 && std::string(argv[1]) == "fail";
  const absl::Status status = aqt::RunOnMpi([&](aqt::Collective& collective) -> absl::Status {
    if (fails && collective.rank() == 0) return absl::DataLossError("a broken file");
    AQT_RETURN_IF_ERROR(aqt::testing::CheckCollective(collective));
    std::printf("process %d of %d is right\n", collective.rank(), collective.size());
    return absl::OkStatus();
  });
  return status.ok() ? 0 : 1;
}
