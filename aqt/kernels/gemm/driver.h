#ifndef AQT_KERNELS_GEMM_DRIVER_H_
#define AQT_KERNELS_GEMM_DRIVER_H_

// The loops around a tile: blocking over columns and k, tails, scales, and storing finished tiles. All kernels
// with tiles in vector registers share one template; only the tile policy differs. The AMX kernels have their own loops
// (isa/amx.cc), because their tiles are configured, loaded and stored as a unit.
//
// A tile policy has
//   kTarget                    the instructions it may use
//   Acc                        int32_t or float
//   kLhs, kRhs                 PanelFormat; kLhs in row steps, kRhs interleaved
//   kBlockGroups               groups of k in a block, a multiple of 16
//   kProductsPerCycle          GemmKernel::products_per_cycle
//   kWideRhsElementBytes       bytes per element of a wide form of the rhs panel that multiplies faster; 0 if none
//   Widen(rhs, groups, wide)   converts to that form
//   Accumulate<R, kWide>(lhs, rhs, groups, init, init_stride, fetch, out, out_stride), where lhs is a TileLhs
//       out[r * out_stride + j] = init[r * init_stride + j] (0 if init is null) + sum over the groups, for r < R,
//       j < kNr; out may alias init. If `fetch` is not 0, it prefetches the rhs `fetch` bytes ahead of its reads
//   Multiply<R, kWide, kFlush, T>(lhs, rhs, groups, init, init_stride, fetch, scales, out, out_stride)
//       the same sum v, then out[r * out_stride + j] = float(v) * row[r] * col[j], each step rounded to T, float or
//       BFloat16. With kFlush (float sums only) a subnormal number becomes a zero before and after each product. With
//       T = float the result may be added to out instead (Epilogue::adds)
// for R in {1, 2, 4, 8, kLhs.width}, up to the last of these; kWide only with the last, and only if there is a wide
// form.
// Optionally it has
//   kOneBlockGroups            up to this many groups, more than kBlockGroups, form one block if all of an lhs block
//                              stays in L2. The rhs panel then comes from L2 too, but no sums are written and reread
//   MultiplyPanels<R, kFlush>(run)
//       Multiply<R, false, kFlush, float> of each panel of a PanelRun, for R in {1, 2, 4}, and 8 if kLhs.width >= 8

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/panel_format.h"
#include "hwy/cache_control.h"

namespace aqt::kernels::internal {

// Block sizes, for an L1 of 32 KiB and an L2 of 1 MiB or more:
//   - kBlockGroups of k: the rhs panel stays in L1 (16 to 24 KiB) while lhs panels (6 to 9 KiB) stream past it. For f32
//     with AVX-512 it stays in L2 (64 KiB);
//   - kMaxBlockRows: each byte of the rhs is multiplied with this many rows, which hides L3 latency;
//   - if all of k of these rows exceeds kBlockBytes, they do not stay in L2 from one panel of columns to the next. Then
//     kChunkPanels panels are summed together, one block of k at a time. An lhs block (192 x 512 floats, 384 KiB, or
//     less) and the partial sums (192 x 128: 96 KiB, on the stack) stay in L2, and the lhs comes from L3 once per
//     chunk.
inline constexpr int32_t kMaxBlockRows = 192;
inline constexpr int32_t kBlockBytes = 384 << 10;
inline constexpr int64_t kChunkPanels = 4;
// With this many rows or more, the processor does not run ahead far enough by itself. The first tile of a panel
// prefetches the panel kFetchBytes ahead of its reads, spread over its multiplies. Prefetching the next block all at
// once would stall them.
inline constexpr int kFetchRows = 3;
inline constexpr int64_t kFetchBytes = 8 << 10;
// From this panel size on, one row reads four panels at a time instead of two where that pays off (MultiplyPanels).
inline constexpr int64_t kLongPanelBytes = 16 << 10;

// The lhs of a tile: in each step of 16 groups the rows are side by side, 64 bytes each.
struct TileLhs {
  const char* data;
  const int32_t* steps = nullptr;  // byte offsets of the steps from `data`; if null, steps are contiguous

