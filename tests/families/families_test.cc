// Plans for the checkpoints of model families agree with the module classes of the families' own code. record.py makes
// the records; README.md explains how, and the meaning of each key.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/formats/quantization_config.h"
#include "serving/plan/plan.h"
#include "serving/plan/recipe.h"
#include "tests/families/agreement.h"

namespace aqt::families {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kData[] = "tests/families/data";

std::vector<std::string> Families() {
  std::vector<std::string> names;
  const absl::StatusOr<std::vector<std::string>> files = io::LocalFileSystem().List(kData);
  if (!files.ok()) return names;
  for (const std::string& file : *files) {
    if (absl::EndsWith(file, ".json")) names.emplace_back(absl::StripSuffix(file, ".json"));
  }
  return names;
}

FamilyRecord Read(const std::string& family) {
  const std::string path = io::JoinPath(kData, absl::StrCat(family, ".json"));
  return *ParseRecord(*io::ReadFile(io::LocalFileSystem(), path, 1 << 20));
}

class FamilyTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    record_ = Read(GetParam());
    std::vector<std::pair<std::string, Array>> arrays;
    for (const auto& [name, shape] : record_.tensors) {
      const DType dtype = record_.integers.contains(name) ? DType::kS64 : DType::kBF16;
      arrays.emplace_back(name, Array::Zeros(dtype, shape));
    }
    source_ = std::make_unique<io::MemoryTensorSource>("model.safetensors", std::move(arrays));
    serving::RecipeSource recipe;
    recipe.preset = "w8a8_dynamic";
    plan_ = serving::MakePlan(*source_, *serving::ParseModelConfig(record_.config),
                              *serving::LoadRecipe(io::LocalFileSystem(), recipe));
    if (record_.quantized.empty()) return;
    ASSERT_TRUE(plan_.ok()) << plan_.status();
    facts_.ignore = plan_->quantization_config.ignore;
    for (const serving::TensorPlan& tensor : plan_->tensors) {
      if (tensor.quantized()) facts_.quantized.emplace(absl::StripSuffix(tensor.name(), ".weight"));
    }
  }
  // A model without a layer that int8 fits (GPT-2) is an error, not a plan.
  bool nothing_to_quantize() const { return record_.quantized.empty(); }

  FamilyRecord record_;
  std::unique_ptr<io::MemoryTensorSource> source_;
  absl::StatusOr<serving::Plan> plan_ = absl::UnknownError("no plan");
  PlanFacts facts_;
};

TEST_P(FamilyTest, QuantizesTheLinearLayersAndNothingElse) {
  if (nothing_to_quantize()) {
    EXPECT_EQ(plan_.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan_.status().message()), HasSubstr("nothing would be quantized"));
    return;
  }
  EXPECT_THAT(WrongModules(record_, facts_), IsEmpty());
}

TEST_P(FamilyTest, IgnoreCoversWhatLoadersAskFor) {
  if (nothing_to_quantize()) return;
  EXPECT_THAT(WrongIgnores(record_, facts_), IsEmpty());
}

TEST_P(FamilyTest, IgnoreCoversWhatVllmAsksFor) {
  if (nothing_to_quantize() || !record_.in_vllm) return;
  EXPECT_THAT(WrongInVllm(record_, facts_), IsEmpty());
}

TEST_P(FamilyTest, CarriesTheRest) {
  if (nothing_to_quantize()) return;
  EXPECT_THAT(plan_->tensors, SizeIs(record_.tensors.size()));
  for (const serving::TensorPlan& tensor : plan_->tensors) {
    if (tensor.quantized()) continue;
    ASSERT_THAT(tensor.outputs, SizeIs(1)) << tensor.name();
    EXPECT_EQ(tensor.outputs[0].name, tensor.name());
    EXPECT_EQ(tensor.outputs[0].dtype, tensor.input->dtype);
    EXPECT_EQ(tensor.outputs[0].shape, tensor.input->shape);
  }
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, FamilyTest, ::testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param; });

TEST(FamiliesTest, AllAreRead) { EXPECT_THAT(Families(), SizeIs(Ge(200))); }

