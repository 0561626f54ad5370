#include "aqt/io/containers/frozen_tree.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
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

absl::StatusOr<Checkpoint> OpenTree(const std::string& name) {
  CheckpointOptions options;
  options.open_other = OpenContainers();
  return Checkpoint::Open(LocalFileSystem(), JoinPath("aqt/io/containers/testdata", name), options);
}

std::vector<std::string> Names(const TensorSource& source) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : source.tensors()) names.push_back(tensor.name);
  return names;
}

// Element (i, j) of `transposed` is element (j, i) of `original`.
void ExpectTransposed(const Array& original, const Array& transposed) {
  ASSERT_EQ(original.dtype(), transposed.dtype());
  ASSERT_EQ(transposed.shape(), Shape({original.shape()[1], original.shape()[0]}));
  const int64_t size = SizeOf(original.dtype()), rows = original.shape()[0], columns = original.shape()[1];
  const auto* const a = static_cast<const char*>(original.data());
  const auto* const b = static_cast<const char*>(transposed.data());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      EXPECT_EQ(std::string(a + (i * columns + j) * size, size), std::string(b + (j * rows + i) * size, size));
    }
  }
}

// ---- golden: trees that AQT wrote (testdata/README.md)

struct RecordedTree {
  const char* name;
  const char* value;  // after "aqt.Dense_0.AqtDotGeneral_0.qrhs."
  const char* scale;
  int bits;
};

class RecordedTrees : public testing::TestWithParam<RecordedTree> {};

TEST_P(RecordedTrees, KeepValuesAndScales) {
  const absl::StatusOr<Checkpoint> tree = OpenTree(GetParam().name);
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_TRUE(IsFrozenTree(*tree));
  const absl::StatusOr<FrozenTree> frozen = OpenFrozenTree(*tree);
  ASSERT_TRUE(frozen.ok()) << frozen.status();
  EXPECT_THAT(Names(*frozen->tensors),
              ElementsAre("Dense_0.weight", "Dense_0.weight_scale", "Dense_2.weight", "Dense_2.weight_scale",
                          "Dense_0.bias", "Dense_1.bias", "Dense_1.weight"));
  EXPECT_THAT(frozen->dropped, ElementsAre("params.Dense_0.kernel", "params.Dense_2.kernel"));
  ASSERT_EQ(frozen->weights.size(), 2u);
  EXPECT_EQ(frozen->weights[0].num_bits, GetParam().bits);
  EXPECT_EQ(frozen->weights[0].units, FrozenWeight::kChannel);
  EXPECT_FALSE(frozen->weights[0].has_input_scale);
  for (const std::string layer : {"Dense_0", "Dense_2"}) {
    const std::string begin = absl::StrCat("aqt.", layer, ".AqtDotGeneral_0.qrhs.");
    ExpectTransposed(*tree->ReadArray(absl::StrCat(begin, GetParam().value)),
                     *frozen->tensors->ReadArray(absl::StrCat(layer, ".weight")));
    ExpectTransposed(*tree->ReadArray(absl::StrCat(begin, GetParam().scale)),
                     *frozen->tensors->ReadArray(absl::StrCat(layer, ".weight_scale")));
  }
  ExpectTransposed(*tree->ReadArray("params.Dense_1.kernel"), *frozen->tensors->ReadArray("Dense_1.weight"));
}

constexpr char kNewValue[] = "frozen.qvalue", kNewScale[] = "frozen.scale.0";
INSTANTIATE_TEST_SUITE_P(Aqt, RecordedTrees,
                         testing::Values(RecordedTree{"frozen_int8.msgpack", kNewValue, kNewScale, 8},
                                         RecordedTree{"frozen_int4.msgpack", kNewValue, kNewScale, 4},
                                         RecordedTree{"frozen_int8_bf16.msgpack", kNewValue, kNewScale, 8},
                                         RecordedTree{"frozen_legacy_int8.msgpack", "value", "scale", 8},
                                         RecordedTree{"frozen_legacy_int4.msgpack", "value", "scale", 4}));

// ---- exact: other shapes, names and what is refused

// An array whose bytes count up.
Array Counting(DType dtype, const Shape& shape) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({dtype, shape});
  auto* const bytes = static_cast<uint8_t*>(builder.data());
  for (int64_t i = 0; i < shape.num_elements() * SizeOf(dtype); ++i) bytes[i] = static_cast<uint8_t>(i);
  return std::move(builder).Build();
}

using Arrays = std::vector<std::pair<std::string, Array>>;

// A tree with one frozen value in the module m.
Arrays Tree(const Shape& value, const Shape& scale, const Shape& kernel, DType dtype = DType::kS8) {
  return {{"params.m.kernel", Counting(DType::kF32, kernel)},
          {"aqt.m.AqtEinsum_0.AqtDotGeneral_0.qrhs.frozen.qvalue", Counting(dtype, value)},
          {"aqt.m.AqtEinsum_0.AqtDotGeneral_0.qrhs.frozen.scale.0", Counting(DType::kF32, scale)}};
}

