#include "aqt/kernels/gemm/schedule.h"

#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/machine.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"
#include "gtest/gtest.h"

namespace aqt::kernels {

void PrintTo(GemmStrategy strategy, std::ostream* os) {
  constexpr const char* kNames[] = {"kPanels", "kFewRows", "kLongK", "kByBlocks"};
  *os << kNames[static_cast<int>(strategy)];
}
void PrintTo(const PanelCuts& cuts, std::ostream* os) { *os << cuts.m_tasks << " x " << cuts.n_tasks; }

namespace {

using Element = PanelFormat::Element;
using Layout = PanelFormat::Layout;

// What a schedule reads of two rows of the table; they are the same on every machine.
GemmKernel KernelOf(GemmSums sums, Target target, const PanelFormat& lhs, const PanelFormat& rhs) {
  return {.name = "",
          .sums = sums,
          .target = target,
          .lhs = lhs,
          .rhs = rhs,
          .emulated = false,
          .products_per_cycle = 1,
          .row_unit = 1,
          .block_rows = 192,
          .block_bytes = std::numeric_limits<int32_t>::max(),
          .block = nullptr};
}
GemmKernel S8() {
  return KernelOf(GemmSums::kS32, Target::kAvx512Vnni, {Layout::kRowSteps, Element::kU8Offset, false, 8, 4},
                  {Layout::kInterleaved, Element::kS8, true, 32, 4});
}
GemmKernel F32() {
  GemmKernel kernel = KernelOf(GemmSums::kF32, Target::kAvx512, {Layout::kRowSteps, Element::kF32, false, 12, 1},
                               {Layout::kInterleaved, Element::kF32, false, 32, 1});
  kernel.block_groups = 512;
  kernel.add_block =
      +[](const void*, int64_t, const void*, int64_t, int64_t, bool, float*, const RowsAhead&, const RowsAhead&) {};
  return kernel;
}

struct Case {
  int64_t m, n, k;
  int64_t threads = 1;
  bool rhs_in_place = false;  // its rows have stride 1
  bool lhs_is_packed = false, rhs_is_packed = false;
  bool overlap = false, adds = false;
  int64_t l2_bytes = 2 << 20;
};

GemmSchedule ChooseFor(const GemmKernel& kernel, const Case& c) {
  const DType dtype = kernel.sums == GemmSums::kS32 ? DType::kS8 : DType::kF32;
  const DType out = kernel.sums == GemmSums::kS32 ? DType::kS32 : DType::kF32;
  GemmProblem problem = GemmProblem::Dense(1, c.m, c.n, c.k, out, nullptr);
  problem.lhs = Operand::Dense(nullptr, dtype, c.m, c.k);
  problem.rhs =
      c.rhs_in_place ? Operand::Transposed(nullptr, dtype, c.n, c.k) : Operand::Dense(nullptr, dtype, c.n, c.k);
  problem.lhs_rows_overlap = c.overlap;
  problem.epilogue.adds = c.adds;
  const char panels = 0;
  return Choose(kernel, problem,
                {.lhs = c.lhs_is_packed ? &panels : nullptr, .rhs = c.rhs_is_packed ? &panels : nullptr},
                {.l2_bytes = c.l2_bytes}, c.threads);
}

TEST(GemmScheduleTest, ChoosesTheStrategy) {
  const GemmKernel s8 = S8(), f32 = F32();
  struct Row {
    std::string what;
    const GemmKernel& kernel;
    Case problem;
    GemmStrategy strategy;
  };
  const Row table[] = {
      {"few rows, rhs in place", f32, {.m = 4, .n = 64, .k = 64, .rhs_in_place = true}, GemmStrategy::kFewRows},
      {"the most of them", f32, {.m = 12, .n = 64, .k = 64, .rhs_in_place = true}, GemmStrategy::kFewRows},
      {"one row more", f32, {.m = 13, .n = 64, .k = 64, .rhs_in_place = true}, GemmStrategy::kByBlocks},
      {"few rows of integers", s8, {.m = 4, .n = 64, .k = 64, .rhs_in_place = true}, GemmStrategy::kByBlocks},
      {"few rows, large rhs", f32, {.m = 4, .n = 1024, .k = 1024}, GemmStrategy::kFewRows},
      {"few rows, smaller rhs", f32, {.m = 4, .n = 1024, .k = 1000}, GemmStrategy::kByBlocks},
      {"few rows, packed rhs", f32, {.m = 4, .n = 64, .k = 64, .rhs_is_packed = true}, GemmStrategy::kByBlocks},

      {"small, two threads", f32, {.m = 130, .n = 256, .k = 200, .threads = 2}, GemmStrategy::kLongK},
      {"the same, one thread", f32, {.m = 130, .n = 256, .k = 200}, GemmStrategy::kByBlocks},
      {"the same, packed rhs",
       f32,
       {.m = 130, .n = 256, .k = 200, .threads = 2, .rhs_is_packed = true},
       GemmStrategy::kByBlocks},
      {"the same, overlapping rows",
       f32,
       {.m = 130, .n = 256, .k = 200, .threads = 2, .overlap = true},
       GemmStrategy::kByBlocks},
      {"the same, with a small L2",
       f32,
       {.m = 130, .n = 256, .k = 200, .threads = 2, .l2_bytes = 256 << 10},
       GemmStrategy::kByBlocks},
      {"the same, with a smaller one",
       f32,
       {.m = 130, .n = 256, .k = 200, .threads = 2, .l2_bytes = 128 << 10},
       GemmStrategy::kPanels},
      {"large rhs", f32, {.m = 96, .n = 6000, .k = 700}, GemmStrategy::kLongK},
      {"large rhs, fewer rows", f32, {.m = 95, .n = 6000, .k = 700}, GemmStrategy::kByBlocks},
      {"large rhs, fewer rows, two threads", f32, {.m = 95, .n = 6000, .k = 700, .threads = 2}, GemmStrategy::kLongK},
      {"large rhs of integers", s8, {.m = 96, .n = 24000, .k = 700}, GemmStrategy::kByBlocks},

      {"blocks of rows", s8, {.m = 512, .n = 512, .k = 512}, GemmStrategy::kByBlocks},
      {"long rows", f32, {.m = 48, .n = 64, .k = 4096}, GemmStrategy::kPanels},
      {"long rows, enough for blocks of k", f32, {.m = 96, .n = 64, .k = 4096}, GemmStrategy::kByBlocks},
      {"long rows that overlap", f32, {.m = 48, .n = 64, .k = 4096, .overlap = true}, GemmStrategy::kByBlocks},
      {"fewer blocks than threads", s8, {.m = 8, .n = 4096, .k = 512, .threads = 2}, GemmStrategy::kPanels},
      {"packed lhs", s8, {.m = 512, .n = 512, .k = 512, .lhs_is_packed = true}, GemmStrategy::kPanels},
      {"added up", s8, {.m = 512, .n = 512, .k = 512, .adds = true}, GemmStrategy::kPanels},
      {"no rows", s8, {.m = 0, .n = 512, .k = 512}, GemmStrategy::kPanels},
      {"no k", s8, {.m = 512, .n = 512, .k = 0}, GemmStrategy::kPanels},
  };
  for (const Row& row : table) EXPECT_EQ(ChooseFor(row.kernel, row.problem).strategy, row.strategy) << row.what;
}

TEST(GemmScheduleTest, SmallProductsHaveOneThread) {
  EXPECT_EQ(ChooseFor(S8(), {.m = 100, .n = 100, .k = 199, .threads = 4}).threads, 1);
  EXPECT_EQ(ChooseFor(S8(), {.m = 100, .n = 100, .k = 200, .threads = 4}).threads, 4);
}

TEST(GemmScheduleTest, CutsPanelsForThreads) {
  const Case both = {.m = 512, .n = 512, .k = 512, .lhs_is_packed = true, .rhs_is_packed = true};
  const auto cuts = [&](int64_t m, int64_t n, int64_t threads, bool adds = false) {
    Case c = both;
    c.m = m;
    c.n = n;
    c.threads = threads;
    c.adds = adds;
    return ChooseFor(S8(), c).panels;
  };
  EXPECT_EQ(cuts(512, 512, 1), (PanelCuts{3, 1}));  // of at most 192 rows
  EXPECT_EQ(cuts(512, 512, 2), (PanelCuts{4, 1}));
  EXPECT_EQ(cuts(1, 8192, 1), (PanelCuts{1, 1}));
  EXPECT_EQ(cuts(1, 8192, 2), (PanelCuts{1, 8}));
  EXPECT_EQ(cuts(1, 8192, 7), (PanelCuts{1, 7}));
  EXPECT_EQ(cuts(1, 512, 1, /*adds=*/true), (PanelCuts{1, 1}));   // 16 KiB of sums
  EXPECT_EQ(cuts(64, 512, 1, /*adds=*/true), (PanelCuts{1, 2}));  // 256 columns
  EXPECT_EQ(cuts(1, 8192, 2, /*adds=*/true), (PanelCuts{1, 4}));
}

TEST(GemmScheduleTest, BlocksFitL2) {
  const auto blocks = [](int64_t m, int64_t l2_bytes, int64_t threads) {
    return ChooseFor(S8(), {.m = m, .n = 512, .k = 512, .threads = threads, .l2_bytes = l2_bytes}).blocks.count;
  };
  EXPECT_EQ(blocks(512, 4 << 20, 1), 3);  // of at most 192 rows, 512 bytes each
  EXPECT_EQ(blocks(512, 1 << 20, 1), 3);
  EXPECT_EQ(blocks(512, 128 << 10, 1), 6);  // 48 KiB
  EXPECT_EQ(blocks(512, 1 << 20, 2), 4);    // as many for each thread
  const BlockCuts cuts = ChooseFor(S8(), {.m = 512, .n = 512, .k = 512, .threads = 2}).blocks;
  EXPECT_EQ(cuts.panels, 64);
  EXPECT_EQ(cuts.parts, 4);
  EXPECT_EQ(cuts.First(1), 16);
  EXPECT_EQ(cuts.Begin(5), (64 + 16) * cuts.panel_bytes);
  EXPECT_FALSE(cuts.fetches);
  EXPECT_TRUE(ChooseFor(S8(), {.m = 520, .n = 512, .k = 512}).blocks.fetches);
  EXPECT_TRUE(ChooseFor(F32(), {.m = 96, .n = 64, .k = 4096}).blocks.sliced);
}

TEST(GemmScheduleTest, LongKHasAPlaceForEachThread) {
  const LongKCuts small = ChooseFor(F32(), {.m = 130, .n = 256, .k = 200, .threads = 2}).long_k;
  EXPECT_TRUE(small.whole_k);
  EXPECT_EQ(small.count, 2);
  EXPECT_EQ(small.places, 2);
  EXPECT_EQ(small.panels_at_once, 4);
  EXPECT_EQ(small.sum_bytes, 0);
  EXPECT_FALSE(small.fetches);
  const LongKCuts large = ChooseFor(F32(), {.m = 200, .n = 6000, .k = 1000}).long_k;
  EXPECT_FALSE(large.whole_k);
  EXPECT_EQ(large.places, 1);
  EXPECT_LE(large.sum_bytes, kSumBytes);
  EXPECT_GT(large.sum_bytes, kSumBytes / 2);
}

TEST(GemmScheduleTest, BuffersHoldWhatIsChosen) {
  const Machine machine;
  for (const auto& [m, n, k] :
       {std::tuple<int64_t, int64_t, int64_t>{130, 256, 200}, {97, 6000, 700}, {96, 64, 4096}}) {
    for (int64_t threads = 1; threads < 12; ++threads) {
      const GemmSchedule schedule = ChooseFor(F32(), {.m = m, .n = n, .k = k, .threads = threads, .l2_bytes = 1 << 20});
      EXPECT_LE(schedule.long_k.Bytes(), ChosenLongKBytes(F32(), 1, m, n, k, machine));
      EXPECT_LE(CutLongK(F32(), 1, m, n, k, machine, threads).Bytes(), LongKBytes(F32(), 1, m, n, k, machine));
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
