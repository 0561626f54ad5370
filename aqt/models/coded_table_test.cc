#include "aqt/models/coded_table.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/runtime/executable.h"
#include "aqt/stored/stored_weight.h"
#include "gtest/gtest.h"

namespace aqt::models {
namespace {

const Slot kTable{SlotKind::kParam, "words/embedding"};
const Slot kIds{SlotKind::kData, "ids"};
const Slot kRows{SlotKind::kData, "rows"};

// A program that looks up rows twice.
Program LookUps(const Shape& table, const Shape& ids) {
  return *Trace(
      [](absl::Span<const Value> in) {
        return std::vector<Value>{ops::Take(in[0], in[1]) + ops::Take(in[0], in[1] + 1.0)};
      },
      std::vector<Input>{{kTable, {DType::kF32, table}}, {kIds, {DType::kS32, ids}}}, std::vector<Slot>{kRows});
}

// The table in f32.
Array MultipliedOut(const stored::WeightCodes& codes) {
  const Array values = Cast(codes.values, DType::kF32);
  const int64_t features = values.shape()[1], groups = codes.scales.shape()[1];
  ArrayBuilder out(DType::kF32, values.shape());
  for (int64_t i = 0; i < values.num_elements(); ++i) {
    const int64_t scale = i / features * groups + i % features / (features / groups);
    out.Mutable<float>()[i] = values.View<float>()[i] * codes.scales.View<float>()[scale];
  }
  return std::move(out).Build();
}

stored::WeightCodes RandomCodes(int bits, int64_t entries, int64_t features, int64_t groups, std::mt19937& random) {
  std::vector<int8_t> values(static_cast<size_t>(entries * features));
  std::uniform_int_distribution<int> integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1);
  for (int8_t& value : values) value = static_cast<int8_t>(integers(random));
  // Ordinary scales, and those whose products are subnormal, large or negative zero.
  const std::vector<float> kinds = {0.013f, 1.0f, -0.25f, 1e-39f, 3e-45f, 2e36f, 0.0f, -0.0f};
  std::vector<float> scales(static_cast<size_t>(entries * groups));
  for (float& scale : scales) scale = kinds[random() % kinds.size()];
  stored::WeightCodes codes;
  codes.values = Array::FromSpan<int8_t>(values, {entries, features});
  codes.bits = bits;
  codes.scales = Array::FromSpan<float>(scales, {entries, groups});
  return codes;
}

void ExpectRowsOfTheTable(const stored::WeightCodes& codes, const Array& ids) {
  const Program program = LookUps(codes.values.shape(), ids.shape());
  const SlotValues floats = {{kTable, MultipliedOut(codes)}, {kIds, ids}};
  SlotValues stored = {{kIds, ids}};
  const CodedTables tables = {{kTable, StoreTable(kTable, codes, stored)}};
  const absl::StatusOr<Program> coded = WithCodedTables(program, tables);
  ASSERT_TRUE(coded.ok()) << coded.status();
  EXPECT_EQ(coded->inputs.size(), 3);
  const Array want = EvalSlots(program, floats)->at(kRows);
  EXPECT_TRUE(BitEqual(EvalSlots(*coded, stored)->at(kRows), want));
  EXPECT_TRUE(BitEqual(Executable::Make(*coded)->RunSlots(stored)->at(kRows), want));
}

TEST(CodedTableTest, RowsHaveTheBitsOfTheMultipliedOutTable) {
  std::mt19937 random(1);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const int64_t features : {1, 2, 7, 12, 64}) {
      for (const int64_t groups : {int64_t{1}, features % 4 == 0 ? features / 4 : features}) {
        SCOPED_TRACE(::testing::Message() << bits << " bits, " << features << " features, " << groups << " groups");
        const stored::WeightCodes codes = RandomCodes(bits, 9, features, groups, random);
        ExpectRowsOfTheTable(codes, Array::Of<int32_t>({0, 8, 3, 3, -5, 100}, {2, 3}));
        ExpectRowsOfTheTable(codes, Array::Scalar<int32_t>(4));
      }
    }
  }
}

TEST(CodedTableTest, EightBitFloats) {
  std::mt19937 random(2);
  stored::WeightCodes codes = RandomCodes(8, 9, 12, 3, random);
  codes.values = Cast(codes.values, DType::kE4M3FN);
  ExpectRowsOfTheTable(codes, Array::Of<int32_t>({0, 8, 3, 3}, {4}));
}

TEST(CodedTableTest, IntegersOfFourBitsTakeHalfAByte) {
  std::mt19937 random(3);
  for (const auto& [bits, bytes] : {std::pair<int, int64_t>{2, 4}, {4, 4}, {5, 7}, {8, 7}}) {
    SlotValues stored;
    const CodedTable table = StoreTable(kTable, RandomCodes(bits, 5, 7, 1, random), stored);
    EXPECT_EQ(stored.at(table.codes.slot).num_bytes(), 5 * bytes) << bits;
  }
}

}  // namespace
}  // namespace aqt::models
