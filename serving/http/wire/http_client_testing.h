#ifndef AQT_SERVING_HTTP_WIRE_HTTP_CLIENT_TESTING_H_
#define AQT_SERVING_HTTP_WIRE_HTTP_CLIENT_TESTING_H_

// A client that sends bytes as they are, for tests.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "serving/http/wire/http_message.h"

namespace aqt::serving {

// A response as a client sees it.
struct ClientResponse {
  int status = 0;     // 0: the connection ended before a complete response
  HttpFields fields;  // the names in lower case
  std::string body;
  std::string Field(absl::string_view name) const;  // "" if there is none
};

// A connection to a port of the loopback.
class TestClient {
 public:
  // `from` is an address of the loopback, too: "127.0.0.2".
  explicit TestClient(int port, const char* from = "127.0.0.1");
  ~TestClient();
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  // False if the server has closed the connection.
  bool Send(absl::string_view bytes);
  void HalfClose();
  void Reset();  // closes with a reset
  // Waits for one response; `head` if it is that of a HEAD request. Skips "100 Continue" and counts it.
  ClientResponse Read(bool head = false);
  // Waits for one "100 Continue", which the next Read counts.
  bool AwaitContinue();
  int continues() const { return continues_; }
  // Whether the server closes the connection without sending more. Waits for it.
  bool IsClosed();

  // Send and Read.
  ClientResponse Get(absl::string_view path, absl::string_view fields = "");
  ClientResponse Post(absl::string_view path, absl::string_view body, absl::string_view fields = "");

 private:
  bool Fill();  // reads more; false at the end
  int fd_ = -1;
  std::string buffer_;
  int continues_ = 0;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_WIRE_HTTP_CLIENT_TESTING_H_
