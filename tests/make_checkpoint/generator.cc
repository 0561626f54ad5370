#include "tests/make_checkpoint/generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/tensors/checkpoint.h"

namespace aqt::make_checkpoint {
namespace {

using io::TensorSpec;

// SplitMix64's finalizer: a bijection that mixes all bits.
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// FNV-1a, then mixed with the seed.
uint64_t StreamOf(uint64_t seed, absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Mix(hash ^ Mix(seed + 0x9e3779b97f4a7c15u));
}

// The sum of four uniform 16-bit numbers, centred: close to normal, with deviation 65536 / sqrt(3), and exact in f32.
float NearlyNormal(uint64_t stream, int64_t index) {
  const uint64_t bits = Mix(stream + static_cast<uint64_t>(index + 1) * 0x9e3779b97f4a7c15u);
  const int64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  constexpr float kScale = kDeviation * 1.7320508f / 65536.0f;
  return static_cast<float>(sum - 2 * 0xffff) * kScale;
}

bool IsMatrixMode(const Options& options) { return options.total_bytes != 0; }

// [rows, columns] of `elements` elements, with the largest power of two of columns that divides them, at most rows.
Shape NearlySquare(int64_t elements) {
  int64_t columns = 1;
  while (elements % (2 * columns) == 0 && 4 * columns * columns <= elements) columns *= 2;
  return {elements / columns, columns};
}

absl::Status Wrong(absl::string_view field, int64_t value, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ", want ", want));
}

absl::Status ValidateMatrices(const Options& options) {
  const int64_t element = SizeOf(options.dtype);
  if (options.tensor_bytes <= 0 || options.tensor_bytes % element != 0) {
    return Wrong("tensor_size", options.tensor_bytes,
                 absl::StrCat("a positive multiple of ", element, " with total_size"));
  }
  if (options.total_bytes < options.tensor_bytes) {
    return Wrong("total_size", options.total_bytes, absl::StrCat("at least tensor_size = ", options.tensor_bytes));
  }
  if (options.total_bytes / options.tensor_bytes > 100000) {
    return Wrong("total_size", options.total_bytes, "at most 100000 tensors");
  }
  return absl::OkStatus();
}

absl::Status ValidateLlama(const Options& options) {
  if (options.tensor_bytes != 0) return Wrong("tensor_size", options.tensor_bytes, "0 unless total_size is given");
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden", options.hidden}, {"intermediate", options.intermediate}, {"layers", options.layers},
      {"heads", options.heads},   {"kv_heads", options.kv_heads},         {"vocab", options.vocab}};
  for (const auto& [name, value] : sizes) {
    if (value <= 0 || value > int64_t{1} << 24) return Wrong(name, value, "1 .. 2^24");
  }
  if (options.hidden % options.heads != 0) {
    return Wrong("hidden", options.hidden, absl::StrCat("a multiple of heads = ", options.heads));
  }
  if (options.heads % options.kv_heads != 0) {
    return Wrong("heads", options.heads, absl::StrCat("a multiple of kv_heads = ", options.kv_heads));
  }
  if (options.experts < 0 || options.experts > 1024) return Wrong("experts", options.experts, "0 .. 1024");
  return absl::OkStatus();
}

// The tensors of each file, in order; empty if there is no index.
std::vector<std::vector<TensorSpec>> Shards(const Options& options, std::vector<TensorSpec> tensors) {
  std::vector<std::vector<TensorSpec>> shards;
  const auto count = static_cast<int64_t>(tensors.size());
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = tensors[i].shape.num_elements() * SizeOf(options.dtype);
    // With `shards` = N, file s gets the tensors i with floor(i * N / count) = s: none is empty since N <= count.
    const bool next = options.shards > 0
                          ? i * options.shards / count == static_cast<int64_t>(shards.size())
                          : shards.empty() || (options.max_shard_bytes > 0 && bytes + size > options.max_shard_bytes);
    if (next) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    shards.back().push_back(std::move(tensors[i]));
  }
  return shards;
}

