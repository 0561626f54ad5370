#include "aqt/io/tensors/map_tensor.h"

#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

// f32[2] and s8[3] from the beginning of a page, then f32[1] misaligned, BOOL[1], BF16[0].
std::string FileText() {
  std::string header = R"({"f":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
      "i":{"dtype":"I8","shape":[3],"data_offsets":[8,11]},"g":{"dtype":"F32","shape":[1],"data_offsets":[11,15]},
      "b":{"dtype":"BOOL","shape":[1],"data_offsets":[15,16]},"z":{"dtype":"BF16","shape":[0],"data_offsets":[16,16]}})";
  header.resize(4096 - 8, ' ');
  std::string length(8, '\0');
  length[0] = static_cast<char>(0xf8);
  length[1] = 0x0f;
  return length + header + std::string("\0\0\x80\x3f\0\0\0\xc0\x01\xfe\x7f\0\0\x40\x40\x01", 16);
}

TEST(MapTensorTest, MapsWhatIsAlignedAndStoredAsItIsRead) {
  const std::string folder = JoinPath(::testing::TempDir(), absl::StrCat("map_tensor_test_", ::getpid()));
  ASSERT_TRUE(LocalFileSystem().CreateFolder(folder).ok());
  ASSERT_TRUE(WriteFile(LocalFileSystem(), JoinPath(folder, "model.safetensors"), FileText()).ok());
  const Checkpoint checkpoint = *Checkpoint::Open(LocalFileSystem(), folder);
  const MappedFiles files(LocalFileSystem());
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const std::optional<Array> mapped = MapTensor(files, checkpoint, tensor);
    ASSERT_EQ(mapped.has_value(), tensor.name == "f" || tensor.name == "i") << tensor.name;
    if (!mapped.has_value()) continue;
    EXPECT_TRUE(BitEqual(*mapped, *checkpoint.ReadArray(tensor))) << tensor.name;
    // At the place that it has in the file.
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped->data()) % 4096, tensor.begin);
  }
  // Files that have taken the place of the one that was opened.
  std::string other = FileText();
  other[other.size() - 16] = 1;
  for (const std::string& text : {other, std::string("short")}) {
    ASSERT_TRUE(WriteFile(LocalFileSystem(), JoinPath(folder, "model.safetensors"), text, {.overwrite = true}).ok());
    EXPECT_FALSE(MapTensor(files, checkpoint, *checkpoint.Find("f")).has_value());
  }
  ASSERT_TRUE(RemoveTree(LocalFileSystem(), folder).ok());
}

}  // namespace
}  // namespace aqt::io
