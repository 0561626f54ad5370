#include "aqt/nn/train/state_file.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

std::string Path(const char* name) { return absl::StrCat(::testing::TempDir(), "/", name); }

TEST(StateFileTest, EveryDtypeAndKindComesBack) {
  StateFile file;
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    file.state[{static_cast<SlotKind>(d % 5), absl::StrCat("a/", ToString(dtype))}] =
        testing::RandomArray({dtype, {3, 2}}, d);
  }
  file.state[{SlotKind::kStat, "scalar"}] = Array::Scalar(2.5f);
  file.state[{SlotKind::kParam, "same"}] = Array::Scalar(1.0f);
  file.state[{SlotKind::kFrozen, "same"}] = Array::Scalar(2.0f);
  file.metadata["steps"] = "12";
  ASSERT_THAT(SaveState(io::LocalFileSystem(), Path("all"), file), IsOk());
  ASSERT_THAT(SaveState(io::LocalFileSystem(), Path("all"), file), IsOk());  // replaces
  absl::StatusOr<StateFile> loaded = LoadState(io::LocalFileSystem(), Path("all"));
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->metadata, file.metadata);
  ASSERT_EQ(loaded->state.size(), file.state.size());
  for (const auto& [slot, array] : file.state) EXPECT_TRUE(BitEqual(loaded->state.at(slot), array)) << slot.ToString();
}

// All numbers of s2 and s4, sizes around whole bytes, and the bytes in the file.
TEST(StateFileTest, PacksNarrowIntegers) {
  StateFile file;
  for (const DType dtype : {DType::kS2, DType::kS4}) {
    for (int64_t count = 0; count <= 17; ++count) {
      ArrayBuilder numbers(DType::kS8, {count});
      const int64_t low = IntegerMin(dtype), values = IntegerMax(dtype) - low + 1;
      for (int64_t i = 0; i < count; ++i) numbers.Mutable<int8_t>()[i] = static_cast<int8_t>(low + i % values);
      file.state[{SlotKind::kFrozen, absl::StrCat(ToString(dtype), "/", count)}] =
          Cast(std::move(numbers).Build(), dtype);
    }
  }
  file.state[{SlotKind::kFrozen, "scalar"}] = Cast(Array::Scalar<int8_t>(-8), DType::kS4);
  ASSERT_THAT(SaveState(io::LocalFileSystem(), Path("narrow"), file), IsOk());
  absl::StatusOr<StateFile> loaded = LoadState(io::LocalFileSystem(), Path("narrow"));
  ASSERT_THAT(loaded, IsOk());
  ASSERT_EQ(loaded->state.size(), file.state.size());
  for (const auto& [slot, array] : file.state) EXPECT_TRUE(BitEqual(loaded->state.at(slot), array)) << slot.ToString();

  absl::StatusOr<io::SafetensorsReader> reader = io::SafetensorsReader::Open(io::LocalFileSystem(), Path("narrow"));
  ASSERT_THAT(reader, IsOk());
  for (const io::TensorInfo& tensor : reader->tensors()) {
    if (tensor.name == "frozen/s4/3") {  // -8, -7, -6
      EXPECT_TRUE(BitEqual(*reader->ReadArray(tensor), Array::Of<uint8_t>({0x98, 0x0a}, {2})));
    } else if (tensor.name == "frozen/s2/5") {  // -2, -1, 0, 1, -2
      EXPECT_TRUE(BitEqual(*reader->ReadArray(tensor), Array::Of<uint8_t>({0x4e, 0x02}, {2})));
    }
  }
}

TEST(StateFileTest, Errors) {
  EXPECT_THAT(SaveState(io::LocalFileSystem(), Path("x"), {{}, {{"packed:a", "s4[]"}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"\"packed:a\""}));
  EXPECT_THAT(LoadState(io::LocalFileSystem(), Path("missing")), FailsWith(absl::StatusCode::kNotFound, {"missing"}));
  const auto write = [](const char* name, const Array& array, io::Metadata metadata) {
    io::SafetensorsWriterOptions options;
    options.metadata = std::move(metadata);
    options.output.overwrite = true;
    auto writer = io::SafetensorsWriter::Create(io::LocalFileSystem(), Path("bad"),
                                                {{name, *io::ToFileDType(array.dtype()), array.shape()}}, options);
    EXPECT_THAT(writer, IsOk());
    EXPECT_THAT((*writer)->WriteArray(name, array), IsOk());
    EXPECT_THAT((*writer)->Finish(), IsOk());
    return LoadState(io::LocalFileSystem(), Path("bad")).status();
  };
  EXPECT_THAT(write("weight", Array::Scalar(1.0f), {}),
              FailsWith(absl::StatusCode::kDataLoss, {"\"weight\"", "param/"}));
  EXPECT_THAT(write("tensor/weight", Array::Scalar(1.0f), {}),
              FailsWith(absl::StatusCode::kDataLoss, {"\"tensor/weight\""}));
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  const Array two_bytes = Array::Of<uint8_t>({0x21, 0x03}, {2});
  EXPECT_THAT(write("param/w", two_bytes, {{"packed:param/w", "s4[3]"}}), IsOk());
  EXPECT_THAT(write("param/w", two_bytes, {{"packed:param/w", "s4[5]"}}),
              FailsWith(kDataLoss, {"\"param/w\": is u8[2], expected u8[3] for s4[5]"}));
  EXPECT_THAT(write("param/w", Array::Of<uint8_t>({0x21, 0x13}, {2}), {{"packed:param/w", "s4[3]"}}),
              FailsWith(kDataLoss, {"\"param/w\": has bits past its last element"}));
  EXPECT_THAT(write("param/w", Array::Of<int8_t>({1, 2}, {2}), {{"packed:param/w", "s4[3]"}}),
              FailsWith(kDataLoss, {"\"param/w\": is s8[2], expected u8[2]"}));
  EXPECT_THAT(write("param/w", two_bytes, {{"packed:param/v", "s4[3]"}}),
              FailsWith(kDataLoss, {"metadata \"packed:param/v\" is there, but no tensor \"param/v\""}));
  for (const char* aval : {"s5[3]", "s8[2]", "s4", "s4[3", "s4[-3]", "s4[x]", "s4[3,]", "s4[4294967296,4294967296]",
                           "s4[2305843009213693952]", "s2[9223372036854775807]", "s2[0,4294967296,4294967296]"}) {
    EXPECT_THAT(write("param/w", two_bytes, {{"packed:param/w", aval}}),
                FailsWith(kDataLoss, {"\"packed:param/w\"", absl::StrCat("\"", aval, "\""), "such as s4[64,320]"}));
  }
}

}  // namespace
}  // namespace aqt::nn
