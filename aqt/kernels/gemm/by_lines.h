#ifndef AQT_KERNELS_GEMM_BY_LINES_H_
#define AQT_KERNELS_GEMM_BY_LINES_H_

// A product whose lhs rows overlap, as windows of a convolution do. Panels hold an element once for every row that has
// it, nine times for windows of 3 x 3. Here the lhs is cut into lines of 64 bytes, each is stored once, and the tiles
// read their rows from them (LhsLines). As in gemm_by_blocks.h, a block of rows is stored just before it is multiplied.
//
// Within a run of rows, the innermost axis, the sources of neighbouring rows are a fixed number of bytes apart: one
// position. Each line of k belongs to some position, counted from the row's own, and its place there names a plane.
// A block stores plane after plane, and in a plane position after position:
//   rows of a run   r0 r1 r2 ...             a window of 3 positions with two lines each (a, b)
//   plane a         a0 a1 a2 a3 a4 ...       row 0 reads a0 b0 a1 b1 a2 b2
//   plane b         b0 b1 b2 b3 b4 ...       row 1 reads a1 b1 a2 b2 a3 b3

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// How the lhs of a product with n columns is cut, which its axes and its dtype decide. All positions and pitches are in
// lines.
class LinesPlan {
 public:
  LinesPlan(const GemmKernel& kernel, const Operand& lhs, int64_t n);

  // Whether it can be cut, and panels are not expected to be as fast. If not, there is nothing else to ask.
  bool is_good() const { return is_good_; }
  // Of the buffer that Run needs.
  int64_t BufferBytes() const;
  // What RunGemm(kernel, args, executor) gives for the lhs that Pack packed, bit for bit, unless args.epilogue.adds.
  // args.lhs is not read; memory between the rows of the lhs is. `buffer` is aligned to kPanelAlignment.
  void Run(const GemmArgs& args, bool subnormals_are_zero, void* buffer, Executor* executor) const;

 private:
  // Of a position that rows use. A block then has as many streams of lines.
  static constexpr int64_t kMaxPlanes = 64;

  // The lines with one place in their position. Rows read it in the positions [low, high], counted from their own.
  struct Plane {
    int64_t line;  // its place
    int64_t low, high;
    int64_t begin;  // in a block, in lines
  };
  // Rows [first, last) of matrix b.
  struct Rows {
    int64_t b, first, last;
  };
  // The least position of some rows, and the number of positions to the largest.
  struct Positions {
    int64_t first = 0, count = 0;
  };

  // The steps of making the plan; each returns whether it can go on.
  bool FindPositions();
  bool CutRuns();
  bool FindPlanes();
  bool CutBlocks();
  bool PlacePlanes();
  bool Pays(int64_t n) const;

  int64_t StepLine(int64_t i) const;
  int PlaneOf(int64_t line, int64_t position, int64_t gap) const;
  int64_t MostTiles() const;
  int64_t ProductRuns() const { return MostTiles() / run_tiles_; }  // runs that are multiplied at once
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
  int64_t pitch_ = 0;  // of positions
  int num_planes_ = 0;
  Plane planes_[kMaxPlanes];
  int64_t run_ = 0, runs_ = 0, run_tiles_ = 0, run_cost_ = 0;
  int64_t pieces_ = 1;                            // of a run
  int64_t units_ = 1, unit_blocks_ = 0;           // if runs are not cut
  int64_t most_positions_ = 0, block_lines_ = 0;  // of a block
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_BY_LINES_H_
