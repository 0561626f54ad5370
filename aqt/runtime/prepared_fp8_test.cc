// Products of the FP8 layers in prepared programs: the kernel is quantized and packed once.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kKernel{SlotKind::kParam, "k"}, kY{SlotKind::kData, "y"};

absl::StatusOr<Program> TraceDot(DType dtype, int64_t m, int64_t k, int64_t n, const Fp8DotOptions& options) {
  return Trace(
      [&](In in) { return std::vector<Value>{ops::Fp8Dot(in[0], in[1], Fp8StateInputs(options.name, 3), options)}; },
      {{kX, {dtype, {m, k}}}, {kKernel, {dtype, {k, n}}}}, std::vector<Slot>{kY});
}

// A kernel, and a state whose scales are this number and its multiples by powers of two.
SlotValues Served(const Program& program, float scale) {
  SlotValues values = InitialStats(program);
  for (auto& [slot, array] : values) {
    if (array.num_elements() != 1) continue;
    array = Array::Of<float>({scale}, {1});
    scale *= 2;
  }
  for (const Program::Port& port : program.inputs) {
    if (port.slot == kKernel) values[kKernel] = RandomArray(program.aval(port.var), 2, -50, 50);
  }
  return values;
}

// Includes scales that are not powers of two, for which dequantized numbers are multiplied.
TEST(PreparedFp8Test, HasTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const float scale : {0.25f, 0.3f}) {
      for (const auto& [k, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {70, 37}, {128, 64}}) {
        Fp8DotOptions options{.name = "fc"};
        if (dtype == DType::kBF16) options.compute_dtype = DType::kF32;
        std::vector<Program> programs;
        for (const int64_t m : {1, 7, 40}) {
          const absl::StatusOr<Program> program = TraceDot(dtype, m, k, n, options);
          ASSERT_THAT(program, IsOk());
          programs.push_back(*program);
        }
        const SlotValues values = Served(programs[0], scale);
        const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make(programs, values);
        ASSERT_THAT(prepared, IsOk());
        for (int i = 0; i < prepared->num_programs(); ++i) {
          const Array x = RandomArray(programs[i].aval(programs[i].inputs[0].var), 3, -50, 50);
          EXPECT_EQ(CountOps(prepared->program(i), "fp8_packed_dot"), 1);
          EXPECT_EQ(prepared->program(i).eqns.size(), 1u);
          SlotValues all = values;
          all[kX] = x;
          const absl::StatusOr<SlotValues> got = prepared->Eval({{kX, x}}), want = EvalSlots(programs[i], all);
          ASSERT_THAT(got, IsOk());
          ASSERT_THAT(want, IsOk());
          EXPECT_TRUE(SameBits(got->at(kY), want->at(kY)))
              << absl::StrCat(ToString(dtype), " ", x.shape()[0], " ", k, " ", n, " ", scale);
        }
      }
    }
  }
}

// A kernel is not packed if it or its scale may change, or if it is trained.
TEST(PreparedFp8Test, PacksOnlyWhatIsFixed) {
  const absl::StatusOr<Program> program = TraceDot(DType::kF32, 4, 8, 5, {.name = "fc"});
  ASSERT_THAT(program, IsOk());
  const SlotValues all = Served(*program, 0.5f);
  for (const Slot& open : {kKernel, Fp8SlotsOf("fc", Fp8Tensor::kKernel).scale}) {
    SlotValues some = all;
    some.erase(open);
    const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make({*program}, some);
    ASSERT_THAT(prepared, IsOk());
    EXPECT_EQ(CountOps(prepared->program(0), "fp8_dot"), 1) << open.ToString();
  }
  const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make({*program}, all);
  ASSERT_THAT(prepared, IsOk());
  // One byte for each code, and at least as many for the panels.
  EXPECT_GE(prepared->num_bytes(), 2 * 8 * 5);
  EXPECT_THAT(SaveProgram(prepared->program(0), ops::ProgramCodecs()),
              FailsWith(absl::StatusCode::kUnimplemented, {"fp8_packed_dot", "the kernels of this machine"}));
}

TEST(PreparedFp8Test, HasNoGradient) {
  const absl::StatusOr<Program> loss = Trace(
      [](In in) {
        return std::vector<Value>{ops::ReduceSum(ops::Fp8Dot(in[0], in[1], Fp8StateInputs("fc", 3), {.name = "fc"}))};
      },
      {{kX, {DType::kF32, {4, 8}}}, {kKernel, {DType::kF32, {8, 5}}}});
  ASSERT_THAT(loss, IsOk());
  const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make({*loss}, Served(*loss, 0.5f));
  ASSERT_THAT(prepared, IsOk());
  EXPECT_THAT(Grad(prepared->program(0), {{0}}),
              FailsWith(absl::StatusCode::kUnimplemented, {"fp8_packed_dot", "differentiate before it is prepared"}));
}

}  // namespace
}  // namespace aqt
