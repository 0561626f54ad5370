#include "aqt/kernels/gemm_by_lines.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "aqt/core/dtype.h"
#include "aqt/kernels/ceil_div.h"
#include "aqt/kernels/gemm_driver.h"
#include "aqt/kernels/gemm_report.h"
#include "aqt/kernels/pack_lines.h"
#include "aqt/kernels/panel_format.h"

namespace aqt::kernels {
namespace {

constexpr int64_t kLine = 64;
// Blocks in the buffer: as many can be in work at once.
constexpr int64_t kMaxPlaces = 32;
// Blocks share lines at their ends. They have more rows where there are more of them than this.
constexpr int64_t kMinBlocks = 16;
// Of a position that rows use. A block then has as many streams of lines.
constexpr int64_t kMaxPlanes = 64;
// Panels that are fewer times as large as the lines are not worth it.
constexpr int64_t kMinOverlap = 2;
// What storing a line of a panel takes, in the time that a row of a tile needs to multiply it by one column.
constexpr double kPanelLineCost = 8;

int64_t FloorDiv(int64_t a, int64_t b) { return (a >= 0 ? a : a - b + 1) / b; }

// The time of a tile of so many rows; one row of a full tile takes 1.
int64_t TileCost(int64_t rows, int64_t width) {
  if (rows <= 4) return 4;
  return rows <= 8 && width > 8 ? 8 : width;
}

// The lines with one place in their position. Rows read it in the positions [low, high], counted from their own.
struct Plane {
  int64_t line;  // its place
  int64_t low, high;
  int64_t begin;  // in a block, in lines
};

// How an lhs is cut. All positions and pitches are in lines.
class LinePlan {
 public:
  LinePlan(const GemmKernel& kernel, const Operand& lhs, int64_t n) : kernel_(kernel), lhs_(lhs) {
    run_ = lhs.rows.InnerSize();
    steps_ = kernel.lhs.NumGroups(lhs.k.Count()) / PanelFormat::kStepGroups;
    is_good_ = kernel.reads_lines && lhs.rows.rank > 0 && lhs.k.rank > 0 && lhs.batch.Count() > 0 &&
               PacksLines(kernel.lhs, lhs, {.k1 = lhs.k.Count()}) && FindPositions() && CutRuns() && FindPlanes() &&
               CutBlocks() && Pays(n);
  }

  bool is_good() const { return is_good_; }
  int64_t BufferBytes() const { return TableBytes() + std::min(NumBlocks(), kMaxPlaces) * PlaceBytes(); }
  int64_t NumBlocks() const { return lhs_.batch.Count() * (pieces_ > 1 ? runs_ * pieces_ : units_ * unit_blocks_); }
  // Where each step of a row begins, in bytes.
  void MakeTable(int32_t* steps) const {
    for (int64_t i = 0; i < steps_; ++i) {
      const int64_t at = StepLine(i), position = FloorDiv(at, pitch_);
      const Plane& plane = planes_[PlaneOf(at - position * pitch_, position, 0)];
      steps[i] = static_cast<int32_t>((plane.begin + position - plane.low) * kLine);
    }
  }
  int64_t TableBytes() const { return CeilDiv(steps_ * static_cast<int64_t>(sizeof(int32_t)), kLine) * kLine; }
  // Of a block. A tile that is not full reads beyond its run.
  int64_t PlaceBytes() const { return (block_lines_ + kernel_.lhs.width) * kLine; }
  const AxisGroup& positions() const { return positions_; }

  // Rows [first, last) of matrix b.
  struct Rows {
    int64_t b, first, last;
  };
  Rows RowsOf(int64_t block) const {
    if (pieces_ > 1) {
      const int64_t piece = block % pieces_, run = block / pieces_ % runs_;
      const int64_t panels = CeilDiv(run_, kernel_.lhs.width), width = kernel_.lhs.width;
      return {block / pieces_ / runs_, run * run_ + panels * piece / pieces_ * width,
              run * run_ + std::min(run_, panels * (piece + 1) / pieces_ * width)};
    }
    const int64_t i = block % unit_blocks_, unit = block / unit_blocks_ % units_, unit_runs = runs_ / units_;
    const int64_t first = unit * unit_runs;
    return {block / unit_blocks_ / units_, (first + unit_runs * i / unit_blocks_) * run_,
            (first + unit_runs * (i + 1) / unit_blocks_) * run_};
  }

  // The rows of a block are multiplied so many at a time.
  int64_t ProductRows() const { return pieces_ > 1 ? run_ : ProductRuns() * run_; }

