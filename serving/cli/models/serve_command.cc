#include "serving/cli/models/serve_command.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/program_command_names.h"
#include "serving/cli/models/model_quantization.h"
#include "serving/grpc/grpc_server.h"
#include "serving/http/serve.h"
#include "serving/http/wire/listen.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

constexpr char kExamples[] = R"(Examples:
  aqt serve all-MiniLM-L6-v2/ --preset w8a8_dynamic
  aqt serve bge=models/bge-small/ model.aqtprog --host 0.0.0.0 --port 80 --api-key-file key.txt
  curl localhost:8000/v1/embeddings -d '{"model": "all-MiniLM-L6-v2", "input": "a sentence"}')";

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

// As many connections as are asked for and there may be files for.
int AllowedConnections(const ServeFlags& serve, const Console& console) {
  // Those of HTTP twice: a refusal takes one, too.
  const int64_t files_of_one = serve.grpc_port >= 0 ? 3 : 2;
  const int64_t files = ReserveFiles(files_of_one * serve.max_connections);
  const int allowed = static_cast<int>(std::max<int64_t>(files / files_of_one, 1));
  if (allowed < serve.max_connections) {
    console.err << "warning: --max-connections is " << serve.max_connections
                << ", and the system lets this process open files for " << allowed
                << "; raise its limit of open files (ulimit -Hn)\n";
  }
  return allowed;
}

absl::StatusOr<ServeOptions> Options(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  const ServeFlags& serve = flags.serve;
  ServeOptions options;
  options.models = serve.models;
  options.log_file = serve.log_file;
  options.server.host = serve.host;
  options.server.port = serve.port;
  options.server.threads = serve.max_running;
  options.server.max_queue = serve.queue;
  options.server.max_connections = AllowedConnections(serve, console);
  options.server.max_connections_per_address = serve.max_connections_per_address;
  const std::optional<int64_t> body = ParseBytes(serve.max_body);
  if (!body.has_value() || *body > int64_t{1} << 31) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-body is ", serve.max_body, ", expected a size up to 2GiB, such as 32MiB"));
  }
  options.server.limits.body_bytes = *body;
  options.server.max_buffered_bytes = std::max(options.server.max_buffered_bytes, 4 * *body);
  AQT_ASSIGN_OR_RETURN(options.api.api_key, ReadApiKey(fs, serve.api_key_file));
  options.api.allow_token_ids = serve.allow_token_ids;
  options.api.truncate = serve.truncate;
  options.api.timeout = absl::Seconds(serve.timeout);
  options.api.model_control = serve.model_control.empty() ? IsLoopback(serve.host) || !options.api.api_key.empty()
                                                          : serve.model_control == "on";
  options.open.engine.threads = serve.threads;
  options.open.engine.max_batch = serve.max_batch;
  options.open.quantize = [&flags, &fs, &console](const std::string& folder) -> absl::StatusOr<FolderQuantization> {
    Flags of_folder = flags;
    of_folder.input = folder;
    AQT_ASSIGN_OR_RETURN(ModelQuantization quantization, OpenModelQuantization(of_folder, fs, console));
    const auto owner = std::make_shared<const ModelQuantization>(std::move(quantization));
    return FolderQuantization{owner->config, owner->weights(), owner};
  };
  if (serve.grpc_port >= 0) {
    HttpServerOptions grpc = options.server;
    grpc.port = serve.grpc_port;
    options.grpc = [grpc](const ApiContext& context) { return ListenGrpc(grpc, context); };
  }
  return options;
}

absl::StatusOr<ExitCode> RunServe(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const ServeOptions options, Options(flags, fs, console));
  if (!IsLoopback(options.server.host) && options.api.api_key.empty()) {
    console.err << "warning: other machines can reach the server, and it asks for no key; see --api-key-file\n";
  }
  AQT_RETURN_IF_ERROR(Serve(options, fs, console.out, console.err, console.interrupted));
  return ExitCode::kOk;
}

void AddNetwork(CLI::App& command, ServeFlags& serve) {
  auto* group = command.add_option_group("network");
  group->add_option("--host", serve.host, "the address to listen on; 0.0.0.0: reachable from other machines")
      ->type_name("ADDRESS")
      ->capture_default_str();
  group->add_option("--port", serve.port, "0: one that is free")
      ->check(CLI::Range(0, 65535))
      ->type_name("N")
      ->capture_default_str();
  group
      ->add_option(
          "--grpc-port", serve.grpc_port,
          "answer gRPC on this port, too (Open Inference Protocol); 0: one that is free; only in builds with gRPC")
      ->check(CLI::Range(0, 65535))
      ->type_name("N");
  group
      ->add_option("--api-key-file", serve.api_key_file,
                   "a file with the key that requests must have (Authorization: Bearer KEY); by default the variable "
                   "AQT_API_KEY")
      ->type_name("FILE");
  group
      ->add_option("--model-control", serve.model_control,
                   "whether clients may load and unload models; by default on for the loopback, and with a key")
      ->check(CLI::IsMember({"on", "off"}));
  group->add_option("--log-file", serve.log_file, "append a line of JSON for each request")->type_name("FILE");
}

void AddLimits(CLI::App& command, ServeFlags& serve) {
  auto* group = command.add_option_group("limits");
  const auto add = [&](const char* name, int& value, int min, int max, const char* help) {
    group->add_option(name, value, help)->check(CLI::Range(min, max))->type_name("N")->capture_default_str();
  };
  group->add_option("--max-body", serve.max_body, "the largest body of a request")
      ->type_name("SIZE")
      ->capture_default_str();
  add("--max-connections", serve.max_connections, 1, 100000, "open connections");
  add("--max-connections-per-address", serve.max_connections_per_address, 0, 100000,
      "open connections of one client's address (of IPv6: of its /64); more are refused with 429; 0: no limit, for "
      "servers behind a proxy");
  add("--max-running", serve.max_running, 1, 1024, "requests that are handled at once");
  add("--queue", serve.queue, 0, 1000000, "requests that wait; more are refused with 429");
  add("--timeout", serve.timeout, 1, 86400, "seconds that a request may wait for the engine; then 504");
}

CLI::App* AddServe(CLI::App& app, Flags& flags) {
  CLI::App* command = app.add_subcommand(kServeCommand, "answer requests over HTTP (OpenAI, Open Inference Protocol)")
                          ->footer(kExamples);
  ServeFlags& serve = flags.serve;
  command
      ->add_option("MODEL", serve.models,
                   "the folder of a text encoder, or a saved program; NAME=MODEL names it, by default the last part of "
                   "the path")
      ->required();
  AddModelQuantization(*command, flags);
  AddNetwork(*command, serve);
  AddLimits(*command, serve);
  command->add_flag("--truncate", serve.truncate, "cut off texts that are too long, instead of refusing them");
  command->add_flag("--allow-token-ids", serve.allow_token_ids,
                    "accept token ids in place of texts; clients may send those of another tokenizer");
  command->add_option("--threads", serve.threads, "threads that compute, of each model; 0: one for each CPU")
      ->check(CLI::Range(0, 1024))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--max-batch", serve.max_batch, "texts that are computed together")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  return command;
}

}  // namespace

Command ServeCommand() { return {AddServe, RunServe}; }

}  // namespace aqt::serving
