// A model that `aqt convert` has quantized, and the same model quantized while it is loaded, are equal in every bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/models/encoder_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/quantized_source.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kGolden[] = "tests/golden/models/";

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

Array RandomArrayOf(const Shape& shape, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-0.5f, 0.5f);
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (float& value : values) value = uniform(random);
  return Array::FromSpan<float>(values, shape);
}

// The recorded BERT with one layer, and wide enough for groups of 128: 4 heads of 32.
void WriteWideModel(const std::string& folder) {
  const std::string golden = absl::StrCat(kGolden, "bert/");
  ASSERT_TRUE(Fs().CreateFolder(folder).ok());
  const std::string config = absl::StrReplaceAll(*io::ReadFile(Fs(), golden + "config.json", 1 << 20),
                                                 {{R"("hidden_size": 24)", R"("hidden_size": 128)"},
                                                  {R"("intermediate_size": 40)", R"("intermediate_size": 256)"},
                                                  {R"("num_attention_heads": 3)", R"("num_attention_heads": 4)"},
                                                  {R"("num_hidden_layers": 2)", R"("num_hidden_layers": 1)"}});
  ASSERT_TRUE(io::WriteFile(Fs(), io::JoinPath(folder, "config.json"), config).ok());
  const io::SafetensorsReader file = *io::SafetensorsReader::Open(Fs(), golden + "model.safetensors");
  std::mt19937 random(1);
  NamedArrays tensors;
  for (const io::TensorInfo& tensor : file.tensors()) {
    if (absl::StrContains(tensor.name, "layer.1.")) continue;
    Shape shape;
    for (const int64_t extent : tensor.shape) shape.push_back(extent == 24 ? 128 : extent == 40 ? 256 : extent);
    tensors.emplace_back(tensor.name, RandomArrayOf(shape, random));
  }
  WriteTensors(io::JoinPath(folder, "model.safetensors"), tensors);
}

// Ranges of the inputs of all weights of a folder.
void WriteRanges(const std::string& folder, const std::string& path) {
  const io::SafetensorsReader file = *io::SafetensorsReader::Open(Fs(), io::JoinPath(folder, "model.safetensors"));
  NamedArrays ranges;
  float max = 2;
  for (const io::TensorInfo& tensor : file.tensors()) {
    if (tensor.shape.rank() != 2 || absl::StrContains(tensor.name, "embeddings")) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - 7);
    ranges.emplace_back(module + ".input_min", Array::Of<float>({-2}, {1}));
    ranges.emplace_back(module + ".input_max", Array::Of<float>({max += 0.25f}, {1}));
  }
  WriteTensors(path, ranges);
}

int64_t NumCoded(const models::EncoderModel& model) {
  return std::count_if(model.weights().begin(), model.weights().end(), [](const auto& value) {
    return value.first.kind == SlotKind::kFrozen && absl::EndsWith(value.first.path, "/qrhs/value");
  });
}

SlotValues RandomTexts(int64_t batch, int64_t length, int seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids, lengths;
  for (int64_t b = 0; b < batch; ++b) {
    lengths.push_back(1 + static_cast<int32_t>(random() % length));
    for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(random() % 50));
  }
  return {{models::kIds, Array::FromSpan<int32_t>(ids, {batch, length})},
          {models::kLengths, Array::FromSpan<int32_t>(lengths, {batch})}};
}

Array Hidden(const models::EncoderModel& model, const SlotValues& texts, const InjectConfig& config = {}) {
  const Shape& shape = texts.at(models::kIds).shape();
  const absl::StatusOr<PreparedProgram> served = model.Serve({*model.HiddenProgram(shape[0], shape[1])}, config);
  EXPECT_TRUE(served.ok()) << served.status();
  return served.ok() ? served->Eval(texts)->at(models::kHidden) : Array();
}

Array Embeddings(const models::EncoderModel& model, const SlotValues& texts) {
  const Shape& shape = texts.at(models::kIds).shape();
  const absl::StatusOr<PreparedProgram> served = model.Serve({*model.EmbeddingProgram(shape[0], shape[1])}, {});
  EXPECT_TRUE(served.ok()) << served.status();
  return served.ok() ? served->Eval(texts)->at(models::kEmbeddings) : Array();
}

void ExpectSame(const models::EncoderModel& a, const models::EncoderModel& b) {
  EXPECT_EQ(a.Rules({}), b.Rules({}));
  ASSERT_EQ(a.weights().size(), b.weights().size());
  for (const auto& [slot, value] : a.weights()) {
    ASSERT_TRUE(b.weights().contains(slot)) << slot.ToString();
    EXPECT_TRUE(BitEqual(value, b.weights().at(slot))) << slot.ToString();
  }
  for (const auto& [batch, length] : {std::pair<int64_t, int64_t>{1, 5}, {3, 9}}) {
    const SlotValues texts = RandomTexts(batch, length, static_cast<int>(length));
    EXPECT_TRUE(BitEqual(Hidden(a, texts), Hidden(b, texts))) << batch << "x" << length;
    EXPECT_TRUE(BitEqual(Embeddings(a, texts), Embeddings(b, texts))) << batch << "x" << length;
  }
}