// The checks detect the errors that they are for.
class AgreementTest : public ::testing::Test {
 protected:
  FamilyRecord Llava() {
    FamilyRecord record;
    record.family = "llava";
    record.tied = {"language_model.lm_head"};
    record.quantized = {"language_model.model.layers.0.q_proj", "language_model.model.layers.0.k_proj", "tower.fc"};
    record.kept = {{"language_model.model.layers.0.gate.weight", "router"}};
    record.ignore = {"language_model.lm_head", "language_model.model.layers.0.gate"};
    record.ask = {"lm_head"};
    record.towers = {"tower."};
    record.in_vllm = true;
    record.vllm.prefixes = {{"language_model.model.", "model."}};
    record.vllm.packed = {{"qkv_proj", {"q_proj", "k_proj"}}};
    return record;
  }
  PlanFacts Right() {
    return {{"language_model.model.layers.0.q_proj", "language_model.model.layers.0.k_proj"},
            {"language_model.lm_head", "lm_head", "language_model.model.layers.0.gate", "re:tower\\."}};
  }
};

TEST_F(AgreementTest, ARightPlan) {
  EXPECT_THAT(WrongModules(Llava(), Right()), IsEmpty());
  EXPECT_THAT(WrongIgnores(Llava(), Right()), IsEmpty());
  EXPECT_THAT(WrongInVllm(Llava(), Right()), IsEmpty());
}

TEST_F(AgreementTest, ModulesOnTheWrongSide) {
  PlanFacts plan = Right();
  plan.quantized.insert("language_model.model.layers.0.gate");
  plan.quantized.erase("language_model.model.layers.0.k_proj");
  EXPECT_THAT(WrongModules(Llava(), plan), ElementsAre(HasSubstr("gate is quantized: router"), HasSubstr("k_proj")));
  EXPECT_THAT(WrongIgnores(Llava(), plan), Contains(HasSubstr("covers the quantized")));
  EXPECT_THAT(WrongInVllm(Llava(), plan), Contains(HasSubstr("vLLM fuses both")));
}

TEST_F(AgreementTest, AHalfQuantizedTower) {
  FamilyRecord record = Llava();
  record.quantized.insert("tower.fc2");
  PlanFacts plan = Right();
  plan.quantized.insert("tower.fc2");
  EXPECT_THAT(WrongModules(record, plan), ElementsAre(HasSubstr("tower.fc is not quantized")));
}

TEST_F(AgreementTest, NamesThatIgnoreMisses) {
  PlanFacts plan = Right();
  plan.ignore = {"language_model.lm_head", "re:language_model\\.model\\.layers\\.0\\.gate", "re:.*tower"};
  EXPECT_THAT(WrongIgnores(Llava(), plan), ElementsAre("ignore does not cover lm_head"));
  EXPECT_THAT(WrongInVllm(Llava(), plan), ElementsAre("ignore does not cover model.layers.0.gate"))
      << "patterns are not renamed";
}

TEST_F(AgreementTest, ExpertsByTheirNames) {
  FamilyRecord record = Llava();
  record.experts = {"language_model.model.layers.0.experts"};
  PlanFacts plan = Right();
  EXPECT_THAT(WrongInVllm(record, plan), SizeIs(3));
  plan.ignore.push_back("re:.*\\.layers\\.0\\.experts");
  EXPECT_THAT(WrongInVllm(record, plan), IsEmpty());
}

TEST_F(AgreementTest, ARecordIsRead) {
  EXPECT_FALSE(ParseRecord("[]").ok());
  EXPECT_FALSE(ParseRecord("{}").ok());
  const FamilyRecord mixtral = Read("mixtral");
  EXPECT_EQ(mixtral.tensors.at("lm_head.weight"), Shape({96, 64}));
  EXPECT_THAT(mixtral.vllm.expert_names, ElementsAre("w1", "w3", "w2"));
  EXPECT_TRUE(mixtral.ask_quantized.contains("model.layers.0.block_sparse_moe.experts.0.gate_proj"));
}

}  // namespace
}  // namespace aqt::families
