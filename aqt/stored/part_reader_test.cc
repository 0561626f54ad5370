#include "aqt/stored/part_reader.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "aqt/io/tensors/tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::stored {
namespace {

// A matrix [rows, cols] of I32 whose element (r, c) is 1000 r + c.
io::MemoryTensorSource Matrix(int64_t rows, int64_t cols) {
  std::vector<int32_t> values;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) values.push_back(static_cast<int32_t>(1000 * r + c));
  }
  std::vector<std::pair<std::string, Array>> tensors;
  tensors.emplace_back("m", Array::FromSpan<int32_t>(values, {rows, cols}));
  return io::MemoryTensorSource("memory", std::move(tensors));
}

// Few rows are read in one panel; 70,000 in panels of 16 columns, of which the reader keeps three.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {1, 70}, {5, 3}, {300, 40}, {70'000, 70}};

TEST(PartReader, ColumnsOfWords) {
  for (const auto& [rows, cols] : kShapes) {
    const io::MemoryTensorSource source = Matrix(rows, cols);
    const PartReader reader(source);
    const io::TensorInfo& matrix = *source.Find("m");
    const absl::StatusOr<WordColumn> first = reader.Column(matrix, 0);
    ASSERT_TRUE(first.ok()) << first.status();
    for (const int64_t col : {int64_t{0}, int64_t{15}, int64_t{16}, int64_t{33}, int64_t{50}, cols - 1, int64_t{1}}) {
      if (col >= cols) continue;
      const absl::StatusOr<WordColumn> column = reader.Column(matrix, col);
      ASSERT_TRUE(column.ok()) << column.status();
      for (int64_t r = 0; r < rows; ++r) {
        int32_t word;
        std::memcpy(&word, column->words + 4 * r, 4);
        ASSERT_EQ(word, 1000 * r + col) << rows << "x" << cols;
      }
    }
    // Other columns do not take the memory of one that is in use.
    for (int64_t r = 0; r < rows; ++r) {
      int32_t word;
      std::memcpy(&word, first->words + 4 * r, 4);
      ASSERT_EQ(word, 1000 * r);
    }
  }
}

TEST(PartReader, RangesOfColumns) {
  for (const auto& [rows, cols] : kShapes) {
    const io::MemoryTensorSource source = Matrix(rows, cols);
    const PartReader reader(source);
    const io::TensorInfo& matrix = *source.Find("m");
    const int64_t first = rows / 2;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {0, cols}, {cols / 3, cols}, {cols, cols}}) {
      const absl::StatusOr<std::vector<uint8_t>> bytes =
          reader.Columns(matrix, cols * 4, first, rows - first, begin * 4, end * 4);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      ASSERT_EQ(static_cast<int64_t>(bytes->size()), (rows - first) * (end - begin) * 4);
      for (int64_t i = 0; i < (rows - first) * (end - begin); ++i) {
        int32_t word;
        std::memcpy(&word, bytes->data() + 4 * i, 4);
        ASSERT_EQ(word, 1000 * (first + i / (end - begin)) + begin + i % (end - begin));
      }
    }
  }
}

}  // namespace
}  // namespace aqt::stored
