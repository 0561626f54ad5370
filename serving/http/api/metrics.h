#ifndef AQT_SERVING_HTTP_API_METRICS_H_
#define AQT_SERVING_HTTP_API_METRICS_H_

// Counts of requests and inferences, and their page in the text format of Prometheus.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "serving/http/models/served_model.h"
#include "serving/http/wire/http_server.h"

namespace aqt::serving {

// How many values are at most as large as each bound.
struct LatencyHistogram {
  static constexpr std::array<double, 16> kBounds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                                     0.2,    0.5,   1,     2,     5,    10,   20,   60};
  std::array<int64_t, kBounds.size() + 1> counts = {};  // each value once; the last count: above all bounds
  int64_t count = 0;
  double sum = 0;  // seconds
  void Add(double seconds);
};

// What a model has answered.
struct ModelCounts {
  int64_t requests = 0, failed = 0;
  int64_t rows = 0, tokens = 0;  // of requests that did not fail
  double failed_seconds = 0;
  int64_t last_ms = 0;       // when the last request ended, in milliseconds since 1970; 0: there was none
  LatencyHistogram latency;  // of requests that did not fail
};

// A model for the page.
struct ModelMetrics {
  std::string name;
  bool ready = false;
  ServedModelStats stats;
};

// Thread-safe. Every label has few values: routes are patterns, and names are those of the command line.
class Metrics {
 public:
  void CountRequest(absl::string_view route, absl::string_view method, int status, double seconds);
  // `method` is "ModelInfer" or the like; `code` is "OK", "NOT_FOUND", ...
  void CountGrpcRequest(absl::string_view method, absl::string_view code, double seconds);
  void CountInference(absl::string_view model, bool ok, int64_t rows, int64_t tokens, double seconds);
  void CountDroppedLogLine();
  ModelCounts OfModel(absl::string_view name) const;
  std::string Page(const HttpServerStats& server, const std::vector<ModelMetrics>& models) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, int>, int64_t> requests_;  // route, method, status
  std::map<std::string, LatencyHistogram, std::less<>> latencies_;         // by route
  std::map<std::pair<std::string, std::string>, int64_t> grpc_requests_;   // method, code
  std::map<std::string, LatencyHistogram, std::less<>> grpc_latencies_;    // by method
  std::map<std::string, ModelCounts, std::less<>> models_;
  int64_t dropped_lines_ = 0;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_METRICS_H_
