// Products that pack their operands in blocks, and the packing of blocks, compared with whole panels.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/machine.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/kernels/gemm/by_blocks.h"
#include "aqt/kernels/gemm/by_lines.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/long_k.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/kernels/panels/pack_panels.h"
#include "aqt/kernels/panels/panel_format.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

using Element = PanelFormat::Element;

class Random {
 public:
  int64_t Any(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng_); }
  template <class T>
  T Pick(const std::vector<T>& values) {
    return values[Any(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 rng_{7};
};

// The bytes of numbers of `dtype`; for floats, one in seven is subnormal.
std::vector<char> Values(DType dtype, bool small, int64_t n) {
  std::vector<char> bytes(n * SizeOf(dtype));
  if (dtype == DType::kS8) {
    const std::vector<int8_t> values = RandomS8(n, 1);
    for (int64_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(small ? values[i] / 16 : values[i]);
    return bytes;
  }
  const std::vector<float> values = RandomF32(n, 2);
  for (int64_t i = 0; i < n; ++i) {
    const float x = i % 7 == 0 ? (i % 2 == 0 ? -1e-40f : 3e-39f) : values[i];
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &x, 4);
    } else {
      const BFloat16 rounded = RoundToBFloat16(x);
      std::memcpy(bytes.data() + 2 * i, &rounded, 2);
    }
  }
  return bytes;
}

DType DTypeOf(Element element) {
  if (element == Element::kF32) return DType::kF32;
  return element == Element::kBF16 ? DType::kBF16 : DType::kS8;
}

// Windows of 2 x 3 over images, and the same elements as a dense operand. Either the window positions are the rows and
// their elements k, or vice versa.
struct Windows {
  int64_t height, width, channels, stride;
  bool places_are_rows;
  int64_t images = 1;            // per matrix
  bool walks_backwards = false;  // windows in reverse order, as for gradients

  int64_t ImageElements() const { return (height + 1) * (width * stride + 2) * channels; }
  int64_t NumElements(int64_t batch) const { return batch * images * ImageElements(); }
  Operand Of(const void* image, DType dtype, int64_t batch) const {
    const int64_t line = (width * stride + 2) * channels;
    Operand x;
    x.data = image;
    x.dtype = dtype;
    x.batch.Append(batch, NumElements(1));
    AxisGroup& places = places_are_rows ? x.rows : x.k;
    AxisGroup& elements = places_are_rows ? x.k : x.rows;
    places.Append(images, ImageElements());
    places.Append(height, line);
    places.Append(width, stride * channels);
    const int64_t sign = walks_backwards ? -1 : 1;
    if (walks_backwards) x.data = static_cast<const char*>(image) + (line + 2 * channels) * SizeOf(dtype);
    elements.Append(2, sign * line);
    elements.Append(3, sign * channels);
    elements.Append(channels, 1);
    return x;
  }
};

Windows DrawWindows(Random& random, bool places_are_rows) {
  return {random.Any(1, 9), random.Any(1, 40), random.Pick<int64_t>({1, 3, 16, 32, 64}), random.Any(1, 2),
          places_are_rows};
}

// [batch, rows, k, 2]: each element twice, so that elements are not adjacent.
std::vector<char> Gathered(const Operand& x) {
  const int64_t size = SizeOf(x.dtype);
  std::vector<char> dense;
  for (int64_t b = 0; b < x.batch.Count(); ++b) {
    for (int64_t r = 0; r < x.rows.Count(); ++r) {
      for (int64_t k = 0; k < x.k.Count(); ++k) {
        const char* from =
            static_cast<const char*>(x.data) + (x.batch.Offset(b) + x.rows.Offset(r) + x.k.Offset(k)) * size;
        for (int i = 0; i < 2; ++i) dense.insert(dense.end(), from, from + size);
      }
    }
  }
  return dense;
}

TEST(PackPanelsTest, GivesPartsOfThePanels) {
  Random random;
  for (const GemmKernel* kernel : AllGemmKernels()) {
    for (const PanelFormat& format : {kernel->lhs, kernel->rhs}) {
      const DType dtype = DTypeOf(format.element);
      for (int i = 0; i < 12; ++i) {
        const Windows windows = DrawWindows(random, /*places_are_rows=*/i % 2 == 0);
        const std::vector<char> image = Values(dtype, format.element == Element::kS4, windows.NumElements(2));
        const Operand x = windows.Of(image.data(), dtype, 2);
        const int64_t rows = x.rows.Count(), k = x.k.Count(), step = PanelFormat::kStepGroups * format.k_group;
        const bool flush = random.Any(0, 1) == 1;
        PanelRange range = {.matrix = random.Any(0, 1), .last = format.NumPanels(rows), .k1 = k};
        range.first = random.Any(0, range.last - 1);
        if (i % 3 != 0) {
          range.k0 = random.Any(0, (k - 1) / step) * step;
          range.k1 = random.Any(range.k0, k);
        }
        const std::vector<char> dense = Gathered(x);
        Operand part;
        part.data = dense.data() + 2 * (range.matrix * rows * k + range.k0) * SizeOf(dtype);
        part.dtype = dtype;
        part.rows = AxisGroup::Of(rows, 2 * k);
        part.k = AxisGroup::Of(range.k1 - range.k0, 2);
        AlignedBytes all(format.PackedBytes(rows, range.k1 - range.k0));
        Pack(kernel->target, format, part, all.data(), nullptr, flush);
        const int64_t skipped = range.first * format.PanelBytes(range.k1 - range.k0);
        AlignedBytes got(all.size() - skipped);
        PackPanels(kernel->target, format, x, range, got.data(), flush);
        EXPECT_EQ(std::memcmp(got.data(), all.data() + skipped, got.size()), 0)
            << kernel->name << " " << rows << " x " << k << ", k " << range.k0 << " to " << range.k1;
      }
    }
  }
}

class GemmBlocksTest : public ::testing::Test {
 protected:
  enum class Way { kByBlocks, kByLines, kLongK };

  // Compares the product of windows and a random matrix that has contiguous columns or rows. Returns false if it does
  // not run.
  bool Compare(const GemmKernel& kernel, const Windows& windows, int64_t batch, int64_t n, Way way,
               Executor* executor) {
    const DType lhs_dtype = DTypeOf(kernel.lhs.element), rhs_dtype = DTypeOf(kernel.rhs.element);
    const std::vector<char> image = Values(lhs_dtype, false, windows.NumElements(batch));
    const Operand lhs = windows.Of(image.data(), lhs_dtype, batch);
    const int64_t m = lhs.rows.Count(), k = lhs.k.Count();
    const std::vector<char> matrix = Values(rhs_dtype, kernel.rhs.element == Element::kS4, batch * n * k);
    const Operand rhs = Operand::Dense(matrix.data(), rhs_dtype, n, k, batch);
    const std::vector<float> row_scale = RandomF32(m, 3), col_scale = RandomF32(n, 4);
    std::vector<float> expected(batch * m * n), got(expected.size());
    GemmProblem problem = GemmProblem::Of(lhs, rhs, GemmOutput::Dense(expected.data(), DType::kF32, m, n, batch));
    problem.subnormals_are_zero = true;
    problem.epilogue.lhs_scale = row_scale.data();
    problem.epilogue.rhs_scale = col_scale.data();
    problem.epilogue.subnormals_are_zero = random_.Any(0, 1) == 1;
    if (random_.Any(0, 1) == 0) {
      problem.out.rows = AxisGroup::Of(m, 1);
      problem.out.cols = AxisGroup::Of(n, m);
    }

    const PackedOperands packed(kernel, lhs, rhs, /*subnormals_are_zero=*/true);
    GemmPanels panels = packed.Panels(kernel, problem);
    RunGemm(kernel, problem, panels, nullptr);

    panels.lhs = nullptr;
    problem.out.data = got.data();
    if (way == Way::kByLines) {
      const LinesPlan plan(kernel, lhs, n);
      if (!plan.is_good()) return false;
      AlignedBytes buffer(plan.BufferBytes());
      plan.Run(problem, panels, buffer.data(), executor);
    } else if (way == Way::kByBlocks) {
      const BlockCuts cuts = CutBlocks(kernel, batch, m, k, ThisMachine(), UsefulThreads(problem, ThreadsOf(executor)));
      AlignedBytes buffer(packed.lhs.size());
      RunGemmByBlocks(kernel, problem, panels, cuts, buffer.data(), executor);
    } else {
      const LongKCuts cuts =
          CutLongK(kernel, batch, m, n, k, ThisMachine(), UsefulThreads(problem, ThreadsOf(executor)));
      AlignedBytes buffer(cuts.Bytes());
      RunGemmLongK(kernel, problem, cuts, buffer.data(), executor);
    }
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
        << absl::StrCat(kernel.name, " ", batch, " x ", m, " x ", n, " x ", k);
    return true;
  }

  Random random_;
};

TEST_F(GemmBlocksTest, ByBlocksGivesTheBitsOfPackedPanels) {
  ThreadPool threads(2);
  for (const GemmKernel* kernel : AllGemmKernels()) {
    for (int i = 0; i < 20; ++i) {
      Compare(*kernel, DrawWindows(random_, i % 4 != 0), random_.Any(1, 2), random_.Any(1, 70), Way::kByBlocks,
              i % 2 == 0 ? &threads : nullptr);
    }
  }
}

// Several blocks share a place in the buffer.
TEST_F(GemmBlocksTest, ManyBlocksGiveTheBitsOfPackedPanels) {
  ThreadPool threads(2);
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (kernel->emulated) continue;
    for (const int64_t width : {43, 50, 61}) {
      const Windows windows = {.height = 47, .width = width, .channels = 2, .stride = 1, .places_are_rows = true};
      Compare(*kernel, windows, 2, 33, Way::kByBlocks, &threads);
    }
  }
}

