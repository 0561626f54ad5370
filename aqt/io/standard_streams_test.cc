#include "aqt/io/standard_streams.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace aqt::io {
namespace {

bool IsNull(int fd) {
  struct stat info, null;
  return ::fstat(fd, &info) == 0 && ::stat("/dev/null", &null) == 0 && info.st_rdev == null.st_rdev;
}

// Runs a child whose descriptors in `closed` (bits 0 to 2) are closed while the others are connected to a pipe. Returns
// 0, or the number of the failed check.
int OpenWithout(int closed) {
  int pipe[2];
  if (::pipe(pipe) != 0) return 1;
  for (const int fd : {0, 1, 2}) {
    if ((closed >> fd & 1) == 0 ? ::dup2(pipe[1], fd) != fd : ::close(fd) != 0) return 2;
  }
  if (!OpenStandardStreams()) return 3;
  for (const int fd : {0, 1, 2}) {
    if (IsNull(fd) != (closed >> fd & 1)) return 4;
  }
  if (::write(2, "x", 1) != 1) return 5;
  const int next = ::open("/dev/null", O_RDONLY);
  return next > 2 ? 0 : 6;
}

TEST(StandardStreamsTest, OpensWhatIsClosedAndNothingElse) {
  for (int closed = 0; closed < 8; ++closed) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(OpenWithout(closed));
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "closed: " << closed;
  }
}

}  // namespace
}  // namespace aqt::io
