#include "serving/convert/file_glob.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The matching files of a training run's folder.
std::vector<std::string> Matching(const std::string& glob) {
  std::vector<std::string> result;
  for (const std::string path :
       {"a.pth", "checkpoint-1", "checkpoint-500/model.safetensors", "checkpoint-500/sub/a.pth", "original/a.pth",
        "original/params.json", "optimizer.pt"}) {
    if (FileGlob::Parse(glob)->Matches(path)) result.push_back(path);
  }
  return result;
}

TEST(FileGlobTest, Matches) {
  EXPECT_THAT(Matching("*.pth"), ElementsAre("a.pth", "checkpoint-500/sub/a.pth", "original/a.pth"));
  EXPECT_THAT(Matching("original"), ElementsAre("original/a.pth", "original/params.json"));
  EXPECT_THAT(Matching("original/"), ElementsAre("original/a.pth", "original/params.json"));
  EXPECT_THAT(Matching("original/*"), ElementsAre("original/a.pth", "original/params.json"));
  EXPECT_THAT(Matching("original/**"), ElementsAre("original/a.pth", "original/params.json"));
  EXPECT_THAT(Matching("original/*.pth"), ElementsAre("original/a.pth"));
  EXPECT_THAT(Matching("./original/a.pth"), ElementsAre("original/a.pth"));
  EXPECT_THAT(Matching("**/a.pth"), ElementsAre("a.pth", "checkpoint-500/sub/a.pth", "original/a.pth"));
  EXPECT_THAT(Matching("*/a.pth"), ElementsAre("original/a.pth"));
  EXPECT_THAT(Matching("checkpoint-*/"), ElementsAre("checkpoint-500/model.safetensors", "checkpoint-500/sub/a.pth"));
  EXPECT_THAT(Matching("checkpoint-?"), ElementsAre("checkpoint-1"));
  EXPECT_THAT(Matching("[ab].pth"), ElementsAre("a.pth", "checkpoint-500/sub/a.pth", "original/a.pth"));
  EXPECT_THAT(Matching("pth"), IsEmpty());
}

TEST(FileGlobTest, Refuses) {
  for (const char* text : {"", "/", "/etc", "../x", "a/../b", "a//b", ".", "./"}) {
    const absl::Status status = FileGlob::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not a pattern of files in IN")) << text;
  }
}

}  // namespace
}  // namespace aqt::serving
