#ifndef AQT_SERVING_CLI_COMMAND_TEST_FIXTURE_H_
#define AQT_SERVING_CLI_COMMAND_TEST_FIXTURE_H_

#include <unistd.h>

#include <sstream>
#include <string>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/cli/process.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {

// The command as a user runs it, in a folder with the model `in`.
class CommandTest : public ::testing::Test {
 protected:
  // `main`: AqtMain or ConvertMain.
  explicit CommandTest(CommandMain main) : main_(main) {}
  void SetUp() override {
    ASSERT_NE(::getcwd(start_, sizeof(start_)), nullptr);
    root_ = MakeTestFolder();
    ASSERT_EQ(::chdir(root_.c_str()), 0);
    WriteSmallModel("in", DType::kF32);
  }
  void TearDown() override { ASSERT_EQ(::chdir(start_), 0); }

  int Run(const std::vector<std::string>& args) {
    std::ostringstream out, err;
    const int code = main_(args, io::LocalFileSystem(), {out, err});
    out_ = out.str();
    err_ = err.str();
    return code;
  }
  // Expects this exit code, exactly one error line with this text, no standard output, and nothing written.
  void ExpectError(const std::vector<std::string>& args, int code, const std::string& message) {
    const std::vector<std::string> before = ListTree(root_);
    EXPECT_EQ(Run(args), code) << err_;
    EXPECT_THAT(err_, ::testing::AllOf(::testing::StartsWith("error: "), ::testing::HasSubstr(message)));
    EXPECT_THAT(out_, ::testing::IsEmpty());
    EXPECT_EQ(ListTree(root_), before);
  }

  const CommandMain main_;
  char start_[4096];
  std::string root_, out_, err_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_COMMAND_TEST_FIXTURE_H_
