#include "tests/checkpoint_check.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/golden/checkpoints";

// A copy of some of the reference folders, which the tests damage.
class CheckpointCheckTest : public ::testing::Test {
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
    const int code = CheckpointCheck(fs_, folder, Temporary(), out);
    text_ = out.str();
    return code;
  }

  const io::FileSystem& fs_ = io::LocalFileSystem();
  std::string root_, text_;
};

TEST_F(CheckpointCheckTest, AllRecordedCasesPass) {
  EXPECT_EQ(Check(kGolden), 0) << text_;
  int cases = 0;
  const std::vector<std::string> names = *fs_.List(kGolden);
  for (const std::string& name : names) {
    for (const char* prefix : {"int_", "pack_", "sharded_", "float_", "naive_", "mx", "nv"}) {
      cases += absl::StartsWith(name, prefix);
    }
  }
  EXPECT_GE(cases, 20);
  EXPECT_EQ(text_, absl::StrCat("passed ", cases, ", failed 0, not supported 0\n"));
}

TEST_F(CheckpointCheckTest, AllCasesWrittenByOtherToolsPass) {
  EXPECT_EQ(Check("tests/golden/written"), 0) << text_;
  EXPECT_EQ(text_, "passed 13, failed 0, not supported 0\n");
}

TEST_F(CheckpointCheckTest, AChangedByteFails) {
  CopyCase("dense");
  CopyCase("pack_w4a16_channel");
  const std::string path = io::JoinPath(Golden(), "pack_w4a16_channel/model.safetensors");
  std::string bytes = *io::ReadFile(fs_, path, 1 << 20);
  bytes.back() ^= 1;
  ASSERT_TRUE(io::WriteFile(fs_, path, bytes, {.overwrite = true}).ok());
  EXPECT_EQ(Check(Golden()), 1);
  EXPECT_THAT(text_, HasSubstr("FAILED: pack_w4a16_channel: layers.0.q_proj.weight_packed differs at byte 639"));
  EXPECT_THAT(text_, HasSubstr("passed 0, failed 1, not supported 0"));
}

TEST_F(CheckpointCheckTest, AnotherSchemeFails) {
  CopyCase("dense");
  CopyCase("int_w8a8_dynamic");
  Edit("int_w8a8_dynamic/config.json", "\"channel\"", "\"tensor\"");
  EXPECT_EQ(Check(Golden()), 1);
  EXPECT_THAT(text_, HasSubstr("weight_scale is F32[1], not F32[12,1]"));
}

TEST_F(CheckpointCheckTest, AnUnsupportedSchemeIsNoFailure) {
  CopyCase("dense");
  CopyCase("int_w8a8_dynamic");
  CopyCase("pack_w8a16_channel");
  Edit("int_w8a8_dynamic/config.json", "int-quantized", "marlin-24");
  EXPECT_EQ(Check(Golden()), 0);
  EXPECT_THAT(text_, HasSubstr("not supported: int_w8a8_dynamic: "));
  EXPECT_THAT(text_, HasSubstr("passed 1, failed 0, not supported 1\n"));
}

TEST_F(CheckpointCheckTest, ADamagedConfigFails) {
  CopyCase("dense");
  CopyCase("int_w8a8_dynamic");
  Edit("int_w8a8_dynamic/config.json", "}", "");
  EXPECT_EQ(Check(Golden()), 1);
  EXPECT_THAT(text_, HasSubstr("FAILED: int_w8a8_dynamic"));
}

TEST_F(CheckpointCheckTest, BadDirectories) {
  EXPECT_EQ(Check(io::JoinPath(root_, "missing")), 2);
  EXPECT_THAT(text_, HasSubstr("missing"));
  EXPECT_EQ(Check(Golden()), 2);  // empty
  EXPECT_THAT(text_, HasSubstr("no folder with a quantization_config"));
  CopyCase("int_w8a8_dynamic");  // without its input
  EXPECT_EQ(Check(Golden()), 2);
  EXPECT_THAT(text_, HasSubstr("not its input"));
}

}  // namespace
}  // namespace aqt
