// Transforms of the number format work on the parts of an attention.

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/attention/attention.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/precision/scalify.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::IsOk;

const Slot kX{SlotKind::kParam, "x"};

Program Model() {
  const auto fn = [](absl::Span<const Value> in) {
    const NamedScope scope("layer");
    return std::vector<Value>{ops::Attention({.query = in[0], .key = in[0], .value = in[0], .mask = in[1]})};
  };
  return *Trace(fn, {{kX, {DType::kF32, {2, 6, 3, 4}}}, {{SlotKind::kData, "mask"}, {DType::kBool, {6, 6}}}});
}

TEST(AttentionPrecisionTest, AmpOfItsParts) {
  AmpReport got, want;
  const absl::StatusOr<Program> whole = Amp(Model(), {.compute_dtype = DType::kBF16}, &got);
  const absl::StatusOr<Program> parts = Amp(*Expand(Model(), {"attention"}), {.compute_dtype = DType::kBF16}, &want);
  ASSERT_THAT(whole, IsOk());
  ASSERT_THAT(parts, IsOk());
  EXPECT_EQ(ToText(*whole), ToText(*parts));
  EXPECT_EQ(got.ToString(), want.ToString());
  EXPECT_EQ(CountOps(*whole, "attention"), 0);
}

TEST(AttentionPrecisionTest, ScalifyOfItsParts) {
  const ScalifyOptions options{.scaled_inputs = {{kX, DType::kF32}}};
  const absl::StatusOr<Program> whole = Scalify(Model(), options);
  const absl::StatusOr<Program> parts = Scalify(*Expand(Model(), {"attention"}), options);
  ASSERT_THAT(whole, IsOk());
  ASSERT_THAT(parts, IsOk());
  EXPECT_EQ(ToText(*whole), ToText(*parts));
}

}  // namespace
}  // namespace aqt