// Rows with a k that is split, in whole lines and not, and more columns than have their sums in L2.
TEST_F(GemmBlocksTest, RowsOfALongKGiveTheBitsOfPackedPanels) {
  ThreadPool threads(2);
  int kernels = 0;
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (kernel->add_block == nullptr || kernel->emulated) continue;
    ++kernels;
    const int64_t lines = kernel->lhs.element == Element::kF32 ? 704 : 1408;
    for (const int64_t channels : {lines, lines + 3}) {
      Windows windows = {.height = 4, .width = 30, .channels = channels, .stride = 1, .places_are_rows = true};
      Compare(*kernel, windows, 1, 33, Way::kByBlocks, &threads);
      if (channels != lines || kernel->target == Target::kScalar) continue;
      windows.width = 45;
      Compare(*kernel, windows, 1, 1000, Way::kByBlocks, nullptr);
    }
  }
  EXPECT_GT(kernels, 0);
}

TEST_F(GemmBlocksTest, ByLinesGivesTheBitsOfPackedPanels) {
  ThreadPool threads(2);
  for (const GemmKernel* kernel : AllGemmKernels()) {
    int runs = 0;
    const int cases = kernel->emulated ? 12 : 60;
    for (int i = 0; i < cases; ++i) {
      Windows windows = DrawWindows(random_, /*places_are_rows=*/true);
      windows.channels = random_.Any(1, 3) * 64;
      windows.images = random_.Any(1, 3);
      windows.walks_backwards = i % 3 == 0;
      runs += Compare(*kernel, windows, random_.Any(1, 2), random_.Any(1, 70), Way::kByLines,
                      i % 2 == 0 ? &threads : nullptr);
    }
    // s8 that is widened to s16 is not copied line by line, and AMX reads tiles of panels.
    if (kernel->reads_lines && kernel->lhs.element != Element::kS16) EXPECT_GE(runs, cases / 4) << kernel->name;
    else EXPECT_EQ(runs, 0) << kernel->name;
  }
}

