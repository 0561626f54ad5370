#include "tests/foreign_check.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/golden/foreign";

class ForeignCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = io::JoinPath(::testing::TempDir(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    (void)io::RemoveTree(fs_, root_);
    for (const std::string& folder : {root_, Golden(), Temporary()}) ASSERT_TRUE(fs_.CreateFolder(folder).ok());
  }
  void TearDown() override {
    EXPECT_TRUE(fs_.List(Temporary())->empty()) << "something was left behind";
    EXPECT_TRUE(io::RemoveTree(fs_, root_).ok());
  }
  std::string Golden() const { return io::JoinPath(root_, "golden"); }
  std::string Temporary() const { return io::JoinPath(root_, "tmp"); }

  void CopyCase(const std::string& name) {
    const std::string from = io::JoinPath(kGolden, name), to = io::JoinPath(Golden(), name);
    ASSERT_TRUE(fs_.CreateFolder(to).ok());
    const std::vector<std::string> files = *fs_.List(from);
    for (const std::string& file : files) {
      ASSERT_TRUE(io::CopyFile(fs_, io::JoinPath(from, file), io::JoinPath(to, file)).ok());
    }
  }
  void Edit(const std::string& file, const std::string& from, const std::string& to) {
    const std::string path = io::JoinPath(Golden(), file);
    const std::string text = *io::ReadFile(fs_, path, 1 << 20);
    const std::string edited = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(text, edited);
    ASSERT_TRUE(io::WriteFile(fs_, path, edited, {.overwrite = true}).ok());
  }
  int Check(const std::string& folder) {
    std::ostringstream out;
    const int code =
        ForeignCheck(fs_, folder, {{"checkpoints", "tests/golden/checkpoints"}, {"write", "tests/golden/written"}},
                     Temporary(), out);
    text_ = out.str();
    return code;
  }

  const io::FileSystem& fs_ = io::LocalFileSystem();
  std::string root_;
  std::string text_;
};

TEST_F(ForeignCheckTest, EveryFolderIsReadAsItsOwnToolReadsIt) {
  EXPECT_EQ(Check(kGolden), 0) << text_;
  EXPECT_THAT(text_, HasSubstr("passed 54, failed 0, not there 0"));
}

TEST_F(ForeignCheckTest, AnotherValueFails) {
  CopyCase("gptq_2bit_g32_asym_v1");
  EXPECT_EQ(Check(Golden()), 0) << text_;
  Edit("gptq_2bit_g32_asym_v1/config.json", R"("checkpoint_format": "gptq")", R"("checkpoint_format": "gptq_v2")");
  EXPECT_EQ(Check(Golden()), 1);
  EXPECT_THAT(text_, HasSubstr("failed: gptq_2bit_g32_asym_v1: f32: model.layers.0."));
}

TEST_F(ForeignCheckTest, ATensorTooManyFails) {
  CopyCase("bnb_nf4_odd");
  Edit("bnb_nf4_odd/expected.json", R"(  "model.norm.weight"
)",
       R"(  "model.embed_tokens.weight"
)");
  EXPECT_EQ(Check(Golden()), 1);
  EXPECT_THAT(text_, HasSubstr("model.norm.weight is in the output"));
}

TEST_F(ForeignCheckTest, ExpertsInAnotherOrderFail) {
  CopyCase("moe_gptoss_bf16");
  EXPECT_EQ(Check(Golden()), 0) << text_;
  Edit("moe_gptoss_bf16/config.json", "gpt_oss", "llama4_text");  // gate and up do not take turns
  Edit("moe_gptoss_bf16/config.json", "GptOssForCausalLM", "Llama4ForCausalLM");
  EXPECT_EQ(Check(Golden()), 1);
  EXPECT_THAT(text_, HasSubstr("failed: moe_gptoss_bf16: model.layers.0.mlp.experts.0."));
  EXPECT_THAT(text_, HasSubstr(" has other bytes"));
}

TEST_F(ForeignCheckTest, AFolderWithoutCasesIsAnError) {
  EXPECT_EQ(Check(Golden()), 2);
  EXPECT_EQ(Check(io::JoinPath(root_, "absent")), 2);
}

}  // namespace
}  // namespace aqt
