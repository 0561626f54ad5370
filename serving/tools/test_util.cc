#include "serving/tools/test_util.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

void ListInto(const std::string& root, const std::string& prefix, std::vector<std::string>& out) {
  const std::vector<std::string> names = *Fs().List(io::JoinPath(root, prefix));
  for (const std::string& name : names) {
    const std::string path = prefix.empty() ? name : absl::StrCat(prefix, "/", name);
    out.push_back(path);
    if (Fs().Stat(io::JoinPath(root, path))->kind == io::FileKind::kFolder) ListInto(root, path, out);
  }
}

}  // namespace

std::string MakeTestFolder() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = absl::StrCat(test->test_suite_name(), ".", test->name());
  std::replace(name.begin(), name.end(), '/', '_');
  std::string path = io::JoinPath(::testing::TempDir(), name);
  if (*io::Exists(Fs(), path)) AQT_CHECK(io::RemoveTree(Fs(), path).ok());
  AQT_CHECK(Fs().CreateFolder(path).ok());
  return path;
}

void WriteTensors(const std::string& path, const NamedArrays& tensors, const io::Metadata& metadata) {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, array] : tensors) specs.push_back({name, *io::ToFileDType(array.dtype()), array.shape()});
  io::SafetensorsWriterOptions options;
  options.metadata = metadata;
  options.output.overwrite = true;
  auto writer = io::SafetensorsWriter::Create(Fs(), path, specs, options);
  AQT_CHECK(writer.ok());
  for (const auto& [name, array] : tensors) AQT_CHECK((*writer)->WriteArray(name, array).ok());
  AQT_CHECK((*writer)->Finish().ok());
}

void WriteText(const std::string& path, const std::string& text) {
  AQT_CHECK(io::WriteFile(Fs(), path, text, {.overwrite = true}).ok());
}

std::string ReadText(const std::string& path) {
  auto text = io::ReadFile(Fs(), path, 1 << 24);
  AQT_CHECK(text.ok());
  return *std::move(text);
}

std::vector<std::string> ListTree(const std::string& folder) {
  std::vector<std::string> out;
  ListInto(folder, "", out);
  std::sort(out.begin(), out.end());
  return out;
}

Array MakeWeight(DType dtype, Shape shape, int seed) {
  std::vector<float> values(shape.num_elements());
  uint64_t state = 0x9e3779b97f4a7c15u * static_cast<uint64_t>(seed + 1);
  for (float& value : values) {
    float sum = 0;  // of four uniform numbers
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<float>(state >> 40) / 16777216.0f - 0.5f;
    }
    value = 0.05f * sum;
  }
  if (shape.rank() == 2 && shape[0] >= 3) std::fill_n(values.begin() + shape[1], shape[1], 0.0f);
  return Cast(Array::FromSpan<float>(values, std::move(shape)), dtype);
}

NamedArrays SmallModel(DType dtype) {
  return {{"model.embed_tokens.weight", MakeWeight(dtype, {16, 32}, 1)},
          {"model.layers.0.self_attn.q_proj.weight", MakeWeight(dtype, {48, 64}, 2)},
          {"model.layers.0.self_attn.q_proj.bias", MakeWeight(dtype, {48}, 3)},
          {"model.layers.0.mlp.up_proj.weight", MakeWeight(dtype, {7, 32}, 4)},
          {"model.layers.0.norm.weight", MakeWeight(dtype, {32}, 5)},
          {"lm_head.weight", MakeWeight(dtype, {16, 32}, 6)}};
}

namespace {
void WriteOtherFiles(const std::string& folder) {
  WriteText(io::JoinPath(folder, "config.json"),
            "{\"model_type\": \"llama\", \"hidden_size\": 32, \"rope\": [1e-05, null]}");
  WriteText(io::JoinPath(folder, "tokenizer.json"), "{}");
  AQT_CHECK(Fs().CreateFolder(io::JoinPath(folder, "1_Pooling")).ok());
  WriteText(io::JoinPath(folder, "1_Pooling/config.json"), "{\"pooling\": true}");
}
}  // namespace

void WriteSmallModel(const std::string& folder, DType dtype) {
  AQT_CHECK(Fs().CreateFolder(folder).ok());
  WriteTensors(io::JoinPath(folder, "model.safetensors"), SmallModel(dtype), {{"format", "pt"}});
  WriteOtherFiles(folder);
}

void WriteShardedModel(const std::string& folder, DType dtype) {
  AQT_CHECK(Fs().CreateFolder(folder).ok());
  const NamedArrays all = SmallModel(dtype);
  io::WeightMap map;
  int64_t bytes = 0;
  for (int shard = 0; shard < 2; ++shard) {
    const std::string file = absl::StrCat("model-0000", shard + 1, "-of-00002.safetensors");
    NamedArrays part;
    for (size_t i = shard; i < all.size(); i += 2) {
      part.push_back(all[i]);
      map.emplace_back(all[i].first, file);
      bytes += all[i].second.num_bytes();
    }
    WriteTensors(io::JoinPath(folder, file), part, {{"format", "pt"}});
  }
  WriteText(io::JoinPath(folder, io::kIndexFile), *io::MakeIndex(map, bytes));
  WriteOtherFiles(folder);
}

std::vector<std::string> DifferentTensors(const std::string& a, const std::string& b) {
  const io::Checkpoint x = *io::Checkpoint::Open(Fs(), a), y = *io::Checkpoint::Open(Fs(), b);
  std::set<std::string> names;
  for (const auto& tensor : x.tensors()) names.insert(tensor.name);
  for (const auto& tensor : y.tensors()) names.insert(tensor.name);
  std::vector<std::string> different;
  for (const std::string& name : names) {
    const auto* p = x.Find(name);
    const auto* q = y.Find(name);
    if (p == nullptr || q == nullptr || p->dtype != q->dtype || !BitEqual(*x.ReadArray(*p), *y.ReadArray(*q))) {
      different.push_back(name);
    }
  }
  return different;
}

}  // namespace aqt::serving