absl::Status WriteShard(const io::FileSystem& fs, const Options& options, absl::string_view path,
                        const std::vector<TensorSpec>& tensors, std::vector<uint8_t>& buffer) {
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<io::SafetensorsWriter> writer,
                       io::SafetensorsWriter::Create(fs, path, tensors));
  const int64_t element = SizeOf(options.dtype);
  for (const io::TensorInfo& tensor : writer->tensors()) {
    for (int64_t done = 0; done < tensor.num_bytes();) {
      const int64_t size = std::min<int64_t>(tensor.num_bytes() - done, buffer.size());
      const absl::Span<uint8_t> part = absl::MakeSpan(buffer.data(), size);
      Fill(options, tensor, done / element, part);
      AQT_RETURN_IF_ERROR(writer->Write(tensor.name, done, part));
      done += size;
    }
  }
  return writer->Finish();
}

}  // namespace

absl::Status Validate(const Options& options) {
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16 && options.dtype != DType::kF16) {
    return absl::InvalidArgumentError(absl::StrCat("dtype = ", ToString(options.dtype), ", want f32, bf16 or f16"));
  }
  AQT_RETURN_IF_ERROR(IsMatrixMode(options) ? ValidateMatrices(options) : ValidateLlama(options));
  if (options.outlier_channels < 0) return Wrong("outlier_channels", options.outlier_channels, "0 or more");
  if (options.shards < 0) return Wrong("shards", options.shards, "0 or more");
  if (options.max_shard_bytes < 0) return Wrong("max_shard_size", options.max_shard_bytes, "0 or more");
  if (options.shards > 0 && options.max_shard_bytes > 0) {
    return Wrong("shards", options.shards, "0 when max_shard_size is given");
  }
  if (const auto count = static_cast<int64_t>(Tensors(options).size()); options.shards > count) {
    return Wrong("shards", options.shards, absl::StrCat("at most the number of tensors, ", count));
  }
  return absl::OkStatus();
}

std::vector<TensorSpec> Tensors(const Options& options) {
  std::vector<TensorSpec> tensors;
  const auto add = [&](std::string name, Shape shape) {
    tensors.push_back({std::move(name), *io::ToFileDType(options.dtype), std::move(shape)});
  };
  if (IsMatrixMode(options)) {
    const Shape shape = NearlySquare(options.tensor_bytes / SizeOf(options.dtype));
    for (int64_t i = 0; i < options.total_bytes / options.tensor_bytes; ++i) {
      add(absl::StrCat("model.layers.", i, ".mlp.up_proj.weight"), shape);
    }
    return tensors;
  }
  const int64_t hidden = options.hidden, inner = options.intermediate, experts = options.experts;
  const int64_t kv = hidden / options.heads * options.kv_heads;
  add("model.embed_tokens.weight", {options.vocab, hidden});
  for (int64_t i = 0; i < options.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "self_attn.q_proj.weight", {hidden, hidden});
    add(layer + "self_attn.k_proj.weight", {kv, hidden});
    add(layer + "self_attn.v_proj.weight", {kv, hidden});
    add(layer + "self_attn.o_proj.weight", {hidden, hidden});
    add(layer + "post_attention_layernorm.weight", {hidden});
    if (experts == 0) {
      add(layer + "mlp.gate_proj.weight", {inner, hidden});
      add(layer + "mlp.up_proj.weight", {inner, hidden});
      add(layer + "mlp.down_proj.weight", {hidden, inner});
    } else {
      add(layer + "mlp.router.weight", {experts, hidden});
      add(layer + "mlp.experts.gate_up_proj", {experts, hidden, 2 * inner});
      add(layer + "mlp.experts.down_proj", {experts, inner, hidden});
    }
  }
  add("model.norm.weight", {hidden});
  if (!options.tied_embeddings) add("lm_head.weight", {options.vocab, hidden});
  return tensors;
}

void Fill(const Options& options, const TensorSpec& tensor, int64_t first, absl::Span<uint8_t> dst) {
  const uint64_t stream = StreamOf(options.seed, tensor.name);
  const bool is_norm = tensor.shape.rank() == 1;
  const int64_t columns = tensor.shape[tensor.shape.rank() - 1];
  const int64_t outliers = is_norm ? 0 : std::min(options.outlier_channels, columns);
  const int64_t element = SizeOf(options.dtype);
  int64_t column = first % columns;
  for (size_t at = 0; at < dst.size(); at += element, ++first) {
    float value = NearlyNormal(stream, first);
    // column * outliers mod columns is below `outliers` for exactly `outliers` evenly spaced columns.
    if (outliers > 0 && column * outliers % columns < outliers) value *= kOutlierFactor;
    if (is_norm) value += 1.0f;
    if (++column == columns) column = 0;
    if (options.dtype == DType::kF32) {
      std::memcpy(&dst[at], &value, sizeof(value));
    } else {
      const uint16_t bits = options.dtype == DType::kBF16 ? RoundToBFloat16(value).bits : RoundToFloat16(value).bits;
      std::memcpy(&dst[at], &bits, sizeof(bits));
    }
  }
}

