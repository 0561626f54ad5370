// Run by data_parallel_mpi_test.sh under MPI, with a folder for files: training on several processes.

#include <cstdio>

#include "absl/status/status.h"
#include "aqt/collective/collective.h"
#include "aqt/collective/mpi_group.h"
#include "aqt/core/status_macros.h"
#include "tests/e2e/data_parallel_check.h"
#include "tests/e2e/fp8_sharding_check.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]), 2;
  const absl::Status status = aqt::RunOnMpi([&](aqt::Collective& collective) -> absl::Status {
    AQT_RETURN_IF_ERROR(aqt::testing::CheckInt8Training(collective));
    AQT_RETURN_IF_ERROR(aqt::testing::CheckGatheredTraining(collective));
    AQT_RETURN_IF_ERROR(aqt::testing::CheckFloatGradients(collective));
    AQT_RETURN_IF_ERROR(aqt::testing::CheckFp8(collective));
    AQT_RETURN_IF_ERROR(aqt::testing::CheckFp8Sharding(collective));
    AQT_RETURN_IF_ERROR(aqt::testing::CheckFailures(collective));
    AQT_RETURN_IF_ERROR(aqt::testing::CheckResume(collective, argv[1]));
    std::printf("process %d of %d is right\n", collective.rank(), collective.size());
    return absl::OkStatus();
  });
  return status.ok() ? 0 : 1;
}
