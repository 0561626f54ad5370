#include "aqt/kernels/gemm/by_lines.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/machine.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/report.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/panels/pack_lines.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {
namespace {

constexpr int64_t kLine = 64;
// Blocks in the buffer, and therefore the number of blocks in flight.
constexpr int64_t kMaxPlaces = 32;
// Adjacent blocks store the lines they share twice. If there would be more blocks than this, blocks get more rows.
constexpr int64_t kMinBlocks = 16;
// If panels are not at least this many times the size of the lines, lines do not pay off.
constexpr int64_t kMinOverlap = 2;
// The cost of storing a line of a panel, in units of the time that a tile row takes to be multiplied by one column.
constexpr double kPanelLineCost = 8;

int64_t FloorDiv(int64_t a, int64_t b) { return (a >= 0 ? a : a - b + 1) / b; }

// The cost of a tile of this many rows; each row of a full tile costs 1.
int64_t TileCost(int64_t rows, int64_t width) { return std::max<int64_t>(4, internal::TileHeight(rows, width)); }

}  // namespace

LinesPlan::LinesPlan(const GemmKernel& kernel, const Operand& lhs, int64_t n) : kernel_(kernel), lhs_(lhs) {
  run_ = lhs.rows.InnerSize();
  steps_ = kernel.lhs.NumGroups(lhs.k.Count()) / PanelFormat::kStepGroups;
  is_good_ = kernel.reads_lines && lhs.rows.rank > 0 && lhs.k.rank > 0 && lhs.batch.Count() > 0 &&
             PacksLines(kernel.lhs, lhs, {.k1 = lhs.k.Count()}) && FindPositions() && CutRuns() && FindPlanes() &&
             CutBlocks() && Pays(n);
}

int64_t LinesPlan::BufferBytes() const { return TableBytes() + std::min(NumBlocks(), kMaxPlaces) * PlaceBytes(); }

int64_t LinesPlan::NumBlocks() const {
  return lhs_.batch.Count() * (pieces_ > 1 ? runs_ * pieces_ : units_ * unit_blocks_);
}

// The byte offsets at which the steps of a row begin.
void LinesPlan::MakeTable(int32_t* steps) const {
  for (int64_t i = 0; i < steps_; ++i) {
    const int64_t at = StepLine(i), position = FloorDiv(at, pitch_);
    const Plane& plane = planes_[PlaneOf(at - position * pitch_, position, 0)];
    steps[i] = static_cast<int32_t>((plane.begin + position - plane.low) * kLine);
  }
}

int64_t LinesPlan::TableBytes() const { return RoundUp(steps_ * static_cast<int64_t>(sizeof(int32_t)), kLine); }

// Bytes per block. A partial tile reads past the end of its run.
int64_t LinesPlan::PlaceBytes() const { return (block_lines_ + kernel_.lhs.width) * kLine; }

