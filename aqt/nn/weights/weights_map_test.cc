#include "aqt/nn/weights/weights_map.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/stored/dequantized_source.h"
#include "aqt/stored/stored_config.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::Random;
using ::aqt::testing::RandomArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Arrays = std::vector<std::pair<std::string, Array>>;

Slot Param(const std::string& path) { return {SlotKind::kParam, path}; }
Slot Stat(const std::string& path) { return {SlotKind::kStat, path}; }

// A program with these inputs, all unused.
Program WithInputs(const std::vector<Input>& inputs) {
  return *Trace([](absl::Span<const Value>) { return std::vector<Value>{ValueOrNumber(1.0).As(DType::kF32)}; }, inputs);
}

// {{1, 2, 3}, {4, 5, 6}} for "[2,3]".
Array Counting(DType dtype, const Shape& shape) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < shape.num_elements(); ++i) numbers.push_back(static_cast<float>(i + 1));
  return Cast(Array::FromSpan<float>(numbers, shape), dtype);
}

std::vector<float> Numbers(const Array& array) {
  const Array wide = Cast(array, DType::kF32);
  const absl::Span<const float> view = wide.View<float>();
  return {view.begin(), view.end()};
}

// A linear layer of torch, [out, in] in bf16, as a kernel [in, out] in f32.
TEST(WeightsMapTest, TransposesAndWidens) {
  const io::MemoryTensorSource source("model", {{"fc1.weight", Counting(DType::kBF16, {2, 3})},
                                                {"fc1.bias", Counting(DType::kF32, {2})},
                                                {"fc2.weight", Counting(DType::kBF16, {1, 2})},
                                                {"fc2.bias", Counting(DType::kF32, {1})}});
  const Program program = WithInputs({{Param("mlp/fc1/kernel"), {DType::kF32, {3, 2}}},
                                      {Param("mlp/fc1/bias"), {DType::kF32, {2}}},
                                      {Param("mlp/fc2/kernel"), {DType::kF32, {2, 1}}},
                                      {Param("mlp/fc2/bias"), {DType::kF32, {1}}},
                                      {{SlotKind::kData, "x"}, {DType::kF32, {3}}}});
  const WeightsMap map = {
      .rules = {{.tensor = R"(fc(\d)\.weight)", .slot = Param(R"(mlp/fc\1/kernel)"), .transpose = {1, 0}},
                {.tensor = R"(fc(\d)\.bias)", .slot = Param(R"(mlp/fc\1/bias)")}}};
  const absl::StatusOr<SlotValues> values = LoadWeights(map, source, program);
  ASSERT_THAT(values, IsOk());
  EXPECT_EQ(values->size(), 4u);
  EXPECT_EQ(values->at(Param("mlp/fc1/kernel")).aval().ToString(), "f32[3,2]");
  EXPECT_THAT(Numbers(values->at(Param("mlp/fc1/kernel"))), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(Numbers(values->at(Param("mlp/fc2/kernel"))), ElementsAre(1, 2));
  EXPECT_THAT(Numbers(values->at(Param("mlp/fc1/bias"))), ElementsAre(1, 2));
}

// One tensor with queries, keys and values, for two heads of one number each; a statistic; unused tensors.
TEST(WeightsMapTest, SlicesReshapesAndIgnores) {
  const io::MemoryTensorSource source("model", {{"h.3.attn.qkv", Counting(DType::kF32, {3, 6})},
                                                {"h.3.norm.running_mean", Counting(DType::kF32, {2})},
                                                {"h.3.mask", Counting(DType::kS32, {2})}});
  const Program program = WithInputs({{Param("h3/q"), {DType::kF32, {3, 2, 1}}},
                                      {Param("h3/k"), {DType::kF32, {2, 3}}},
                                      {Param("h3/v"), {DType::kF32, {3, 2}}},
                                      {Param("head/kernel"), {DType::kF32, {2, 2}}},
                                      {Stat("h3/mean"), {DType::kF32, {2}}},
                                      {Stat("h3/calls"), {DType::kS32, {}}}});
  const std::string qkv = R"(h\.(\d)\.attn\.qkv)";
  const WeightsMap map = {
      .rules = {{.tensor = qkv, .slot = Param(R"(h\1/q)"), .slice = WeightSlice{1, 0, 1, 3}, .reshape = true},
                {.tensor = qkv, .slot = Param(R"(h\1/k)"), .slice = WeightSlice{1, 1, 2, 3}, .transpose = {1, 0}},
                {.tensor = qkv, .slot = Param(R"(h\1/v)"), .slice = WeightSlice{1, 4, 6}},
                {.tensor = R"(h\.(\d)\.norm\.running_mean)", .slot = Stat(R"(h\1/mean)")},
                {.tensor = R"(.*\.mask)"}},
      .missing = {"head/.*"}};
  const absl::StatusOr<SlotValues> values = LoadWeights(map, source, program);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(Numbers(values->at(Param("h3/q"))), ElementsAre(1, 2, 7, 8, 13, 14));
  EXPECT_THAT(Numbers(values->at(Param("h3/k"))), ElementsAre(3, 9, 15, 4, 10, 16));
  EXPECT_THAT(Numbers(values->at(Param("h3/v"))), ElementsAre(5, 6, 11, 12, 17, 18));
  EXPECT_THAT(Numbers(values->at(Stat("h3/mean"))), ElementsAre(1, 2));
  EXPECT_EQ(values->size(), 4u);
}

// A checkpoint of bitsandbytes: the map sees only float tensors.
TEST(WeightsMapTest, QuantizedCheckpoints) {
  const io::MemoryTensorSource stored("model", {{"fc1.weight", Array::Of<int8_t>({127, -127, 0, 127}, {2, 2})},
                                                {"fc1.SCB", Array::Of<float>({2, 3}, {2})},
                                                {"fc1.bias", Counting(DType::kF32, {2})}});
  stored::StoredConfig config;
  config.where = "config.json";
  config.method = "bitsandbytes";
  const absl::StatusOr<std::unique_ptr<stored::DequantizedSource>> source =
      stored::DequantizedSource::Open(stored, config);
  ASSERT_THAT(source, IsOk());
  const Program program =
      WithInputs({{Param("fc1/kernel"), {DType::kF32, {2, 2}}}, {Param("fc1/bias"), {DType::kF32, {2}}}});
  const WeightsMap map = {.rules = {{.tensor = "fc1.weight", .slot = Param("fc1/kernel"), .transpose = {1, 0}},
                                    {.tensor = "fc1.bias", .slot = Param("fc1/bias")}}};
  const absl::StatusOr<SlotValues> values = LoadWeights(map, **source, program);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(Numbers(values->at(Param("fc1/kernel"))), ElementsAre(2, 0, -2, 3));
}

TEST(WeightsMapTest, ReportsEverythingAtOnce) {
  const io::MemoryTensorSource source("model", {{"a", Counting(DType::kF32, {2, 3})},
                                                {"b", Counting(DType::kF32, {4})},
                                                {"c", Counting(DType::kF32, {4})},
                                                {"d", Counting(DType::kF32, {4})},
                                                {"e", Counting(DType::kF32, {4})},
                                                {"left", Counting(DType::kBF16, {4})}});
  const Program program = WithInputs({{Param("a"), {DType::kF32, {2, 2}}},
                                      {Param("b"), {DType::kBF16, {4}}},
                                      {Param("c"), {DType::kF32, {4}}},
                                      {Param("lost"), {DType::kF32, {7}}}});
  WeightsMap map = {.rules = {{.tensor = "a", .slot = Param("a"), .transpose = {1, 0}},
                              {.tensor = "b", .slot = Param("b")},
                              {.tensor = "[cd]", .slot = Param("c")},
                              {.tensor = "e", .slot = Param("nowhere")},
                              {.tensor = "nothing", .slot = Param("c")}},
                    .missing = {"head"}};
  const absl::StatusOr<WeightsReport> report = CheckWeights(map, source, program);
  ASSERT_THAT(report, IsOk());
  EXPECT_FALSE(report->ok());
  EXPECT_THAT(report->missing, ElementsAre("param \"lost\" f32[7]"));
  EXPECT_THAT(report->left_over, ElementsAre("tensor \"left\" BF16[4]"));
  EXPECT_THAT(report->unused, ElementsAre("rule 5, tensor \"nothing\"", "missing \"head\""));
  EXPECT_THAT(report->wrong,
              ElementsAre("tensor \"a\" F32[2,3] -> param \"a\" f32[2,2]: the shapes, here [3,2], differ; see slice, "
                          "transpose and reshape",
                          "tensor \"b\" F32[4] -> param \"b\" bf16[4]: the dtypes differ; set cast to round",
                          "tensor \"d\" F32[4] -> param \"c\" f32[4]: tensor \"c\" F32[4] is for the same",
                          "tensor \"e\" F32[4] -> param \"nowhere\": the program has no such input"));
  for (const std::vector<std::string>* lines :
       {&report->missing, &report->left_over, &report->wrong, &report->unused}) {
    for (const std::string& line : *lines) EXPECT_THAT(report->ToString(), HasSubstr(line));
  }
  EXPECT_THAT(LoadWeights(map, source, program),
              FailsWith(absl::StatusCode::kInvalidArgument, {"model does not fit the program", report->ToString()}));
  EXPECT_THAT(SaveWeights(map, source, program, {}, io::LocalFileSystem(), ::testing::TempDir() + "/none"),
              FailsWith(absl::StatusCode::kInvalidArgument, {report->ToString()}));
}

TEST(WeightsMapTest, RulesThatDoNotFitATensor) {
  const io::MemoryTensorSource source("model", {{"w", Counting(DType::kF32, {4, 6})}});
  const Program program = WithInputs({{Param("w"), {DType::kF32, {4, 6}}}});
  const auto wrong = [&](WeightRule rule) {
    rule.tensor = "w";
    rule.slot = Param("w");
    const absl::StatusOr<WeightsReport> report = CheckWeights({.rules = {rule}}, source, program);
    EXPECT_THAT(report, IsOk());
    return report->wrong.empty() ? "" : report->wrong[0];
  };
  EXPECT_EQ(wrong({}), "");
  EXPECT_THAT(wrong({.slice = WeightSlice{2, 0, 1}}), HasSubstr("of axis 2, which the tensor does not have"));
  EXPECT_THAT(wrong({.slice = WeightSlice{-1, 0, 1}}), HasSubstr("of axis -1"));
  EXPECT_THAT(wrong({.slice = WeightSlice{1, 0, 1, 4}}), HasSubstr("4 parts, which do not divide 6"));
  EXPECT_THAT(wrong({.slice = WeightSlice{1, 0, 1, -3}}), HasSubstr("-3 parts"));
  EXPECT_THAT(wrong({.slice = WeightSlice{1, 2, 4, 3}}), HasSubstr("from 2 to 4, expected a part of 0 to 3"));
  EXPECT_THAT(wrong({.slice = WeightSlice{1, 3, 3}}), HasSubstr("from 3 to 3, expected a part of 0 to 6"));
  EXPECT_THAT(wrong({.transpose = {0, 2}}), HasSubstr("transpose [0, 2] is not a permutation of 2 axes"));
  EXPECT_THAT(wrong({.transpose = {0}}), HasSubstr("not a permutation"));
  EXPECT_THAT(wrong({.slice = WeightSlice{0, 0, 2}, .reshape = true}),
              HasSubstr("here [2,6], differ; reshape needs as many elements"));
}

TEST(WeightsMapTest, WrongMaps) {
  const io::MemoryTensorSource source("model", {});
  const Program program = WithInputs({});
  const auto fails = [&](const WeightsMap& map, std::vector<std::string> parts) {
    EXPECT_THAT(CheckWeights(map, source, program), FailsWith(absl::StatusCode::kInvalidArgument, parts));
  };
  fails({.rules = {{.tensor = "(a"}}}, {"weights map: rule 1", "\"(a\" is not a valid regular expression: missing )"});
  fails({.rules = {{.tensor = "(a)", .slot = Param("\\2")}}}, {"rule 1, tensor \"(a)\": path \"\\2\"", "1"});
  fails({.rules = {{.tensor = "a", .slot = Slot{SlotKind::kFrozen, "a"}}}},
        {"frozen \"a\" is neither a param nor a stat"});
  fails({.missing = {"*"}}, {"missing \"*\" is not a valid regular expression"});
}

TEST(WeightsMapTest, RoundsOnlyWhereAsked) {
  const io::MemoryTensorSource source("model", {{"w", Array::Of<float>({1.00390625f, 3e38f}, {2})}});
  const Program program = WithInputs({{Param("w"), {DType::kBF16, {2}}}});
  const WeightsMap map = {.rules = {{.tensor = "w", .slot = Param("w"), .cast = true}}};
  const absl::StatusOr<SlotValues> values = LoadWeights(map, source, program);
  ASSERT_THAT(values, IsOk());
  EXPECT_EQ(Numbers(values->at(Param("w")))[0], 1);  // a tie, to even
}

TEST(WeightsMapTest, SavingErrors) {
  const io::FileSystem& fs = io::LocalFileSystem();
  const std::string path = ::testing::TempDir() + "/saving_errors.safetensors";
  const io::MemoryTensorSource source("model", {{"w", Counting(DType::kF16, {2})}});
  const Program program = WithInputs({{Param("w"), {DType::kF32, {2}}}});
  const WeightsMap map = {.rules = {{.tensor = "w", .slot = Param("w")}}};
  EXPECT_THAT(SaveWeights(map, source, program, {}, fs, path),
              FailsWith(absl::StatusCode::kNotFound, {"no value for param \"w\" f32[2]"}));
  EXPECT_THAT(SaveWeights(map, source, program, {{Param("w"), Array::Scalar<float>(1)}}, fs, path),
              FailsWith(absl::StatusCode::kInvalidArgument, {"param \"w\" is f32[], expected f32[2]"}));
  EXPECT_THAT(SaveWeights(map, source, program, {{Param("w"), Array::Of<float>({1, 70000}, {2})}}, fs, path),
              FailsWith(absl::StatusCode::kOutOfRange, {"param \"w\" f32[2]", "not finite in tensor \"w\" F16[2]"}));
  EXPECT_FALSE(*io::Exists(fs, path));
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(SaveWeights(map, source, program, {{Param("w"), Array::Of<float>({1, infinity}, {2})}}, fs, path),
              IsOk());
}

// New values are written back in the tensors' own form; tensors that no rule uses are unchanged.
TEST(WeightsMapTest, SavesWhatWasTrained) {
  const io::MemoryTensorSource source(
      "model", {{"qkv", Counting(DType::kBF16, {6, 2})}, {"step", Counting(DType::kS32, {1})}}, {{"format", "pt"}});
  const Program program = WithInputs({{Param("v"), {DType::kF32, {2, 2}}}});
  const WeightsMap map = {
      .rules = {{.tensor = "qkv", .slot = Param("v"), .slice = WeightSlice{0, 2, 3, 3}, .transpose = {1, 0}},
                {.tensor = "step"}}};
  const std::string path = ::testing::TempDir() + "/saved_weights.safetensors";
  ASSERT_THAT(SaveWeights(map, source, program, {{Param("v"), Array::Of<float>({-1, -2, -3, -4}, {2, 2})}},
                          io::LocalFileSystem(), path),
              IsOk());
  const absl::StatusOr<io::SafetensorsReader> saved = io::SafetensorsReader::Open(io::LocalFileSystem(), path);
  ASSERT_THAT(saved, IsOk());
  EXPECT_EQ(saved->metadata(), (io::Metadata{{"format", "pt"}}));
  EXPECT_THAT(Numbers(*saved->ReadArray("qkv")), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, -1, -3, -2, -4));
  EXPECT_EQ(saved->Find("qkv")->dtype, io::FileDType::kBF16);
  EXPECT_THAT(Numbers(*saved->ReadArray("step")), ElementsAre(1));
}

