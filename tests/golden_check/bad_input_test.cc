// Bad arguments and directories.

#include "tests/golden_check/golden_check.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden_check/golden_check_testing.h"

namespace aqt::golden {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class DirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = io::JoinPath(::testing::TempDir(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(fs_.CreateFolder(dir_).ok());
    for (const char* file : {"manifest.json", "readme.safetensors"}) {
      ASSERT_TRUE(io::CopyFile(fs_, io::JoinPath(kStock, file), io::JoinPath(dir_, file)).ok());
    }
  }
  void TearDown() override {
    const std::vector<std::string> names = *fs_.List(dir_);
    for (const std::string& name : names) EXPECT_TRUE(fs_.Remove(io::JoinPath(dir_, name)).ok());
    EXPECT_TRUE(fs_.Remove(dir_).ok());
  }
  void Edit(const std::string& file, const std::string& from, const std::string& to) {
    const std::string path = io::JoinPath(dir_, file);
    const std::string text = *io::ReadFile(fs_, path, 1 << 24);
    const std::string edited = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(text, edited);
    ASSERT_TRUE(io::WriteFile(fs_, path, edited, {.overwrite = true}).ok());
  }
  MainResult Check(const std::string& families = "readme") {
    return Main({absl::StrCat("--golden_dir=", dir_), absl::StrCat("--families=", families)});
  }
  void ExpectBad(const std::string& message, const std::string& families = "readme") {
    const MainResult result = Check(families);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(message));
  }

  const io::FileSystem& fs_ = io::LocalFileSystem();
  std::string dir_;
};

TEST_F(DirectoryTest, ACopyPasses) { EXPECT_EQ(Check().code, 0); }

TEST_F(DirectoryTest, ARecordingWithoutRefusalsPasses) {
  Edit("manifest.json", "\"unsupported\":", "\"left_out\":");
  EXPECT_EQ(Check().code, 0);
}

TEST_F(DirectoryTest, AChangedConfigurationFailsWithALine) {
  Edit("manifest.json", "\"preserve_max_val\":true", "\"preserve_max_val\":false");
  const MainResult result = Check();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("FAILED readme.quantizer_linspace: "));
  EXPECT_THAT(result.out, HasSubstr("passed 3, failed 1, not supported 0\n"));
}

