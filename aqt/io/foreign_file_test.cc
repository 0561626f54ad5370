#include "aqt/io/foreign_file.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::HasSubstr;

TEST(ForeignFileTest, IsRecognisedByItsContent) {
  const std::vector<std::pair<absl::string_view, std::string>> cases = {
      {"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer: fetch the file with `git lfs pull`"},
      {"PK\x03\x04", "a zip archive"},
      {"GGUF\x03", "a GGUF file"},
      {"\x80\x02}", "a pickle"},
      {"\x89HDF\r\n", "an HDF5 file"},
      {"\x93NUMPY\x01", "a NumPy array"},
      {"<!DOCTYPE html>", "a web page"},
      {"\n <html>", "a web page"},
      {"Entry not found", "the error message of a download"},
      {"{\"error\":\"Repository not found\"}", "the error message of a download"},
  };
  for (const auto& [begin, what] : cases) EXPECT_THAT(GuessContent(begin), HasSubstr("it looks like " + what));
  for (const absl::string_view begin : {"", "{}", "{\"a\":1}", "PK", "x"}) EXPECT_EQ(GuessContent(begin), "") << begin;
}

TEST(ForeignFileTest, IsRecognisedByItsName) {
  EXPECT_EQ(WeightFormatOfName("pytorch_model.bin"), "PyTorch");
  EXPECT_EQ(WeightFormatOfName("consolidated.00.pth"), "PyTorch");
  EXPECT_EQ(WeightFormatOfName("MODEL.GGUF"), "GGUF");
  EXPECT_EQ(WeightFormatOfName("tf_model.h5"), "TensorFlow or Keras");
  EXPECT_EQ(WeightFormatOfName("flax_model.msgpack"), "Flax");
  EXPECT_EQ(WeightFormatOfName("model.onnx_data"), "ONNX");
  EXPECT_EQ(WeightFormatOfName("weights.npz"), "NumPy");
  for (const char* name : {"model.safetensors", "config.json", "bin", "tokenizer.model"}) {
    EXPECT_EQ(WeightFormatOfName(name), "") << name;
  }
  EXPECT_THAT(std::string(RemedyForFormat("PyTorch")), HasSubstr("save it as safetensors"));
  EXPECT_THAT(std::string(RemedyForFormat("GGUF")), HasSubstr("convert the model that it was made from"));
}

}  // namespace
}  // namespace aqt::io