std::string Refusal(Arrays arrays) {
  const MemoryTensorSource tree("tree", std::move(arrays));
  const absl::StatusOr<FrozenTree> frozen = OpenFrozenTree(tree);
  return frozen.ok() ? "accepted" : std::string(frozen.status().message());
}

std::vector<int> Values(const TensorSource& source, const std::string& name) {
  const Array array = *source.ReadArray(name);
  const auto* const values = static_cast<const int8_t*>(array.data());
  return {values, values + array.shape().num_elements()};
}

TEST(FrozenTree, ScalesSayWhichAxesAreOutputs) {
  const auto open = [](const MemoryTensorSource& tree) { return *OpenFrozenTree(tree); };
  const auto shape = [](const FrozenTree& tree, const char* name) { return tree.tensors->Find(name)->shape; };
  {  // Heads: [in, heads, size].
    const MemoryTensorSource source("tree", Tree({2, 3, 4}, {1, 3, 4}, {2, 3, 4}));
    const FrozenTree tree = open(source);
    EXPECT_EQ(shape(tree, "m.weight"), Shape({12, 2}));
    EXPECT_EQ(shape(tree, "m.weight_scale"), Shape({12, 1}));
    EXPECT_THAT(Values(*tree.tensors, "m.weight"),
                ElementsAre(0, 12, 1, 13, 2, 14, 3, 15, 4, 16, 5, 17, 6, 18, 7, 19, 8, 20, 9, 21, 10, 22, 11, 23));
  }
  {  // Two axes of inputs: [heads, size, out].
    const MemoryTensorSource source("tree", Tree({2, 2, 3}, {1, 1, 3}, {2, 2, 3}));
    const FrozenTree tree = open(source);
    EXPECT_EQ(shape(tree, "m.weight"), Shape({3, 4}));
    EXPECT_THAT(Values(*tree.tensors, "m.weight"), ElementsAre(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11));
  }
  {  // [out, in].
    const MemoryTensorSource source("tree", Tree({2, 3}, {2, 1}, {2, 3}));
    const FrozenTree tree = open(source);
    EXPECT_EQ(shape(tree, "m.weight"), Shape({2, 3}));
    EXPECT_THAT(Values(*tree.tensors, "m.weight"), ElementsAre(0, 1, 2, 3, 4, 5));
  }
  {  // Groups of inputs: [groups, size, out] of a kernel [in, out].
    const MemoryTensorSource source("tree", Tree({2, 2, 3}, {2, 1, 3}, {4, 3}));
    const FrozenTree tree = open(source);
    EXPECT_EQ(shape(tree, "m.weight"), Shape({3, 4}));
    EXPECT_EQ(shape(tree, "m.weight_scale"), Shape({3, 2}));
    EXPECT_EQ(tree.weights[0].units, FrozenWeight::kGroup);
    EXPECT_EQ(tree.weights[0].group_size, 2);
    EXPECT_THAT(Values(*tree.tensors, "m.weight"), ElementsAre(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11));
  }
  {  // One scale.
    const MemoryTensorSource source("tree", Tree({2, 3}, {1, 1}, {2, 3}, DType::kE4M3FN));
    const FrozenTree tree = open(source);
    EXPECT_EQ(shape(tree, "m.weight_scale"), Shape({1}));
    EXPECT_EQ(tree.weights[0].units, FrozenWeight::kTensor);
    EXPECT_TRUE(tree.weights[0].is_float);
  }
}

TEST(FrozenTree, NamesOfOtherParameters) {
  Arrays arrays = Tree({2, 3}, {1, 3}, {2, 3});
  arrays.emplace_back("params.norm.scale", Counting(DType::kF32, {3}));
  arrays.emplace_back("params.words.embedding", Counting(DType::kF32, {5, 3}));
  arrays.emplace_back("params.heads.kernel", Counting(DType::kF32, {2, 2, 2}));
  arrays.emplace_back("params.conv.kernel", Counting(DType::kS8, {1, 2, 3, 2}));
  arrays.emplace_back("batch_stats.norm.mean", Counting(DType::kF32, {3}));
  arrays.emplace_back("aqt.m.AqtEinsum_0.AqtDotGeneral_0.qlhs.frozen.scale.0", Counting(DType::kF32, {1, 1}));
  const MemoryTensorSource source("tree", std::move(arrays));
  const absl::StatusOr<FrozenTree> tree = OpenFrozenTree(source);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_THAT(Names(*tree->tensors),
              ElementsAre("m.weight", "m.weight_scale", "m.input_scale", "norm.weight", "words.weight", "heads.kernel",
                          "conv.weight", "batch_stats.norm.mean"));
  EXPECT_TRUE(tree->weights[0].has_input_scale);
  EXPECT_EQ(tree->tensors->Find("m.input_scale")->shape, Shape({1}));
  EXPECT_EQ(tree->tensors->Find("conv.weight")->shape, Shape({2, 3, 1, 2}));
  EXPECT_THAT(Values(*tree->tensors, "conv.weight"), ElementsAre(0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11));
}

