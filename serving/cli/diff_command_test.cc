#include <atomic>
#include <sstream>
#include <string>
#include <vector>

#include "aqt/core/dtype.h"
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
using ::testing::IsEmpty;
using ::testing::Not;

class DiffCommandTest : public CommandTest {
 protected:
  DiffCommandTest() : CommandTest(AqtMain) {}
};

TEST_F(DiffCommandTest, EqualAndDifferent) {
  EXPECT_EQ(Run({"diff", "in", "in"}), 0);
  EXPECT_EQ(out_, "6 tensors equal, 0 differ, 0 only in A, 0 only in B\n");
  EXPECT_THAT(err_, IsEmpty());
  EXPECT_EQ(Run({"diff", "in", "in", "--bitwise"}), 0);
  EXPECT_EQ(out_, "6 tensors equal byte for byte, 0 differ, 0 only in A, 0 only in B\n");
  WriteShardedModel("set", DType::kBF16);
  EXPECT_EQ(Run({"diff", "in", "set"}), 1);
  EXPECT_THAT(out_, AllOf(HasSubstr("lm_head.weight"), HasSubstr("F32[16,32]"), HasSubstr("BF16[16,32]"),
                          HasSubstr(" of 512, first [0,"), HasSubstr("0 tensors equal, 6 differ")));
}

TEST_F(DiffCommandTest, QuantizedCheckpoints) {
  ASSERT_EQ(Run({"convert", "in", "a", "--preset", "w8a8_dynamic", "--progress", "never"}), 0);
  ASSERT_EQ(Run({"convert", "in", "b", "--preset", "w8a16", "--progress", "never"}), 0);
  EXPECT_EQ(Run({"diff", "in", "a"}), 1);
  EXPECT_THAT(out_, AllOf(HasSubstr("only in B: model.layers.0.mlp.up_proj.weight_scale F32[7,1]"),
                          HasSubstr("config.json: quantization_config: absent in A, {")));
  // The values that are stored differ from the original; those of two layouts are the same.
  EXPECT_EQ(Run({"diff", "in", "a", "--dequantize"}), 1);
  EXPECT_THAT(out_, AllOf(HasSubstr("4 tensors equal, 2 differ, 0 only in A, 0 only in B\n"),
                          HasSubstr("note: the quantization_config differs\n")));
  EXPECT_EQ(Run({"diff", "a", "b"}), 1);
  EXPECT_THAT(out_, HasSubstr("only in B: model.layers.0.mlp.up_proj.weight_packed I32[7,8]"));
  EXPECT_EQ(Run({"diff", "a", "b", "--dequantize"}), 0) << out_;
  ExpectError({"diff", "a", "b", "--dequantize", "--bitwise"}, 2, "leave out one");
}

TEST_F(DiffCommandTest, Errors) {
  ExpectError({"diff", "in"}, 2, "B");
  ExpectError({"diff", "in", "gone"}, 4, "gone");
  WriteText("damaged.safetensors", ReadText("in/model.safetensors") + "x");
  ExpectError({"diff", "damaged.safetensors", "in"}, 3, "damaged.safetensors");
  WriteSmallModel("broken", DType::kF32);
  WriteText("broken/config.json", "{");
  ExpectError({"diff", "in", "broken"}, 3, "broken/config.json: line 1");
}

TEST_F(DiffCommandTest, NamesAreSafeToPrint) {
  WriteTensors("a.safetensors", {{"\x1b[31m", MakeWeight(DType::kF32, {3, 4}, 1)}});
  WriteTensors("b.safetensors", {{"\x1b[31m", MakeWeight(DType::kF32, {3, 4}, 2)}});
  EXPECT_EQ(Run({"diff", "a.safetensors", "b.safetensors"}), 1);
  EXPECT_THAT(out_, AllOf(HasSubstr("\\x1b[31m"), Not(HasSubstr("\x1b"))));
}

TEST_F(DiffCommandTest, AnInterrupt) {
  const std::atomic<bool> interrupted{true};
  std::ostringstream out, err;
  EXPECT_EQ(AqtMain({"diff", "in", "in"}, io::LocalFileSystem(), {out, err, false, &interrupted}), 130);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace aqt::serving
