// Files of our own layout, read as float tensors.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/native/native_file.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/stored/dequantized_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::stored {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

// Three bits, a tile for each two of the first axis, a bias and a mask; values and scales in several dtypes.
native::NativeWeight Tiled() {
  native::NativeWeight weight;
  std::vector<int8_t> values;
  for (int i = 0; i < 24; ++i) values.push_back(static_cast<int8_t>(i * 5 % 8 - 4));
  const std::vector<AxisTiling> tiling = {{.axis = 0, .tile_size = 2}};
  weight.tensor.tiling_state = *TilingState::Make({4, 6}, tiling);
  weight.tensor.qvalue = Array::FromSpan<int8_t>(values, {2, 2, 6});
  weight.tensor.scale = {Array::Of<float>({0.5f, 3, 1, 0.25f, 1, 2, 0.1f, 1, 1, 7, 1, 0.75f}, {2, 1, 6}),
                         Cast(Array::Of<float>({0.3f}, {1, 1, 1}), DType::kBF16)};
  weight.tensor.bias = {Array::Of<float>({1, -2}, {2, 1, 1})};
  weight.tensor.sparsity_mask = Array::Of<int8_t>({1, 0}, {1, 2, 1});
  weight.bits = 3;
  weight.contracting = {0};
  weight.remaining = {1};
  return weight;
}

native::NativeWeight Plain() {
  native::NativeWeight weight;
  weight.tensor.qvalue = Array::Of<int8_t>({-128, 127, 0, 5, -6, 7}, {3, 2});
  weight.tensor.scale = {Array::Of<float>({0.5f, 0.25f, 2}, {3, 1})};
  weight.tensor.dequant_dtype = DType::kBF16;
  weight.contracting = {1};
  weight.remaining = {0};
  return weight;
}

class NativeTest : public ::testing::Test {
 protected:
  // The file, written and opened.
  io::Checkpoint Write(const native::NativeFile& file) {
    const std::string path =
        io::JoinPath(::testing::TempDir(),
                     std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".safetensors");
    EXPECT_TRUE(native::WriteNative(Fs(), path, file, /*overwrite=*/true).ok());
    return *io::Checkpoint::Open(Fs(), path);
  }
};

TEST_F(NativeTest, WeightsAreTheDequantizedOnes) {
  native::NativeFile file;
  file.weights = {{"fc/kernel", Tiled()}, {"out.weight", Plain()}};
  file.tensors = {{"fc/bias", Array::Of<float>({1, 2}, {2})}};
  file.program = "some bytes";
  file.metadata = {{"who", "me"}};
  const io::Checkpoint checkpoint = Write(file);
  const auto source = DequantizedSource::OpenIfQuantized(Fs(), checkpoint);
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_NE(*source, nullptr);
  EXPECT_EQ((*source)->format(), "AQT native");
  EXPECT_EQ((*source)->num_dequantized(), 2);
  EXPECT_THAT((*source)->notes(), ElementsAre(HasSubstr("program")));
  EXPECT_EQ((*source)->tensors().size(), 3);
  for (const auto& [name, weight] : file.weights) {
    const absl::StatusOr<Array> got = (*source)->ReadArray(name);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(BitEqual(*got, Cast(*weight.tensor.Dequantize(), DType::kF32))) << name;
    std::vector<uint8_t> part(5);
    ASSERT_TRUE((*source)->Read(*(*source)->Find(name), 10, absl::MakeSpan(part)).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), static_cast<const uint8_t*>(got->data()) + 10));
  }
  EXPECT_TRUE(BitEqual(*(*source)->ReadArray("fc/bias"), file.tensors.at("fc/bias")));
  // What describes the quantization is gone, so that a copy is a float checkpoint.
  ASSERT_EQ((*source)->shards()[0].metadata.size(), 1);
  EXPECT_EQ((*source)->shards()[0].metadata[0].first, "who");
}

TEST_F(NativeTest, WhatIsNotAMatrixOfNumbersIsRefused) {
  native::NativeFile scalar;
  scalar.weights["step"].tensor.qvalue = Array::Scalar(int8_t{3});
  scalar.weights["step"].tensor.scale = {Array::Scalar(2.0f)};
  const io::Checkpoint of_scalar = Write(scalar);
  const absl::Status status = DequantizedSource::OpenIfQuantized(Fs(), of_scalar).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("the weight step is a scalar"));

  native::NativeFile infinite;
  infinite.weights["w"] = Plain();
  infinite.weights["w"].tensor.scale = {Array::Of<float>({1, std::numeric_limits<float>::infinity(), 1}, {3, 1})};
  const io::Checkpoint of_infinite = Write(infinite);
  const auto source = *DequantizedSource::OpenIfQuantized(Fs(), of_infinite);
  EXPECT_TRUE(absl::IsDataLoss(source->ReadArray("w").status()));
}

}  // namespace
}  // namespace aqt::stored
