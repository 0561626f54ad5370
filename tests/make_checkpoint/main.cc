// Makes a Llama-shaped checkpoint with made-up weights:
//   ./bazelw run //tests/make_checkpoint -- --hidden=512 --layers=4 --shards=3 /tmp/model
//   ./bazelw run //tests/make_checkpoint -- --total_size=1GiB --tensor_size=16MiB /tmp/big

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/standard_streams.h"
#include "tests/make_checkpoint/generator.h"

using aqt::make_checkpoint::Options;

ABSL_FLAG(int64_t, hidden, Options().hidden, "features of the residual stream");
ABSL_FLAG(int64_t, intermediate, Options().intermediate, "features inside an mlp or an expert");
ABSL_FLAG(int64_t, layers, Options().layers, "decoder layers");
ABSL_FLAG(int64_t, heads, Options().heads, "attention heads; divides hidden");
ABSL_FLAG(int64_t, kv_heads, Options().kv_heads, "key and value heads; divides heads");
ABSL_FLAG(int64_t, vocab, Options().vocab, "rows of the embedding");
ABSL_FLAG(int64_t, experts, Options().experts, "0: a dense mlp; else 3-D weights of that many experts");
ABSL_FLAG(bool, tied_embeddings, Options().tied_embeddings, "no lm_head.weight");
ABSL_FLAG(std::string, total_size, "0",
          "with --tensor_size, instead of the sizes above: bytes of all matrices, e.g. 1GiB");
ABSL_FLAG(std::string, tensor_size, "0", "bytes of each matrix, e.g. 16MiB");
ABSL_FLAG(std::string, dtype, "bf16", "f32, bf16 or f16");
ABSL_FLAG(int64_t, outlier_channels, Options().outlier_channels, "columns of each matrix that are 20 times as large");
ABSL_FLAG(uint64_t, seed, Options().seed, "another seed, other weights");
ABSL_FLAG(int64_t, shards, Options().shards, "number of files, with an index; 0: one file without");
ABSL_FLAG(std::string, max_shard_size, "0", "bytes of tensors per file, e.g. 5GB, with an index");

namespace {

absl::Status ReadBytes(const char* flag, const std::string& text, int64_t& bytes) {
  const std::optional<int64_t> parsed = aqt::make_checkpoint::ParseBytes(text);
  if (!parsed)
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", text, ": want bytes, as in 4096 or 16MiB"));
  bytes = *parsed;
  return absl::OkStatus();
}

absl::Status Run(std::string folder) {
  Options options;
  options.hidden = absl::GetFlag(FLAGS_hidden);
  options.intermediate = absl::GetFlag(FLAGS_intermediate);
  options.layers = absl::GetFlag(FLAGS_layers);
  options.heads = absl::GetFlag(FLAGS_heads);
  options.kv_heads = absl::GetFlag(FLAGS_kv_heads);
  options.vocab = absl::GetFlag(FLAGS_vocab);
  options.experts = absl::GetFlag(FLAGS_experts);
  options.tied_embeddings = absl::GetFlag(FLAGS_tied_embeddings);
  options.outlier_channels = absl::GetFlag(FLAGS_outlier_channels);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.shards = absl::GetFlag(FLAGS_shards);
  absl::Status status = ReadBytes("total_size", absl::GetFlag(FLAGS_total_size), options.total_bytes);
  status.Update(ReadBytes("tensor_size", absl::GetFlag(FLAGS_tensor_size), options.tensor_bytes));
  status.Update(ReadBytes("max_shard_size", absl::GetFlag(FLAGS_max_shard_size), options.max_shard_bytes));
  const std::optional<aqt::DType> dtype = aqt::DTypeFromString(absl::GetFlag(FLAGS_dtype));
  if (!dtype)
    status.Update(
        absl::InvalidArgumentError(absl::StrCat("--dtype=", absl::GetFlag(FLAGS_dtype), ": want f32, bf16 or f16")));
  if (!status.ok()) return status;
  options.dtype = *dtype;
  // `bazel run` changes the working folder; paths are relative to the user's folder.
  if (const char* user = std::getenv("BUILD_WORKING_DIRECTORY")) folder = aqt::io::JoinPath(user, folder);
  return aqt::make_checkpoint::Make(aqt::io::LocalFileSystem(), options, folder);
}

}  // namespace

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 1;
  absl::SetProgramUsageMessage("Makes a checkpoint with made-up weights: make_checkpoint [flags] FOLDER");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() != 2) {
    std::cerr << "usage: make_checkpoint [flags] FOLDER; --help lists the flags\n";
    return 2;
  }
  const absl::Status status = Run(arguments[1]);
  if (!status.ok()) std::cerr << "make_checkpoint: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