// A run whose rows take several blocks, many runs in a block, and partial sums over k.
TEST_F(GemmBlocksTest, LinesOfLargeWindows) {
  ThreadPool threads(2);
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (kernel->emulated || !kernel->reads_lines || kernel->lhs.element == Element::kS16) continue;
    for (const int64_t width : {7, 48, 193, 500}) {
      const Windows windows = {.height = 23, .width = width, .channels = 64, .stride = 1, .places_are_rows = true};
      EXPECT_TRUE(Compare(*kernel, windows, 1, width == 7 ? 15 : 70, Way::kByLines, &threads))
          << kernel->name << " " << width;
    }
    const Windows deep = {.height = 5, .width = 24, .channels = 640, .stride = 1, .places_are_rows = true};
    EXPECT_TRUE(Compare(*kernel, deep, 1, 33, Way::kByLines, nullptr)) << kernel->name;
  }
}

TEST_F(GemmBlocksTest, LongKGivesTheBitsOfPackedPanels) {
  ThreadPool threads(3);
  int kernels = 0;
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (!CanRunLongK(*kernel)) continue;
    ++kernels;
    for (int i = 0; i < 20; ++i) {
      Compare(*kernel, DrawWindows(random_, i % 4 == 0), random_.Any(1, 2), random_.Any(1, 70), Way::kLongK,
              i % 2 == 0 ? &threads : nullptr);
    }
  }
  EXPECT_GT(kernels, 0);
}

TEST_F(GemmBlocksTest, SumsThatExceedL2AreMadeInParts) {
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (!CanRunLongK(*kernel) || kernel->emulated) continue;
    Compare(*kernel, {.height = 2, .width = 9, .channels = 64, .stride = 1, .places_are_rows = false}, 1, 700,
            Way::kLongK, nullptr);
  }
}

// With both sides packed, an empty k gives zeros.
TEST_F(GemmBlocksTest, LongKOfNothingIsZero) {
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (!CanRunLongK(*kernel)) continue;
    std::vector<float> out(15, 1.0f);
    const LongKCuts cuts = CutLongK(*kernel, 1, 5, 3, 0, ThisMachine(), /*threads=*/1);
    AlignedBytes buffer(cuts.Bytes());
    const Operand lhs = Operand::Dense(nullptr, DTypeOf(kernel->lhs.element), 5, 0);
    const Operand rhs = Operand::Dense(nullptr, DTypeOf(kernel->rhs.element), 3, 0);
    RunGemmLongK(*kernel, GemmProblem::Of(lhs, rhs, GemmOutput::Dense(out.data(), DType::kF32, 5, 3)), cuts,
                 buffer.data(), nullptr);
    EXPECT_EQ(out, std::vector<float>(15, 0.0f)) << kernel->name;
  }
}

}  // namespace
}  // namespace aqt::kernels