  // The bytes of group g of the first row; each step has `width` rows.
  const char* Group(int64_t g, int64_t width) const {
    const int64_t i = g / PanelFormat::kStepGroups;
    return data + (steps == nullptr ? i * width * 64 : steps[i]) + g % PanelFormat::kStepGroups * 4;
  }
};

// The height of the smallest tile with at least this many rows.
constexpr int64_t TileHeight(int64_t rows, int64_t width) {
  if (rows <= 4) return rows <= 2 ? rows : 4;
  return rows <= 8 && width > 8 ? 8 : width;
}

// The number of rows of a run of lines (LhsLines) that the next tile takes, out of `left`. A tile of eight plus a
// remainder is faster than a full tile plus a remainder.
inline int64_t TileRowsOfRun(int64_t left, int64_t width) {
  return width > 8 && left > width && left <= 16 ? 8 : std::min(left, width);
}

// If the lhs is stored as lines, an rhs panel of up to this size may come from L2.
inline constexpr int64_t kLinesPanelBytes = 256 << 10;

// Prefetches RowsAhead, an equal share before each tile of a block.
class FetchAhead {
 public:
  FetchAhead(const RowsAhead& ahead, int64_t tiles)
      : row_(ahead.data),
        pitch_(ahead.pitch),
        row_bytes_(ahead.row_bytes),
        rows_(ahead.rows),
        lines_(std::min(ahead.most_lines, CeilDiv(ahead.rows * CeilDiv(ahead.row_bytes, 64), tiles))) {}

  void Fetch() {
    for (int64_t i = 0; i < lines_ && rows_ > 0; ++i) {
      __builtin_prefetch(row_ + at_, /*rw=*/0, /*locality=*/2);
      at_ += 64;
      if (at_ < row_bytes_) continue;
      at_ = 0;
      row_ += pitch_;
      --rows_;
    }
  }

 private:
  const char* row_;
  int64_t pitch_, row_bytes_, rows_, lines_, at_ = 0;
};

// An rhs of this size stays in L1 while tiles iterate over it.
inline constexpr int64_t kShortRhsBytes = 16 << 10;

// Groups of k that a tile may sum at once: this many groups of four u8 x s8 products, the largest kind, fit s32.
inline constexpr int64_t kMaxSumGroups = 16384;
static_assert(kMaxSumGroups * 4 * 255 * 128 < int64_t{1} << 31);

// Part i of n of these rows.
inline RowsAhead PartOf(const RowsAhead& ahead, int64_t i, int64_t n) {
  const int64_t first = ahead.rows * i / n, last = ahead.rows * (i + 1) / n;
  RowsAhead part = ahead;
  part.data += first * ahead.pitch;
  part.rows = last - first;
  return part;
}

// Runs kernel.block, and then Epilogue::block on the output it stored.
void RunBlock(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& panels, int64_t b, int64_t m0,
              int64_t m1, int64_t n0, int64_t n1);
// Runs the block epilogue, if there is one, on rows [m0, m1) and columns [n0, n1) of matrix b.
void RunBlockEpilogue(const GemmProblem& problem, int64_t b, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
// A block epilogue covers at least this many columns if the output has them, and this many elements at a time, which
// are still in L2.
inline constexpr int64_t kEpilogueColumns = 128, kEpilogueElements = 24 << 10;

// Copies the scales of `count` rows or columns starting at `index`; ones if `scale` is null.
void LoadScales(const float* scale, int64_t stride, int64_t index, int64_t count, float* out);

// The maximum number of columns of a tile.
inline constexpr int64_t kMaxTileCols = 32;

// Runs the epilogue on the finished sums sums[r * stride + j] (stride is the column count of the tile) for product rows
// [m, m + rows) and columns [n, n + cols) of matrix b. Stores the result in any dtype with any strides.
void FinishTile(Target target, const GemmProblem& problem, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols,
                const int32_t* sums, int64_t stride);
void FinishTile(Target target, const GemmProblem& problem, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols,
                const float* sums, int64_t stride);

// Copies the used rows and columns of a tile whose rows have kCols columns.
template <int64_t kCols, class T>
inline void CopyPart(const T* tile, int64_t rows, int64_t cols, T* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r, tile += kCols, out += out_stride) {
    if (cols == kCols) std::memcpy(out, tile, kCols * sizeof(T));
    else std::memcpy(out, tile, cols * sizeof(T));
  }
}

// Prefetches the line of `at` with write permission. A store to a line that was fetched only for reading waits for that
// permission. All x86-64 processors accept the instruction, some as a no-op; GCC emits it for __builtin_prefetch only
// with the matching target flag.
inline void PrefetchForWriting(const void* at) {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, /*rw=*/1);
#endif
}