std::string ConfigJson(const Options& given) {
  Options options = given;
  if (IsMatrixMode(options)) {
    const Shape shape = NearlySquare(options.tensor_bytes / SizeOf(options.dtype));
    options.layers = options.total_bytes / options.tensor_bytes;
    options.hidden = shape[1];
    options.intermediate = shape[0];
    options.heads = options.kv_heads = 1;
  }
  const char* dtype = options.dtype == DType::kF32 ? "float32" : options.dtype == DType::kF16 ? "float16" : "bfloat16";
  std::vector<std::pair<std::string, std::string>> entries = {
      {"architectures", "[\"LlamaForCausalLM\"]"},
      {"hidden_act", "\"silu\""},
      {"hidden_size", absl::StrCat(options.hidden)},
      {"intermediate_size", absl::StrCat(options.intermediate)},
      {"max_position_embeddings", "2048"},
      {"model_type", "\"llama\""},
      {"num_attention_heads", absl::StrCat(options.heads)},
      {"num_hidden_layers", absl::StrCat(options.layers)},
      {"num_key_value_heads", absl::StrCat(options.kv_heads)},
      {"rms_norm_eps", "1e-05"},
      {"rope_theta", "10000.0"},
      {"tie_word_embeddings", options.tied_embeddings ? "true" : "false"},
      {"torch_dtype", absl::StrCat("\"", dtype, "\"")},
      {"vocab_size", absl::StrCat(options.vocab)},
  };
  if (options.experts > 0) entries.push_back({"num_local_experts", absl::StrCat(options.experts)});
  std::sort(entries.begin(), entries.end());
  std::string json = "{";
  for (const auto& [key, value] : entries) {
    absl::StrAppend(&json, json.size() == 1 ? "\n" : ",\n", "  \"", key, "\": ", value);
  }
  return json + "\n}\n";
}

absl::Status Make(const io::FileSystem& fs, const Options& options, absl::string_view folder) {
  AQT_RETURN_IF_ERROR(Validate(options));
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<io::OutputFolder> output, io::OutputFolder::Create(fs, folder));
  const std::string& out = output->temporary_path();
  AQT_RETURN_IF_ERROR(io::WriteFile(fs, io::JoinPath(out, "config.json"), ConfigJson(options)));

  const std::vector<std::vector<TensorSpec>> shards = Shards(options, Tensors(options));
  const bool indexed = options.shards > 0 || options.max_shard_bytes > 0;
  std::vector<uint8_t> buffer(1 << 20);
  io::WeightMap weight_map;
  int64_t total_bytes = 0;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file =
        indexed ? absl::StrFormat("model-%05d-of-%05d.safetensors", s + 1, shards.size()) : io::kModelFile;
    AQT_RETURN_IF_ERROR(WriteShard(fs, options, io::JoinPath(out, file), shards[s], buffer));
    for (const TensorSpec& tensor : shards[s]) {
      weight_map.push_back({tensor.name, file});
      total_bytes += tensor.shape.num_elements() * SizeOf(options.dtype);
    }
  }
  if (indexed) {
    AQT_ASSIGN_OR_RETURN(const std::string index, io::MakeIndex(std::move(weight_map), total_bytes));
    AQT_RETURN_IF_ERROR(io::WriteFile(fs, io::JoinPath(out, io::kIndexFile), index));
  }
  return output->Commit();
}

std::optional<int64_t> ParseBytes(absl::string_view text) {
  const std::pair<absl::string_view, double> units[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"KB", 1e3},
                                                        {"MB", 1e6},     {"GB", 1e9},     {"B", 1},        {"", 1}};
  for (const auto& [suffix, factor] : units) {
    absl::string_view number = text;
    if (!absl::ConsumeSuffix(&number, suffix)) continue;
    double value = 0;
    const bool decimal = !number.empty() && number.find_first_not_of("0123456789.") == absl::string_view::npos;
    if (!decimal || !absl::SimpleAtod(number, &value)) return std::nullopt;
    value *= factor;
    if (value >= 0x1p63 || value != std::floor(value)) return std::nullopt;
    return static_cast<int64_t>(value);
  }
  return std::nullopt;
}

}  // namespace aqt::make_checkpoint
