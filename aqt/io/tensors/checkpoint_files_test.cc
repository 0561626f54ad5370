#include "aqt/io/tensors/checkpoint_files.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/file.h"
#include "aqt/io/file_test_fixture.h"
#include "aqt/io/tensors/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Code = absl::StatusCode;

TEST(ShardNameTest, Parses) {
  const auto expect = [](const char* file, const char* stem, int64_t number, int64_t count, const char* second) {
    const std::optional<ShardName> name = ParseShardName(file);
    ASSERT_TRUE(name.has_value()) << file;
    EXPECT_EQ(name->stem, stem) << file;
    EXPECT_EQ(name->number, number) << file;
    EXPECT_EQ(name->count, count) << file;
    EXPECT_EQ(name->Name(number), file);
    EXPECT_EQ(name->Name(2), second);
  };
  expect("model-00001-of-00003.safetensors", "model", 1, 3, "model-00002-of-00003.safetensors");
  expect("model.fp16-00001-of-00003.safetensors", "model.fp16", 1, 3, "model.fp16-00002-of-00003.safetensors");
  expect("x-1-of-2.fp16.safetensors", "x.fp16", 1, 2, "x-2-of-2.fp16.safetensors");
  expect("model_00000_of_00004.safetensors", "model", 0, 4, "model_00002_of_00004.safetensors");
  expect("model.safetensors-00001-of-000163.safetensors", "model", 1, 163,
         "model.safetensors-00002-of-000163.safetensors");
  for (const char* file :
       {"model.safetensors", "model-00001-of-00002.bin", "best-of-both.safetensors", "model-3-of-2.safetensors",
        "model-1-of-0.safetensors", "a-of-2.safetensors", "model-1-of-99999999999999999999.safetensors"}) {
    EXPECT_FALSE(ParseShardName(file).has_value()) << file;
  }
}

TEST(ShardNameTest, WhatIsMissing) {
  EXPECT_THAT(MissingOfSets({"m-1-of-2.safetensors", "m-2-of-2.safetensors", "mtp.safetensors"}), IsEmpty());
  EXPECT_THAT(MissingOfSets({"m-1-of-3.safetensors", "m-3-of-3.safetensors", "x-2-of-2.safetensors"}),
              ElementsAre("m-2-of-3.safetensors", "x-1-of-2.safetensors"));
  EXPECT_THAT(MissingOfSets({"m-0-of-2.safetensors", "m-1-of-2.safetensors"}), IsEmpty());
  EXPECT_EQ(MissingOfSets({"m-1-of-999999999999.safetensors"}).size(), 1000u);
}

TEST(StemOfIndexTest, Parses) {
  EXPECT_EQ(StemOfIndex("model.safetensors.index.json"), "model");
  EXPECT_EQ(StemOfIndex("diffusion_pytorch_model.safetensors.index.fp16.json"), "diffusion_pytorch_model.fp16");
  for (const char* file : {"pytorch_model.bin.index.json", ".safetensors.index.json", "model.safetensors.index.txt",
                           "model.safetensors.indexes.json", "model.safetensors.index..json"}) {
    EXPECT_FALSE(StemOfIndex(file).has_value()) << file;
  }
}

TEST(AdapterTest, NamesOfWeights) {
  for (const char* file : {"adapter_model.safetensors", "adapter_model.bin", "adapter_model-00001-of-00002.safetensors",
                           "adapter_model.safetensors.index.json", "pytorch_lora_weights.safetensors",
                           "adapters.safetensors", "0000100_adapters.safetensors"}) {
    EXPECT_TRUE(IsAdapterWeights(file)) << file;
  }
  for (const char* file : {"model.safetensors", "adapter_config.json", "adapter.safetensors"}) {
    EXPECT_FALSE(IsAdapterWeights(file)) << file;
  }
}

// Folders of damaged files: only names and indices matter here.
class CheckpointFilesTest : public FileTest {
 protected:
  void Write(const std::string& name, const std::string& content = "x") {
    ASSERT_TRUE(WriteFile(LocalFileSystem(), Path(name), content, kOverwrite).ok());
  }
  void WriteIndexOf(const std::string& name, const std::vector<std::string>& files) {
    WeightMap map;
    for (const std::string& file : files) map.emplace_back(absl::StrCat("in ", file), file);
    Write(name, MakeIndex(map, 0).value());
  }
  absl::StatusOr<CheckpointFiles> Find() const {
    return FindCheckpointFiles(LocalFileSystem(), folder_, Names(), /*leave_out=*/"");
  }
  void ExpectRefused(Code code, const std::string& cause) const {
    const absl::Status status = Find().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cause));
  }
};

