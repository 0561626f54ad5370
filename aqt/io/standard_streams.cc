#include "aqt/io/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace aqt::io {

bool OpenStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // open() takes the lowest free number, which is `fd`: all lower ones are open.
    if (errno != EBADF || ::open("/dev/null", O_RDWR) != fd) return false;
  }
  return true;
}

}  // namespace aqt::io
