#include "aqt/native/native_file.h"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "aqt/native/bit_string.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/tensor/qtensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::native {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Random = std::mt19937;

int64_t Draw(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

template <class T>
const T& Choose(Random& random, const std::vector<T>& values) {
  return values[Draw(random, 0, static_cast<int64_t>(values.size()) - 1)];
}

// Values with codes of `bits` bits.
Array RandomQValue(Random& random, DType dtype, int bits, bool half, const Shape& shape) {
  std::vector<double> values(shape.num_elements());
  const int64_t count = int64_t{1} << bits, least = dtype == DType::kU8 ? 0 : -count / 2;
  for (double& value : values) value = static_cast<double>(Draw(random, least, least + count - 1)) + (half ? 0.5 : 0);
  return Cast(Array::FromSpan(absl::MakeConstSpan(values), shape), dtype);
}

Array RandomFloats(Random& random, DType dtype, const Shape& shape) {
  std::vector<float> values(shape.num_elements());
  for (float& value : values) value = static_cast<float>(Draw(random, -1000, 1000)) / 64;
  return Cast(Array::FromSpan(absl::MakeConstSpan(values), shape), dtype);
}

// The qvalue's extents, or 1.
Shape RandomPartShape(Random& random, const Shape& qvalue) {
  Shape shape = qvalue;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (Draw(random, 0, 1) == 0) shape[axis] = 1;
  }
  return shape;
}

NativeWeight RandomWeight(Random& random) {
  NativeWeight weight;
  Shape untiled;
  std::vector<AxisTiling> tilings;
  for (int64_t axis = 0, rank = Draw(random, 0, 4); axis < rank; ++axis) {
    const int64_t count = Draw(random, 1, 3), size = Draw(random, 1, 4);
    untiled.push_back(count * size);
    if (Draw(random, 0, 2) == 0) tilings.push_back({axis, count, size});
    switch (Draw(random, 0, 2)) {
      case 0: weight.contracting.push_back(axis); break;
      case 1: weight.remaining.insert(weight.remaining.begin(), axis); break;
      default: break;  // a batch axis
    }
  }
  QTensor& tensor = weight.tensor;
  Shape stored = untiled;
  if (!tilings.empty()) {
    tensor.tiling_state = *TilingState::Make(untiled, tilings);
    stored = tensor.tiling_state->tiled_shape;
  }
  const std::vector<DType> floats = {DType::kF32, DType::kBF16, DType::kF16};
  weight.bits = static_cast<int>(Draw(random, 1, 8));
  weight.half = Draw(random, 0, 3) == 0;
  DType dtype =
      weight.half ? Choose(random, floats) : Choose<DType>(random, {DType::kS8, DType::kU8, DType::kS32, DType::kBF16});
  if (!weight.half && weight.bits <= 2 && Draw(random, 0, 1) == 0) dtype = DType::kS2;
  if (!weight.half && weight.bits <= 4 && Draw(random, 0, 1) == 0) dtype = DType::kS4;
  tensor.qvalue = RandomQValue(random, dtype, weight.bits, weight.half, stored);
  if (Draw(random, 0, 4) == 0) {  // not packed
    weight.bits = 0;
    weight.half = false;
    tensor.qvalue = RandomFloats(random, Choose<DType>(random, {DType::kE4M3FN, DType::kE5M2, DType::kF32}), stored);
  }
  for (int64_t i = Draw(random, 0, 12); i > 0; --i) {
    tensor.scale.push_back(RandomFloats(random, Choose(random, floats), RandomPartShape(random, stored)));
  }
  for (int64_t i = Draw(random, 0, 2); i > 0; --i) {
    tensor.bias.push_back(RandomFloats(random, Choose(random, floats), RandomPartShape(random, stored)));
  }
  if (Draw(random, 0, 3) == 0)
    tensor.sparsity_mask = RandomFloats(random, DType::kF32, RandomPartShape(random, stored));
  tensor.dequant_dtype = Choose(random, floats);
  if (Draw(random, 0, 1) == 0) weight.config_digest = ConfigDigest(absl::StrCat(Draw(random, 0, 100)));
  return weight;
}

void ExpectEqual(const std::vector<Array>& a, const std::vector<Array>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(BitEqual(a[i], b[i])) << i;
}