// Prefetches the lines of `cols` elements for writing.
template <class T>
inline __attribute__((always_inline)) void PrefetchRowForWriting(const T* row, int64_t cols) {
  for (int64_t j = 0; j < cols; j += 64 / static_cast<int64_t>(sizeof(T))) PrefetchForWriting(row + j);
}

// Prefetches the rows of an output that will be written next.
template <int kRows, int kCols, class T>
inline void PrefetchForWriting(const T* out, int64_t stride) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) PrefetchRowForWriting(out + r * stride, kCols);
}

// The scales of a tile's rows and columns, and the epilogue fields that a tile needs.
struct TileScales {
  const float* row;
  const float* col;
  bool any;  // if false, all scales are ones
  bool col_first, adds;
  bool streams = false;  // whether to bypass the caches, if the tile policy supports it; `out` then fits whole lines
};

// A few rows times consecutive panels of columns, with all of k in one block. For a short k this costs less than one
// call per tile.
struct PanelRun {
  const char* lhs;
  const char* rhs;  // including the panel headers
  int64_t panels, rhs_panel_bytes, groups;
  bool corrects;      // whether the panel header initializes the sums
  int64_t fetch;      // as in the tile policy, from kFetchRows rows on
  TileScales scales;  // `col` is for the first panel
  int64_t col_step;   // between the scales of consecutive panels
  float* out;
  int64_t out_stride;
};

// An output of this size leaves the caches before it is read again, or takes a large part of them. Bypassing the caches
// avoids reading each line before it is written, and keeps the operands cached.
inline constexpr int64_t kStreamBytes = 16 << 20;

// Whether tiles of `tile_cols` columns of an f32 output that the kernel finishes in registers are streamed.
inline bool StreamsOutput(const GemmProblem& problem, int64_t tile_cols) {
  const auto whole_lines = [](const AxisGroup& group) {
    return std::all_of(group.stride, group.stride + group.rank, [](int64_t stride) { return stride % 16 == 0; });
  };
  const GemmOutput& out = problem.out;
  return problem.batch * problem.m * problem.n * 4 >= kStreamBytes && !problem.epilogue.adds &&
         problem.epilogue.block == nullptr && tile_cols % 16 == 0 && reinterpret_cast<uintptr_t>(out.data) % 64 == 0 &&
         whole_lines(out.batch) && whole_lines(out.rows);
}

// The end of Multiply, for tile policies in plain C++.
template <class T>
inline void StoreScaled(bool flush, float sum, const TileScales& scales, int64_t r, int64_t j, T* out) {
  const float first = scales.col_first ? scales.col[j] : scales.row[r];
  const float second = scales.col_first ? scales.row[r] : scales.col[j];
  const auto rounded = [flush](float x) {
    const float kept = FlushSubnormalIf(flush, x);
    if constexpr (std::is_same_v<T, BFloat16>) return ToFloat(RoundToBFloat16(kept));
    else return kept;
  };
  const float value = rounded(rounded(rounded(sum) * first) * second);
  if constexpr (std::is_same_v<T, BFloat16>) *out = value == value ? RoundToBFloat16(value) : BFloat16{0x7fc0};
  else *out = scales.adds ? rounded(*out + value) : value;
}

