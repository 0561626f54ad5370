#include "aqt/io/containers/flax_tree.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/io/containers/open_container.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Golden: models of flax, and the tensors that PyTorch has for the same models (testdata/README.md).
class RecordedModels : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedModels, HaveTheTensorsOfPyTorch) {
  const std::string path = JoinPath("aqt/io/containers/testdata", GetParam());
  CheckpointOptions options;
  options.open_other = OpenContainers();
  const absl::StatusOr<Checkpoint> file = Checkpoint::Open(LocalFileSystem(), path, options);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(IsFlaxTree(*file));
  const absl::StatusOr<std::unique_ptr<TensorSource>> tree = OpenFlaxTree(*file);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_THAT((*tree)->warnings(), IsEmpty());
  const Checkpoint want = *Checkpoint::Open(LocalFileSystem(), absl::StrCat(path, ".torch.safetensors"));
  EXPECT_EQ((*tree)->tensors().size(), want.tensors().size());
  for (const TensorInfo& tensor : want.tensors()) {
    const absl::StatusOr<Array> got = (*tree)->ReadArray(tensor.name);
    ASSERT_TRUE(got.ok()) << got.status();
    const Array expected = *want.ReadArray(tensor);
    EXPECT_TRUE(BitEqual(*got, expected)) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Flax, RecordedModels, testing::Values("flax_layers.msgpack", "flax_bert.msgpack"));

Array Zeros(const Shape& shape) { return Array::Zeros(DType::kF32, shape); }

using Arrays = std::vector<std::pair<std::string, Array>>;

std::vector<std::string> Described(const TensorSource& source) {
  std::vector<std::string> result;
  for (const TensorInfo& tensor : source.tensors()) {
    result.push_back(absl::StrCat(tensor.name, " ", tensor.shape.ToString()));
  }
  return result;
}

// Exact: the tensors that a tree becomes.
std::vector<std::string> Converted(Arrays arrays, std::vector<std::string>* warnings = nullptr) {
  const MemoryTensorSource source("tree", std::move(arrays));
  const absl::StatusOr<std::unique_ptr<TensorSource>> tree = OpenFlaxTree(source);
  if (!tree.ok()) return {std::string(tree.status().message())};
  if (warnings != nullptr) *warnings = (*tree)->warnings();
  return Described(**tree);
}

TEST(FlaxTree, ATrainingState) {
  std::vector<std::string> warnings;
  EXPECT_THAT(Converted({{"params.params.a.b.kernel", Zeros({2, 3})},
                         {"params.batch_stats.bn.var", Zeros({3})},
                         {"opt_state.0.mu.params.a.b.kernel", Zeros({2, 3})},
                         {"opt_state.0.count", Zeros({})},
                         {"ema.rate", Zeros({})}},
                        &warnings),
              ElementsAre("a.b.weight [3,2]", "bn.running_var [3]", "ema.rate []"));
  EXPECT_THAT(warnings, ElementsAre("2 tensors of an optimizer's state (opt_state.*) are left out"));
}

TEST(FlaxTree, KernelsOfRankThreeThatNothingExplainsAreKept) {
  std::vector<std::string> warnings;
  EXPECT_THAT(Converted({{"layers.kernel", Zeros({2, 3, 4})},
                         {"layers.bias", Zeros({2, 4})},  // a layer for each first index
                         {"out.kernel", Zeros({2, 3, 4})},
                         {"query.kernel", Zeros({4, 2, 3})},
                         {"kernel", Zeros({2, 3})},
                         {"m.scale", Zeros({2, 3})}},
                        &warnings),
              ElementsAre("layers.kernel [2,3,4]", "layers.bias [2,4]", "out.kernel [2,3,4]", "query.kernel [4,2,3]",
                          "kernel [2,3]", "m.scale [2,3]"));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("3 kernels of rank 3 keep their names and layout")));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("layers.kernel, out.kernel, query.kernel")));
}

TEST(FlaxTree, EmbeddingsAreFoundByTheirParameter) {
  const Arrays arrays = {{"params.a.codes.embedding", Zeros({2, 3})},
                         {"params.fc.kernel", Zeros({2, 3})},
                         {"params.embedding", Zeros({2, 3})},  // of the model itself
                         {"opt_state.a.codes.embedding", Zeros({2, 3})}};
  EXPECT_THAT(FlaxEmbeddings(MemoryTensorSource("tree", arrays)), ElementsAre("a.codes"));
}

TEST(FlaxTree, ConvolutionsOfThreeAxes) {
  EXPECT_THAT(Converted({{"c.kernel", Zeros({2, 3, 4, 5, 6})}, {"empty.kernel", Zeros({0, 6})}}),
              ElementsAre("c.weight [6,5,2,3,4]", "empty.weight [6,0]"));
}

TEST(FlaxTree, TwoTensorsOfOneName) {
  EXPECT_THAT(Converted({{"a.kernel", Zeros({2, 3})}, {"a.embedding", Zeros({2, 3})}}),
              ElementsAre("flax model 'tree': tensor 'a.weight': is there twice"));
}

// As transformers writes a model in several files: the index joins keys with slashes.
TEST(FlaxTree, AShardedModelWithAnIndex) {
  const std::string folder = JoinPath(::testing::TempDir(), "flax_sharded");
  const FileSystem& fs = LocalFileSystem();
  ASSERT_TRUE(fs.CreateFolder(folder).ok());
  const char* const files[] = {"flax_model-00001-of-00002.msgpack", "flax_model-00002-of-00002.msgpack"};
  // {"a": {"kernel": array}}, {"b": {"bias": array}}, with an array of one f32
  const std::string array = absl::StrCat("\xc7\x11\x01\x93\x91\x01\xa7", "float32\xc4\x04", std::string(4, '\0'));
  ASSERT_TRUE(WriteFile(fs, JoinPath(folder, files[0]), absl::StrCat("\x81\xa1", "a\x81\xa6", "kernel", array)).ok());
  ASSERT_TRUE(WriteFile(fs, JoinPath(folder, files[1]), absl::StrCat("\x81\xa1", "b\x81\xa4", "bias", array)).ok());
  ASSERT_TRUE(
      WriteFile(fs, JoinPath(folder, "flax_model.msgpack.index.json"),
                absl::StrCat(R"({"weight_map": {"a/kernel": ")", files[0], R"(", "b/bias": ")", files[1], "\"}}"))
          .ok());
  CheckpointOptions options;
  options.open_other = OpenContainers();
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(fs, folder, options);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(Described(*checkpoint), ElementsAre("a.kernel [1]", "b.bias [1]"));
  ASSERT_TRUE(RemoveTree(fs, folder).ok());
}

TEST(FlaxTree, WhatIsNotOne) {
  EXPECT_FALSE(IsFlaxTree(MemoryTensorSource("tree", {{"a.kernel", Zeros({3})}})));
  EXPECT_FALSE(IsFlaxTree(MemoryTensorSource("tree", {{"a.kernel", Zeros({3, 3})}, {"b.weight", Zeros({3, 3})}})));
  EXPECT_TRUE(IsFlaxTree(MemoryTensorSource("tree", {{"a.kernel", Zeros({3, 3})}, {"b.bias", Zeros({3})}})));
}

}  // namespace
}  // namespace aqt::io