LinesPlan::Rows LinesPlan::RowsOf(int64_t block) const {
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

// The rows of a block are multiplied this many at a time.
int64_t LinesPlan::ProductRows() const { return pieces_ > 1 ? run_ : ProductRuns() * run_; }

LinesPlan::Positions LinesPlan::PositionsOf(int64_t first_row, int64_t last_row) const {
  int64_t low = positions_.Offset(first_row), high = low;
  for (int64_t m = first_row; m < last_row;) {
    const int64_t end = std::min(last_row, m / run_ * run_ + run_), at = positions_.Offset(m);
    low = std::min(low, at);
    high = std::max(high, at + end - m);
    m = end;
  }
  return {low, high - low};
}

// Stores the lines at these positions of matrix b.
void LinesPlan::Store(int64_t b, const Positions& positions, bool subnormals_are_zero, char* to) const {
  const char* const from = static_cast<const char*>(lhs_.data) + lhs_.batch.Offset(b) * SizeOf(lhs_.dtype);
  // Planes of adjacent lines with the same positions are stored together.
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

// The line where step i begins, relative to the first line of the row.
int64_t LinesPlan::StepLine(int64_t i) const {
  return lhs_.k.Offset(i * PanelFormat::kStepGroups * kernel_.lhs.k_group) * SizeOf(lhs_.dtype) / kLine;
}

// The plane that has this line and a position at most `gap` away; num_planes_ if there is none.
int LinesPlan::PlaneOf(int64_t line, int64_t position, int64_t gap) const {
  const auto has = [&](const Plane& plane) {
    return plane.line == line && position >= plane.low - gap && position <= plane.high + gap;
  };
  int p = 0;
  while (p < num_planes_ && !has(planes_[p])) ++p;
  return p;
}

// Requires that the rows of a run are a whole number of lines apart, and runs a whole number of positions.
bool LinesPlan::FindPositions() {
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

bool LinesPlan::CutRuns() {
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

// A piece of a run reads separate positions for each row of its windows. These become separate planes.
bool LinesPlan::FindPlanes() {
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

// Blocks are pieces of a run, or runs of a unit (an image). They are small enough for L2 and numerous enough for
// several threads.
bool LinesPlan::CutBlocks() {
  if (pieces_ > 1) return PlacePlanes();
  const int64_t unit_runs = runs_ / units_;
  unit_blocks_ = std::min(CeilDiv(kMinBlocks, lhs_.batch.Count() * units_), CeilDiv(unit_runs, ProductRuns()));
  while (!PlacePlanes()) {
    if (unit_blocks_ == unit_runs) return false;
    unit_blocks_ = std::min(unit_runs, 2 * unit_blocks_);
  }
  return true;
}

int64_t LinesPlan::MostTiles() const { return kernel_.block_rows / kernel_.lhs.width; }

// Computes where the planes of a block begin, with room for the largest block. Returns whether it fits L2.
bool LinesPlan::PlacePlanes() {
  most_positions_ = block_lines_ = 0;
  for (int64_t i = 0; i < NumBlocks() / lhs_.batch.Count(); ++i) {
    const Rows block = RowsOf(i);
    most_positions_ = std::max(most_positions_, PositionsOf(block.first, block.last).count);
  }
  for (int p = 0; p < num_planes_; ++p) {
    planes_[p].begin = block_lines_;
    block_lines_ += most_positions_ + planes_[p].high - planes_[p].low;
  }
  return PlaceBytes() <= FitL2(ThisMachine(), internal::kBlockBytes);
}

bool LinesPlan::Pays(int64_t n) const {
  const int64_t rows = lhs_.rows.Count() * lhs_.batch.Count();
  if (block_lines_ * NumBlocks() * kMinOverlap > rows * steps_) return false;
  return static_cast<double>((run_cost_ - run_) * n) <= kPanelLineCost * static_cast<double>(run_);
}

void LinesPlan::Run(const GemmProblem& problem, const GemmPanels& rhs, void* buffer, Executor* executor) const {
  if (problem.n == 0) return;
  int32_t* const steps = static_cast<int32_t*>(buffer);
  MakeTable(steps);
  const int64_t blocks = NumBlocks(), threads = UsefulThreads(problem, ThreadsOf(executor));
  const int64_t parts = threads == 1 ? 1 : std::min({blocks, threads * kPartsPerThread, kMaxPlaces});
  const auto run = [&](int64_t part) {
    char* const lines = static_cast<char*>(buffer) + TableBytes() + part * PlaceBytes();
    for (int64_t i = blocks * part / parts; i < blocks * (part + 1) / parts; ++i) {
      const Rows rows = RowsOf(i);
      const Positions positions = PositionsOf(rows.first, rows.last);
      Store(rows.b, positions, problem.subnormals_are_zero, lines);
      const LhsLines block = {positions_, positions.first, steps};
      GemmPanels own = rhs;
      own.lhs = lines;
      own.lhs_batch_bytes = 0;
      own.lhs_lines = &block;
      for (int64_t m = rows.first; m < rows.last; m += ProductRows()) {
        internal::RunBlock(kernel_, problem, own, rows.b, m, std::min(rows.last, m + ProductRows()), 0, problem.n);
      }
    }
  };
  const internal::GemmReport report(kernel_, problem);
  if (parts == 1) run(0);
  else executor->ParallelFor(parts, run);
}

}  // namespace aqt::kernels
