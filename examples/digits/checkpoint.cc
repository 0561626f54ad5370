#include "examples/digits/checkpoint.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/safetensors.h"

namespace digits {
namespace {

std::string WeightName(size_t layer) { return absl::StrCat("layers.", layer, ".weight"); }
std::string ScaleName(size_t layer) { return absl::StrCat("layers.", layer, ".weight_scale"); }
std::string BiasName(size_t layer) { return absl::StrCat("layers.", layer, ".bias"); }

std::string ConfigJson(const Mlp& mlp) {
  std::vector<int64_t> sizes;
  for (const Linear& layer : mlp) sizes.push_back(layer.in);
  sizes.push_back(mlp.back().out);
  return absl::StrCat("{\n  \"architectures\": [\"DigitsMlp\"],\n  \"hidden_act\": \"relu\",\n  \"layer_sizes\": [",
                      absl::StrJoin(sizes, ", "),
                      "],\n  \"model_type\": \"aqt_digits_mlp\",\n  \"torch_dtype\": \"float32\"\n}\n");
}

absl::StatusOr<std::vector<float>> ReadF32(const aqt::io::Checkpoint& checkpoint, const std::string& name,
                                           const aqt::Shape& shape) {
  AQT_ASSIGN_OR_RETURN(const aqt::Array array, checkpoint.ReadArray(name));
  if (array.aval() != aqt::Aval{aqt::DType::kF32, shape}) {
    return absl::DataLossError(
        absl::StrCat(checkpoint.path(), ": ", name, " is ", array.aval().ToString(), ", want f32", shape.ToString()));
  }
  return std::vector<float>(array.View<float>().begin(), array.View<float>().end());
}

}  // namespace

absl::Status WriteMlp(const Mlp& mlp, const std::string& folder) {
  const aqt::io::FileSystem& fs = aqt::io::LocalFileSystem();
  std::vector<aqt::io::TensorSpec> specs;
  for (size_t i = 0; i < mlp.size(); ++i) {
    specs.push_back({WeightName(i), aqt::io::FileDType::kF32, {mlp[i].out, mlp[i].in}});
    specs.push_back({BiasName(i), aqt::io::FileDType::kF32, {mlp[i].out}});
  }
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<aqt::io::OutputFolder> output, aqt::io::OutputFolder::Create(fs, folder));
  AQT_ASSIGN_OR_RETURN(
      const std::unique_ptr<aqt::io::SafetensorsWriter> writer,
      aqt::io::SafetensorsWriter::Create(fs, aqt::io::JoinPath(output->temporary_path(), aqt::io::kModelFile), specs));
  for (size_t i = 0; i < mlp.size(); ++i) {
    AQT_RETURN_IF_ERROR(writer->WriteArray(
        WeightName(i), aqt::Array::FromSpan(absl::MakeConstSpan(mlp[i].weight), {mlp[i].out, mlp[i].in})));
    AQT_RETURN_IF_ERROR(
        writer->WriteArray(BiasName(i), aqt::Array::FromSpan(absl::MakeConstSpan(mlp[i].bias), {mlp[i].out})));
  }
  AQT_RETURN_IF_ERROR(writer->Finish());
  AQT_RETURN_IF_ERROR(
      aqt::io::WriteFile(fs, aqt::io::JoinPath(output->temporary_path(), "config.json"), ConfigJson(mlp)));
  return output->Commit();
}

absl::StatusOr<Mlp> ReadMlp(const std::string& folder) {
  AQT_ASSIGN_OR_RETURN(const aqt::io::Checkpoint checkpoint,
                       aqt::io::Checkpoint::Open(aqt::io::LocalFileSystem(), folder));
  Mlp mlp;
  int64_t in = kPixels;
  for (size_t i = 0; checkpoint.Find(WeightName(i)) != nullptr; ++i) {
    AQT_ASSIGN_OR_RETURN(const aqt::Array stored, checkpoint.ReadArray(WeightName(i)));
    if (stored.shape().rank() != 2 || stored.shape()[1] != in) {
      return absl::DataLossError(
          absl::StrCat(folder, ": ", WeightName(i), " is ", stored.aval().ToString(), ", want [out,", in, "]"));
    }
    Linear layer{in, stored.shape()[0], {}, {}};
    if (stored.dtype() == aqt::DType::kS8) {
      AQT_ASSIGN_OR_RETURN(const std::vector<float> scale, ReadF32(checkpoint, ScaleName(i), {layer.out, 1}));
      for (int64_t j = 0; j < stored.num_elements(); ++j) {
        layer.weight.push_back(static_cast<float>(stored.View<int8_t>()[j]) * scale[j / in]);
      }
    } else {
      AQT_ASSIGN_OR_RETURN(layer.weight, ReadF32(checkpoint, WeightName(i), {layer.out, in}));
    }
    AQT_ASSIGN_OR_RETURN(layer.bias, ReadF32(checkpoint, BiasName(i), {layer.out}));
    in = layer.out;
    mlp.push_back(std::move(layer));
  }
  if (in != kClasses) {
    return absl::DataLossError(
        absl::StrCat(folder, ": the last of ", mlp.size(), " layers has ", in, " outputs, want ", kClasses));
  }
  return mlp;
}

}  // namespace digits
