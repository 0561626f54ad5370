// `aqt run` and `aqt bench`, with a small BERT.

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/cli/command.h"
#include "serving/cli/command_test_fixture.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelCommandsTest : public CommandTest {
 protected:
  ModelCommandsTest() : CommandTest(AqtMain) {}
  void SetUp() override {
    CommandTest::SetUp();
    model_ = io::JoinPath(start_, "tests/golden/models/bert");
  }
  // Runs with a standard input.
  int RunWith(const std::string& input, const std::vector<std::string>& args) {
    std::istringstream in(input);
    std::ostringstream out, err;
    Console console{out, err};
    console.in = &in;
    const int code = AqtMain(args, io::LocalFileSystem(), console);
    out_ = out.str();
    err_ = err.str();
    return code;
  }
  std::string model_;
};

TEST_F(ModelCommandsTest, ManyTextsHaveTheBitsAndTheOrderOfSingleOnes) {
  std::string file, want;
  for (int i = 0; i < 40; ++i) {
    std::string text = absl::StrCat("w", 5 + i);
    for (int j = 0; j < i % 7; ++j) absl::StrAppend(&text, " w", 5 + (i + 3 * j) % 45);
    absl::StrAppend(&file, text, "\n");
    ASSERT_EQ(Run({"run", model_, "--text", text, "--threads", "1"}), 0) << err_;
    absl::StrAppend(&want, out_);
  }
  WriteText("texts.txt", file);
  EXPECT_EQ(Run({"run", model_, "--file", "texts.txt"}), 0) << err_;
  EXPECT_EQ(out_, want);
  EXPECT_EQ(RunWith(file, {"run", model_, "--file", "-", "--threads", "3"}), 0) << err_;
  EXPECT_EQ(out_, want);
}

TEST_F(ModelCommandsTest, TextsThatAreMissingOrEmpty) {
  ExpectError({"run", model_}, 2, "there is no text; give --text TEXT");
  EXPECT_EQ(RunWith("", {"run", model_, "--file", "-"}), 2);
  EXPECT_THAT(err_, HasSubstr("there is no text"));
  ExpectError({"run", model_, "--file", "-"}, 2, "there is no standard input");
  ExpectError({"run", model_, "--text", "w7", "--threads", "-1"}, 2, "--threads");
  EXPECT_EQ(RunWith("w7\n\nw8", {"run", model_, "--file", "-", "--json"}), 0) << err_;  // an empty line is a text
  EXPECT_THAT(out_, HasSubstr("\"tokens\": 2"));
}

TEST_F(ModelCommandsTest, FilesOfOtherSystems) {
  EXPECT_EQ(RunWith("w7 w8\n\nw9", {"run", model_, "--file", "-", "--json"}), 0) << err_;
  const std::string want = out_;
  EXPECT_EQ(RunWith("\xef\xbb\xbfw7 w8\r\n\r\nw9\r\n", {"run", model_, "--file", "-", "--json"}), 0) << err_;
  EXPECT_EQ(out_, want);
  EXPECT_THAT(err_, Not(HasSubstr("UTF-8")));
  EXPECT_EQ(RunWith("w7\nw8 \xff\n", {"run", model_, "--file", "-"}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("text 2: it is not UTF-8"));
  ExpectError({"run", io::JoinPath(model_, "config.json"), "--text", "w7"}, 2, "is a file; expected the folder");
}

// Neither brackets nor commas mean anything in a text.
TEST_F(ModelCommandsTest, TextsAreTakenAsTheyAre) {
  for (const std::string text : {"[w7, w8]", "[UNK] w7 [PAD]", "[]", "w7,w8", "", "%%", "-"}) {
    EXPECT_EQ(RunWith(text + "\n", {"run", model_, "--file", "-", "--json"}), 0) << err_;
    const std::string want = out_;
    EXPECT_EQ(Run({"run", model_, "--text", text, "--json"}), 0) << text << err_;
    EXPECT_EQ(out_, want) << text;
  }
}

TEST_F(ModelCommandsTest, AReaderThatIsGoneEndsQuietly) {
  std::istringstream in(std::string(10000, '\n'));
  std::ostringstream out, err;
  out.setstate(std::ios::badbit);
  Console console{out, err};
  console.in = &in;
  console.reader_is_gone = [] { return true; };
  EXPECT_EQ(AqtMain({"run", model_, "--file", "-", "--progress", "never"}, io::LocalFileSystem(), console), 0);
  EXPECT_THAT(err.str(), Not(HasSubstr("error")));
}

TEST_F(ModelCommandsTest, BenchMeasuresShapes) {
  EXPECT_EQ(Run({"bench", model_, "--shapes", "1x4,3x12", "--seconds", "0", "--threads", "2"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("weights as stored"), HasSubstr("2 threads"), HasSubstr("\n1x4 "),
                          HasSubstr("\n3x12 "), HasSubstr("weights"), HasSubstr(" %")));
  EXPECT_EQ(Run({"bench", model_, "--shapes", "2x8", "--seconds", "0", "--preset", "int8_all"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("--preset int8_all"));
}

TEST_F(ModelCommandsTest, ShapesThatCannotBeMeasured) {
  ExpectError({"bench", model_, "--shapes", "1x4,7"}, 2, "7 is not a shape");
  ExpectError({"bench", model_, "--shapes", "0x4"}, 2, "0x4 is not a shape");
  ExpectError({"bench", model_, "--shapes", "1x2x3"}, 2, "1x2x3 is not a shape");
  ExpectError({"bench", model_, "--shapes", "1x13"}, 2, "the model reads 12");
  ExpectError({"bench", model_, "--shapes", "9000000x12"}, 2, "more than 1048576 tokens");
  ExpectError({"bench", "in", "--shapes", "1x4"}, 5, "config.json");
  ExpectError({"bench", "gone"}, 4, "gone");
}

}  // namespace
}  // namespace aqt::serving
