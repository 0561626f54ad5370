#include "aqt/nn/serve/serve.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/serve.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "y"};

std::vector<Value> Model(In in) { return {Dense(in[0], "layer", {.features = 8})}; }
Input Rows(int64_t rows) { return {kX, {DType::kF32, {rows, 16}}}; }
Program ModelOf(int64_t rows) { return *Trace(Model, {Rows(rows)}, std::vector<Slot>{kY}); }

InjectConfig Int8() {
  InjectConfig config;
  config.rules.push_back({.scope = ".*", .dot_general = DotGeneralMake(8, 8)});
  return config;
}

TEST(ServeTest, FromATrainingAndFromItsFrozenValues) {
  const SlotValues params = *InitParams(Model, {Rows(1)}, MakeKey(0));
  const SlotValues frozen = *Freeze(ModelOf(1), Int8(), params);
  const absl::StatusOr<PreparedProgram> trained = Serve({ModelOf(1), ModelOf(5)}, Int8(), params);
  ASSERT_THAT(trained, IsOk());
  const absl::StatusOr<PreparedProgram> stored = Serve({ModelOf(1), ModelOf(5)}, Int8(), frozen);
  ASSERT_THAT(stored, IsOk());
  for (const int64_t rows : {1, 5}) {
    SlotValues values = frozen;
    values[kX] = RandomArray(Rows(rows).aval, 7);
    const absl::StatusOr<SlotValues> want = EvalSlots(*ServeProgram(ModelOf(rows), Int8(), frozen), values);
    ASSERT_THAT(want, IsOk());
    for (const PreparedProgram& served : {*trained, *stored}) {
      const absl::StatusOr<SlotValues> out = served.Eval({{kX, values.at(kX)}});
      ASSERT_THAT(out, IsOk());
      EXPECT_TRUE(BitEqual(out->at(kY), want->at(kY)));
    }
  }
}

TEST(ServeTest, Errors) {
  EXPECT_THAT(Serve({}, Int8(), {}).status(), FailsWith(absl::StatusCode::kInvalidArgument, {"there is no model"}));
  EXPECT_THAT(Serve({ModelOf(1)}, Int8(), {}).status(),
              FailsWith(absl::StatusCode::kNotFound, {"layer/kernel", "no value"}));
}

}  // namespace
}  // namespace aqt::nn
