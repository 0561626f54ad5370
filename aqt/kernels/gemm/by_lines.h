#ifndef AQT_KERNELS_GEMM_BY_LINES_H_
#define AQT_KERNELS_GEMM_BY_LINES_H_

// A product whose lhs rows overlap, like the windows of a convolution. Panels hold an element once for every row that
// contains it: nine times for 3 x 3 windows. Here the lhs is cut into lines of 64 bytes that are stored once, and the
// tiles read their rows from these lines (LhsLines). As in by_blocks.h, a block of rows is stored just before it
// is multiplied.
//
// Within a run of rows, the innermost axis, the sources of neighbouring rows are a fixed number of bytes apart: one
// position. Each line of k belongs to a position, counted from the row's own, and its place within the position selects
// a plane. A block stores the planes one after another, and the positions of a plane in order:
//   rows of a run   r0 r1 r2 ...             a window of 3 positions with two lines each (a, b)
//   plane a         a0 a1 a2 a3 a4 ...       row 0 reads a0 b0 a1 b1 a2 b2
//   plane b         b0 b1 b2 b3 b4 ...       row 1 reads a1 b1 a2 b2 a3 b3

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// How to cut the lhs of a product with n columns, derived from its axes and dtype. All positions and pitches are in
// lines.
class LinesPlan {
 public:
  LinesPlan(const GemmKernel& kernel, const Operand& lhs, int64_t n);

  // Whether the lhs can be cut and panels are not expected to be as fast. If false, the other functions must not be
  // called.
  bool is_good() const { return is_good_; }
  // Size of the buffer for Run.
  int64_t BufferBytes() const;
  // What RunGemm gives for the lhs that Pack packed, bit for bit, unless Epilogue::adds. The lhs of the problem is that
  // of the plan; memory between its rows is read, too. The rhs is packed. `buffer` is aligned to kPanelAlignment.
  void Run(const GemmProblem& problem, const GemmPanels& rhs, void* buffer, Executor* executor) const;

 private:
  // Limit on the number of planes. A block has one stream of lines per plane.
  static constexpr int64_t kMaxPlanes = 64;

  // The lines at one place within their position. Rows read them in positions [low, high], relative to their own.
  struct Plane {
    int64_t line;  // the place
    int64_t low, high;
    int64_t begin;  // start within a block, in lines
  };
  // Rows [first, last) of matrix b.
  struct Rows {
    int64_t b, first, last;
  };
  // The smallest position that a range of rows uses, and the number of positions up to the largest.
  struct Positions {
    int64_t first = 0, count = 0;
  };

  // The steps of planning; each returns whether planning can continue.
  bool FindPositions();
  bool CutRuns();
  bool FindPlanes();
  bool CutBlocks();
  bool PlacePlanes();
  bool Pays(int64_t n) const;

  int64_t StepLine(int64_t i) const;
  int PlaneOf(int64_t line, int64_t position, int64_t gap) const;
  int64_t MostTiles() const;
  int64_t ProductRuns() const { return MostTiles() / run_tiles_; }  // runs multiplied in one call
  int64_t ProductRows() const;
  int64_t NumBlocks() const;
  int64_t TableBytes() const;
  int64_t PlaceBytes() const;
  Rows RowsOf(int64_t block) const;
  Positions PositionsOf(int64_t first_row, int64_t last_row) const;
  void MakeTable(int32_t* steps) const;
  void Store(int64_t b, const Positions& positions, bool subnormals_are_zero, char* to) const;

  const GemmKernel& kernel_;
  const Operand lhs_;
  bool is_good_ = false;
  int64_t steps_ = 0;
  AxisGroup positions_;
  int64_t pitch_ = 0;  // between positions
  int num_planes_ = 0;
  Plane planes_[kMaxPlanes];
  int64_t run_ = 0, runs_ = 0, run_tiles_ = 0, run_cost_ = 0;
  int64_t pieces_ = 1;                            // per run
  int64_t units_ = 1, unit_blocks_ = 0;           // if runs are not cut
  int64_t most_positions_ = 0, block_lines_ = 0;  // per block
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_BY_LINES_H_