// How the sums of a tile become the output. A partial tile is computed as a full one and copied.
enum class TileFinish : uint8_t {
  kStore,    // the sums are the output
  kF32,      // Multiply, in registers
  kBF16,     // likewise
  kGeneral,  // FinishTile
};

template <class Acc>
TileFinish TileFinishOf(const GemmOutput& out, const Epilogue& epi) {
  if (!out.HasRows()) return TileFinish::kGeneral;
  if (out.dtype == DType::kS32 && std::is_integral_v<Acc>) return TileFinish::kStore;
  // Integer sums are 0 or at least 1 in magnitude, so their products with scales are hardly ever subnormal.
  if (std::is_integral_v<Acc> && epi.subnormals_are_zero) return TileFinish::kGeneral;
  if (out.dtype == DType::kF32 && epi.IsF32()) return TileFinish::kF32;
  if (out.dtype != DType::kBF16) return TileFinish::kGeneral;
  // Every step rounds to bf16, or there is only one step. If a scale is absent, multiplying by 1 changes nothing.
  const bool unscaled = epi.lhs_scale == nullptr && epi.rhs_scale == nullptr;
  const bool rounds = epi.sum_dtype == DType::kBF16 && (epi.lhs_scale == nullptr || epi.first_dtype == DType::kBF16) &&
                      (epi.rhs_scale == nullptr || epi.second_dtype == DType::kBF16);
  return rounds || (unscaled && epi.sum_dtype == DType::kF32) ? TileFinish::kBF16 : TileFinish::kGeneral;
}

// Rows [m0, m1) and columns [n0, n1) of one product: the computation of GemmKernel::block.
template <class Tile>
class BlockProduct {
 public:
  BlockProduct(const GemmProblem& problem, const GemmPanels& panels, int64_t b, int64_t m0, int64_t m1, int64_t n0,
               int64_t n1)
      : problem_(problem),
        panels_(panels),
        epi_(problem.epilogue),
        b_(b),
        m0_(m0),
        m1_(m1),
        n0_(n0),
        n1_(n1),
        // Widening a block costs about as much as it saves on one tile.
        widen_(kCanWiden && m1 - m0 >= 4 * kMr),
        groups_(Tile::kLhs.NumGroups(problem.k)),
        lhs_panel_bytes_(Tile::kLhs.PanelBytes(problem.k)),
        rhs_panel_bytes_(Tile::kRhs.PanelBytes(problem.k)),
        rhs_(static_cast<const char*>(panels.rhs) + b * panels.rhs_batch_bytes + n0 / kNr * rhs_panel_bytes_),
        finish_(TileFinishOf<Acc>(problem.out, problem.epilogue)),
        streams_(finish_ == TileFinish::kF32 && StreamsOutput(problem, kNr)),
        scaled_(epi_.lhs_scale != nullptr || epi_.rhs_scale != nullptr),
        row_stride_(problem.out.rows.rank == 0 ? 0 : problem.out.rows.stride[0]),
        out_offset_(problem.out.batch.Offset(b)) {}

