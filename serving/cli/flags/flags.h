#ifndef AQT_SERVING_CLI_FLAGS_FLAGS_H_
#define AQT_SERVING_CLI_FLAGS_FLAGS_H_

// The arguments of the command line, parsed.

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace aqt::serving {

// The arguments of `serve`.
struct ServeFlags {
  std::vector<std::string> models;
  std::string host = "127.0.0.1", api_key_file, model_control, log_file, max_body = "32MiB";
  int port = 8000, grpc_port = -1, max_connections = 1024, max_connections_per_address = 0, max_running = 32,
      queue = 256, timeout = 60;
  int threads = 0, max_batch = 8;
  bool truncate = false, allow_token_ids = false;
};

// The arguments of all subcommands.
struct Flags {
  // The whole command line, for commands that describe it.
  const CLI::App* app = nullptr;
  std::string input, output, tensor, kind, program, draw;
  std::string preset, config, scheme_from, rules, non_finite, experts;
  std::string calibration, max_shard_size;
  std::string progress = "auto";
  std::string dtype = "f32";
  std::string texts_file;
  std::string raw_dtype, gguf_names = "model";
  std::string shapes = "1x16,1x128,8x64,32x32,32x128";
  int jobs = 1, threads = 0;
  double seconds = 1;
  bool strict = false, force = false, allow_requantize = false, json = false, stats = false, print_config = false;
  bool bitwise = false, dequantize = false;
  std::optional<double> min_snr, min_row_snr, min_group_snr;
  std::optional<int> depth;
  std::vector<std::string> exclude, texts, pairs;
  ServeFlags serve;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_FLAGS_FLAGS_H_
