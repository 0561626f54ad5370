#include "serving/http/wire/http_client_testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace aqt::serving {

std::string ClientResponse::Field(absl::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return value;
  }
  return "";
}

TestClient::TestClient(int port, const char* from) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in source = {}, address = {};
  source.sin_family = address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (inet_pton(AF_INET, from, &source.sin_addr) != 1 ||
      bind(fd_, reinterpret_cast<const sockaddr*>(&source), sizeof(source)) != 0 ||
      connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd_);
    fd_ = -1;
  }
}

TestClient::~TestClient() {
  if (fd_ >= 0) close(fd_);
}

bool TestClient::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void TestClient::HalfClose() { shutdown(fd_, SHUT_WR); }

void TestClient::Reset() {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close(fd_);
  fd_ = -1;
}

bool TestClient::Fill() {
  char bytes[65536];
  const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
  if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
  return n > 0;
}

ClientResponse TestClient::Read(bool head) {
  ClientResponse response;
  size_t end = 0;
  for (;;) {
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return response;
    }
    if (!absl::StartsWith(buffer_, "HTTP/1.1 100 ")) break;
    ++continues_;
    buffer_.erase(0, end + 4);
  }
  std::vector<std::string> lines = absl::StrSplit(buffer_.substr(0, end), "\r\n");
  buffer_.erase(0, end + 4);
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> field = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    response.fields.emplace_back(absl::AsciiStrToLower(field.first), field.second);
  }
  size_t length = 0;
  if (!head && !response.Field("content-length").empty()) {
    if (!absl::SimpleAtoi(response.Field("content-length"), &length)) return response;
  }
  while (buffer_.size() < length) {
    if (!Fill()) return response;
  }
  response.body = buffer_.substr(0, length);
  buffer_.erase(0, length);
  response.status = std::atoi(lines[0].substr(9, 3).c_str());
  return response;
}

bool TestClient::AwaitContinue() {
  while (!absl::StrContains(buffer_, "\r\n\r\n")) {
    if (!Fill()) return false;
  }
  return absl::StartsWith(buffer_, "HTTP/1.1 100 ");
}

bool TestClient::IsClosed() { return buffer_.empty() && !Fill(); }

ClientResponse TestClient::Get(absl::string_view path, absl::string_view fields) {
  Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\n", fields, "\r\n"));
  return Read();
}

ClientResponse TestClient::Post(absl::string_view path, absl::string_view body, absl::string_view fields) {
  Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: test\r\nContent-Length: ", body.size(), "\r\n", fields, "\r\n",
                    body));
  return Read();
}

}  // namespace aqt::serving