  // The least position of these rows, and the number of positions to the largest.
  struct Positions {
    int64_t first = 0, count = 0;
  };
  Positions PositionsOf(int64_t first_row, int64_t last_row) const {
    int64_t low = positions_.Offset(first_row), high = low;
    for (int64_t m = first_row; m < last_row;) {
      const int64_t end = std::min(last_row, m / run_ * run_ + run_), at = positions_.Offset(m);
      low = std::min(low, at);
      high = std::max(high, at + end - m);
      m = end;
    }
    return {low, high - low};
  }

  // Stores the lines of these positions of matrix b.
  void Store(int64_t b, const Positions& positions, bool subnormals_are_zero, char* to) const {
    const char* const from = static_cast<const char*>(lhs_.data) + lhs_.batch.Offset(b) * SizeOf(lhs_.dtype);
    // Planes of neighbouring lines and the same positions go together.
    for (int first = 0, last; first < num_planes_; first = last) {
      const Plane& plane = planes_[first];
      for (last = first + 1; last < num_planes_; ++last) {
        const Plane& next = planes_[last];
        if (next.line != plane.line + last - first || next.low != plane.low || next.high != plane.high) break;
      }
      const int64_t line = (positions.first + plane.low) * pitch_ + plane.line;
      const LinePieces pieces = {.src = from + line * kLine,
                                 .src_pitch = pitch_ * kLine,
                                 .count = positions.count + plane.high - plane.low,
                                 .lines = last - first,
                                 .dst = to + plane.begin * kLine,
                                 .dst_pitch = (most_positions_ + plane.high - plane.low) * kLine};
      CopyLines(kernel_.target, kernel_.lhs, pieces, subnormals_are_zero);
    }
  }

 private:
  // The line where step i begins, from the row's first one on.
  int64_t StepLine(int64_t i) const {
    return lhs_.k.Offset(i * PanelFormat::kStepGroups * kernel_.lhs.k_group) * SizeOf(lhs_.dtype) / kLine;
  }
  // The plane with this line of a position that is `gap` away, at most; num_planes_ if there is none.
  int PlaneOf(int64_t line, int64_t position, int64_t gap) const {
    const auto has = [&](const Plane& plane) {
      return plane.line == line && position >= plane.low - gap && position <= plane.high + gap;
    };
    int p = 0;
    while (p < num_planes_ && !has(planes_[p])) ++p;
    return p;
  }

  // Rows of a run are whole lines apart, and runs are whole positions apart.
  bool FindPositions() {
    const int64_t pitch = lhs_.rows.InnerStride(), size = SizeOf(lhs_.dtype);
    if (pitch <= 0 || pitch * size % kLine != 0) return false;
    pitch_ = pitch * size / kLine;
    positions_ = lhs_.rows;
    for (int i = 0; i < positions_.rank; ++i) {
      if (positions_.stride[i] < 0 || positions_.stride[i] % pitch != 0) return false;
      positions_.stride[i] /= pitch;
    }
    for (int i = 0; i < lhs_.k.rank - 1; ++i) {
      if (lhs_.k.stride[i] * size % kLine != 0) return false;
    }
    return true;
  }

  // A piece of a run reads other positions for each row of its windows: these are planes of their own.
  bool FindPlanes() {
    const int64_t gap = pieces_ > 1 ? run_ / pieces_ : std::numeric_limits<int32_t>::max();
    for (int64_t i = 0; i < steps_; ++i) {
      const int64_t at = StepLine(i), position = FloorDiv(at, pitch_), line = at - position * pitch_;
      const int p = PlaneOf(line, position, gap);
      if (p == num_planes_) {
        if (num_planes_ == kMaxPlanes) return false;
        planes_[num_planes_++] = {line, position, position, 0};
      }
      planes_[p].low = std::min(planes_[p].low, position);
      planes_[p].high = std::max(planes_[p].high, position);
    }
    return num_planes_ > 0;
  }

  bool CutRuns() {
    const int64_t width = kernel_.lhs.width, rows = lhs_.rows.Count();
    if (rows == 0) return false;
    for (int64_t left = run_, tile; left > 0; left -= tile, ++run_tiles_) {
      tile = internal::TileRowsOfRun(left, width);
      run_cost_ += TileCost(tile, width);
    }
    runs_ = rows / run_;
    units_ = lhs_.rows.rank > 2 ? runs_ / lhs_.rows.size[lhs_.rows.rank - 2] : 1;
    pieces_ = CeilDiv(run_tiles_, MostTiles());
    return true;
  }

