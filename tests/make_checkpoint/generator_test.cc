#include "tests/make_checkpoint/generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/safetensors.h"
#include "gtest/gtest.h"

namespace aqt::make_checkpoint {
namespace {

// A model of a few KB.
Options Small() {
  Options options;
  options.hidden = 12;
  options.intermediate = 20;
  options.heads = 3;
  options.kv_heads = 1;
  options.vocab = 17;
  return options;
}

std::map<std::string, Shape> Shapes(const Options& options) {
  std::map<std::string, Shape> shapes;
  for (const io::TensorSpec& tensor : Tensors(options)) shapes.emplace(tensor.name, tensor.shape);
  return shapes;
}

std::vector<float> Values(const Options& options, const io::TensorSpec& tensor) {
  std::vector<float> values(tensor.shape.num_elements());
  Options f32 = options;
  f32.dtype = DType::kF32;
  Fill(f32, tensor, 0, absl::MakeSpan(reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(float)));
  return values;
}

std::string FreshFolder(const std::string& name) { return testing::TempDir() + "/generator_test_" + name; }

io::Checkpoint Made(const Options& options, const std::string& name) {
  const absl::Status status = Make(io::LocalFileSystem(), options, FreshFolder(name));
  EXPECT_TRUE(status.ok()) << status;
  absl::StatusOr<io::Checkpoint> checkpoint = io::Checkpoint::Open(io::LocalFileSystem(), FreshFolder(name));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

std::map<std::string, std::vector<uint8_t>> Content(const io::Checkpoint& checkpoint) {
  std::map<std::string, std::vector<uint8_t>> content;
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    std::vector<uint8_t>& bytes = content[tensor.name];
    bytes.resize(tensor.num_bytes());
    EXPECT_TRUE(checkpoint.Read(tensor, 0, absl::MakeSpan(bytes)).ok());
  }
  return content;
}

TEST(Generator, DenseModel) {
  Options options = Small();
  options.layers = 1;
  const std::map<std::string, Shape> expected = {
      {"lm_head.weight", {17, 12}},
      {"model.embed_tokens.weight", {17, 12}},
      {"model.layers.0.input_layernorm.weight", {12}},
      {"model.layers.0.mlp.down_proj.weight", {12, 20}},
      {"model.layers.0.mlp.gate_proj.weight", {20, 12}},
      {"model.layers.0.mlp.up_proj.weight", {20, 12}},
      {"model.layers.0.post_attention_layernorm.weight", {12}},
      {"model.layers.0.self_attn.k_proj.weight", {4, 12}},
      {"model.layers.0.self_attn.o_proj.weight", {12, 12}},
      {"model.layers.0.self_attn.q_proj.weight", {12, 12}},
      {"model.layers.0.self_attn.v_proj.weight", {4, 12}},
      {"model.norm.weight", {12}},
  };
  EXPECT_EQ(Shapes(options), expected);
  options.tied_embeddings = true;
  EXPECT_EQ(Shapes(options).count("lm_head.weight"), 0u);
  EXPECT_NE(ConfigJson(options).find("\"tie_word_embeddings\": true"), std::string::npos);
  options.layers = 11;
  EXPECT_EQ(Shapes(options).size(), 2u + 11 * 9);
}

TEST(Generator, Experts) {
  Options options = Small();
  options.experts = 5;
  const std::map<std::string, Shape> shapes = Shapes(options);
  EXPECT_EQ(shapes.at("model.layers.1.mlp.experts.gate_up_proj"), (Shape{5, 12, 40}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.experts.down_proj"), (Shape{5, 20, 12}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.router.weight"), (Shape{5, 12}));
  EXPECT_EQ(shapes.count("model.layers.1.mlp.up_proj.weight"), 0u);
  EXPECT_NE(ConfigJson(options).find("\"num_local_experts\": 5"), std::string::npos);
}

TEST(Generator, MatricesOfOneSize) {
  Options options;
  options.total_bytes = 1 << 30;
  options.tensor_bytes = 16 << 20;
  std::vector<io::TensorSpec> tensors = Tensors(options);
  ASSERT_EQ(tensors.size(), 64u);
  EXPECT_EQ(tensors[63].shape, (Shape{4096, 2048}));
  options.dtype = DType::kF32;
  EXPECT_EQ(Tensors(options)[0].shape, (Shape{2048, 2048}));
  options = Options();
  options.total_bytes = 301;
  options.tensor_bytes = 2 * 3 * 16;
  EXPECT_EQ(Tensors(options).size(), 3u);
  EXPECT_EQ(Tensors(options)[2].shape, (Shape{12, 4}));
  EXPECT_NE(ConfigJson(options).find("\"num_hidden_layers\": 3"), std::string::npos);
}

TEST(Generator, Distribution) {
  const io::TensorSpec tensor{"w", io::FileDType::kF32, {256, 256}};
  double sum = 0, squares = 0, cubes = 0;
  for (float x : Values(Options(), tensor)) {
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    EXPECT_LE(std::abs(x), 3.5f * kDeviation);  // 2 * sqrt(3) deviations is the maximum for four uniform numbers
  }
  const double n = 65536;
  // Six deviations of the estimates: 1 / sqrt(n) of the mean, below 1 / sqrt(2 n) of the deviation.
  EXPECT_NEAR(sum / n, 0, 6 * kDeviation / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), kDeviation, 6 * kDeviation / std::sqrt(2 * n));
  EXPECT_NEAR(cubes / n / std::pow(kDeviation, 3), 0, 6 * std::sqrt(15 / n));