void ExpectEqual(const NativeWeight& a, const NativeWeight& b) {
  EXPECT_TRUE(BitEqual(*a.tensor.qvalue, *b.tensor.qvalue));
  ExpectEqual(a.tensor.scale, b.tensor.scale);
  ExpectEqual(a.tensor.bias, b.tensor.bias);
  ASSERT_EQ(a.tensor.sparsity_mask.has_value(), b.tensor.sparsity_mask.has_value());
  if (a.tensor.sparsity_mask.has_value()) {
    EXPECT_TRUE(BitEqual(*a.tensor.sparsity_mask, *b.tensor.sparsity_mask));
  }
  EXPECT_EQ(a.tensor.dequant_dtype, b.tensor.dequant_dtype);
  EXPECT_EQ(a.tensor.tiling_state, b.tensor.tiling_state);
  EXPECT_EQ(a.bits, b.bits);
  EXPECT_EQ(a.half, b.half);
  EXPECT_EQ(a.contracting, b.contracting);
  EXPECT_EQ(a.remaining, b.remaining);
  EXPECT_EQ(a.config_digest, b.config_digest);
}

class NativeFileTest : public ::testing::Test {
 protected:
  NativeFileTest() : path_(absl::StrCat(::testing::TempDir(), "/native.safetensors")) {}

  absl::StatusOr<NativeFile> RoundTrip(const NativeFile& file) {
    const absl::Status written = WriteNative(fs_, path_, file, /*overwrite=*/true);
    if (!written.ok()) return written;
    const absl::StatusOr<io::Checkpoint> checkpoint = io::Checkpoint::Open(fs_, path_);
    if (!checkpoint.ok()) return checkpoint.status();
    const absl::StatusOr<NativeReader> reader = NativeReader::Open(*checkpoint);
    if (!reader.ok()) return reader.status();
    return reader->ReadAll();
  }
  std::string Bytes() {
    std::ifstream in(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  const io::FileSystem& fs_ = io::LocalFileSystem();
  const std::string path_;
};

TEST_F(NativeFileTest, RandomWeightsComeBack) {
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    NativeFile file;
    for (int64_t i = Draw(random, 0, 3); i > 0; --i) file.weights[absl::StrCat("l.", i, "/w")] = RandomWeight(random);
    for (int64_t i = Draw(random, 0, 2); i > 0; --i) {
      file.tensors[absl::StrCat("l.", i, "/norm")] = RandomFloats(random, DType::kBF16, {Draw(random, 0, 5)});
    }
    if (round % 3 == 0) file.program = std::string("AQTPROG\n\0\x01", 10);
    file.metadata["note"] = "x";
    const absl::StatusOr<NativeFile> back = RoundTrip(file);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->weights.size(), file.weights.size());
    for (const auto& [name, weight] : file.weights) {
      ExpectEqual(weight, back->weights.at(name));
      const absl::StatusOr<Array> before = weight.tensor.Dequantize(),
                                  after = back->weights.at(name).tensor.Dequantize();
      ASSERT_TRUE(before.ok() && after.ok()) << before.status() << after.status();
      EXPECT_TRUE(BitEqual(*before, *after));
    }
    ASSERT_EQ(back->tensors.size(), file.tensors.size());
    for (const auto& [name, array] : file.tensors) EXPECT_TRUE(BitEqual(array, back->tensors.at(name)));
    EXPECT_EQ(back->program, file.program);
    EXPECT_EQ(back->metadata, file.metadata);
    const std::string bytes = Bytes();
    ASSERT_TRUE(WriteNative(fs_, path_, *back, /*overwrite=*/true).ok());
    EXPECT_EQ(Bytes(), bytes);
  }
}