double Difference(const Array& got, const Array& want) {
  EXPECT_EQ(got.shape(), want.shape());
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    const double a = got.View<float>()[i], b = want.View<float>()[i];
    largest = std::max(largest, std::fabs(b));
    if (!(std::fabs(a - b) <= difference)) difference = std::fabs(a - b);
  }
  return difference / largest;
}

class ConvertedModels : public FolderTest {
 protected:
  absl::StatusOr<models::EncoderModel> Converted(const std::string& in, const RecipeSource& recipe,
                                                 const std::string& ranges = "") {
    ConvertJob job;
    job.input = in;
    job.output = At("out");
    job.recipe = recipe;
    job.calibration = ranges;
    AQT_RETURN_IF_ERROR(RunConvertJob(Fs(), job).status());
    return models::ModelFromFolder(Fs(), job.output);
  }
  absl::StatusOr<models::EncoderModel> QuantizedOnLoad(const std::string& in, const RecipeSource& recipe,
                                                       const std::string& ranges = "") {
    QuantizeOptions options;
    options.recipe = recipe;
    options.calibration = ranges;
    AQT_ASSIGN_OR_RETURN(const auto weights, QuantizedSource::Open(Fs(), in, options));
    const models::GivenWeights given = {weights.get(), weights->config()};
    return models::ModelFromFolder(Fs(), in, &given);
  }
  // The model of "out" with its weights multiplied out.
  absl::StatusOr<models::EncoderModel> MultipliedOut() {
    ConvertJob job;
    job.input = At("out");
    job.output = At("floats");
    job.dequantize_to = DType::kF32;
    AQT_RETURN_IF_ERROR(RunConvertJob(Fs(), job).status());
    return models::ModelFromFolder(Fs(), job.output);
  }
  RecipeSource Config(const std::string& quantize) {
    WriteText(
        At("config.textproto"),
        absl::StrCat("schema: 1 rule { match: '.*' quantize { ", quantize,
                     " } on_unsuitable: ON_UNSUITABLE_KEEP_FLOAT } weight_rules: WEIGHT_RULES_COMPRESSED_TENSORS"));
    RecipeSource recipe;
    recipe.config_file = At("config.textproto");
    return recipe;
  }
};

struct PresetCase {
  const char* preset;
  bool coded;            // runs as it is stored
  const char* why = "";  // it does not
};

class PresetsTest : public ConvertedModels, public ::testing::WithParamInterface<PresetCase> {};