// Property: random tensors, cut, permuted, reshaped and widened at random, are written back with their bytes.
TEST(WeightsMapTest, RoundTripsGiveTheSameBytes) {
  constexpr DType kStored[] = {DType::kE4M3FN, DType::kE5M2, DType::kF16, DType::kBF16, DType::kF32};
  Random random(16);
  const io::FileSystem& fs = io::LocalFileSystem();
  const std::string first = ::testing::TempDir() + "/first.safetensors", second = ::testing::TempDir() + "/second";
  for (int round = 0; round < 60; ++round) {
    Arrays arrays;
    WeightsMap map;
    std::vector<Input> inputs;
    const int64_t num_tensors = 1 + random.Below(4);
    for (int64_t t = 0; t < num_tensors; ++t) {
      const std::string name = absl::StrCat("layer.", t, ".weight");
      Shape shape;
      for (int64_t rank = random.Below(4); rank > 0; --rank) shape.push_back(1 + random.Below(5));
      const DType stored = kStored[random.Below(5)], wide = random.Below(2) ? DType::kF32 : DType::kF64;
      arrays.emplace_back(name, RandomArray({stored, shape}, random.Next()));
      if (random.Below(5) == 0) {
        map.rules.push_back({.tensor = absl::StrCat("layer\\.", t, "\\..*")});
        continue;
      }
      const bool slices = shape.rank() > 0 && random.Below(2) == 0;
      const int64_t axis = slices ? random.Below(shape.rank()) : 0, extent = slices ? shape[axis] : 1;
      for (int64_t begin = 0; begin < extent;) {
        const int64_t end = slices ? begin + 1 + random.Below(extent - begin) : extent;
        WeightRule rule = {.tensor = absl::StrCat("layer\\.(", t, ")\\.weight"),
                           .slot = Param(absl::StrCat("layer_\\1/", begin))};
        Shape own = shape;
        if (slices) {
          rule.slice = WeightSlice{axis, begin, end, random.Below(2) ? extent : 0};
          own[axis] = end - begin;
        }
        const Shape sliced = own;
        for (int64_t i = 0; i < own.rank(); ++i) rule.transpose.push_back(i);
        for (int64_t i = own.rank() - 1; i > 0; --i) std::swap(rule.transpose[i], rule.transpose[random.Below(i + 1)]);
        for (int64_t i = 0; i < own.rank(); ++i) own[i] = sliced[rule.transpose[i]];
        if (random.Below(2)) {
          rule.reshape = true;
          own = {own.num_elements(), 1};
        }
        if (!slices || random.Below(4) > 0) {  // some slices belong to no slot
          inputs.push_back({Param(absl::StrCat("layer_", t, "/", begin)), {wide, own}});
          map.rules.push_back(rule);
        }
        begin = end;
      }
      if (!random.Below(2)) map.rules.push_back({.tensor = absl::StrCat("layer.", t, ".weight")});
    }
    for (int64_t t = 0; t < num_tensors; ++t) map.rules.push_back({.tensor = absl::StrCat("layer.", t, ".weight")});
    const Program program = WithInputs(inputs);
    const io::MemoryTensorSource source("model", arrays, {{"round", absl::StrCat(round)}});
    const absl::StatusOr<SlotValues> values = LoadWeights(map, source, program);
    ASSERT_THAT(values, IsOk());
    ASSERT_EQ(values->size(), inputs.size());
    ASSERT_THAT(SaveWeights(map, source, program, *values, fs, first), IsOk());
    const absl::StatusOr<io::SafetensorsReader> saved = io::SafetensorsReader::Open(fs, first);
    ASSERT_THAT(saved, IsOk());
    ASSERT_EQ(saved->tensors().size(), arrays.size());
    for (const auto& [name, array] : arrays) EXPECT_TRUE(BitEqual(*saved->ReadArray(name), array)) << round << name;
    // Saving from the written file gives the same file.
    ASSERT_THAT(SaveWeights(map, *saved, program, *LoadWeights(map, *saved, program), fs, second), IsOk());
    EXPECT_EQ(*io::ReadFile(fs, first, 1 << 20), *io::ReadFile(fs, second, 1 << 20));
  }
}

}  // namespace
}  // namespace aqt::nn
