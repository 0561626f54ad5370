#include "aqt/io/tensors/tensor_source.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::ElementsAre;
using Code = absl::StatusCode;

MemoryTensorSource TwoTensors() {
  return MemoryTensorSource(
      "memory", {{"b", Array::Of<int8_t>({1, 2, 3, 4, 5, 6}, {2, 3})}, {"a", Array::Of<float>({1.5f}, {1})}},
      {{"key", "value"}});
}

TEST(TensorSource, WhatItHolds) {
  const MemoryTensorSource source = TwoTensors();
  EXPECT_EQ(source.path(), "memory");
  EXPECT_THAT(source.shard_names(), ElementsAre("memory"));
  EXPECT_EQ(source.shards()[0].metadata, (Metadata{{"key", "value"}}));
  ASSERT_EQ(source.tensors().size(), 2u);
  EXPECT_EQ(static_cast<const TensorSpec&>(source.tensors()[0]), (TensorSpec{"b", FileDType::kI8, {2, 3}}));
  EXPECT_EQ(source.Find("b"), &source.tensors()[0]);
  EXPECT_EQ(source.Find("a"), &source.tensors()[1]);
  EXPECT_EQ(source.Find("c"), nullptr);
  EXPECT_EQ(source.total_bytes(), 10);
}

TEST(TensorSource, ReadsRangesInsideATensor) {
  const MemoryTensorSource source = TwoTensors();
  const TensorInfo& b = *source.Find("b");
  std::vector<uint8_t> bytes(3);
  ASSERT_TRUE(source.Read(b, 3, absl::MakeSpan(bytes)).ok());
  EXPECT_THAT(bytes, ElementsAre(4, 5, 6));
  EXPECT_TRUE(source.Read(b, 6, {}).ok());
  for (const int64_t offset : {int64_t{-1}, int64_t{4}, int64_t{7}, INT64_MAX}) {
    const absl::Status status = source.Read(b, offset, absl::MakeSpan(bytes));
    EXPECT_EQ(status.code(), Code::kOutOfRange) << offset;
    EXPECT_EQ(status.message(),
              "'memory', tensor 'b': 3 bytes at " + std::to_string(offset) + " are not inside its 6 bytes");
  }
}

TEST(TensorSource, ReadsArrays) {
  const MemoryTensorSource source = TwoTensors();
  EXPECT_TRUE(BitEqual(*source.ReadArray("b"), Array::Of<int8_t>({1, 2, 3, 4, 5, 6}, {2, 3})));
  EXPECT_TRUE(BitEqual(*source.ReadArray(*source.Find("a")), Array::Of<float>({1.5f}, {1})));
  const absl::Status missing = source.ReadArray("c").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_EQ(missing.message(), "'memory' has no tensor 'c'");
}

}  // namespace
}  // namespace aqt::io
