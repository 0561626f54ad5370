#include "aqt/io/tensors/tensor_views.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

Array RandomBytes(DType dtype, const Shape& shape, std::mt19937& rng) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({dtype, shape});
  auto* const data = static_cast<uint8_t*>(builder.data());
  for (int64_t i = 0; i < shape.num_elements() * SizeOf(dtype); ++i) data[i] = static_cast<uint8_t>(rng());
  return std::move(builder).Build();
}

// The definition, an element at a time.
Bytes Expected(const Array& array, const TensorView& view) {
  const int64_t size = SizeOf(array.dtype()), rank = view.shape.rank();
  const int64_t rows = rank == 2 ? view.shape[0] : 1, cols = view.shape[rank - 1];
  Bytes bytes;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto* const from =
          static_cast<const uint8_t*>(array.data()) + (view.first + r * view.row_step + c * view.col_step) * size;
      bytes.insert(bytes.end(), from, from + size);
    }
  }
  return bytes;
}

Bytes ReadRange(const TensorSource& source, const std::string& name, int64_t begin, int64_t end) {
  Bytes bytes(static_cast<size_t>(end - begin));
  const absl::Status status = source.Read(*source.Find(name), begin, absl::MakeSpan(bytes));
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

std::unique_ptr<ViewSource> OneView(const MemoryTensorSource& base, const std::string& tensor, TensorView view) {
  absl::StatusOr<std::unique_ptr<ViewSource>> source =
      ViewSource::Create(base, {{base.Find(tensor), {std::move(view)}}});
  EXPECT_TRUE(source.ok()) << source.status();
  return *std::move(source);
}

TEST(TensorViews, RandomRangesOfRandomViews) {
  std::mt19937 rng(7);
  const auto pick = [&](int64_t from, int64_t to) { return from + static_cast<int64_t>(rng() % (to - from + 1)); };
  for (int i = 0; i < 300; ++i) {
    const DType dtype = std::vector<DType>{DType::kS8, DType::kBF16, DType::kF32, DType::kF64}[i % 4];
    const int64_t rows = pick(1, 40), cols = pick(1, 40), extra = pick(0, 5);
    TensorView view{.name = "view", .shape = {rows, cols}};
    view.first = pick(0, 9);
    switch (pick(0, 3)) {
      case 0:  // rows one after the other, or some apart
        view.row_step = cols + extra;
        break;
      case 1:  // every second element of them
        view.col_step = 2;
        view.row_step = 2 * cols + extra;
        break;
      case 2:  // transposed, or every second column transposed
        view.row_step = pick(1, 2);
        view.col_step = rows * view.row_step + extra;
        break;
      default: view.shape = {cols}; view.col_step = pick(1, 3);
    }
    const int64_t elements = view.first + (rows - 1) * view.row_step + (cols - 1) * view.col_step + 1 + pick(0, 3);
    const Array array = RandomBytes(dtype, {elements}, rng);
    const MemoryTensorSource base("m", {{"before", RandomBytes(dtype, {3}, rng)}, {"whole", array}});
    const std::unique_ptr<ViewSource> source = OneView(base, "whole", view);
    ASSERT_EQ(source->tensors().size(), 2u);
    const TensorInfo& info = source->tensors()[1];
    EXPECT_EQ(info.shape, view.shape);
    EXPECT_EQ(info.dtype, base.Find("whole")->dtype);
    const Bytes expected = Expected(array, view);
    ASSERT_EQ(info.num_bytes(), static_cast<int64_t>(expected.size()));
    for (int j = 0; j < 10; ++j) {
      const int64_t begin = j == 0 ? 0 : pick(0, info.num_bytes() - 1);
      const int64_t end = j == 0 ? info.num_bytes() : pick(begin, info.num_bytes());
      ASSERT_EQ(ReadRange(*source, "view", begin, end), Bytes(expected.begin() + begin, expected.begin() + end))
          << "case " << i << ", bytes " << begin << " to " << end;
    }
  }
}

// A transposed matrix of several panels, read by several threads in blocks of rows, as a conversion does.
void ExpectSharedPanels(int64_t rows, int64_t cols, int64_t step) {
  constexpr int64_t kBlock = 301;
  std::mt19937 rng(8);
  const Array array = RandomBytes(DType::kF32, {cols, rows * step}, rng);
  const MemoryTensorSource base("m", {{"whole", array}});
  const TensorView view{
      .name = "view", .shape = {rows, cols}, .first = step - 1, .row_step = step, .col_step = rows * step};
  const std::unique_ptr<ViewSource> source = OneView(base, "whole", view);
  const Bytes expected = Expected(array, view);
  Bytes actual(expected.size());
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t row; (row = next.fetch_add(kBlock)) < rows;) {
        const int64_t begin = row * cols * 4, end = std::min(row + kBlock, rows) * cols * 4;
        EXPECT_TRUE(source->Read(source->tensors()[0], begin, absl::MakeSpan(actual).subspan(begin, end - begin)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(actual, expected);
  EXPECT_LE(base.largest_read(), 4 << 20);
}

TEST(TensorViews, ThreadsShareThePanelsOfATransposedMatrix) { ExpectSharedPanels(5000, 520, 1); }
TEST(TensorViews, ThreadsShareThePanelsOfEverySecondColumn) { ExpectSharedPanels(5000, 520, 2); }
TEST(TensorViews, ColumnsThatAreReadInParts) {  // longer than what a thread reads at a time
  ExpectSharedPanels(13000, 200, 2);
  ExpectSharedPanels(26000, 130, 1);
}

TEST(TensorViews, ViewsReplaceTheirTensor) {
  const MemoryTensorSource base("m", {{"a", Array::Of<float>({1, 2}, {2})},
                                      {"all", Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3})},
                                      {"z", Array::Of<float>({9}, {1})}});
  const auto source = *ViewSource::Create(
      base, {{base.Find("all"), {{.name = "second", .shape = {3}, .first = 3}, {.name = "first", .shape = {3}}}}});
  std::vector<std::string> names;
  for (const TensorInfo& tensor : source->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ::testing::ElementsAre("a", "second", "first", "z"));
  EXPECT_EQ(source->Find("all"), nullptr);
  EXPECT_EQ(source->ViewedBy("second"), base.Find("all"));
  EXPECT_EQ(source->ViewedBy("a"), nullptr);
  EXPECT_EQ(source->num_viewed(), 1);
  EXPECT_EQ(source->num_views(), 2);
  EXPECT_EQ(source->total_bytes(), base.total_bytes());
  EXPECT_THAT(source->ReadArray("second")->View<float>(), ::testing::ElementsAre(4, 5, 6));
  EXPECT_THAT(source->ReadArray("z")->View<float>(), ::testing::ElementsAre(9));
}

TEST(TensorViews, MistakesAreNamed) {
  const MemoryTensorSource base(
      "m", {{"a", Array::Of<float>({1, 2}, {2})}, {"all", Array::Of<float>({1, 2, 3, 4}, {2, 2})}});
  const auto error = [&](TensorView view) {
    view.name = view.name.empty() ? "view" : view.name;
    const absl::Status status = ViewSource::Create(base, {{base.Find("all"), {view}}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (const TensorView& view :
       {TensorView{.shape = {5}}, TensorView{.shape = {2}, .first = 3}, TensorView{.shape = {2}, .first = -1},
        TensorView{.shape = {2, 2}, .row_step = 3}, TensorView{.shape = {2}, .col_step = 0},
        TensorView{.shape = {2, 2, 1}}, TensorView{.shape = {3, 2}, .row_step = INT64_MAX}}) {
    EXPECT_THAT(error(view), HasSubstr("tensor 'all': 'view' "));
  }
  EXPECT_THAT(error({.name = "a", .shape = {4}}), HasSubstr("would have two tensors 'a'"));
}

}  // namespace
}  // namespace aqt::io
