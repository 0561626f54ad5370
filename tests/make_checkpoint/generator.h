#ifndef TESTS_MAKE_CHECKPOINT_GENERATOR_H_
#define TESTS_MAKE_CHECKPOINT_GENERATOR_H_

// Llama-shaped checkpoints of any size with made-up weights, for tests of code that reads them.
//
// A weight is a function only of (seed, tensor name, index), so the content does not depend on shards, order or memory:
// close to normal with mean 0 and deviation 0.02 (norms: 1 + that), rounded once to the dtype; in outlier channels
// (columns of the last axis) 20 times as large.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"

namespace aqt::make_checkpoint {

inline constexpr float kDeviation = 0.02f;
inline constexpr float kOutlierFactor = 20.0f;

struct Options {
  int64_t hidden = 64;
  int64_t intermediate = 172;
  int64_t layers = 2;
  int64_t heads = 4;  // each of hidden / heads features
  int64_t kv_heads = 2;
  int64_t vocab = 256;
  // 0: mlp.{gate,up,down}_proj.weight. Otherwise mlp.router.weight [experts, hidden] and, without ".weight" as in such
  // models, mlp.experts.gate_up_proj [experts, hidden, 2 * intermediate] and mlp.experts.down_proj [experts,
  // intermediate, hidden]: the contracted axis is the middle one.
  int64_t experts = 0;
  bool tied_embeddings = false;  // config.json says so and there is no lm_head.weight

  // Both or neither. If set, the model is total_bytes / tensor_bytes (rounded down) matrices of tensor_bytes each,
  // model.layers.<i>.mlp.up_proj.weight, as square as powers of two allow; the sizes above are not used.
  int64_t total_bytes = 0;
  int64_t tensor_bytes = 0;

  DType dtype = DType::kBF16;    // f32, bf16 or f16
  int64_t outlier_channels = 0;  // evenly spaced columns of each matrix; at most all of them
  uint64_t seed = 1;

  // At most one of the two. Both 0: model.safetensors without an index. Else model-00001-of-0000N.safetensors and an
  // index:
  int64_t shards = 0;           // this many files with about equally many tensors each
  int64_t max_shard_bytes = 0;  // a new file whenever the next tensor would exceed this; a single tensor may exceed it
};

// InvalidArgument, naming the field, if a size is not positive or does not divide another as required, or if fields
// exclude each other.
absl::Status Validate(const Options& options);

// All tensors, in the order of the model. The options must be valid, here and below.
std::vector<io::TensorSpec> Tensors(const Options& options);

// Writes elements [first, first + dst.size() / element size) of the tensor to `dst`.
void Fill(const Options& options, const io::TensorSpec& tensor, int64_t first, absl::Span<uint8_t> dst);

// A config.json as transformers' LlamaConfig writes it.
std::string ConfigJson(const Options& options);

// Validates, then creates `folder` with config.json and the weights. Memory: a buffer of 1 MiB and the list of tensors.
// AlreadyExists if `folder` exists and is not empty; the folder appears complete or not at all.
absl::Status Make(const io::FileSystem& fs, const Options& options, absl::string_view folder);

// "4096", "16KiB", "1.5GiB" and, in powers of 1000, "5GB": the number of bytes; null if it is not of that form or not a
// whole number of bytes below 2^63.
std::optional<int64_t> ParseBytes(absl::string_view text);

}  // namespace aqt::make_checkpoint

#endif  // TESTS_MAKE_CHECKPOINT_GENERATOR_H_
