#include "aqt/ops/scaling/debug_callback.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/runtime/executable.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/precision/scalify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using In = absl::Span<const Value>;
using Values = std::vector<Value>;

const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "0"}, kGrad{SlotKind::kData, "grad(x)"};

// The values passed to callbacks, as "1,2" or "1,2 * 4".
class Log {
 public:
  DebugFunction Writer(const std::string& name = "") {
    return [this, name](const ScaledArray& seen) {
      const std::string scale = seen.scale.has_value() ? " * " + ContentsText(*seen.scale) : "";
      lines_.push_back(name + ContentsText(seen.data) + scale);
      kept_.push_back(seen.data);
    };
  }
  std::vector<std::string> Take() { return std::exchange(lines_, {}); }
  const std::vector<Array>& kept() const { return kept_; }

 private:
  std::vector<std::string> lines_;
  std::vector<Array> kept_;
};

Program TraceOf(TracedFunction fn) { return *Trace(fn, {{{kX, {DType::kF32, {2}}}}}); }
const Array kOneTwo = Array::Of<float>({1, 2}, {2});

// The scale of a * 4 is that of a, times 4, as in the original's test.
TEST(DebugCallback, SeesDataAndScale) {
  Log log;
  const Program program = TraceOf([&](In in) {
    const Value x = ops::DebugCallback(in[0], log.Writer());
    return Values{ops::DebugCallback(x * 4.0, log.Writer())};
  });
  const SlotValues plain = *EvalSlots(program, {{kX, kOneTwo}});
  EXPECT_THAT(log.Take(), ElementsAre("{1, 2}", "{4, 8}"));
  const Program scaled = *Scalify(program, {.scaled_inputs = {{kX, DType::kF32}}});
  const SlotValues values = {{kX, kOneTwo}, {ScaleSlot(kX), Array::Scalar(3.0f)}};
  const SlotValues out = *EvalSlots(scaled, values);
  EXPECT_THAT(log.Take(), ElementsAre("{1, 2} * 3", "{1, 2} * 12"));
  EXPECT_TRUE(BitEqual(out.at(kY), kOneTwo));
  EXPECT_EQ(out.at(ScaleSlot(kY)).View<float>()[0], 12);
}

// An Executable calls it in each run, and Dce keeps it if its result is used. Arrays may be kept, although the memory
// of their values is reused.
TEST(DebugCallback, UnderAnExecutable) {
  Log log;
  const Program program = Dce(TraceOf([&](In in) {
    Value x = ops::DebugCallback(ops::Exp(in[0]) * 0.0 + in[0] * 4.0, log.Writer());
    for (int i = 0; i < 4; ++i) x = ops::CumulativeSum(ops::Sqrt(x), 0);
    return Values{x};
  }));
  EXPECT_EQ(CountOps(program, "debug_callback"), 1);
  const Executable executable = *Executable::Make(program);
  EXPECT_THAT(log.Take(), ElementsAre());
  const std::vector<Array> first = *executable.Run({kOneTwo});
  EXPECT_EQ(executable.Run({Array::Of<float>({3, 4}, {2})}).status(), absl::OkStatus());
  EXPECT_THAT(log.Take(), ElementsAre("{4, 8}", "{12, 16}"));
  EXPECT_TRUE(BitEqual(log.kept()[0], Array::Of<float>({4, 8}, {2})));
  EXPECT_TRUE(BitEqual(first[0], (*Eval(program, {kOneTwo}))[0]));
}

TEST(DebugCallback, SeesGradients) {
  Log log;
  const Program loss = TraceOf([&](In in) {
    const Value x = ops::DebugCallbackGrad(ops::DebugCallback(in[0], log.Writer("x")), log.Writer("dx"));
    return Values{ops::ReduceSum(x * x)};
  });
  EXPECT_TRUE(Eval(loss, {kOneTwo}).ok());
  EXPECT_THAT(log.Take(), ElementsAre("x{1, 2}"));
  const Program step = *ValueAndGrad(loss, {{0}});
  EXPECT_TRUE(BitEqual(EvalSlots(step, {{kX, kOneTwo}})->at(kGrad), Array::Of<float>({2, 4}, {2})));
  EXPECT_THAT(log.Take(), ElementsAre("x{1, 2}", "dx{2, 4}"));
  // 2 x, a sum of two equal gradients: the product of data and scale is 2 * 8 * data.
  const Program scaled = *Scalify(step, {.rules = {.scale_dtype = DType::kF32}, .scaled_inputs = {{kX, DType::kF32}}});
  const SlotValues values = {{kX, kOneTwo}, {ScaleSlot(kX), Array::Scalar(8.0f)}};
  EXPECT_TRUE(EvalSlots(scaled, values).ok());
  EXPECT_THAT(log.Take(), ElementsAre("x{1, 2} * 8", "dx{2, 4} * 8"));
}

TEST(DebugCallback, CannotBeSaved) {
  const Program program = TraceOf([&](In in) { return Values{ops::DebugCallback(in[0], [](const ScaledArray&) {})}; });
  EXPECT_THAT(SaveProgram(program, ops::ProgramCodecs()),
              FailsWith(absl::StatusCode::kUnimplemented, {"debug_callback", "cannot be saved"}));
}

TEST(DebugPrint, WritesALine) {
  ::testing::internal::CaptureStderr();
  const Program program = TraceOf([](In in) { return Values{ops::DebugPrint(in[0], "hidden")}; });
  EXPECT_TRUE(Eval(program, {kOneTwo}).ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "hidden: f32[2] {1, 2}\n");
  EXPECT_THAT(ToText(program), HasSubstr("debug_callback(%0) {\"hidden\"}"));
}

}  // namespace
}  // namespace aqt
