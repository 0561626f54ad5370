#include "aqt/ops/contraction/draw_numerics.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

// "name: color note" of each painted equation.
std::vector<std::string> PaintsOf(const DotGeneralConfig& config) {
  const absl::StatusOr<Program> loss = testing::TraceWith(
      [&](absl::Span<const Value> in) {
        return std::vector<Value>{ops::ReduceSum(ops::Relu(ops::AqtDotGeneral(in[0], in[1], MatMulDims(), config)))};
      },
      {Array::Zeros(DType::kF32, {2, 3}), Array::Zeros(DType::kF32, {3, 4})});
  EXPECT_THAT(loss, testing::IsOk());
  const absl::StatusOr<Program> gradient = ValueAndGrad(*loss, {0, 1});
  EXPECT_THAT(gradient, testing::IsOk());
  std::vector<std::string> paints;
  for (const Equation& eqn : gradient->eqns) {
    const Paint paint = ops::PaintNumerics(eqn);
    if (!paint.note.empty()) paints.push_back(OpName(eqn.op) + ": " + paint.color + " " + paint.note);
  }
  return paints;
}

using Paints = std::vector<std::string>;

TEST(DrawNumericsTest, TheNarrowestSideGivesTheColour) {
  EXPECT_EQ(PaintsOf({.fwd = DotGeneralRawMake(8, 4), .dlhs = DotGeneralRawMake(8, 8)}),
            (Paints{"aqt_dot_general_fwd: #fbd5a0 int8 * int4",
                    "aqt_dot_general_bwd: #bfe3b8 dlhs int8 * int8, drhs float"}));
  EXPECT_EQ(PaintsOf({.fwd = DotGeneralRawMake(2, std::nullopt)}),
            (Paints{"aqt_dot_general_fwd: #f6b3b0 int2 * float", "aqt_dot_general_bwd:  dlhs float, drhs float"}));
  EXPECT_EQ(PaintsOf({.fwd = ConfigFwdFp8().fwd})[0], "aqt_dot_general_fwd: #bcd9f7 fp8_e4m3 * fp8_e4m3");
}

}  // namespace
}  // namespace aqt
