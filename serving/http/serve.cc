#include "serving/http/serve.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/http/api/http_api.h"
#include "serving/http/models/model_repository.h"
#include "serving/http/wire/workers.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {
namespace {

constexpr int64_t kMaxKeyBytes = 4096;

void WriteModels(const ModelRepository& models, std::ostream& out, std::ostream& err) {
  for (const ModelRepository::Row& row : models.List()) {
    if (row.model == nullptr) continue;  // a client has unloaded it already
    for (const std::string& note : row.model->info().notes) {
      err << "warning: model " << row.name << ": " << io::PrintableLine(note) << "\n" << std::flush;
    }
    out << "model " << row.name << ": " << TaskText(row.model->info().task) << "\n";
  }
}

}  // namespace

absl::StatusOr<std::string> ReadApiKey(const io::FileSystem& fs, const std::string& file) {
  std::string text;
  std::string from = "the variable AQT_API_KEY";
  if (!file.empty()) {
    from = io::PrintableLine(file);
    AQT_ASSIGN_OR_RETURN(text, io::ReadFile(fs, file, kMaxKeyBytes));
  } else if (const char* variable = std::getenv("AQT_API_KEY"); variable != nullptr) {
    text = variable;
  } else {
    return text;
  }
  const std::string key(absl::StripAsciiWhitespace(text));
  if (!key.empty() && absl::c_all_of(key, [](char c) { return c > ' ' && c <= '~'; })) return key;
  return absl::InvalidArgumentError(
      absl::StrCat(from, " has no key: expected one line of printable ASCII characters without spaces"));
}

absl::Status Serve(const ServeOptions& options, const io::FileSystem& fs, std::ostream& out, std::ostream& err,
                   const std::atomic<bool>* interrupted) {
  AQT_ASSIGN_OR_RETURN(std::vector<ModelSource> sources, ParseModelSources(options.models));
  std::mutex err_mutex;
  ModelRepository models(
      std::move(sources), [&](const ModelSource& source) { return OpenModel(fs, source.path, options.open); },
      [&](const ModelSource& source, const absl::Status& status) {
        const std::lock_guard<std::mutex> lock(err_mutex);
        err << "warning: model " << source.name << ": " << io::PrintableLine(status.message()) << "\n" << std::flush;
      });
  std::unique_ptr<AccessLog> log;
  if (!options.log_file.empty()) {
    AQT_ASSIGN_OR_RETURN(
        log, AccessLog::Open(options.log_file, [&](const absl::Status& status) {
          const std::lock_guard<std::mutex> lock(err_mutex);
          err << "warning: " << io::PrintableLine(status.message())
              << "; requests are answered, and lines are lost until it can be written (aqt_log_lines_dropped_total)\n"
              << std::flush;
        }));
  }
  HttpApi api(models, options.api, std::move(log));
  // The port first: it is the quickest to fail.
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server, HttpServer::Listen(options.server, api));
  api.set_server({.stats = [&] { return server->stats(); }, .stopping = [&] { return server->stopping(); }});
  std::unique_ptr<ProtocolServer> grpc;
  if (options.grpc != nullptr) {
    AQT_ASSIGN_OR_RETURN(grpc, options.grpc(api.context()));
  }
  absl::Status loaded;
  {
    // Health is answered meanwhile.
    Workers other;
    AQT_RETURN_IF_ERROR(other.Start(2));
    other.Add([&] {
      loaded = models.LoadAll();
      if (loaded.ok()) loaded = CheckCancelled(interrupted);
      if (!loaded.ok()) return server->Stop();
      {
        const std::lock_guard<std::mutex> lock(err_mutex);
        WriteModels(models, out, err);
      }
      if (grpc != nullptr) {
        other.Add([&] { grpc->Run(interrupted); });
        out << "listening on grpc://" << grpc->address() << "\n";
      }
      out << "listening on " << server->url() << "\n" << std::flush;
    });
    server->Run(interrupted);
  }
  return loaded;
}

}  // namespace aqt::serving
