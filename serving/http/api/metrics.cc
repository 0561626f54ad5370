#include "serving/http/api/metrics.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace aqt::serving {
namespace {

// The lines of the page.
class PageText {
 public:
  void Begin(absl::string_view name, absl::string_view type, absl::string_view help) {
    name_ = std::string(name);
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  template <class Number>
  void Add(absl::string_view labels, Number value, absl::string_view suffix = "") {
    absl::StrAppend(&text_, name_, suffix, labels.empty() ? "" : absl::StrCat("{", labels, "}"), " ", value, "\n");
  }
  void AddHistogram(absl::string_view labels, const LatencyHistogram& histogram) {
    int64_t up_to = 0;
    for (size_t i = 0; i < LatencyHistogram::kBounds.size(); ++i) {
      up_to += histogram.counts[i];
      Add(absl::StrCat(labels, ",le=\"", LatencyHistogram::kBounds[i], "\""), up_to, "_bucket");
    }
    Add(absl::StrCat(labels, ",le=\"+Inf\""), histogram.count, "_bucket");
    Add(labels, histogram.sum, "_sum");
    Add(labels, histogram.count, "_count");
  }
  template <class Number>
  void Single(absl::string_view name, absl::string_view type, absl::string_view help, Number value) {
    Begin(name, type, help);
    Add("", value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

std::string ModelLabel(absl::string_view name) { return absl::StrCat("model=\"", name, "\""); }

void AddServer(const HttpServerStats& server, PageText& page) {
  page.Single("aqt_http_connections", "gauge", "Open connections.", server.connections);
  page.Single("aqt_http_connections_total", "counter", "Connections that were accepted.", server.accepted_connections);
  page.Single("aqt_http_connections_refused_total", "counter", "Connections beyond the limit.",
              server.refused_connections);
  page.Single("aqt_http_queue", "gauge", "Requests that wait for a thread.", server.queue);
  page.Single("aqt_http_queue_limit", "gauge", "Requests that may wait; more are refused with 429.",
              server.queue_limit);
  page.Single("aqt_http_running", "gauge", "Requests that a thread handles.", server.running);
  page.Single("aqt_http_buffered_bytes", "gauge", "Memory of requests that are read or wait.", server.buffered_bytes);
}

template <class Value>
void AddForModels(absl::string_view name, absl::string_view type, absl::string_view help,
                  const std::vector<ModelMetrics>& models, Value value, PageText& page) {
  page.Begin(name, type, help);
  for (const ModelMetrics& model : models) page.Add(ModelLabel(model.name), value(model));
}

void AddModels(const std::vector<ModelMetrics>& models, PageText& page) {
  AddForModels(
      "aqt_model_ready", "gauge", "1 if the model is loaded.", models,
      [](const ModelMetrics& m) { return m.ready ? 1 : 0; }, page);
  AddForModels(
      "aqt_model_queue", "gauge", "Texts, or requests with tensors, that wait for the engine.", models,
      [](const ModelMetrics& m) { return m.stats.waiting; }, page);
  AddForModels(
      "aqt_model_running", "gauge", "Texts, or requests with tensors, that are computed now.", models,
      [](const ModelMetrics& m) { return m.stats.running; }, page);
  AddForModels(
      "aqt_model_weight_bytes", "gauge", "Memory of the weights.", models,
      [](const ModelMetrics& m) { return m.stats.weight_bytes; }, page);
  AddForModels(
      "aqt_model_padded_positions_total", "counter", "Positions that were computed, with padding.", models,
      [](const ModelMetrics& m) { return m.stats.padded_positions; }, page);
  page.Begin("aqt_model_batch_size", "histogram", "Rows of each batch.");
  for (const ModelMetrics& model : models) {
    int64_t batches = 0, rows = 0;
    for (size_t n = 1; n < model.stats.batches.size(); ++n) {
      batches += model.stats.batches[n];
      rows += static_cast<int64_t>(n) * model.stats.batches[n];
      page.Add(absl::StrCat(ModelLabel(model.name), ",le=\"", n, "\""), batches, "_bucket");
    }
    page.Add(absl::StrCat(ModelLabel(model.name), ",le=\"+Inf\""), batches, "_bucket");
    page.Add(ModelLabel(model.name), rows, "_sum");
    page.Add(ModelLabel(model.name), batches, "_count");
  }
}

void AddProcess(PageText& page) {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  page.Single("process_cpu_seconds_total", "counter", "Time of all threads.",
              seconds(usage.ru_utime) + seconds(usage.ru_stime));
  int64_t total = 0, resident = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "re"); file != nullptr) {
    if (std::fscanf(file, "%ld %ld", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  page.Single("process_resident_memory_bytes", "gauge", "Resident memory.", resident * 4096);
}

}  // namespace

void LatencyHistogram::Add(double seconds) {
  ++counts[std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin()];
  ++count;
  sum += seconds;
}

void Metrics::CountRequest(absl::string_view route, absl::string_view method, int status, double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++requests_[{std::string(route), std::string(method), status}];
  latencies_[std::string(route)].Add(seconds);
}

void Metrics::CountGrpcRequest(absl::string_view method, absl::string_view code, double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++grpc_requests_[{std::string(method), std::string(code)}];
  grpc_latencies_[std::string(method)].Add(seconds);
}

void Metrics::CountInference(absl::string_view model, bool ok, int64_t rows, int64_t tokens, double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ModelCounts& counts = models_[std::string(model)];
  ++counts.requests;
  counts.last_ms = absl::ToUnixMillis(absl::Now());
  if (!ok) {
    ++counts.failed;
    counts.failed_seconds += seconds;
    return;
  }
  counts.rows += rows;
  counts.tokens += tokens;
  counts.latency.Add(seconds);
}

void Metrics::CountDroppedLogLine() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++dropped_lines_;
}

ModelCounts Metrics::OfModel(absl::string_view name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = models_.find(name);
  return it == models_.end() ? ModelCounts() : it->second;
}

std::string Metrics::Page(const HttpServerStats& server, const std::vector<ModelMetrics>& models) const {
  PageText page;
  AddServer(server, page);
  AddModels(models, page);
  AddProcess(page);
  const std::lock_guard<std::mutex> lock(mutex_);
  page.Single("aqt_log_lines_dropped_total", "counter", "Lines that the log file could not take.", dropped_lines_);
  page.Begin("aqt_http_requests_total", "counter", "Requests that were answered.");
  for (const auto& [key, count] : requests_) {
    const auto& [route, method, status] = key;
    page.Add(absl::StrCat("route=\"", route, "\",method=\"", method, "\",status=\"", status, "\""), count);
  }
  page.Begin("aqt_http_request_seconds", "histogram", "From the complete request to the complete response.");
  for (const auto& [route, latency] : latencies_) page.AddHistogram(absl::StrCat("route=\"", route, "\""), latency);
  if (!grpc_requests_.empty()) {
    page.Begin("aqt_grpc_requests_total", "counter", "Requests of gRPC that were answered.");
    for (const auto& [key, count] : grpc_requests_) {
      page.Add(absl::StrCat("method=\"", key.first, "\",code=\"", key.second, "\""), count);
    }
    page.Begin("aqt_grpc_request_seconds", "histogram", "From the complete request to the complete response.");
    for (const auto& [method, latency] : grpc_latencies_) {
      page.AddHistogram(absl::StrCat("method=\"", method, "\""), latency);
    }
  }
  page.Begin("aqt_model_requests_total", "counter", "Requests that reached the model.");
  for (const auto& [name, counts] : models_) {
    page.Add(absl::StrCat(ModelLabel(name), ",result=\"ok\""), counts.requests - counts.failed);
    page.Add(absl::StrCat(ModelLabel(name), ",result=\"error\""), counts.failed);
  }
  page.Begin("aqt_model_rows_total", "counter", "Texts, or requests with tensors, that were answered.");
  for (const auto& [name, counts] : models_) page.Add(ModelLabel(name), counts.rows);
  page.Begin("aqt_model_tokens_total", "counter", "Tokens of the texts that were answered.");
  for (const auto& [name, counts] : models_) page.Add(ModelLabel(name), counts.tokens);
  page.Begin("aqt_model_seconds", "histogram", "Time of a request in the model, waiting included.");
  for (const auto& [name, counts] : models_) page.AddHistogram(ModelLabel(name), counts.latency);
  return page.Take();
}

}  // namespace aqt::serving