// Each weight is described in the file that has it.
TEST_F(NativeFileTest, SeveralFiles) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/native_set");
  const absl::Status made = fs_.CreateFolder(folder);
  ASSERT_TRUE(made.ok() || absl::IsAlreadyExists(made)) << made;
  Random random(3);
  std::map<std::string, NativeWeight> weights;
  std::string map;
  for (int i = 1; i <= 2; ++i) {
    const std::string name = absl::StrCat("w", i), file = absl::StrCat("model-0000", i, "-of-00002.safetensors");
    weights[name] = RandomWeight(random);
    ASSERT_TRUE(WriteNative(fs_, io::JoinPath(folder, file), {.weights = {{name, weights[name]}}}, true).ok());
    const io::Checkpoint part = *io::Checkpoint::Open(fs_, io::JoinPath(folder, file));
    for (const io::TensorInfo& tensor : part.tensors()) {
      absl::StrAppend(&map, map.empty() ? "" : ", ", "\"", tensor.name, "\": \"", file, "\"");
    }
  }
  std::ofstream(io::JoinPath(folder, io::kIndexFile)) << absl::StrCat(R"({"weight_map": {)", map, "}}");
  const absl::StatusOr<io::Checkpoint> checkpoint = io::Checkpoint::Open(fs_, folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::StatusOr<NativeReader> reader = NativeReader::Open(*checkpoint);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const auto& [name, weight] : weights) ExpectEqual(*reader->ReadWeight(name), weight);
}

// The example of docs/formats/native.md: 3 bits, one axis tiled.
NativeFile Example() {
  NativeFile file;
  NativeWeight& weight = file.weights["fc"];
  weight.bits = 3;
  weight.contracting = {0};
  weight.remaining = {1};
  weight.config_digest = ConfigDigest("int3");
  weight.tensor.tiling_state = *TilingState::Make({4, 2}, {AxisTiling{.axis = 0, .tile_count = 2, .tile_size = 2}});
  weight.tensor.qvalue = Array::Of<int8_t>({1, -1, 2, -2, 3, -3, 0, -4}, {2, 2, 2});
  weight.tensor.scale = {Array::Of<float>({0.5, 1, 2, 4}, {2, 1, 2})};
  return file;
}

// As `hexdump -C` shows them.
std::string HexDump(absl::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    std::string hex, shown;
    for (size_t i = at; i < at + 16 && i < bytes.size(); ++i) {
      absl::StrAppendFormat(&hex, "%s%02x ", i == at + 8 ? " " : "", static_cast<uint8_t>(bytes[i]));
      shown.push_back(bytes[i] >= 32 && bytes[i] < 127 ? bytes[i] : '.');
    }
    absl::StrAppendFormat(&text, "    %08x  %-49s |%s|\n", at, hex, shown);
  }
  return text;
}

// Relative to the folder in which the test starts.
TEST_F(NativeFileTest, TheByteExampleOfThePage) {
  std::ifstream in("docs/formats/native.md");
  const std::string page(std::istreambuf_iterator<char>(in), {});
  ASSERT_TRUE(WriteNative(fs_, path_, Example(), /*overwrite=*/true).ok());
  EXPECT_THAT(page, HasSubstr(HexDump(Bytes())));
}

TEST(BitStringTest, EveryWidth) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const DType dtype : {DType::kS8, DType::kU8}) {
      const int count = 1 << bits, least = dtype == DType::kU8 ? 0 : -count / 2;
      std::vector<float> values;
      for (int i = 0; i < count + 3; ++i) values.push_back(static_cast<float>(least + i % count));
      const Array array = Cast(Array::FromSpan(absl::MakeConstSpan(values), {count + 3}), dtype);
      const absl::StatusOr<std::vector<uint8_t>> bytes = Pack(array, {.bits = bits});
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_EQ(static_cast<int64_t>(bytes->size()), PackedBytes(count + 3, bits));
      // Read bit by bit.
      for (int i = 0; i < count + 3; ++i) {
        int code = 0;
        for (int b = 0; b < bits; ++b) code |= ((*bytes)[(i * bits + b) / 8] >> (i * bits + b) % 8 & 1) << b;
        if (dtype == DType::kS8 && code >= count / 2) code -= count;
        EXPECT_EQ(static_cast<float>(code), values[i]);
      }
      const absl::StatusOr<Array> back = Unpack(*bytes, {.bits = bits}, array.aval());
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_TRUE(BitEqual(*back, array));
    }
  }
}