TEST(FrozenTree, KernelsOfOtherNames) {
  const auto names = [](const char* second) {
    Arrays arrays = Tree({2, 3}, {1, 3}, {2, 3});
    arrays[0].first = "params.m.w";
    arrays.emplace_back(second, Counting(DType::kF32, {3, 2}));
    const MemoryTensorSource source("tree", std::move(arrays));
    return Names(*OpenFrozenTree(source)->tensors);
  };
  EXPECT_THAT(names("params.m.n.w"), ElementsAre("m.weight", "m.weight_scale", "m.n.w"));
  // Either could be it.
  EXPECT_THAT(names("params.m.v"), ElementsAre("m.weight", "m.weight_scale", "m.w", "m.v"));
}

TEST(FrozenTree, WithoutTheFloatKernels) {
  const MemoryTensorSource source("tree", {{"aqt.a.b.AqtDotGeneral_0.qrhs.value", Counting(DType::kS8, {2, 3})},
                                           {"aqt.a.b.AqtDotGeneral_0.qrhs.scale", Counting(DType::kBF16, {1, 3})}});
  const absl::StatusOr<FrozenTree> tree = OpenFrozenTree(source);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_THAT(Names(*tree->tensors), ElementsAre("a.b.weight", "a.b.weight_scale"));
  EXPECT_THAT(tree->dropped, IsEmpty());
}

TEST(FrozenTree, Refuses) {
  EXPECT_EQ(Refusal(Tree({2, 3}, {1, 3}, {2, 3})), "accepted");
  EXPECT_THAT(Refusal(Tree({2, 3}, {1, 3}, {2, 4})), HasSubstr("does not have the size of 'params.m.kernel' [2,4]"));
  EXPECT_THAT(Refusal(Tree({2, 3}, {1, 2}, {2, 3})), HasSubstr("has scales of shape [1,2]"));
  EXPECT_THAT(Refusal(Tree({2, 3, 4}, {2, 1, 4}, {2, 3, 4})), HasSubstr("has scales of shape [2,1,4]"));  // a batch
  EXPECT_THAT(Refusal(Tree({2, 3, 4}, {1, 3, 1}, {2, 3, 4})), HasSubstr("has scales of shape [1,3,1]"));
  EXPECT_THAT(Refusal(Tree({2, 3}, {1, 3}, {2, 3}, DType::kU8)), HasSubstr("U8[2,3] is of a type"));
  EXPECT_THAT(Refusal(Tree({0, 3}, {1, 3}, {0, 3})), HasSubstr("has no elements"));
  const auto with = [](const char* name, DType dtype, const Shape& shape) {
    Arrays arrays = Tree({2, 3}, {1, 3}, {2, 3});
    arrays.emplace_back(absl::StrCat("aqt.m.AqtEinsum_0.AqtDotGeneral_0.", name), Counting(dtype, shape));
    return Refusal(std::move(arrays));
  };
  EXPECT_THAT(with("qrhs.frozen.scale.1", DType::kF32, {1, 3}), HasSubstr("comes with"));
  EXPECT_THAT(with("qrhs.frozen.bias.0", DType::kF32, {1, 3}), HasSubstr("comes with"));
  EXPECT_THAT(with("qlhs.frozen.scale.0", DType::kF32, {1, 2}), HasSubstr("is not one number"));
  EXPECT_THAT(with("qlhs.frozen.qvalue", DType::kS8, {2, 3}), HasSubstr("has no scale"));
  Arrays two = Tree({2, 3}, {1, 3}, {2, 3});
  two.emplace_back("aqt.m.AqtEinsum_1.qrhs.frozen.qvalue", Counting(DType::kS8, {2, 3}));
  two.emplace_back("aqt.m.AqtEinsum_1.qrhs.frozen.scale.0", Counting(DType::kF32, {1, 3}));
  EXPECT_THAT(Refusal(two), HasSubstr("is the second one of the module 'm'"));
  Arrays no_scale = Tree({2, 3}, {1, 3}, {2, 3});
  no_scale.pop_back();
  EXPECT_THAT(Refusal(no_scale), HasSubstr("has no scale, 'aqt.m.AqtEinsum_0.AqtDotGeneral_0.qrhs.frozen.scale.0'"));
  EXPECT_THAT(
      Refusal({{"aqt.qrhs.value", Counting(DType::kS8, {2, 3})}, {"aqt.qrhs.scale", Counting(DType::kF32, {1, 3})}}),
      HasSubstr("is not inside a module"));
}

}  // namespace
}  // namespace aqt::io
