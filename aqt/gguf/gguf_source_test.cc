#include "aqt/gguf/gguf_source.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/gguf/gguf_testing.h"
#include "aqt/quant/weights/ggml_blocks.h"
#include "gtest/gtest.h"

namespace aqt::gguf {
namespace {

class GgufSourceTest : public GgufTest {
 protected:
  static std::vector<MetadataItem> Llama(const std::string& architecture, uint32_t heads, uint32_t kv_heads) {
    return {StringItem(kArchitectureKey, architecture), U32Item(architecture + ".attention.head_count", heads),
            U32Item(architecture + ".attention.head_count_kv", kv_heads)};
  }
  std::unique_ptr<GgufSource> Open(const std::string& path, const GgufSourceOptions& options = {}) const {
    auto source = GgufSource::Open(fs_, path, options);
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }
  static std::vector<float> Floats(const GgufSource& source, absl::string_view name) {
    const absl::StatusOr<Array> array = source.ReadArray(name);
    EXPECT_TRUE(array.ok()) << array.status();
    const absl::Span<const float> values = array->View<float>();
    return {values.begin(), values.end()};
  }
  void ExpectError(const std::string& path, absl::StatusCode code, absl::string_view part) const {
    const auto source = GgufSource::Open(fs_, path);
    EXPECT_EQ(source.status().code(), code) << source.status();
    EXPECT_TRUE(absl::StrContains(source.status().message(), part)) << source.status();
  }
};

TEST_F(GgufSourceTest, HeadsOfLlamaGetTheirHalvesBack) {
  // Two heads of four rows, one value each: the file has the rows 0, 2, 1, 3 of each head.
  const std::string path =
      WriteModel("m.gguf", Llama("llama", 2, 1),
                 {CountingTensor("blk.0.attn_q.weight", {8, 1}), CountingTensor("blk.0.attn_q.bias", {8}),
                  CountingTensor("blk.0.attn_k.weight", {4, 2}), CountingTensor("blk.0.attn_v.weight", {4, 1})});
  const auto source = Open(path);
  EXPECT_EQ(Floats(*source, "model.layers.0.self_attn.q_proj.weight"), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(Floats(*source, "model.layers.0.self_attn.q_proj.bias"), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(Floats(*source, "model.layers.0.self_attn.k_proj.weight"), (std::vector<float>{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(Floats(*source, "model.layers.0.self_attn.v_proj.weight"), (std::vector<float>{0, 1, 2, 3}));
  // From within a row to within another.
  std::vector<float> part(5);
  const io::TensorInfo& k = *source->Find("model.layers.0.self_attn.k_proj.weight");
  ASSERT_TRUE(source->Read(k, 4, absl::MakeSpan(reinterpret_cast<uint8_t*>(part.data()), 20)).ok());
  EXPECT_EQ(part, (std::vector<float>{1, 4, 5, 2, 3}));

  const auto file = Open(path, {.names = Names::kFile});
  EXPECT_EQ(Floats(*file, "blk.0.attn_q.bias"), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(file->config(), "");
  // Qwen rotates halves.
  const auto qwen = Open(WriteModel("q.gguf", Llama("qwen2", 2, 1), {CountingTensor("blk.0.attn_q.weight", {8, 1})}));
  EXPECT_EQ(Floats(*qwen, "model.layers.0.self_attn.q_proj.weight"), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(GgufSourceTest, NormsOfGemmaHaveNoOne) {
  const auto source = Open(WriteModel(
      "m.gguf", Llama("gemma3", 1, 1),
      {F32Tensor("output_norm.weight", {2}, {1.5f, 1}), F32Tensor("blk.1.post_ffw_norm.weight", {1}, {0.25f}),
       F32Tensor("blk.1.attn_q_norm.weight", {1}, {3}), F32Tensor("blk.1.attn_q.weight", {2, 1}, {3, 4})}));
  EXPECT_EQ(Floats(*source, "model.norm.weight"), (std::vector<float>{0.5f, 0}));
  EXPECT_EQ(Floats(*source, "model.layers.1.post_feedforward_layernorm.weight"), std::vector<float>{-0.75f});
  EXPECT_EQ(Floats(*source, "model.layers.1.self_attn.q_norm.weight"), std::vector<float>{2});
  EXPECT_EQ(Floats(*source, "model.layers.1.self_attn.q_proj.weight"), (std::vector<float>{3, 4}));
}

TEST_F(GgufSourceTest, EachExpertIsATensor) {
  std::vector<MetadataItem> metadata = Llama("qwen2moe", 1, 1);
  metadata.push_back(U32Item("qwen2moe.expert_count", 3));
  const auto source = Open(WriteModel(
      "m.gguf", metadata,
      {CountingTensor("blk.0.ffn_gate_exps.weight", {3, 2, 2}), CountingTensor("blk.0.ffn_gate_inp_shexp.weight", {4}),
       CountingTensor("blk.0.ffn_up_shexp.weight", {1, 2})}));
  ASSERT_EQ(source->tensors().size(), 5u);
  EXPECT_EQ(source->Find("model.layers.0.mlp.experts.1.gate_proj.weight")->shape, (Shape{2, 2}));
  EXPECT_EQ(Floats(*source, "model.layers.0.mlp.experts.1.gate_proj.weight"), (std::vector<float>{4, 5, 6, 7}));
  EXPECT_EQ(Floats(*source, "model.layers.0.mlp.experts.2.gate_proj.weight"), (std::vector<float>{8, 9, 10, 11}));
  EXPECT_EQ(source->Find("model.layers.0.mlp.shared_expert_gate.weight")->shape, (Shape{1, 4}));
  metadata.back() = U32Item("qwen2moe.expert_count", 4);
  ExpectError(WriteModel("n.gguf", metadata, {CountingTensor("blk.0.ffn_gate_exps.weight", {3, 2, 2})}),
              absl::StatusCode::kDataLoss, "expected 4 experts first");

  std::vector<MetadataItem> mixtral = Llama("llama", 1, 1);
  mixtral.push_back(U32Item("llama.expert_count", 2));
  const auto moe = Open(WriteModel("o.gguf", mixtral, {CountingTensor("blk.0.ffn_down_exps.weight", {2, 1, 2})}));
  EXPECT_EQ(Floats(*moe, "model.layers.0.block_sparse_moe.experts.1.w2.weight"), (std::vector<float>{2, 3}));
  EXPECT_TRUE(absl::StrContains(moe->config(), "\"num_local_experts\": 2")) << moe->config();
}

TEST_F(GgufSourceTest, TheConfigurationOfTheMetadata) {
  const std::vector<MetadataItem> metadata = {
      StringItem(kArchitectureKey, "llama"),       U32Item("llama.block_count", 2),
      U32Item("llama.context_length", 64),         U32Item("llama.embedding_length", 32),
      U32Item("llama.feed_forward_length", 96),    U32Item("llama.attention.head_count", 4),
      U32Item("llama.attention.head_count_kv", 2), U32Item("llama.rope.dimension_count", 8),
      F32Item("llama.rope.freq_base", 500000),     F32Item("llama.attention.layer_norm_rms_epsilon", 1e-5f),
      U32Item("tokenizer.ggml.bos_token_id", 1)};
  // The factors of Llama 3 with the factor 8, for a head of 8.
  std::vector<float> factors;
  for (int i = 0; i < 4; ++i) {
    const double wavelength = 2 * M_PI * std::pow(500000.0, 2.0 * i / 8);
    const double smooth = std::min(1.0, std::max(0.0, (8192 / wavelength - 1) / 3));
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / 8 + smooth)));
  }
  const auto source =
      Open(WriteModel("m.gguf", metadata,
                      {CountingTensor("token_embd.weight", {96, 32}), F32Tensor("rope_freqs.weight", {4}, factors)}));
  EXPECT_EQ(source->config(), R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "max_position_embeddings": 64,
  "num_hidden_layers": 2,
  "intermediate_size": 96,
  "hidden_size": 32,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-05,
  "rope_theta": 5e+05,
  "head_dim": 8,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
  "vocab_size": 96,
  "bos_token_id": 1,
  "tie_word_embeddings": true
}
)");
  EXPECT_EQ(source->Find("rope_freqs.weight"), nullptr);
  EXPECT_TRUE(source->warnings().empty());
  factors[3] *= 2;
  const auto other = Open(WriteModel("n.gguf", metadata, {F32Tensor("rope_freqs.weight", {4}, factors)}));
  ASSERT_EQ(other->warnings().size(), 1u);
  EXPECT_TRUE(absl::StrContains(other->warnings()[0], "rope_freqs.weight has factors"));
}

TEST_F(GgufSourceTest, WhatIsNotKnownIsRefusedByName) {
  constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;
  ExpectError(WriteModel("a.gguf", {StringItem(kArchitectureKey, "mamba")}, {}), kUnimplemented,
              "the names of the architecture 'mamba' in transformers are not known");
  ExpectError(WriteModel("b.gguf", {}, {}), absl::StatusCode::kDataLoss, "has no text general.architecture");
  for (const char* name : {"blk.0.ssm_in.weight", "blk.01.attn_q.weight", "blk.-1.attn_q.weight", "blk.attn_q.weight",
                           "v.blk.0.attn_q.weight", "blk.0.attn_q.scale", "output"}) {
    ExpectError(WriteModel("c.gguf", Llama("llama", 1, 1), {CountingTensor(name, {2, 2})}), kUnimplemented,
                absl::StrCat("the tensor '", name, "' is not one of the architecture llama"));
  }
  ExpectError(WriteModel("d.gguf", Llama("llama", 3, 3), {CountingTensor("blk.0.attn_q.weight", {8, 2})}),
              absl::StatusCode::kDataLoss, "which 3 heads of an even number of rows do not fill");
  ExpectError(WriteModel("e.gguf", Llama("qwen2", 1, 1),
                         {{{"output.weight", ggml::Type::kQ8_1, {1, 32}}, std::string(40, '\0')}}),
              kUnimplemented, "tensor 'output.weight' has the type Q8_1, which cannot be decoded");
  EXPECT_EQ(GgufSource::Open(fs_, Path("a.gguf"), {.dtype = DType::kF64}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(GgufSourceTest, ValuesAreRoundedOnceAndMustBeFinite) {
  std::vector<float> values(64, 0);
  values[0] = 127 * 0x1.004p0f;
  values[40] = 1;
  std::string bytes(68, '\0');
  ASSERT_EQ(ggml::EncodeBlocks(ggml::Type::kQ8_0, values.data(), 2, reinterpret_cast<uint8_t*>(bytes.data())), -1);
  const auto write = [&] {
    return WriteModel("m.gguf", Llama("qwen2", 1, 1), {{{"output.weight", ggml::Type::kQ8_0, {2, 32}}, bytes}});
  };
  const auto f32 = Open(write());
  const float first = Floats(*f32, "lm_head.weight")[0];
  EXPECT_EQ(first, 127 * 0x1.004p0f);
  const auto bf16 = Open(Path("m.gguf"), {.dtype = DType::kBF16});
  EXPECT_EQ(bf16->ReadArray("lm_head.weight")->View<BFloat16>()[0].bits, RoundToBFloat16(first).bits);
  EXPECT_EQ(bf16->Find("lm_head.weight")->num_bytes(), 128);

  bytes[34] = 0, bytes[35] = 0x7c;  // the second scale becomes infinite
  const auto damaged = Open(write());
  const absl::Status status = damaged->ReadArray("lm_head.weight").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), "tensor 'output.weight': element 32 is a NaN or an infinity"))
      << status;
  bytes[35] = 0x7b;  // 57344
  const auto large = Open(write(), {.dtype = DType::kF16});
  EXPECT_TRUE(absl::StrContains(large->ReadArray("lm_head.weight").status().message(), "which overflows f16"));
}

TEST_F(GgufSourceTest, ASetIsOneSource) {
  const auto part = [&](uint16_t no) {
    return std::vector<MetadataItem>{StringItem(kArchitectureKey, "qwen2"),
                                     {kSplitNoKey, ValueType::kU16, Raw(no)},
                                     {kSplitCountKey, ValueType::kU16, Raw(uint16_t{2})}};
  };
  WriteModel("m-00001-of-00002.gguf", part(0), {CountingTensor("output.weight", {1, 2})});
  WriteModel("m-00002-of-00002.gguf", part(1), {CountingTensor("blk.7.ffn_up.weight", {2, 1}, 5)});
  const auto source = Open(Path("m-00001-of-00002.gguf"));
  EXPECT_EQ(source->shards().size(), 2u);
  EXPECT_EQ(Floats(*source, "lm_head.weight"), (std::vector<float>{0, 1}));
  EXPECT_EQ(Floats(*source, "model.layers.7.mlp.up_proj.weight"), (std::vector<float>{5, 6}));
}

TEST_F(GgufSourceTest, MetadataAsText) {
  const auto source = Open(WriteModel("m.gguf",
                                      {StringItem("general.name", "a\nb"),
                                       U32Item("n", 7),
                                       F32Item("f", 0.5f),
                                       {"b", ValueType::kBool, "\x01"},
                                       {"l", ValueType::kArray, Raw(uint32_t{0}) + Raw(uint64_t{2}) + "xx"}},
                                      {}),
                           {.names = Names::kFile});
  EXPECT_EQ(source->shards()[0].metadata,
            (io::Metadata{{"general.name", "a\\nb"}, {"n", "7"}, {"f", "0.5"}, {"b", "true"}, {"l", "2 values"}}));
  EXPECT_EQ(source->Description(), "gguf: ");
}

}  // namespace
}  // namespace aqt::gguf