TEST(BitStringTest, ValuesWithoutACode) {
  const auto message = [](const Array& array, BitPacking packing) {
    return std::string(Pack(array, packing).status().message());
  };
  EXPECT_THAT(message(Array::Of<int8_t>({1, 4}, {2}), {.bits = 3}),
              HasSubstr("element 1 is 4, which has no code of 3 bits (-4 to 3)"));
  EXPECT_THAT(message(Array::Of<uint8_t>({8}, {1}), {.bits = 3}), HasSubstr("(0 to 7)"));
  EXPECT_THAT(message(Array::Of<float>({0.5f}, {1}), {.bits = 3}), HasSubstr("element 0 is 0.5"));
  EXPECT_THAT(message(Array::Of<float>({-0.0f}, {1}), {.bits = 3}), HasSubstr("element 0 is -0"));
  EXPECT_THAT(message(Array::Of<float>({1}, {1}), {.bits = 1, .half = true}), HasSubstr("(-0.5 to 0.5)"));
  EXPECT_THAT(message(Array::Of<float>({NAN}, {1}), {.bits = 3}), HasSubstr("nan"));
}

TEST_F(NativeFileTest, WrongWeightsAreNotWritten) {
  const auto message = [&](auto change) {
    NativeFile file = Example();
    change(file);
    const std::string before = Bytes();
    const absl::Status status = WriteNative(fs_, path_, file, /*overwrite=*/true);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(Bytes(), before);
    return std::string(status.message());
  };
  ASSERT_TRUE(WriteNative(fs_, path_, Example(), /*overwrite=*/true).ok());
  const auto weight = [](NativeFile& file) -> NativeWeight& { return file.weights["fc"]; };
  EXPECT_THAT(message([&](NativeFile& f) { weight(f).tensor.qvalue.reset(); }),
              HasSubstr("weight 'fc': has no qvalue"));
  EXPECT_THAT(message([&](NativeFile& f) { weight(f).bits = 2; }), HasSubstr("no code of 2 bits"));
  EXPECT_THAT(message([&](NativeFile& f) { weight(f).bits = 9; }), HasSubstr("bits is 9"));
  EXPECT_THAT(message([&](NativeFile& f) { weight(f).half = true; }), HasSubstr("float dtype"));
  EXPECT_THAT(message([&](NativeFile& f) { weight(f).contracting = {2}; }), HasSubstr("is not one of the 2 axes"));
  EXPECT_THAT(message([&](NativeFile& f) { weight(f).remaining = {0}; }), HasSubstr("named twice"));
  EXPECT_THAT(message([&](NativeFile& f) { weight(f).config_digest = "x"; }), HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(message([&](NativeFile& f) {
                weight(f).tensor.scale = {Array::Of<float>({1, 2, 3}, {3, 1, 1})};
              }),
              HasSubstr("'fc.scale.0' is f32[3,1,1], expected f32, bf16 or f16, the extents of the qvalue [2,2,2]"));
  EXPECT_THAT(message([&](NativeFile& f) {
                weight(f).tensor.tiling_state->tile_map = {{1}, {0, 2}};
              }),
              HasSubstr("tiling"));
  EXPECT_THAT(message([&](NativeFile& f) { f.tensors["fc.scale.7"] = Array::Of<float>({1}, {1}); }),
              HasSubstr("belongs to the format"));
  EXPECT_THAT(message([&](NativeFile& f) { f.metadata["aqt_weight/x"] = "{}"; }), HasSubstr("belongs to the format"));
}

// What a source with these tensors and this header of "w" gives; the qvalue is of 3 bits and shape [2,3].
absl::Status OpenWith(const std::string& header, std::vector<std::pair<std::string, Array>> tensors,
                      const std::string& version = "1") {
  const io::MemoryTensorSource source("m", std::move(tensors), {{"aqt_native", version}, {"aqt_weight/w", header}});
  const absl::StatusOr<NativeReader> reader = NativeReader::Open(source);
  return reader.ok() ? reader->ReadAll().status() : reader.status();
}

TEST(NativeReaderTest, WrongFiles) {
  const std::string good =
      R"({"dtype":"s8","bits":3,"axes":[[2],[3]],"contracting":[1],"remaining":[0],"scales":1,"dequant_dtype":"f32"})";
  const std::vector<std::pair<std::string, Array>> parts = {{"w.qvalue", Array::Of<uint8_t>({1, 2, 0}, {3})},
                                                            {"w.scale.0", Array::Of<float>({1, 2}, {2, 1})}};
  EXPECT_TRUE(OpenWith(good, parts).ok()) << OpenWith(good, parts);
  EXPECT_TRUE(absl::IsUnimplemented(OpenWith(good, parts, "2")));
  const std::vector<std::pair<std::string, std::string>> headers = {{"\"bits\":3", "\"bits\":9"},
                                                                    {"\"bits\":3", "\"bits\":2"},
                                                                    {"\"bits\":3", "\"bits\":-3"},
                                                                    {"\"bits\":3", "\"bits\":3.0"},
                                                                    {"\"bits\":3", "\"bits\":3,\"x\":1"},
                                                                    {"\"bits\":3", "\"bits\":3,\"bits\":3"},
                                                                    {"\"dtype\":\"s8\"", "\"dtype\":\"s9\""},
                                                                    {"\"dtype\":\"s8\",", ""},
                                                                    {"[[2],[3]]", "[[2,1,1],[3]]"},
                                                                    {"[[2],[3]]", "[2,3]"},
                                                                    {"[[2],[3]]", "[[4294967296],[4294967296]]"},
                                                                    {"\"contracting\":[1]", "\"contracting\":[0]"},
                                                                    {"\"scales\":1", "\"scales\":2"},
                                                                    {"\"scales\":1", "\"scales\":0"},
                                                                    {"\"scales\":1", "\"scales\":1000000000"},
                                                                    {"\"dtype\":\"s8\"", "\"dtype\":\"s2\""},
                                                                    {"\"bits\":3", "\"bits\":3,\"half\":true"},
                                                                    {"\"bits\":3", "\"bits\":3,\"config\":\"0\""},
                                                                    {"\"bits\":3", "\"bits\":3,\"mask\":true"},
                                                                    {"\"f32\"}", "\"f32\""},
                                                                    {good, "[]"}};
  for (const auto& [from, to] : headers) {
    std::string header = good;
    const size_t at = header.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    header.replace(at, from.size(), to);
    const absl::Status status = OpenWith(header, parts);
    EXPECT_TRUE(absl::IsDataLoss(status)) << header << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("m")) << header;
  }
  const auto replaced = [&](size_t i, const Array& array) {
    auto changed = parts;
    changed[i].second = array;
    return OpenWith(good, changed);
  };
  for (const absl::Status& status :
       {replaced(0, Array::Of<uint8_t>({1, 2, 4}, {3})), replaced(0, Array::Of<uint8_t>({1, 2}, {2})),
        replaced(0, Array::Of<int8_t>({1, 2, 0}, {3})), replaced(1, Array::Of<float>({1, 2}, {1, 2})),
        replaced(1, Array::Of<int32_t>({1, 2}, {2, 1})), OpenWith(good, {parts[0]}), OpenWith(good, {parts[1]}),
        OpenWith(good, {parts[0], parts[1], {"w.scale.1", Array::Of<float>({1}, {1})}})}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("w."));
  }
  const io::MemoryTensorSource plain("m", {{"w", Array::Of<float>({1}, {1})}});
  EXPECT_FALSE(IsNative(plain));
  EXPECT_TRUE(absl::IsFailedPrecondition(NativeReader::Open(plain).status()));
}

TEST(NativeReaderTest, Lists) {
  const io::MemoryTensorSource source(
      "m", {{"w.qvalue", Array::Of<uint8_t>({1}, {1})}, {"w.x", Array::Of<float>({1}, {1})}},
      {{"aqt_native", "1"}, {"k", "v"}, {"aqt_weight/w", R"({"dtype":"u8","bits":8,"axes":[[1]],"contracting":[],
                                                     "remaining":[],"scales":0,"dequant_dtype":"f32"})"}});
  const absl::StatusOr<NativeReader> reader = NativeReader::Open(source);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->weights().at("w").bits, 8);
  EXPECT_THAT(reader->tensors(), ElementsAre("w.x")) << "no part of w";
  EXPECT_EQ(reader->metadata(), (std::map<std::string, std::string>{{"k", "v"}}));
  EXPECT_TRUE(absl::IsNotFound(reader->ReadWeight("x").status()));
  EXPECT_THAT(*reader->ReadProgram(), IsEmpty());
}

}  // namespace
}  // namespace aqt::native