  void Run() {
    // Blocks have equal size, so that the last one is not a short remainder. A few rows read a whole panel in one pass.
    MakeTiles();
    const bool has_lines = panels_.lhs_lines != nullptr;
    const bool lhs_fits = has_lines || num_tiles_ * lhs_panel_bytes_ <= kBlockBytes;
    const int64_t one_block_groups = has_lines && !kCanWiden ? kLinesPanelBytes / kGroupBytes : kOneBlockGroups;
    const bool is_one_block = m1_ - m0_ <= kMaxPiece || (lhs_fits && groups_ <= one_block_groups);
    const int64_t most_groups = is_one_block ? kMaxSumGroups : Tile::kBlockGroups;
    const int64_t num_blocks = std::max<int64_t>(1, CeilDiv(groups_, most_groups));
    const int64_t block_steps = CeilDiv(groups_, num_blocks * PanelFormat::kStepGroups);
    block_groups_ = std::max<int64_t>(1, block_steps) * PanelFormat::kStepGroups;
    if (finish_ != TileFinish::kGeneral) {
      std::fill_n(row_scales_ + (m1_ - m0_), kMr, 0.0f);  // a partial tile has more rows
      const float* scale = epi_.lhs_scale == nullptr ? nullptr : epi_.lhs_scale + b_ * epi_.lhs_batch_stride;
      LoadScales(scale, epi_.lhs_stride, m0_, m1_ - m0_, row_scales_);
    }
    const int64_t first = num_blocks == 1 ? RunPanels() : n0_;
    const int64_t chunk = num_blocks == 1 || lhs_fits ? kNr : kChunkPanels * kNr;
    ahead_ = FetchAhead(panels_.ahead, std::max<int64_t>(1, num_blocks * num_tiles_ * CeilDiv(n1_ - n0_, kNr)));
    for (int64_t chunk0 = first; chunk0 < n1_; chunk0 += chunk) {
      const int64_t chunk1 = std::min(n1_, chunk0 + chunk);
      int64_t g = 0;
      do {
        const int64_t count = std::min(block_groups_, groups_ - g);
        for (int64_t n = chunk0; n < chunk1; n += kNr) RunPanel(chunk0, n, g, count);
        g += count;
      } while (g < groups_);
    }
    if (streams_) hwy::FlushStream();  // before another thread may read the output
  }

 private:
  using Acc = typename Tile::Acc;
  static constexpr int64_t kMr = Tile::kLhs.width, kNr = Tile::kRhs.width;
  static constexpr int64_t kHeaderBytes = Tile::kRhs.HeaderBytes();
  static constexpr bool kCanWiden = Tile::kWideRhsElementBytes != 0;
  static constexpr int kMaxPiece = kMr >= 8 ? 8 : 4;  // rows of a PanelRun
  static constexpr int64_t kOneBlockGroups = [] {
    if constexpr (requires { Tile::kOneBlockGroups; }) return Tile::kOneBlockGroups;
    else return Tile::kBlockGroups;
  }();
  static constexpr int64_t kGroupBytes = Tile::kRhs.GroupBytes(Tile::kRhs.SharedGroups()) / Tile::kRhs.SharedGroups();
  static constexpr bool kHasPanelRuns = requires(const PanelRun& run) { Tile::template MultiplyPanels<1, false>(run); };
  // An lhs stored unchanged needs no correction.
  static constexpr bool kCorrects = kHeaderBytes != 0 && Tile::kLhs.element == PanelFormat::Element::kU8Offset;
  static_assert(Tile::kLhs.layout == PanelFormat::Layout::kRowSteps && !Tile::kLhs.has_correction);
  static_assert(Tile::kRhs.layout == PanelFormat::Layout::kInterleaved && Tile::kLhs.k_group == Tile::kRhs.k_group);
  static_assert(Tile::kBlockGroups % PanelFormat::kStepGroups == 0 && kNr <= kMaxTileCols);

  // Rows [m, m + rows) of the product, and the start of their lhs.
  struct TileRows {
    int64_t m, rows;
    const char* lhs;
  };

  // A tile, and the groups of k to add to it.
  struct Step {
    int64_t m, rows, n, cols, count;
    TileLhs lhs;
    const Acc* init;
    int64_t init_stride;
    bool is_last;  // whether this completes the sum
    Acc* sums;     // the destination if it does not
    int64_t fetch;
  };

  void MakeTiles() {
    const char* const lhs = static_cast<const char*>(panels_.lhs) + b_ * panels_.lhs_batch_bytes;
    const LhsLines* const lines = panels_.lhs_lines;
    const int64_t run = lines == nullptr ? 0 : lines->positions.InnerSize();
    for (int64_t m = m0_; m < m1_; m += tiles_[num_tiles_++].rows) {
      TileRows& tile = tiles_[num_tiles_];
      if (lines == nullptr) {
        tile = {m, std::min(kMr, m1_ - m), lhs + m / kMr * lhs_panel_bytes_};
      } else {
        tile = {m, TileRowsOfRun(std::min(m1_ - m, run - m % run), kMr),
                lhs + (lines->positions.Offset(m) - lines->first) * 64};
      }
    }
  }

