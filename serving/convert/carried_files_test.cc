#include "serving/convert/carried_files.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

// A folder with a model, config.json, tokenizer.json and 1_Pooling/config.json.
class CarriedFilesTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    WriteSmallModel(At("in"), DType::kF32);
  }
  void Write(const std::vector<std::string>& names) {
    for (const std::string& name : names) WriteText(io::JoinPath(At("in"), name), "12345678");
  }
  absl::StatusOr<CarriedFiles> Find(const std::vector<std::string>& exclude = {}) {
    return FilesToCarry(io::Checkpoint::Open(Fs(), At("in")).value(), exclude);
  }
};

TEST_F(CarriedFilesTest, WeightsInOtherFormatsStayBehind) {
  Write({"pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "tf_model.h5",
         "flax_model.msgpack", "consolidated.00.pth", "any-name.gguf", "model.onnx", "model.ckpt", "rust_model.ot"});
  const CarriedFiles files = *Find();
  EXPECT_THAT(files.copied, ElementsAre("1_Pooling/config.json", "tokenizer.json"));
  EXPECT_EQ(files.warnings.size(), 10u);
  EXPECT_EQ(files.warnings[0], "any-name.gguf was not copied: it holds the weights in another format");
  EXPECT_EQ(files.config_file, At("in/config.json"));
}

TEST_F(CarriedFilesTest, WhatMayBeAPartOfTheModelIsCopied) {
  Write({"vocoder.pth", "optimizer.pt", "training_args.bin", "speaker.npz", "1_Pooling/pytorch_model.bin"});
  const CarriedFiles files = *Find();
  EXPECT_THAT(files.copied, ElementsAre("1_Pooling/config.json", "1_Pooling/pytorch_model.bin", "optimizer.pt",
                                        "speaker.npz", "tokenizer.json", "training_args.bin", "vocoder.pth"));
  EXPECT_THAT(files.warnings, IsEmpty());
  Write({"vocoder.pth"});
  const std::vector<CopiedFile> copied = *CopiedFiles(Fs(), files);
  ASSERT_EQ(copied.size(), 7u);
  EXPECT_EQ(copied[2].name, "optimizer.pt");
  EXPECT_EQ(copied[2].bytes, 8);
  const int64_t pooling = 8 + Fs().Stat(At("in/1_Pooling/config.json"))->size;
  EXPECT_THAT(DescribeCarried(copied), AllOf(StartsWith("7 other files, "), HasSubstr("optimizer.pt 8 B"),
                                             HasSubstr(absl::StrCat(": 1_Pooling/ ", pooling, " B, "))));
  EXPECT_EQ(DescribeCarried({}), "");
}

TEST_F(CarriedFilesTest, AnAdapterIsWholeOrNotThere) {
  Write({"adapter_config.json"});
  EXPECT_THAT(Find()->copied, ElementsAre("1_Pooling/config.json", "tokenizer.json"));
  EXPECT_THAT(Find()->warnings,
              ElementsAre(HasSubstr("adapter_config.json was not copied: it belongs to an adapter, and "
                                    "the adapter's weights are not copied with it")));
  Write({"adapter_model.bin"});
  EXPECT_THAT(Find()->copied,
              ElementsAre("1_Pooling/config.json", "adapter_config.json", "adapter_model.bin", "tokenizer.json"));
  EXPECT_THAT(Find({"adapter_model.*"})->copied, ElementsAre("1_Pooling/config.json", "tokenizer.json"));
  EXPECT_THAT(Find({"adapter_config.json"})->copied, ElementsAre("1_Pooling/config.json", "tokenizer.json"));
}

TEST_F(CarriedFilesTest, PointersAreNamed) {
  EXPECT_THAT(*FindPointers(Fs(), *Find()), IsEmpty());
  WriteText(At("in/tokenizer.model"), "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
  EXPECT_THAT(*FindPointers(Fs(), *Find()), ElementsAre(HasSubstr("tokenizer.model is a Git LFS pointer")));
}

TEST_F(CarriedFilesTest, Exclude) {
  Write({"optimizer.pt", "1_Pooling/a.pt"});
  EXPECT_THAT(Find({"*.pt", "tokenizer*"})->copied, ElementsAre("1_Pooling/config.json"));
  EXPECT_THAT(Find({"1_Pooling/"})->copied, ElementsAre("optimizer.pt", "tokenizer.json"));
  EXPECT_THAT(Find({"*.pt", "*.none"})->warnings, ElementsAre("--exclude *.none matches no file that would be copied"));
  for (const char* glob : {"*", "*.json", "config.json", "model.safetensors", "/x"}) {
    EXPECT_EQ(Find({glob}).status().code(), absl::StatusCode::kInvalidArgument) << glob;
  }
  EXPECT_THAT(std::string(Find({"*.safetensors"}).status().message()),
              HasSubstr("--exclude *.safetensors matches model.safetensors, which a conversion rewrites"));
}

}  // namespace
}  // namespace aqt::serving
