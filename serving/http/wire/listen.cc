#include "serving/http/wire/listen.h"

#include <sys/resource.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"

namespace aqt::serving {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// For models, logs, and the standard streams.
constexpr int64_t kOtherFiles = 64;

absl::Status SystemError(absl::string_view what, const error_code& ec) {
  return absl::Status(absl::ErrnoToStatusCode(ec.value()), absl::StrCat(what, ": ", ec.message()));
}

}  // namespace

absl::StatusOr<Listener> Listen(const std::string& host, int port, absl::string_view flag) {
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, ec);
  if (ec) {
    return absl::InvalidArgumentError(
        absl::StrCat("the host ", host, " is not an address such as 127.0.0.1, 0.0.0.0 or ::1"));
  }
  const tcp::endpoint wanted(address, static_cast<unsigned short>(port));
  asio::io_context io;
  tcp::acceptor acceptor(io);
  acceptor.open(wanted.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(wanted, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (!ec) acceptor.non_blocking(true, ec);
  if (ec == asio::error::address_in_use) {
    return absl::AlreadyExistsError(absl::StrCat("port ", port, " of ", address.to_string(),
                                                 " is taken by another process; stop it, or choose another ", flag));
  }
  if (ec) return SystemError(absl::StrCat("cannot listen on port ", port, " of ", address.to_string()), ec);
  const tcp::endpoint endpoint = acceptor.local_endpoint(ec);
  if (ec) return SystemError("cannot read the port", ec);
  Listener listener;
  listener.v6 = address.is_v6();
  listener.port = endpoint.port();
  const std::string text = endpoint.address().to_string();
  listener.address =
      listener.v6 ? absl::StrCat("[", text, "]:", listener.port) : absl::StrCat(text, ":", listener.port);
  listener.fd = acceptor.release(ec);
  if (ec) return SystemError("cannot keep the socket", ec);
  return listener;
}

int64_t ReserveFiles(int64_t connections) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return connections;
  const rlim_t needed = static_cast<rlim_t>(connections + kOtherFiles);
  if (limit.rlim_cur < needed) {
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  const int64_t files = static_cast<int64_t>(std::min(limit.rlim_cur, needed));
  return std::max<int64_t>(files - kOtherFiles, 1);
}

std::string AddressGroup(const std::string& address) {
  error_code ec;
  const asio::ip::address parsed = asio::ip::make_address(address, ec);
  if (ec || parsed.is_v4()) return address;
  asio::ip::address_v6 v6 = parsed.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  asio::ip::address_v6::bytes_type bytes = v6.to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return absl::StrCat(asio::ip::address_v6(bytes).to_string(), "/64");
}

}  // namespace aqt::serving