  // Multiplies a few rows by whole panels of columns, and returns the first remaining column. More rows than one piece
  // are split only if they are added to the output, which a partial tile does row by row, or if the rhs stays in L1
  // meanwhile.
  int64_t RunPanels() {
    if constexpr (kHasPanelRuns) {
      const int64_t rows = m1_ - m0_, panels = (n1_ - n0_) / kNr;
      const bool one_piece = std::has_single_bit(static_cast<uint64_t>(rows)) && rows <= kMaxPiece;
      const bool short_rhs = kMr == kMaxPiece && panels * rhs_panel_bytes_ <= kShortRhsBytes;
      const bool pays = one_piece || (epi_.adds && rows <= kMr) || short_rhs;
      if (finish_ != TileFinish::kF32 || streams_ || !pays || panels_.lhs_lines != nullptr) return n0_;
      const float* const scale = epi_.rhs_scale == nullptr ? nullptr : epi_.rhs_scale + b_ * epi_.rhs_batch_stride;
      const bool dense = scale != nullptr && epi_.rhs_stride == 1;
      if (!dense) LoadScales(scale, epi_.rhs_stride, n0_, kNr, col_scales_);
      for (int64_t i = 0; i < num_tiles_; ++i) {
        const TileRows& tile = tiles_[i];
        const TileScales scales{row_scales_ + (tile.m - m0_), dense ? scale + n0_ : col_scales_, scaled_,
                                epi_.rhs_first, epi_.adds};
        RunPanelsOf(tile.rows,
                    {.lhs = tile.lhs,
                     .rhs = rhs_,
                     .panels = panels,
                     .rhs_panel_bytes = rhs_panel_bytes_,
                     .groups = groups_,
                     .corrects = kCorrects,
                     .fetch = short_rhs ? 0 : kFetchBytes,
                     .scales = scales,
                     .col_step = dense ? kNr : 0,
                     .out = static_cast<float*>(problem_.out.data) + out_offset_ + tile.m * row_stride_ + n0_,
                     .out_stride = row_stride_});
      }
      return n0_ + panels * kNr;
    }
    return n0_;
  }

  // Calls f<kFlush>() as the epilogue requires.
  template <class F>
  void WithFlush(const F& f) const {
    if constexpr (std::is_floating_point_v<Acc>) {
      if (epi_.subnormals_are_zero) return f.template operator()<true>();
    }
    f.template operator()<false>();
  }

  void RunPanelsOf(int64_t rows, PanelRun run) {
    const auto multiply = [&]<int R>() {
      for (; rows >= R; rows -= R) {
        WithFlush([&]<bool kFlush>() { Tile::template MultiplyPanels<R, kFlush>(run); });
        run.lhs += R * 64;
        run.scales.row += R;
        run.out += R * row_stride_;
      }
    };
    multiply.template operator()<kMaxPiece>();
    if constexpr (kMaxPiece > 4) multiply.template operator()<4>();
    multiply.template operator()<2>();
    multiply.template operator()<1>();
  }

