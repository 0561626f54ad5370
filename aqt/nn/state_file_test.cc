#include "aqt/nn/state_file.h"

#include <cstdint>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/safetensors.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

std::string Path(const char* name) { return absl::StrCat(::testing::TempDir(), "/", name); }

TEST(StateFileTest, EveryDtypeAndKindComesBack) {
  StateFile file;
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    file.state[{static_cast<SlotKind>(d % 5), absl::StrCat("a/", ToString(dtype))}] = testing::RandomArray({dtype, {3, 2}}, d);
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

TEST(StateFileTest, Errors) {
  EXPECT_THAT(SaveState(io::LocalFileSystem(), Path("x"), {{}, {{"dtype:a", "s4"}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"\"dtype:a\""}));
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
  EXPECT_THAT(write("weight", Array::Scalar(1.0f), {}), FailsWith(absl::StatusCode::kDataLoss, {"\"weight\"", "param/"}));
  EXPECT_THAT(write("tensor/weight", Array::Scalar(1.0f), {}), FailsWith(absl::StatusCode::kDataLoss, {"\"tensor/weight\""}));
  EXPECT_THAT(write("param/w", Array::Scalar<int8_t>(100), {{"dtype:param/w", "s4"}}),
              FailsWith(absl::StatusCode::kDataLoss, {"\"param/w\"", "s4"}));
  EXPECT_THAT(write("param/w", Array::Scalar<int8_t>(1), {{"dtype:param/w", "s5"}}),
              FailsWith(absl::StatusCode::kDataLoss, {"no dtype \"s5\""}));
}

}  // namespace
}  // namespace aqt::nn
