#include "examples/common/parse_flags.h"

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace examples {
namespace {

using ::testing::HasSubstr;

class ParseFlagsTest : public ::testing::Test {
 protected:
  std::optional<int> Parse(const std::vector<std::string>& args) {
    CLI::App app("An example.", "example");
    app.add_option("--out", out_flag_, "folder");
    out_.str("");
    err_.str("");
    return ParseFlags(app, args, out_, err_);
  }
  std::string out_flag_;
  std::ostringstream out_, err_;
};

TEST_F(ParseFlagsTest, ReadsFlagsInOrder) {
  EXPECT_EQ(Parse({"--out", "folder"}), std::nullopt);
  EXPECT_EQ(out_flag_, "folder");
  EXPECT_EQ(out_.str() + err_.str(), "");
}

TEST_F(ParseFlagsTest, HelpAndMistakesEndTheProgram) {
  EXPECT_EQ(Parse({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("An example."));
  EXPECT_EQ(Parse({"--output", "x"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--output"));
  EXPECT_THAT(err_.str(), HasSubstr("; example --help tells more\n"));
  EXPECT_EQ(Parse({"--out=", "x"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("error: --out= has no value"));
}

}  // namespace
}  // namespace examples
