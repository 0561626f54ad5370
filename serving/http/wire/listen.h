#ifndef AQT_SERVING_HTTP_WIRE_LISTEN_H_
#define AQT_SERVING_HTTP_WIRE_LISTEN_H_

// A socket that waits for connections.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::serving {

struct Listener {
  int fd = -1;  // does not block; whoever has it closes it
  bool v6 = false;
  std::string address;  // "127.0.0.1:8000", "[::1]:8000"
  int port = 0;
};

// `host` is an address, or "localhost"; port 0: one that is free. `flag` is the argument that a message recommends:
// "--port". InvalidArgument for a host that is no address; AlreadyExists if the port is taken; otherwise the system's
// error.
absl::StatusOr<Listener> Listen(const std::string& host, int port, absl::string_view flag);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_WIRE_LISTEN_H_
