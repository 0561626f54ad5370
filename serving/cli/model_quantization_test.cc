// A model that is quantized while it is loaded prints what its converted folder prints.

#include <string>
#include <vector>

#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/cli/command.h"
#include "serving/cli/command_test_fixture.h"

namespace aqt::serving {
namespace {

using ::testing::HasSubstr;

class ModelQuantizationTest : public CommandTest {
 protected:
  ModelQuantizationTest() : CommandTest(AqtMain) {}
  void SetUp() override {
    CommandTest::SetUp();
    model_ = io::JoinPath(start_, "tests/golden/models/bert");
  }
  // What `aqt run` prints.
  std::string Embedding(const std::string& folder, const std::vector<std::string>& options) {
    std::vector<std::string> args = {"run", folder, "--text", "w7 w8 w9"};
    args.insert(args.end(), options.begin(), options.end());
    EXPECT_EQ(Run(args), 0) << err_;
    return out_;
  }
  std::string model_;
};

TEST_F(ModelQuantizationTest, APresetOfConvertGivesWhatTheConvertedFolderGives) {
  const std::string floats = Embedding(model_, {});
  for (const char* preset : {"w8a8_dynamic", "w8a16", "fp8_dynamic", "W8A8"}) {
    ASSERT_EQ(Run({"convert", model_, preset, "--preset", preset, "--progress", "never"}), 0) << err_;
    const std::string converted = Embedding(preset, {});
    EXPECT_THAT(err_, HasSubstr("12 products are computed with them as they are stored"));
    EXPECT_EQ(Embedding(model_, {"--preset", preset}), converted);
    EXPECT_NE(converted, floats);
  }
  EXPECT_NE(Embedding(model_, {"--preset", "int8_all"}), floats);
}

TEST_F(ModelQuantizationTest, Errors) {
  ExpectError({"run", model_, "--text", "w7", "--preset", "w9a9"}, 2, "w9a9");
  EXPECT_THAT(err_, HasSubstr("w8a8_dynamic"));
  EXPECT_THAT(err_, HasSubstr("int8_all"));
  ExpectError({"run", model_, "--text", "w7", "--preset", "gguf_q4_k"}, 2, "a type of GGUF files");
  ExpectError({"run", model_, "--text", "w7", "--preset", "w8a8_static"}, 2, "--calibration");
  ExpectError({"run", model_, "--text", "w7", "--preset", "int8_all", "--calibration", "x.safetensors"}, 2,
              "--calibration is for presets of `aqt convert`");
}

}  // namespace
}  // namespace aqt::serving
