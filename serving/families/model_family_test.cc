#include "serving/families/model_family.h"

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "configs/config_text.h"
#include "configs/families.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "serving/families/model_families_text.h"

namespace aqt::serving {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelFacts Facts(const char* config) { return ParseModelConfig(config)->facts; }

std::vector<std::string> Names(const ModelFacts& facts, absl::Span<const ModelFamily> own = {}) {
  std::vector<std::string> names;
  for (const ModelFamily* family : FamiliesOf(facts, own)) names.push_back(family->name);
  return names;
}

TEST(ModelFamilyTest, AModelTypeNamesAFamily) {
  EXPECT_THAT(Names(Facts(R"({"model_type": "whisper"})")), ElementsAre("Whisper", "any"));
  EXPECT_THAT(Names(Facts(R"({"model_type": "not known"})")), ElementsAre("any"));
  EXPECT_THAT(Names(ModelFacts()), ElementsAre("any"));
}

TEST(ModelFamilyTest, AClassNamesAFamily) {
  EXPECT_THAT(Names(Facts(R"({"architectures": ["GPTNeoXForCausalLM"]})")), ElementsAre("GPT-NeoX", "any"));
  EXPECT_THAT(Names(Facts(R"({"architectures": ["GPT2LMHeadModel"]})")), ElementsAre("GPT-2", "any"));
  EXPECT_THAT(Names(Facts(R"({"architectures": ["T5EncoderModel"]})")), ElementsAre("T5", "any"));
  EXPECT_THAT(Names(Facts(R"({"architectures": ["HunYuanMoEV1ForCausalLM"]})")), ElementsAre("HunYuan", "any"));
  EXPECT_THAT(Names(Facts(R"({"architectures": ["Qwen2_5_VLForConditionalGeneration"]})")),
              ElementsAre("Qwen-VL", "any"));
}

TEST(ModelFamilyTest, PartsComeAfterTheModel) {
  const ModelFacts facts = Facts(R"({"model_type": "llava", "text_config": {"model_type": "gpt_neox"}})");
  EXPECT_THAT(Names(facts), ElementsAre("LLaVA", "GPT-NeoX", "any"));
  EXPECT_TRUE(IsKnown(facts, FamiliesOf(facts, {})));
  const ModelFacts unknown = Facts(R"({"model_type": "mine", "text_config": {"model_type": "gpt_neox"}})");
  EXPECT_FALSE(IsKnown(unknown, FamiliesOf(unknown, {}))) << "a known part is not the model";
}

TEST(ModelFamilyTest, FamiliesOfTheUserComeFirst) {
  ModelFamily mine;
  mine.name = "mine";
  mine.model_types = {"llama"};
  ModelFamily general;
  general.name = "general";
  EXPECT_THAT(Names(Facts(R"({"model_type": "llama"})"), {mine, general}),
              ElementsAre("mine", "general", "plain", "any"));
}

TEST(ModelFamilyTest, TheTableIsValid) {
  ASSERT_EQ(ModelFamiliesText().size(), 1u);
  config::ModelFamilies message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  ASSERT_TRUE(config::ParseText(ModelFamiliesText()[0].text, "table", /*renames=*/{}, &message, &tree).ok());
  const config::Place place("table", &tree);
  EXPECT_TRUE(config::CheckSchema(message, place).ok());
  for (int i = 0; i < message.family_size(); ++i) {
    const absl::Status status = ReadModelFamily(message.family(i), place.In(message, "family", i)).status();
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(BuiltInFamilies().back().for_every_model());
}

TEST(ModelFamilyTest, OnlyOneFamilyHasAType) {
  std::set<std::string> seen;
  for (const ModelFamily& family : BuiltInFamilies()) {
    for (const std::string& type : family.model_types) EXPECT_TRUE(seen.insert(type).second) << type;
  }
  EXPECT_GT(seen.size(), 200u);
}

TEST(ModelFamilyTest, FactsOfNestedParts) {
  const ModelFacts facts = Facts(R"({
    "model_type": "omni", "architectures": ["OmniForConditionalGeneration"], "vocab_size": 1,
    "thinker_config": {"text_config": {"model_type": "t", "vocab_size": 96, "hidden_size": 64, "num_experts": 4},
                       "vision_config": {"hidden_size": 32}},
    "decoder": {"model_type": "d", "vocab_size": 128},
    "quantization_config": {"model_type": "no"}, "vocab_size ": 7, "hidden_size": "x"})");
  EXPECT_THAT(facts.model_types, ElementsAre("omni", "t", "d"));
  EXPECT_THAT(facts.vocab_sizes, ElementsAre(96, 128));
  EXPECT_THAT(facts.hidden_sizes, ElementsAre(64, 32));
  EXPECT_THAT(facts.num_experts, ElementsAre(4));
  EXPECT_THAT(facts.towers, ElementsAre("vision_config"));
  EXPECT_TRUE(Facts(R"({"architectures": ["BertForMaskedLM"]})").has_output_head);
  EXPECT_FALSE(Facts(R"({"architectures": ["BertModel", 3]})").has_output_head);
}

TEST(ModelFamilyTest, MistakesInAFamilyAreNamed) {
  const auto read = [](const char* text) {
    config::ModelFamily message;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
    return std::string(ReadModelFamily(message, config::Place()).status().message());
  };
  EXPECT_THAT(read("head: 'a'"), HasSubstr("name"));
  EXPECT_THAT(read("name: 'n' router: '('"), HasSubstr("\"(\" is not a valid regular expression"));
  EXPECT_THAT(read("name: 'n' fused { part: 'a' }"), HasSubstr("at least two parts"));
  EXPECT_THAT(read("name: 'n' expert_name { stored: 'a' }"), HasSubstr("stored and asked"));
  EXPECT_EQ(read("name: 'n' head: 'a.*'"), "");
}

}  // namespace
}  // namespace aqt::serving
