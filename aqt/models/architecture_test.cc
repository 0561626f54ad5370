#include "aqt/models/architecture.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace aqt::models {
namespace {

using ::testing::HasSubstr;

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

// The config.json of a golden folder with another value of a field, alone in a folder.
absl::StatusOr<Architecture> With(const std::string& model, const std::string& field, const std::string& value) {
  const std::string path = "tests/golden/models/" + model + "/config.json";
  nlohmann::json json = nlohmann::json::parse(*io::ReadFile(Fs(), path, 1 << 20));
  json[field] = nlohmann::json::parse(value);
  const std::string folder = io::JoinPath(::testing::TempDir(), "architecture_test");
  (void)io::RemoveTree(Fs(), folder);
  EXPECT_TRUE(Fs().CreateFolder(folder).ok());
  EXPECT_TRUE(io::WriteFile(Fs(), io::JoinPath(folder, "config.json"), json.dump()).ok());
  return ReadArchitecture(Fs(), folder);
}

struct Refused {
  const char* model;
  const char* field;
  const char* value;
};

TEST(ArchitectureTest, ValuesThatAreNotComputedAreRefusedByName) {
  const Refused cases[] = {
      {"modernbert", "rope_scaling", R"({"rope_type": "yarn", "factor": 2})"},
      {"modernbert", "is_causal", "true"},
      {"modernbert", "partial_rotary_factor", "0.5"},
      {"modernbert", "head_dim", "4"},
      {"modernbert", "hidden_activation", "\"mish\""},
      {"modernbert", "num_attention_heads", "8"},  // 3 features each
      {"modernbert", "classifier_pooling", "\"max\""},
      {"modernbert", "num_hidden_layers", "1001"},
      {"modernbert_5", "layer_types", R"(["full_attention"])"},
      {"modernbert_5", "layer_types", R"(["full_attention", "x", "full_attention", "full_attention"])"},
      {"modernbert_5", "rope_parameters", R"({"full_attention": {"rope_type": "yarn"}})"},
      {"modernbert_5", "rope_parameters", R"({"full_attention": {"rope_theta": 10, "factor": 2}})"},
      {"modernbert_5", "rope_parameters", R"({"other_attention": {"rope_theta": 10}})"},
      {"nomic", "prenorm", "true"},
      {"nomic", "parallel_block", "true"},
      {"nomic", "causal", "true"},
      {"nomic", "use_rms_norm", "true"},
      {"nomic", "num_experts", "8"},
      {"nomic", "moe_top_k", "2"},
      {"nomic", "num_heads_kv", "1"},
      {"nomic", "rotary_emb_scale_base", "512"},
      {"nomic", "rotary_emb_fraction", "0.3"},
      {"nomic", "rotary_emb_fraction", "2"},
      {"nomic", "activation_function", "\"gelu_new\""},
      {"nomic_5", "head_dim", "6"},
      {"nomic_5", "rope_parameters", R"({"rope_type": "linear", "factor": 2})"},
      {"bert_classes", "architectures", R"(["BertForQuestionAnswering"])"},
      {"bert_classes", "problem_type", "\"ranking\""},
      {"bert_classes", "id2label", R"({"0": "a", "2": "b"})"},
      {"bert_classes", "num_labels", "3000000"},
      {"bert_classes", "auto_map", R"({"AutoModel": "x--modeling.Model"})"},
      {"mpnet_classes", "relative_attention_num_buckets", "64"},
  };
  for (const Refused& refused : cases) {
    const absl::StatusOr<Architecture> got = With(refused.model, refused.field, refused.value);
    ASSERT_FALSE(got.ok()) << refused.model << ": " << refused.field << " = " << refused.value;
    const std::string field = refused.field;
    EXPECT_THAT(std::string(got.status().message()), HasSubstr("architecture_test/config.json: " + field)) << field;
  }
}

TEST(ArchitectureTest, ValuesWithoutEffectAreAccepted) {
  const Refused cases[] = {
      {"modernbert", "reference_compile", "false"},
      {"modernbert", "rope_scaling", "null"},
      {"modernbert", "layer_norm_eps", "0.5"},  // norm_eps counts
      {"nomic", "use_flash_attn", "false"},
      {"nomic", "auto_map", R"({"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"})"},
      {"nomic", "num_experts", "0"},
      {"bert_classes", "classifier_dropout", "0.5"},
      {"bert_classes", "finetuning_task", "\"sst-2\""},
  };
  for (const Refused& fine : cases) {
    const absl::StatusOr<Architecture> got = With(fine.model, fine.field, fine.value);
    EXPECT_TRUE(got.ok()) << fine.model << ": " << got.status();
  }
}

TEST(ArchitectureTest, HeadsAndLabels) {
  EXPECT_FALSE(With("bert_classes", "architectures", R"(["BertModel"])")->head.has_value());
  EXPECT_FALSE(With("bert_classes", "architectures", R"(["BertForMaskedLM"])")->head.has_value());
  EXPECT_FALSE(With("bert_classes", "architectures", "null")->head.has_value());
  EXPECT_TRUE(With("bert_classes", "architectures", R"(["BertForTokenClassification"])")->head->OfTokens());
  // As transformers: a number of labels that does not fit the names wins.
  EXPECT_EQ(With("bert_classes", "num_labels", "2")->head->labels, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(With("bert_classes", "id2label", "null")->head->labels.size(), 2);
  const std::pair<const char*, ScoreFunction> types[] = {
      {"null", ScoreFunction::kSoftmax},
      {"\"regression\"", ScoreFunction::kIdentity},
      {"\"single_label_classification\"", ScoreFunction::kSoftmax},
      {"\"multi_label_classification\"", ScoreFunction::kSigmoid},
  };
  for (const auto& [type, scores] : types) {
    EXPECT_EQ(With("bert_classes", "problem_type", type)->head->scores, scores) << type;
  }
  EXPECT_EQ(With("bert_classes", "id2label", R"({"0": "x"})")->head->scores, ScoreFunction::kSigmoid);
}

// Its angles would change with the length of a text.
TEST(ArchitectureTest, NomicWithScaledAngles) {
  EXPECT_EQ(With("nomic", "rotary_scaling_factor", "2")->encoder->facts().max_length, 32);  // max_trained_positions
  EXPECT_EQ(With("nomic", "rotary_scaling_factor", "null")->encoder->facts().max_length, 64);
  EXPECT_EQ(With("nomic", "pad_vocab_size_multiple", "64")->encoder->facts().vocabulary, 64);
}

}  // namespace
}  // namespace aqt::models
