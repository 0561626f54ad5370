// Files of the `gguf` package: the values of its dequantizer, and the bytes of its quantizers.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/gguf/gguf_source.h"
#include "aqt/gguf/gguf_testing.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/quant/weights/ggml_blocks.h"
#include "gtest/gtest.h"

namespace aqt::gguf {
namespace {

constexpr char kFolder[] = "tests/golden/gguf/";

io::SafetensorsReader Values(absl::string_view folder) {
  return io::SafetensorsReader::Open(io::LocalFileSystem(), absl::StrCat(kFolder, folder, "/dequantized.safetensors"))
      .value();
}

// The values of a tensor as f32.
std::vector<float> Floats(const io::TensorSource& source, const io::TensorInfo& tensor) {
  const Array array = source.ReadArray(tensor).value();
  std::vector<float> values;
  for (int64_t i = 0; i < array.num_elements(); ++i) {
    switch (array.dtype()) {
      case DType::kF16: values.push_back(ToFloat(array.View<Float16>()[i])); break;
      case DType::kBF16: values.push_back(ToFloat(array.View<BFloat16>()[i])); break;
      default: values.push_back(array.View<float>()[i]);
    }
  }
  return values;
}

TEST(GgufGoldenTest, ValuesOfAllTypes) {
  const io::SafetensorsReader expected = Values("types");
  ASSERT_EQ(expected.tensors().size(), 25u);
  for (const io::TensorInfo& values : expected.tensors()) {
    SCOPED_TRACE(values.name);
    const std::string path = absl::StrCat(kFolder, "types/", absl::AsciiStrToLower(values.name), ".gguf");
    const auto source = GgufSource::Open(io::LocalFileSystem(), path, {.names = Names::kFile});
    ASSERT_TRUE(source.ok()) << source.status();
    const io::TensorInfo* const tensor = (*source)->Find("blk.0.ffn_down.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(ggml::InfoOf((*source)->TypeOf(*tensor)).name, values.name);
    EXPECT_EQ(tensor->shape, values.shape);
    EXPECT_EQ(Floats(**source, *tensor), Floats(expected, values));  // as numbers: -0 equals 0
  }
}

TEST(GgufGoldenTest, PartsOfATensorEqualTheWhole) {
  for (const char* type : {"q4_k", "iq3_s", "nvfp4", "q8_0"}) {
    const auto source =
        GgufSource::Open(io::LocalFileSystem(), absl::StrCat(kFolder, "types/", type, ".gguf"), {.names = Names::kFile})
            .value();
    const io::TensorInfo& tensor = source->tensors()[0];
    std::vector<uint8_t> whole(tensor.num_bytes()), part;
    ASSERT_TRUE(source->Read(tensor, 0, absl::MakeSpan(whole)).ok());
    for (const int64_t begin : {0, 3, 1021, 2050}) {
      for (const int64_t size : {1, 6, 1027, 2000}) {
        part.assign(size, 0);
        ASSERT_TRUE(source->Read(tensor, begin, absl::MakeSpan(part)).ok());
        EXPECT_EQ(part, std::vector<uint8_t>(whole.begin() + begin, whole.begin() + begin + size));
      }
    }
  }
}

TEST(GgufGoldenTest, ALlamaUnderTheNamesOfTransformers) {
  const io::SafetensorsReader expected = Values("llama");
  const auto source = GgufSource::Open(io::LocalFileSystem(), absl::StrCat(kFolder, "llama/model.gguf"));
  ASSERT_TRUE(source.ok()) << source.status();
  std::set<std::string> names, expected_names;
  for (const io::TensorInfo& tensor : (*source)->tensors()) names.insert(tensor.name);
  for (const io::TensorInfo& tensor : expected.tensors()) expected_names.insert(tensor.name);
  EXPECT_EQ(names, expected_names);
  for (const io::TensorInfo& values : expected.tensors()) {
    SCOPED_TRACE(values.name);
    const io::TensorInfo* const tensor = (*source)->Find(values.name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shape, values.shape);
    EXPECT_EQ(Floats(**source, *tensor), Floats(expected, values));
  }
}

class NamesTest : public GgufTest {};

// One layer of each architecture, with one expert.
TEST_F(NamesTest, OfTheTablesOfThePackage) {
  struct Model {
    std::vector<TestTensor> tensors;
    std::set<std::string> names;
  };
  std::map<std::pair<std::string, std::string>, Model> models;
  const std::string text = io::ReadFile(fs_, absl::StrCat(kFolder, "names.tsv"), 1 << 20).value();
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    Model& model = models[{parts[0], parts[1]}];
    const bool experts = absl::StrContains(parts[2], "_exps."), norm = absl::StrContains(parts[2], "norm.");
    model.tensors.push_back(CountingTensor(parts[2], experts ? Shape{1, 2, 2} : norm ? Shape{2} : Shape{2, 2}));
    model.names.insert(parts[3]);
  }
  EXPECT_EQ(models.size(), 10u);
  for (const auto& [key, model] : models) {
    SCOPED_TRACE(key.second);
    const uint32_t experts = absl::StrContains(key.second, "moe") || key.second == "mixtral" ? 1 : 0;
    const std::string path =
        WriteModel(absl::StrCat(key.second, ".gguf"),
                   {StringItem(kArchitectureKey, key.first), U32Item(key.first + ".attention.head_count", 1),
                    U32Item(key.first + ".expert_count", experts)},
                   model.tensors);
    const auto source = GgufSource::Open(fs_, path);
    ASSERT_TRUE(source.ok()) << source.status();
    std::set<std::string> names;
    for (const io::TensorInfo& tensor : (*source)->tensors()) names.insert(tensor.name);
    EXPECT_EQ(names, model.names);
    EXPECT_TRUE(absl::StrContains((*source)->config(), absl::StrCat("\"model_type\": \"", key.second, "\"")));
  }
}

// Encodes the tensor `name` of a file and compares the bytes with those of another tensor.
void ExpectEncoded(const std::string& path, const std::string& name, ggml::Type type, const std::string& blocks) {
  const auto source = GgufSource::Open(io::LocalFileSystem(), path, {.names = Names::kFile}).value();
  const GgufFile& file = source->model().first();
  const GgufTensor* recorded = nullptr;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == blocks) recorded = &tensor;
  }
  ASSERT_NE(recorded, nullptr);
  ASSERT_EQ(recorded->type, type);
  std::vector<uint8_t> expected(recorded->num_bytes()), bytes(expected.size());
  ASSERT_TRUE(file.file().Read(recorded->begin, absl::MakeSpan(expected)).ok());
  const std::vector<float> values = Floats(*source, *source->Find(name));
  const int64_t n = static_cast<int64_t>(values.size()) / ggml::InfoOf(type).block_values;
  EXPECT_EQ(ggml::EncodeBlocks(type, values.data(), n, bytes.data()), -1);
  EXPECT_EQ(bytes, expected);
}

TEST(GgufGoldenTest, BytesOfTheQuantizers) {
  for (const std::string name : {"normal", "edges"}) {
    for (const ggml::Type type : {ggml::Type::kQ8_0, ggml::Type::kQ4_0, ggml::Type::kMXFP4}) {
      SCOPED_TRACE(absl::StrCat(name, " ", ggml::InfoOf(type).name));
      ExpectEncoded(absl::StrCat(kFolder, "encoded.gguf"), name, type,
                    absl::StrCat(name, ".", ggml::InfoOf(type).name));
    }
  }
  ExpectEncoded(absl::StrCat(kFolder, "tiny.gguf"), "f32", ggml::Type::kQ8_0, "q8_0");
  ExpectEncoded(absl::StrCat(kFolder, "tiny.gguf"), "f32", ggml::Type::kQ4_0, "q4_0");
}

}  // namespace
}  // namespace aqt::gguf
