#ifndef AQT_SERVING_HTTP_WIRE_LISTEN_H_
#define AQT_SERVING_HTTP_WIRE_LISTEN_H_

// A socket that waits for connections, and what connections take.

#include <cstdint>
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

// Raises the process's limit of open files, as far as the system lets it, so that there are enough for `connections`
// and for models and logs. Returns how many connections there are enough for: 1 to `connections`.
int64_t ReserveFiles(int64_t connections);

// What clients of one household or machine have in common: an address of IPv4, or the first 64 bits of one of IPv6.
// `address` is as text; another text is returned as it is.
std::string AddressGroup(const std::string& address);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_WIRE_LISTEN_H_