  double norm = 0;
  for (float x : Values(Options(), {"n", io::FileDType::kF32, {4096}})) norm += x;
  EXPECT_NEAR(norm / 4096, 1, 6 * kDeviation / 64);
}

TEST(Generator, DependsOnSeedNameAndIndexOnly) {
  const io::TensorSpec a{"a", io::FileDType::kF32, {7, 9}}, b{"b", io::FileDType::kF32, {7, 9}};
  Options options;
  const std::vector<float> all = Values(options, a);
  EXPECT_EQ(all, Values(options, a));
  EXPECT_NE(all, Values(options, b));
  options.dtype = DType::kF32;
  for (int64_t first : {0, 1, 8, 9, 10, 40}) {
    float part[5];
    Fill(options, a, first, absl::MakeSpan(reinterpret_cast<uint8_t*>(part), sizeof(part)));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(part[i], all[first + i]) << first;
  }
  options.seed = 2;
  EXPECT_NE(all, Values(options, a));
}

TEST(Generator, OutlierChannels) {
  const io::TensorSpec tensor{"w", io::FileDType::kF32, {5, 13}};
  const std::vector<float> plain = Values(Options(), tensor);
  for (int64_t outliers : {0, 1, 3, 7, 13, 100}) {
    Options options;
    options.outlier_channels = outliers;
    const std::vector<float> values = Values(options, tensor);
    int64_t columns = 0;
    for (int64_t c = 0; c < 13; ++c) {
      const bool is_outlier = values[c] != plain[c];
      columns += is_outlier;
      for (int64_t r = 0; r < 5; ++r) {
        EXPECT_EQ(values[r * 13 + c], plain[r * 13 + c] * (is_outlier ? kOutlierFactor : 1.0f)) << outliers;
      }
    }
    EXPECT_EQ(columns, std::min<int64_t>(outliers, 13));
    const io::TensorSpec norm{"n", io::FileDType::kF32, {13}};
    EXPECT_EQ(Values(options, norm), Values(Options(), norm));
  }
}

TEST(Generator, RoundsOnceToTheDType) {
  const io::TensorSpec tensor{"w", io::FileDType::kBF16, {3, 101}};
  Options options;
  const std::vector<float> values = Values(options, tensor);
  std::vector<uint16_t> bits(values.size());
  const auto bytes = absl::MakeSpan(reinterpret_cast<uint8_t*>(bits.data()), bits.size() * 2);
  options.dtype = DType::kBF16;
  Fill(options, tensor, 0, bytes);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(bits[i], RoundTo<BFloat16>(values[i]).bits) << i;
  options.dtype = DType::kF16;
  Fill(options, tensor, 0, bytes);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(bits[i], RoundTo<Float16>(values[i]).bits) << i;
}

// Larger than the buffer, with a tail: the file has the content of Fill.
TEST(Generator, StreamsLargeTensors) {
  Options options;
  options.dtype = DType::kF32;
  options.total_bytes = options.tensor_bytes = (3 << 20) + 4;
  const io::Checkpoint checkpoint = Made(options, "large");
  ASSERT_EQ(checkpoint.tensors().size(), 1u);
  const std::vector<float> expected = Values(options, checkpoint.tensors()[0]);
  const std::vector<uint8_t> bytes = Content(checkpoint).begin()->second;
  ASSERT_EQ(bytes.size(), expected.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0);
}

std::vector<int64_t> BytesPerShard(const io::Checkpoint& checkpoint) {
  std::vector<int64_t> bytes(checkpoint.shards().size());
  for (const io::TensorInfo& tensor : checkpoint.tensors()) bytes[tensor.shard] += tensor.num_bytes();
  return bytes;
}

TEST(Generator, ShardsHoldTheSameTensors) {
  const Options single = Small();
  const io::Checkpoint one = Made(single, "one");
  EXPECT_FALSE(one.has_index());
  EXPECT_EQ(one.shard_names(), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(one.other_files(), std::vector<std::string>{"config.json"});
  const auto content = Content(one);
  EXPECT_EQ(content.size(), Tensors(single).size());

  for (int64_t shards : {1, 2, 3, 21}) {
    Options options = single;
    options.shards = shards;
    // Open checks that index and shards agree.
    const io::Checkpoint many = Made(options, "shards" + std::to_string(shards));
    EXPECT_TRUE(many.has_index());
    ASSERT_EQ(static_cast<int64_t>(many.shards().size()), shards);
    for (const int64_t bytes : BytesPerShard(many)) EXPECT_GT(bytes, 0);
    EXPECT_TRUE(Content(many) == content) << shards;
  }
  Options options = single;
  options.max_shard_bytes = 1000;
  const io::Checkpoint many = Made(options, "max_shard");
  EXPECT_GT(many.shards().size(), 3u);
  for (const int64_t bytes : BytesPerShard(many)) EXPECT_LE(bytes, 1000);
  EXPECT_TRUE(Content(many) == content);
  // Every tensor exceeds this, so each has its own file.
  options.max_shard_bytes = 1;
  EXPECT_EQ(Made(options, "alone").shards().size(), content.size());
}

TEST(Generator, TheIndexCountsTensorBytes) {
  Options options = Small();
  options.shards = 2;
  const io::Checkpoint checkpoint = Made(options, "index");
  const absl::StatusOr<std::string> index =
      io::ReadFile(io::LocalFileSystem(), FreshFolder("index") + "/" + io::kIndexFile, 1 << 20);
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_NE(index->find("\"total_size\": " + std::to_string(checkpoint.total_bytes()) + "\n"), std::string::npos)
      << *index;
  EXPECT_NE(index->find("\"model.norm.weight\": \"model-00002-of-00002.safetensors\""), std::string::npos) << *index;
}

TEST(Generator, ConfigOfADefaultModel) {
  EXPECT_EQ(ConfigJson(Options()), R"({
  "architectures": ["LlamaForCausalLM"],
  "hidden_act": "silu",
  "hidden_size": 64,
  "intermediate_size": 172,
  "max_position_embeddings": 2048,
  "model_type": "llama",
  "num_attention_heads": 4,
  "num_hidden_layers": 2,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "vocab_size": 256
}
)");
}

TEST(Generator, RefusesWrongOptions) {
  const auto message = [](auto change) {
    Options options;
    change(options);
    const absl::Status status = Validate(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    // Make must not leave any files.
    EXPECT_EQ(Make(io::LocalFileSystem(), options, FreshFolder("refused")), status);
    EXPECT_FALSE(*io::Exists(io::LocalFileSystem(), FreshFolder("refused")));
    return std::string(status.message());
  };
  EXPECT_EQ(message([](Options& o) { o.dtype = DType::kS8; }), "dtype = s8, want f32, bf16 or f16");
  EXPECT_EQ(message([](Options& o) { o.layers = 0; }), "layers = 0, want 1 .. 2^24");
  EXPECT_EQ(message([](Options& o) { o.heads = 5; }), "hidden = 64, want a multiple of heads = 5");
  EXPECT_EQ(message([](Options& o) { o.kv_heads = 3; }), "heads = 4, want a multiple of kv_heads = 3");
  EXPECT_EQ(message([](Options& o) { o.experts = -1; }), "experts = -1, want 0 .. 1024");
  EXPECT_EQ(message([](Options& o) { o.shards = 22; }), "shards = 22, want at most the number of tensors, 21");
  EXPECT_EQ(message([](Options& o) { o.shards = o.max_shard_bytes = 1; }),
            "shards = 1, want 0 when max_shard_size is given");
  EXPECT_EQ(message([](Options& o) { o.tensor_bytes = 1; }), "tensor_size = 1, want 0 unless total_size is given");
  EXPECT_EQ(message([](Options& o) { o.total_bytes = 9, o.tensor_bytes = 3; }),
            "tensor_size = 3, want a positive multiple of 2 with total_size");
  EXPECT_EQ(message([](Options& o) { o.total_bytes = 2, o.tensor_bytes = 4; }),
            "total_size = 2, want at least tensor_size = 4");
  EXPECT_EQ(message([](Options& o) { o.total_bytes = 1 << 20, o.tensor_bytes = 2; }),
            "total_size = 1048576, want at most 100000 tensors");
}

TEST(Generator, RefusesAnExistingFolder) {
  ASSERT_TRUE(Make(io::LocalFileSystem(), Small(), FreshFolder("existing")).ok());
  EXPECT_EQ(Make(io::LocalFileSystem(), Small(), FreshFolder("existing")).code(), absl::StatusCode::kAlreadyExists);
}

TEST(ParseBytes, Units) {
  EXPECT_EQ(ParseBytes("0"), 0);
  EXPECT_EQ(ParseBytes("4096"), 4096);
  EXPECT_EQ(ParseBytes("12B"), 12);
  EXPECT_EQ(ParseBytes("16KiB"), 16384);
  EXPECT_EQ(ParseBytes("16MiB"), 16 << 20);
  EXPECT_EQ(ParseBytes("1.5GiB"), 3 << 29);
  EXPECT_EQ(ParseBytes("5GB"), 5'000'000'000);
  EXPECT_EQ(ParseBytes("0.25KB"), 250);
  for (const char* bad :
       {"", "x", "-1", "GiB", "1.5", "1 GiB", "1e3", "0x10", "1GiBB", "10000000000GB", "nan", "1.2.3KB"}) {
    EXPECT_EQ(ParseBytes(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace aqt::make_checkpoint