  // Adds `count` groups, starting at g, to all rows of the panel of columns that starts at n.
  void RunPanel(int64_t chunk0, int64_t n, int64_t g, int64_t count) {
    const int64_t cols = std::min(kNr, n1_ - n);
    const bool is_last = g + count == groups_;
    if (is_last && finish_ != TileFinish::kGeneral) {
      if (cols < kNr) std::fill_n(col_scales_, kNr, 0.0f);
      const float* scale = epi_.rhs_scale == nullptr ? nullptr : epi_.rhs_scale + b_ * epi_.rhs_batch_stride;
      LoadScales(scale, epi_.rhs_stride, n, cols, col_scales_);
    }
    const char* const panel = rhs_ + (n - n0_) / kNr * rhs_panel_bytes_;
    const char* const block = panel + kHeaderBytes + Tile::kRhs.GroupBytes(g);
    if constexpr (kCanWiden) {
      if (widen_) Tile::Widen(block, count, wide_);
    }
    const int64_t fetch = m1_ - m0_ >= kFetchRows ? kFetchBytes : 0;
    const Acc* const start = kCorrects ? reinterpret_cast<const Acc*>(panel) : nullptr;
    Acc* sums = partial_ + (n - chunk0) * kMaxBlockRows;
    for (int64_t i = 0; i < num_tiles_; ++i, sums += kMr * kNr) {
      const TileRows& tile = tiles_[i];
      ahead_.Fetch();
      const Acc* init = g == 0 ? start : sums;
      const TileLhs lhs = panels_.lhs_lines == nullptr
                              ? TileLhs{tile.lhs + g * 4 * kMr}
                              : TileLhs{tile.lhs, panels_.lhs_lines->steps + g / PanelFormat::kStepGroups};
      RunTile({tile.m, tile.rows, n, cols, count, lhs, init, g == 0 ? 0 : kNr, is_last, sums, i == 0 ? fetch : 0},
              block);
    }
  }

  void RunTile(const Step& step, const char* rhs_block) {
    const int64_t height = TileHeight(step.rows, kMr);
    if (height == 1) RunRows<1, false>(step, rhs_block);
    else if (height == 2) RunRows<2, false>(step, rhs_block);
    else if (height == 4) RunRows<4, false>(step, rhs_block);
    else if (height < kMr) RunRows<std::min<int>(8, kMr), false>(step, rhs_block);
    else if (!widen_) RunRows<kMr, false>(step, rhs_block);
    else RunRows<kMr, kCanWiden>(step, wide_);
  }

  // Runs R rows, the smallest count of the tile policy that is at least step.rows.
  template <int R, bool kWide>
  void RunRows(const Step& step, const char* rhs) {
    const auto sum_into = [&](Acc* tile, int64_t stride) {
      Tile::template Accumulate<R, kWide>(step.lhs, rhs, step.count, step.init, step.init_stride, step.fetch, tile,
                                          stride);
    };
    if (!step.is_last) return sum_into(step.sums, kNr);
    const bool is_full = step.rows == R && step.cols == kNr;
    if (finish_ == TileFinish::kGeneral || (epi_.adds && !is_full)) {
      sum_into(finished_, kNr);
      FinishTile(Tile::kTarget, problem_, b_, step.m, step.rows, step.n, step.cols, finished_, kNr);
      return;
    }
    const auto multiply_into = [&]<class T>(T* tile, int64_t stride) {
      const TileScales scales{row_scales_ + (step.m - m0_), col_scales_, scaled_, epi_.rhs_first, epi_.adds,
                              streams_ && is_full};
      WithFlush([&]<bool kFlush>() {
        Tile::template Multiply<R, kWide, kFlush, T>(step.lhs, rhs, step.count, step.init, step.init_stride, step.fetch,
                                                     scales, tile, stride);
      });
    };
    // Computes a partial tile as a full one and copies it.
    const auto store = [&]<class T>(T* out, const auto& run) {
      out += out_offset_ + step.m * row_stride_ + step.n;
      if (is_full) [[likely]] {
        if (!streams_) PrefetchForWriting<R, kNr>(out, row_stride_);
        run(out, row_stride_);
      } else {
        run(reinterpret_cast<T*>(part_), kNr);
        CopyPart<kNr>(reinterpret_cast<T*>(part_), step.rows, step.cols, out, row_stride_);
      }
    };
    if (finish_ == TileFinish::kF32) store(static_cast<float*>(problem_.out.data), multiply_into);
    else if (finish_ == TileFinish::kBF16) store(static_cast<BFloat16*>(problem_.out.data), multiply_into);
    else store(static_cast<Acc*>(problem_.out.data), sum_into);
  }

