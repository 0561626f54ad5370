// Folders of quantized encoders, run as they are stored.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/models/encoder_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::models {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kGolden[] = "tests/golden/models/";

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

// The root of the mean square of the differences of rows that count.
double Difference(const Array& got, const Array& want, const Array& lengths) {
  EXPECT_EQ(got.shape(), want.shape());
  const int64_t length = want.shape()[1], width = want.shape()[2];
  double sum = 0, count = 0;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    if (i / width % length >= lengths.View<int32_t>()[i / width / length]) continue;
    const double difference = static_cast<double>(got.View<float>()[i]) - want.View<float>()[i];
    sum += difference * difference;
    ++count;
  }
  return std::sqrt(sum / count);
}

int64_t NumFrozen(const EncoderModel& model) {
  return std::count_if(model.weights().begin(), model.weights().end(), [](const auto& value) {
    return value.first.kind == SlotKind::kFrozen && absl::EndsWith(value.first.path, "/qrhs/value");
  });
}

struct Case {
  const char* folder;
  DType values;
  // The share of the difference that quantization makes which may separate two correct programs. Weight-only products
  // differ by rounding (1e-6 of the result, where quantization makes 0.05). Where inputs are quantized to integers, a
  // program stops at -127 where the package reaches -128. One of 24 inputs then differs by a step, which counts as much
  // as the roundings of all others: 0.93 of the difference, computed in PyTorch. Inputs in 8-bit floats are rounded the
  // other way here and there, because one multiplies by the inverse of the scale and the other divides.
  double share;
};

class QuantizedFolder : public ::testing::TestWithParam<Case> {};

TEST_P(QuantizedFolder, RunsAsItIsStored) {
  const std::string folder = std::string(kGolden) + GetParam().folder;
  const absl::StatusOr<EncoderModel> model = ModelFromFolder(Fs(), folder);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(NumFrozen(*model), 12);
  EXPECT_THAT(model->notes(), Contains(HasSubstr("12 products are computed with them as they are stored")));
  EXPECT_THAT(model->notes(), Not(Contains(HasSubstr("multiplied out"))));
  EXPECT_FALSE(model->weights().contains({SlotKind::kParam, "layer0/fc1/kernel"}));
  EXPECT_EQ(model->weights().at({SlotKind::kFrozen, "layer1/attention/out/qrhs/value"}).dtype(), GetParam().values);

  const io::SafetensorsReader file = *io::SafetensorsReader::Open(Fs(), io::JoinPath(folder, "expected.safetensors"));
  SlotValues inputs = {{kIds, *file.ReadArray("ids")}, {kLengths, *file.ReadArray("lengths")}};
  const bool types = file.Find("types") != nullptr;
  if (types) inputs[kTypes] = *file.ReadArray("types");
  const Array want = *file.ReadArray("hidden"), floats = *file.ReadArray("float_hidden");
  const Program program = *model->HiddenProgram(want.shape()[0], want.shape()[1], types);
  const absl::StatusOr<PreparedProgram> served = model->Serve({program}, InjectConfig());
  ASSERT_TRUE(served.ok()) << served.status();
  const Array got = served->Eval(inputs)->at(kHidden);
  const double quantization = Difference(floats, want, inputs.at(kLengths));
  EXPECT_LE(Difference(got, want, inputs.at(kLengths)), GetParam().share * quantization);
}

INSTANTIATE_TEST_SUITE_P(Folders, QuantizedFolder,
                         ::testing::Values(Case{"bert_ct_w8a8", DType::kS8, 1},
                                           Case{"mpnet_ct_w4a16", DType::kS4, 1e-4},
                                           Case{"distilbert_ct_fp8", DType::kE4M3FN, 0.5}),
                         [](const auto& info) { return std::string(info.param.folder); });

class EditedFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = io::JoinPath(::testing::TempDir(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    (void)io::RemoveTree(Fs(), folder_);
    ASSERT_TRUE(Fs().CreateFolder(folder_).ok());
    for (const char* file : {"config.json", "model.safetensors"}) {
      ASSERT_TRUE(io::CopyFile(Fs(), std::string(kGolden) + "bert_ct_w8a8/" + file, io::JoinPath(folder_, file)).ok());
    }
  }
  void TearDown() override { (void)io::RemoveTree(Fs(), folder_); }
  void Edit(const std::string& from, const std::string& to) {
    const std::string path = io::JoinPath(folder_, "config.json");
    const std::string text = *io::ReadFile(Fs(), path, 1 << 20);
    const std::string edited = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(text, edited);
    ASSERT_TRUE(io::WriteFile(Fs(), path, edited, {.overwrite = true}).ok());
  }
  void ExpectFloats(const std::string& why) const {
    const absl::StatusOr<EncoderModel> model = ModelFromFolder(Fs(), folder_);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(NumFrozen(*model), 0);
    EXPECT_THAT(model->notes(), Contains(HasSubstr("12 quantized weights are multiplied out and computed in floating "
                                                   "point, because " +
                                                   why)));
    EXPECT_TRUE(model->Serve({*model->HiddenProgram(1, 3)}, InjectConfig()).ok());
  }
  std::string folder_;
};

TEST_F(EditedFolder, WhatIsNotComputedIsMultipliedOutAndSaid) {
  Edit(R"("output_activations": null)", R"("output_activations": {"num_bits": 8})");
  ExpectFloats("their outputs are quantized, too");
  Edit(R"("output_activations": {"num_bits": 8})", R"("output_activations": null)");
  Edit(R"("strategy": "token")", R"("strategy": "tensor_group")");
  ExpectFloats("their inputs are quantized by tensor_group, dynamic");
  Edit(R"("strategy": "tensor_group")", R"("strategy": "token")");
  Edit(R"("dynamic": true)", R"("dynamic": false)");
  ExpectFloats("their inputs have static scales, which are missing");
}

TEST_F(EditedFolder, InputsWithAZeroPoint) {
  const std::string path = io::JoinPath(folder_, "config.json");
  std::string text = *io::ReadFile(Fs(), path, 1 << 20);
  const size_t at = text.find("\"symmetric\": true");  // the first is that of the inputs
  ASSERT_LT(at, text.find("\"weights\""));
  text.replace(at, 17, "\"symmetric\": false");
  ASSERT_TRUE(io::WriteFile(Fs(), path, text, {.overwrite = true}).ok());
  ExpectFloats("their inputs have zero points");
}

// Rules of a user are for the other products only.
TEST_F(EditedFolder, RulesOfAUserComeAfterThoseOfTheFolder) {
  const EncoderModel model = *ModelFromFolder(Fs(), folder_);
  InjectConfig config;
  config.strict = false;
  config.rules.push_back({.name = "all", .dot_general = DotGeneralConfig()});
  const InjectConfig rules = model.Rules(config);
  ASSERT_EQ(rules.rules.size(), 2);
  EXPECT_EQ(rules.rules[0].name, "weights of the folder");
  EXPECT_EQ(rules.rules[1].name, "all");
}

}  // namespace
}  // namespace aqt::models