  // Blocks are pieces of a run, or runs of a unit (an image): few enough for L2, and enough blocks for several threads.
  bool CutBlocks() {
    if (pieces_ > 1) return PlacePlanes();
    const int64_t unit_runs = runs_ / units_;
    unit_blocks_ = std::min(CeilDiv(kMinBlocks, lhs_.batch.Count() * units_), CeilDiv(unit_runs, ProductRuns()));
    while (!PlacePlanes()) {
      if (unit_blocks_ == unit_runs) return false;
      unit_blocks_ = std::min(unit_runs, 2 * unit_blocks_);
    }
    return true;
  }

  // Runs that are multiplied at once.
  int64_t ProductRuns() const { return MostTiles() / run_tiles_; }
  int64_t MostTiles() const { return kernel_.block_rows / kernel_.lhs.width; }

  // Where the planes of a block begin: there is room for the largest. Whether it fits L2.
  bool PlacePlanes() {
    most_positions_ = block_lines_ = 0;
    for (int64_t i = 0; i < NumBlocks() / lhs_.batch.Count(); ++i) {
      const Rows block = RowsOf(i);
      most_positions_ = std::max(most_positions_, PositionsOf(block.first, block.last).count);
    }
    for (int p = 0; p < num_planes_; ++p) {
      planes_[p].begin = block_lines_;
      block_lines_ += most_positions_ + planes_[p].high - planes_[p].low;
    }
    return PlaceBytes() <= internal::kBlockBytes;
  }

  bool Pays(int64_t n) const {
    const int64_t rows = lhs_.rows.Count() * lhs_.batch.Count();
    if (block_lines_ * NumBlocks() * kMinOverlap > rows * steps_) return false;
    return static_cast<double>((run_cost_ - run_) * n) <= kPanelLineCost * static_cast<double>(run_);
  }

  const GemmKernel& kernel_;
  const Operand& lhs_;
  bool is_good_ = false;
  int64_t steps_ = 0;
  AxisGroup positions_;
  int64_t pitch_ = 0;  // of positions
  int num_planes_ = 0;
  Plane planes_[kMaxPlanes];
  int64_t run_ = 0, runs_ = 0, run_tiles_ = 0, run_cost_ = 0;
  int64_t pieces_ = 1;                            // of a run
  int64_t units_ = 1, unit_blocks_ = 0;           // if runs are not cut
  int64_t most_positions_ = 0, block_lines_ = 0;  // of a block
};

}  // namespace

int64_t LinesBytes(const GemmKernel& kernel, const Operand& lhs, int64_t n) {
  const LinePlan plan(kernel, lhs, n);
  return plan.is_good() ? plan.BufferBytes() : 0;
}

void RunGemmByLines(const GemmKernel& kernel, const Operand& lhs, bool subnormals_are_zero, const GemmArgs& args,
                    void* buffer, Executor* executor) {
  if (args.n == 0) return;
  const LinePlan plan(kernel, lhs, args.n);
  int32_t* const steps = static_cast<int32_t*>(buffer);
  plan.MakeTable(steps);
  const int64_t blocks = plan.NumBlocks(), threads = internal::NumThreads(args, executor);
  const int64_t parts = threads == 1 ? 1 : std::min({blocks, threads * internal::kPartsPerThread, kMaxPlaces});
  const auto run = [&](int64_t part) {
    char* const lines = static_cast<char*>(buffer) + plan.TableBytes() + part * plan.PlaceBytes();
    for (int64_t i = blocks * part / parts; i < blocks * (part + 1) / parts; ++i) {
      const LinePlan::Rows rows = plan.RowsOf(i);
      const LinePlan::Positions positions = plan.PositionsOf(rows.first, rows.last);
      plan.Store(rows.b, positions, subnormals_are_zero, lines);
      const LhsLines block = {plan.positions(), positions.first, steps};
      GemmArgs own = args;
      own.lhs = lines;
      own.lhs_batch_bytes = 0;
      own.lhs_lines = &block;
      for (int64_t m = rows.first; m < rows.last; m += plan.ProductRows()) {
        kernel.block(own, rows.b, m, std::min(rows.last, m + plan.ProductRows()), 0, args.n);
      }
    }
  };
  internal::RunReported(kernel, args, [&] {
    if (parts == 1) run(0);
    else executor->ParallelFor(parts, run);
  });
}

}  // namespace aqt::kernels