TEST_F(DirectoryTest, AnUnknownFeatureOrFieldIsNotSupported) {
  Edit("manifest.json", "\"readme_matmul\"", "\"readme_matmul_2\"");
  Edit("manifest.json", "\"calibration_axes\":[-1]", "\"stops\":1,\"calibration_axes\":[-1]");
  Edit("manifest.json", "\"layers\":\"Dense(16) relu Dense(4)\"", "\"layers\":\"Dense(16) gelu Dense(4)\"");
  const MainResult result = Main({absl::StrCat("--golden_dir=", dir_), "--families=readme", "--verbose"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("NOT SUPPORTED readme.aqt_matmul_int8: no public API for the feature readme_matmul_2\n"));
  EXPECT_THAT(result.out,
              HasSubstr("NOT SUPPORTED readme.quantizer_linspace: no public API for the quantizer field stops\n"));
  EXPECT_THAT(result.out, HasSubstr("NOT SUPPORTED readme.mlp_fp_old_prng: no public API for the layer gelu\n"));
}

TEST_F(DirectoryTest, MissingFiles) {
  ExpectBad("dot_general.safetensors", "dot_general");
  ASSERT_TRUE(fs_.Remove(io::JoinPath(dir_, "manifest.json")).ok());
  ExpectBad("manifest.json");
}

TEST_F(DirectoryTest, AnotherFileThanRecorded) {
  Edit("readme.safetensors", "readme.aqt", "readme.aqu");
  ExpectBad("readme.safetensors: its SHA-256 is ");
}

TEST_F(DirectoryTest, UnknownFamily) { ExpectBad("there is no family readmee", "readme,readmee"); }

TEST_F(DirectoryTest, AManifestThatIsNoJson) {
  Edit("manifest.json", "{\"format_version\"", "\"format_version\"");
  ExpectBad("parse error");
}

TEST_F(DirectoryTest, AManifestWithoutAField) {
  Edit("manifest.json", "\"arithmetic\"", "\"arithmetics\"");
  ExpectBad("arithmetic");
}

TEST_F(DirectoryTest, UnknownArithmeticAndVersion) {
  Edit("manifest.json", "\"xla\"", "\"xlb\"");
  ExpectBad("arithmetic is xlb, expected xla or ieee");
  Edit("manifest.json", "\"format_version\": 1", "\"format_version\": 2");
  ExpectBad("format_version is 2");
}

TEST_F(DirectoryTest, ToleranceThatIsNotUnderstood) {
  Edit("manifest.json", "\"kind\":\"exact\"", "\"kind\":\"close\"");
  ExpectBad("unknown tolerance kind close");
  Edit("manifest.json", "\"kind\":\"close\"", "\"kind\":\"exact\",\"ulps\":2");
  ExpectBad("unknown tolerance field ulps");
}

TEST_F(DirectoryTest, ATensorThatTheFileLacksOrHasOtherwise) {
  Edit("manifest.json", "readme.aqt_matmul_int8/a\"", "readme.aqt_matmul_int8/b\"");
  ExpectBad("tensor readme.aqt_matmul_int8/b is not in ");
  Edit("manifest.json", "readme.aqt_matmul_int8/b\"", "readme.aqt_matmul_int8/w\"");
  ExpectBad("tensor readme.aqt_matmul_int8/w is F32[4,5] in ");
}

TEST_F(DirectoryTest, AConfigurationWithoutAField) {
  Edit("manifest.json", "\"preserve_zero\":true,\"preserve_max_val\"", "\"preserve_max_val\"");
  ExpectBad("preserve_zero");
}

TEST_F(DirectoryTest, AnotherNumberOfCases) {
  Edit("manifest.json", "\"family\":\"readme\",\"feature\":\"quantize\"",
       "\"family\":\"calibration\",\"feature\":\"quantize\"");
  ExpectBad("family readme has 3 cases and ");
}

TEST(Arguments, BadOnesPrintTheUsage) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{},
                                                    {"--golden_dir="},
                                                    {absl::StrCat("--golden_dir=", kStock), "--famlies=readme"},
                                                    {kStock}}) {
    const MainResult result = Main(arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("\nusage: golden_check"));
  }
}

TEST(Arguments, BadOnesAreNamed) {
  const std::string dir = absl::StrCat("--golden_dir=", kStock);
  EXPECT_THAT(Main({dir, "--famlies=readme"}).err, StartsWith("golden_check: unknown argument --famlies=readme\n"));
  EXPECT_THAT(Main({dir, "--ways=plan,packed"}).err,
              StartsWith("golden_check: there is no way \"packed\"; there are plan, program and prepared\n"));
  EXPECT_THAT(Main({dir, "--ways=plan,plan"}).err, StartsWith("golden_check: the way plan comes twice\n"));
  EXPECT_THAT(Main({dir, "--compat=both"}).err, StartsWith("golden_check: unknown argument --compat=both\n"));
  EXPECT_THAT(Main({"--verbose"}).err, StartsWith("golden_check: --golden_dir is missing\n"));
  EXPECT_THAT(Main({dir, "--fixed=f"}).err, StartsWith("golden_check: --fixed needs --compat=default\n"));
  EXPECT_THAT(Main({dir, "--compat=default", "--update_fixed"}).err,
              StartsWith("golden_check: --update_fixed needs --fixed=FILE\n"));
  EXPECT_THAT(Main({dir, "--compat=default", "--update_fixed", "--fixed=f", "--families=readme"}).err,
              StartsWith("golden_check: --update_fixed takes all families, not --families\n"));
}

TEST(Arguments, HelpIsNoError) {
  const MainResult result = Main({"--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, StartsWith("usage: golden_check --golden_dir=DIR"));
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace aqt::golden