  const GemmProblem& problem_;
  const GemmPanels& panels_;
  const Epilogue& epi_;
  const int64_t b_, m0_, m1_, n0_, n1_;
  const bool widen_;
  const int64_t groups_, lhs_panel_bytes_, rhs_panel_bytes_;
  const char* const rhs_;
  const TileFinish finish_;
  const bool streams_, scaled_;
  const int64_t row_stride_, out_offset_;
  int64_t block_groups_ = 0;
  FetchAhead ahead_{{}, 1};
  TileRows tiles_[kMaxBlockRows / kMr];
  int64_t num_tiles_ = 0;
  float row_scales_[kMaxBlockRows + kMr], col_scales_[kNr];
  alignas(64) Acc partial_[kChunkPanels * kMaxBlockRows * kNr];
  alignas(64) Acc finished_[kMr * kNr];
  alignas(64) char part_[kMr * kNr * 4];  // a partial tile of the output
  alignas(64) char wide_[kCanWiden ? Tile::kBlockGroups * kNr * Tile::kRhs.k_group * Tile::kWideRhsElementBytes : 1];
};

// Implements GemmKernel::block.
template <class Tile>
void GemmBlock(const GemmProblem& problem, const GemmPanels& panels, int64_t b, int64_t m0, int64_t m1, int64_t n0,
               int64_t n1) {
  BlockProduct<Tile>(problem, panels, b, m0, m1, n0, n1).Run();
}

// Implements GemmKernel::add_block.
template <class Tile>
void AddGemmBlock(const void* lhs, int64_t lhs_panel_bytes, const void* rhs, int64_t groups, int64_t rows, bool first,
                  float* sums, const RowsAhead& columns_ahead, const RowsAhead& rows_ahead) {
  constexpr int64_t kMr = Tile::kLhs.width, kNr = Tile::kRhs.width;
  const int64_t tiles = CeilDiv(rows, kMr);
  FetchAhead next_columns(columns_ahead, tiles), next_rows(rows_ahead, tiles);
  static_assert(Tile::kRhs.HeaderBytes() == 0);
  const char* const columns = static_cast<const char*>(rhs);
  const char* panel = static_cast<const char*>(lhs);
  for (; rows > 0; rows -= kMr, panel += lhs_panel_bytes, sums += kMr * kNr) {
    const float* init = first ? nullptr : sums;
    next_columns.Fetch();
    next_rows.Fetch();
    if (rows == 1) Tile::template Accumulate<1, false>({panel}, columns, groups, init, kNr, 0, sums, kNr);
    else if (rows == 2) Tile::template Accumulate<2, false>({panel}, columns, groups, init, kNr, 0, sums, kNr);
    else if (rows <= 4) Tile::template Accumulate<4, false>({panel}, columns, groups, init, kNr, 0, sums, kNr);
    else Tile::template Accumulate<kMr, false>({panel}, columns, groups, init, kNr, 0, sums, kNr);
  }
}

// The kernel for a tile policy.
template <class Tile>
constexpr GemmKernel GemmOf(const char* name, bool emulated = false) {
  GemmKernel kernel = {.name = name,
                       .sums = std::is_same_v<typename Tile::Acc, int32_t> ? GemmSums::kS32 : GemmSums::kF32,
                       .target = Tile::kTarget,
                       .lhs = Tile::kLhs,
                       .rhs = Tile::kRhs,
                       .emulated = emulated,
                       .products_per_cycle = Tile::kProductsPerCycle,
                       .row_unit = 1,
                       .block_rows = kMaxBlockRows / Tile::kLhs.width * Tile::kLhs.width,
                       .block_bytes = std::numeric_limits<int32_t>::max(),
                       .block = &GemmBlock<Tile>,
                       .reads_lines = true};
  if constexpr (std::is_same_v<typename Tile::Acc, float>) {
    kernel.block_groups = Tile::kBlockGroups;
    kernel.add_block = &AddGemmBlock<Tile>;
  }
  return kernel;
}

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_GEMM_DRIVER_H_