TEST_F(CheckpointFilesTest, AWholeSetNeedsNoIndex) {
  Write("model-00002-of-00002.safetensors");
  ExpectRefused(Code::kNotFound, "lacks 1 of 2 files of a checkpoint (model-00001-of-00002.safetensors)");
  Write("model-00001-of-00002.safetensors");
  EXPECT_THAT(Find()->shards, ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_EQ(Find()->stem, "model");
  EXPECT_EQ(Find()->index, "");
  Write("model-00001-of-00003.safetensors");  // of another set: ambiguous
  ExpectRefused(Code::kFailedPrecondition, "several .safetensors files");
}

TEST_F(CheckpointFilesTest, AnIndexOfAnotherName) {
  Write("unet-00001-of-00002.safetensors");
  Write("unet-00002-of-00002.safetensors");
  WriteIndexOf("diffusion_pytorch_model.safetensors.index.json",
               {"unet-00001-of-00002.safetensors", "unet-00002-of-00002.safetensors"});
  EXPECT_EQ(Find()->index, "diffusion_pytorch_model.safetensors.index.json");
  EXPECT_EQ(Find()->stem, "diffusion_pytorch_model");
  EXPECT_EQ(Find()->shards.size(), 2u);
  Write("diffusion_pytorch_model.safetensors");
  ExpectRefused(Code::kFailedPrecondition,
                "has both diffusion_pytorch_model.safetensors and "
                "diffusion_pytorch_model.safetensors.index.json");
  Write("model.safetensors");
  EXPECT_THAT(Find()->shards, ElementsAre("model.safetensors"));
}

TEST_F(CheckpointFilesTest, AVariantIsTakenWhenItIsAlone) {
  Write("model.fp16.safetensors");
  EXPECT_EQ(Find()->stem, "model.fp16");
  Write("model.safetensors");
  EXPECT_THAT(Find()->shards, ElementsAre("model.safetensors"));
  ASSERT_TRUE(LocalFileSystem().Remove(Path("model.safetensors")).ok());
  Write("model.v2.safetensors");  // not a known variant
  ExpectRefused(Code::kFailedPrecondition, "several .safetensors files");
}

TEST_F(CheckpointFilesTest, AnIndexThatLeavesOutAFileOfItsSet) {
  for (const char* name : {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"}) Write(name);
  WriteIndexOf(kIndexFile, {"model-00001-of-00003.safetensors", "mtp.safetensors"});
  ExpectRefused(Code::kDataLoss, "model.safetensors.index.json leaves out model-00002-of-00003.safetensors");
  WriteIndexOf(kIndexFile, {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"});
  ExpectRefused(Code::kNotFound, "lacks model-00003-of-00003.safetensors");
}

TEST_F(CheckpointFilesTest, AnAdapterAlone) {
  Write("adapter_config.json");
  Write("adapter_model.bin");
  ExpectRefused(Code::kNotFound, "but an adapter, adapter_model.bin: merge it into its base model");
  Write("adapter_model.safetensors");
  EXPECT_THAT(Find()->shards, ElementsAre("adapter_model.safetensors"));
  Write("only.safetensors");
  EXPECT_THAT(Find()->shards, ElementsAre("only.safetensors"));
}

TEST_F(CheckpointFilesTest, AFolderOfOtherFormats) {
  Write("config.json");
  ExpectRefused(Code::kNotFound, "has no .safetensors file");
  Write("training_args.bin");
  EXPECT_THAT(std::string(Find().status().message()), Not(HasSubstr("training_args")));
  Write("model.gguf");
  ExpectRefused(Code::kNotFound, "but model.gguf (GGUF): it is a quantized or converted copy");
  Write("consolidated.00.pth");
  ExpectRefused(Code::kNotFound, "but consolidated.00.pth (PyTorch): load the model and save it as safetensors");
}

TEST_F(CheckpointFilesTest, AFolderOfFolders) {
  const FileSystem& fs = LocalFileSystem();
  for (const char* name : {"blobs", "refs", "snapshots", "snapshots/abc", "snapshots/def"}) {
    ASSERT_TRUE(fs.CreateFolder(Path(name)).ok());
  }
  Write("snapshots/abc/model.safetensors");
  ExpectRefused(Code::kNotFound, "this is a cache of the Hugging Face hub, with the models " + Path("snapshots/abc") +
                                     ", " + Path("snapshots/def"));
  const auto find = [&](const std::string& folder) {
    return std::string(FindCheckpointFiles(fs, folder, fs.List(folder).value(), "").status().message());
  };
  EXPECT_THAT(find(Path("snapshots")), AllOf(HasSubstr(Path("snapshots/abc")), Not(HasSubstr(Path("snapshots/def")))));
  ASSERT_TRUE(fs.CreateFolder(Path("pipeline")).ok());
  ASSERT_TRUE(fs.CreateFolder(Path("pipeline/transformer")).ok());
  Write("pipeline/transformer/diffusion_pytorch_model.safetensors");
  EXPECT_THAT(find(Path("pipeline")),
              HasSubstr("these folders in it have such files: " + Path("pipeline/transformer")));
}

TEST_F(CheckpointFilesTest, TheWholeOfAFile) {
  const auto find = [&](const char* name) { return FindWholeOfFile(LocalFileSystem(), Path(name)); };
  Write("model.safetensors");
  Write("model-00001-of-00001.safetensors");
  Write("model-00001-of-00002.safetensors");
  EXPECT_FALSE(find("model.safetensors").has_value());
  EXPECT_FALSE(find("model-00001-of-00001.safetensors").has_value());
  EXPECT_EQ(find("model-00001-of-00002.safetensors")->num_files, 2);
  EXPECT_THAT(find("model-00001-of-00002.safetensors")->missing, ElementsAre("model-00002-of-00002.safetensors"));
  Write("mtp.safetensors");
  WriteIndexOf(kIndexFile, {"model-00001-of-00001.safetensors", "mtp.safetensors"});
  EXPECT_EQ(find("mtp.safetensors")->index, kIndexFile);
  EXPECT_THAT(find("mtp.safetensors")->missing, IsEmpty());
}

}  // namespace
}  // namespace aqt::io