TEST_P(PresetsTest, ConvertedAndQuantizedOnLoadAreEqual) {
  WriteWideModel(At("in"));
  WriteRanges(At("in"), At("ranges.safetensors"));
  RecipeSource recipe;
  recipe.preset = GetParam().preset;
  const bool fixed = absl::StrContains(recipe.preset, "static") || recipe.preset == "nvfp4";
  const std::string ranges = fixed ? At("ranges.safetensors") : "";
  const absl::StatusOr<models::EncoderModel> converted = Converted(At("in"), recipe, ranges);
  ASSERT_TRUE(converted.ok()) << converted.status();
  const absl::StatusOr<models::EncoderModel> on_load = QuantizedOnLoad(At("in"), recipe, ranges);
  ASSERT_TRUE(on_load.ok()) << on_load.status();
  ExpectSame(*converted, *on_load);
  EXPECT_EQ(NumCoded(*converted), GetParam().coded ? 6 : 0);
  if (GetParam().coded) {
    EXPECT_THAT(converted->notes(), Not(Contains(HasSubstr("multiplied out"))));
  } else {
    EXPECT_THAT(converted->notes(), Contains(HasSubstr(absl::StrCat("floating point, because ", GetParam().why))));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PresetsTest,
                         ::testing::Values(PresetCase{"w8a8_dynamic", true}, PresetCase{"w8a8_static", true},
                                           PresetCase{"w8a16", true}, PresetCase{"w4a16_g128", true},
                                           PresetCase{"w4a16_g32", true}, PresetCase{"w3a16_g64", true},
                                           PresetCase{"w4a8_g32", true}, PresetCase{"w4afp8", true},
                                           PresetCase{"fp8_dynamic", true}, PresetCase{"fp8_static", true},
                                           PresetCase{"fp8_block128", true},
                                           PresetCase{"mxfp4", false, "they are floats of 4 or 6 bits"},
                                           PresetCase{"mxfp4a16", false, "they are floats of 4 or 6 bits"},
                                           PresetCase{"mxfp6a16", false, "they are floats of 4 or 6 bits"},
                                           PresetCase{"mxfp8", false, "their scales are 8-bit floats"},
                                           PresetCase{"mxfp8a16", false, "their scales are 8-bit floats"},
                                           PresetCase{"nvfp4", false, "they are floats of 4 or 6 bits"},
                                           PresetCase{"nvfp4a16", false, "they are floats of 4 or 6 bits"}),
                         [](const auto& info) { return std::string(info.param.preset); });

// Other shapes, dtypes and families: groups of a part of a head, one or several heads, with odd widths.
TEST_F(ConvertedModels, AnySchemeOfAnyFamily) {
  std::mt19937 random(7);
  const auto any = [&](const std::vector<std::string>& texts) { return texts[random() % texts.size()]; };
  for (int i = 0; i < 24; ++i) {
    const std::string bits = absl::StrCat("num_bits: ", 2 + random() % 7);
    const std::string weights = absl::StrCat(
        "weights { ", bits,
        any({" per_channel {}", " per_tensor {}", " per_group { size: 4 }", " per_group { size: 8 }",
             " per_group { size: 12 }", " per_channel {} symmetric: false", " per_group { size: 8 } symmetric: false"}),
        " }");
    const std::string input = any({"", " input_activations { num_bits: 8 dynamic_per_token {} }",
                                   " input_activations { num_bits: 6 dynamic_per_token {} }",
                                   " input_activations { num_bits: 8 dynamic_per_tensor {} }",
                                   " input_activations { num_bits: 8 symmetric: false dynamic_per_token {} }"});
    const std::string folder =
        absl::StrCat(kGolden, any({"bert", "bert_relu_bf16", "distilbert", "distilbert_f16", "mpnet", "roberta"}));
    SCOPED_TRACE(absl::StrCat(folder, ": ", weights, input));
    const RecipeSource recipe = Config(weights + input);
    ASSERT_TRUE(!*io::Exists(Fs(), At("out")) || io::RemoveTree(Fs(), At("out")).ok());
    const absl::StatusOr<models::EncoderModel> converted = Converted(folder, recipe);
    ASSERT_TRUE(converted.ok()) << converted.status();
    const absl::StatusOr<models::EncoderModel> on_load = QuantizedOnLoad(folder, recipe);
    ASSERT_TRUE(on_load.ok()) << on_load.status();
    ExpectSame(*converted, *on_load);
    const bool asymmetric = absl::StrContains(weights + input, "symmetric: false");
    if (asymmetric) EXPECT_EQ(NumCoded(*converted), 0);
    else EXPECT_GT(NumCoded(*converted), 0);
  }
}

// Sums in f32 of the same products as with the weights multiplied out, but for the order: a few units of 2^-24 times
// the square root of the number of roundings.
TEST_F(ConvertedModels, WeightOnlyProductsAreThoseOfTheMultipliedOutWeights) {
  WriteWideModel(At("in"));
  const SlotValues texts = RandomTexts(2, 8, 3);
  InjectConfig in_float;
  in_float.semantics.weight_only = WeightOnly::kFloat;
  for (const char* granularity : {"per_tensor {}", "per_channel {}", "per_group { size: 16 }", "per_group { size: 32 }",
                                  "per_group { size: 64 }", "per_group { size: 128 }"}) {
    for (const int bits : {4, 8}) {
      SCOPED_TRACE(absl::StrCat(granularity, " ", bits));
      const RecipeSource recipe = Config(absl::StrCat("weights { num_bits: ", bits, " ", granularity, " }"));
      for (const char* name : {"out", "floats"}) (void)io::RemoveTree(Fs(), At(name));
      const models::EncoderModel converted = *Converted(At("in"), recipe);
      ASSERT_EQ(NumCoded(converted), 6);
      const absl::StatusOr<models::EncoderModel> floats = MultipliedOut();
      ASSERT_TRUE(floats.ok()) << floats.status();
      EXPECT_LE(Difference(Hidden(converted, texts, in_float), Hidden(*floats, texts)), 1e-5);
      // On digits the inputs are rounded to three of them: 2^-22 of the largest of their neighbours.
      EXPECT_LE(Difference(Hidden(converted, texts), Hidden(*floats, texts)), 1e-5);
    }
  }
}

// Rules that quantize only the inputs of the multiplied-out weights: the same numbers are multiplied, so that results
// differ by rounding, and by what that does to the roundings of later inputs: a step of 1/127 in one of 128 inputs.
TEST_F(ConvertedModels, ProductsWithQuantizedInputsAreThoseOfTheMultipliedOutWeights) {
  WriteWideModel(At("in"));
  const SlotValues texts = RandomTexts(2, 8, 3);
  struct Case {
    const char* preset;
    Numerics inputs;
  };
  for (const Case& c : {Case{"w8a8_dynamic", IntSymmetric()}, Case{"w4a8_g32", IntSymmetric()}, Case{"w4afp8", Fp8()},
                        Case{"fp8_dynamic", Fp8()}}) {
    SCOPED_TRACE(c.preset);
    RecipeSource recipe;
    recipe.preset = c.preset;
    for (const char* name : {"out", "floats"}) (void)io::RemoveTree(Fs(), At(name));
    const models::EncoderModel converted = *Converted(At("in"), recipe);
    const models::EncoderModel floats = *MultipliedOut();
    InjectConfig rules;
    rules.rules.push_back({.rhs_origin = OperandOrigin::kParam, .dot_general = DotGeneralConfig()});
    Quantizer& inputs = rules.rules[0].dot_general->fwd.lhs.quantizer;
    inputs.numerics = c.inputs;
    inputs.calibration = AbsMax{};
    const Array got = Hidden(converted, texts), want = Hidden(floats, texts, rules);
    const double quantization = Difference(Hidden(floats, texts), want);
    EXPECT_GT(quantization, 1e-3);
    EXPECT_LE(Difference(got, want), quantization / 4);
  }
}

int64_t NumTables(const models::EncoderModel& model) {
  return std::count_if(model.weights().begin(), model.weights().end(), [](const auto& value) {
    return value.first.kind == SlotKind::kFrozen && absl::EndsWith(value.first.path, "embedding/value");
  });
}

// Rows of stored tables have the bits of the multiplied-out ones, in any family.
TEST_F(ConvertedModels, TablesAreLookedUpAsTheyAreStored) {
  struct Case {
    const char* folder;
    const char* weights;
    int tables;  // words, and some of positions and segments
  };
  for (const Case& c :
       {Case{"bert", "num_bits: 8 per_channel {}", 3}, Case{"bert", "num_bits: 4 per_group { size: 8 }", 3},
        Case{"roberta", "num_bits: 3 per_tensor {}", 3}, Case{"roberta_tokens", "num_bits: 5 per_group { size: 4 }", 3},
        Case{"distilbert", "num_bits: 8 per_channel {}", 2}, Case{"mpnet", "num_bits: 4 per_channel {}", 2},
        Case{"modernbert", "num_bits: 2 per_group { size: 6 }", 1}, Case{"nomic", "num_bits: 8 per_channel {}", 2},
        Case{"distilbert", "num_bits: 8 type: NUMBER_TYPE_FLOAT per_channel {}", 2}}) {
    SCOPED_TRACE(absl::StrCat(c.folder, ": ", c.weights));
    WriteText(At("config.textproto"),
              absl::StrCat("schema: 1 default_ignore: false rule { match: '.*embeddings.*' quantize { weights { ",
                           c.weights, " } } on_unsuitable: ON_UNSUITABLE_KEEP_FLOAT }"));
    RecipeSource recipe;
    recipe.config_file = At("config.textproto");
    for (const char* name : {"out", "floats"}) (void)io::RemoveTree(Fs(), At(name));
    const std::string folder = absl::StrCat(kGolden, c.folder);
    const absl::StatusOr<models::EncoderModel> converted = Converted(folder, recipe);
    ASSERT_TRUE(converted.ok()) << converted.status();
    EXPECT_EQ(NumTables(*converted), c.tables);
    EXPECT_THAT(converted->notes(), Not(Contains(HasSubstr("multiplied out"))));
    ExpectSame(*converted, *QuantizedOnLoad(folder, recipe));
    const absl::StatusOr<models::EncoderModel> floats = MultipliedOut();
    ASSERT_TRUE(floats.ok()) << floats.status();
    const SlotValues texts = RandomTexts(2, 7, 5);
    EXPECT_TRUE(BitEqual(Hidden(*converted, texts), Hidden(*floats, texts)));
  }
}

TEST_F(ConvertedModels, ErrorsNameTheirCause) {
  RecipeSource recipe;
  recipe.preset = "w8a8_static";
  WriteWideModel(At("in"));
  EXPECT_THAT(QuantizedOnLoad(At("in"), recipe).status().message(), HasSubstr("--calibration"));
  recipe.preset = "w4a4";
  EXPECT_THAT(QuantizedOnLoad(At("in"), recipe).status().message(), HasSubstr("w4a4"));
  recipe.preset = "gguf_q4_k";
  EXPECT_THAT(QuantizedOnLoad(At("in"), recipe).status().message(), HasSubstr("GGUF"));
  recipe.preset = "w8a8_dynamic";
  ASSERT_TRUE(Converted(At("in"), recipe).ok());
  EXPECT_THAT(QuantizedOnLoad(At("out"), recipe).status().message(), HasSubstr("quantized already"));
}

}  // namespace
}  // namespace aqt::serving
