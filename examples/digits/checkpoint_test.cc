#include "examples/digits/checkpoint.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "examples/digits/dataset.h"
#include "examples/digits/mlp.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

constexpr char kShipped[] = "examples/digits/checkpoint";

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string FreshFolder(const std::string& name) { return testing::TempDir() + "/checkpoint_test_" + name; }

Dataset Digits() { return *ReadDataset("examples/digits/digits.csv"); }

// Training gives the same bits on every machine, so the shipped file is reproduced here byte for byte.
TEST(Checkpoint, TheShippedOneIsWhatTrainWrites) {
  const Mlp mlp = Train(Digits().Slice(0, kTrainRows), TrainOptions());
  const std::string folder = FreshFolder("shipped");
  ASSERT_TRUE(WriteMlp(mlp, folder).ok());
  for (const char* file : {"/model.safetensors", "/config.json"}) {
    EXPECT_TRUE(Bytes(folder + file) == Bytes(kShipped + std::string(file)))
        << file << " differs; train again: ./bazelw run //examples/digits:train -- --out=FOLDER";
  }
}

TEST(Checkpoint, TheShippedOneIsAccurate) {
  const absl::StatusOr<Mlp> mlp = ReadMlp(kShipped);
  ASSERT_TRUE(mlp.ok()) << mlp.status();
  const Dataset data = Digits();
  EXPECT_GE(Accuracy(*mlp, data.Slice(kTrainRows, data.rows())), 0.93);
  EXPECT_EQ(Accuracy(*mlp, data.Slice(0, kTrainRows)), 1.0);
}

// A model with one layer [10, 64] whose weights are small integers.
Mlp OneLayer() {
  Linear layer{kPixels, kClasses, std::vector<float>(kPixels * kClasses), std::vector<float>(kClasses, 0.25f)};
  for (size_t i = 0; i < layer.weight.size(); ++i) layer.weight[i] = static_cast<float>(i % 255) - 127;
  return {layer};
}

TEST(Checkpoint, RoundTrip) {
  const std::string folder = FreshFolder("round_trip");
  ASSERT_TRUE(WriteMlp(OneLayer(), folder).ok());
  const absl::StatusOr<Mlp> back = ReadMlp(folder);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->size(), 1u);
  EXPECT_EQ((*back)[0].weight, OneLayer()[0].weight);
  EXPECT_EQ((*back)[0].bias, OneLayer()[0].bias);
  EXPECT_EQ(WriteMlp(OneLayer(), folder).code(), absl::StatusCode::kAlreadyExists);
}

// Writes a folder with the given tensors under layers.0.
std::string FolderOf(const std::string& name, const std::vector<std::pair<std::string, aqt::Array>>& tensors) {
  const aqt::io::FileSystem& fs = aqt::io::LocalFileSystem();
  const std::string folder = FreshFolder(name);
  EXPECT_TRUE(fs.CreateFolder(folder).ok());
  std::vector<aqt::io::TensorSpec> specs;
  for (const auto& [tensor, array] : tensors) {
    specs.push_back({"layers.0." + tensor, *aqt::io::ToFileDType(array.dtype()), array.shape()});
  }
  auto writer = aqt::io::SafetensorsWriter::Create(fs, folder + "/model.safetensors", specs);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (const auto& [tensor, array] : tensors) EXPECT_TRUE((*writer)->WriteArray("layers.0." + tensor, array).ok());
  EXPECT_TRUE((*writer)->Finish().ok());
  return folder;
}

TEST(Checkpoint, DequantizesInt8) {
  const Mlp float_mlp = OneLayer();
  std::vector<int8_t> q;
  for (float w : float_mlp[0].weight) q.push_back(static_cast<int8_t>(w));
  std::vector<float> scale;
  for (int64_t c = 0; c < kClasses; ++c) scale.push_back(static_cast<float>(c) / 8);
  const aqt::Array weight = aqt::Array::FromSpan(absl::MakeConstSpan(q), {kClasses, kPixels});
  const aqt::Array bias = aqt::Array::Zeros(aqt::DType::kF32, {kClasses});
  const absl::StatusOr<Mlp> mlp =
      ReadMlp(FolderOf("int8", {{"weight", weight},
                                {"weight_scale", aqt::Array::FromSpan(absl::MakeConstSpan(scale), {kClasses, 1})},
                                {"bias", bias}}));
  ASSERT_TRUE(mlp.ok()) << mlp.status();
  for (int64_t i = 0; i < kClasses * kPixels; ++i) {
    EXPECT_EQ((*mlp)[0].weight[i], static_cast<float>(q[i]) * scale[i / kPixels]) << i;
  }

  const absl::Status no_scale = ReadMlp(FolderOf("no_scale", {{"weight", weight}, {"bias", bias}})).status();
  EXPECT_NE(std::string(no_scale.message()).find("layers.0.weight_scale"), std::string::npos) << no_scale;
}

TEST(Checkpoint, RefusesWhatIsNoClassifier) {
  const auto zeros = [](aqt::Shape shape, aqt::DType dtype = aqt::DType::kF32) {
    return aqt::Array::Zeros(dtype, std::move(shape));
  };
  // The last layer has 9 outputs; the input is not 64 wide; a rank of 1; a type other than f32 and s8.
  for (const aqt::Array& weight : {zeros({9, 64}), zeros({10, 63}), zeros({640}), zeros({10, 64}, aqt::DType::kBF16)}) {
    static int number = 0;
    const int64_t out = weight.shape()[0];
    const absl::Status status =
        ReadMlp(FolderOf("bad" + std::to_string(number++), {{"weight", weight}, {"bias", zeros({out})}})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << weight.aval() << ": " << status;
  }
  EXPECT_EQ(ReadMlp(FolderOf("none", {{"other", zeros({1})}})).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadMlp(FreshFolder("missing")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace digits
