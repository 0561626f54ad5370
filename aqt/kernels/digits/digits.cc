#include "aqt/kernels/digits/digits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aqt/core/ceil_div.h"
#include "aqt/kernels/digits/internal.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/schedule.h"

namespace aqt::kernels {
namespace {

using internal::DigitGroupArgs;
using internal::DigitKernel;
using internal::DigitLayers;
using internal::DigitLine;
using internal::kDigits;
using internal::kHalfColumns;
using internal::kPanelColumns;

// Rows whose digits are in memory at the same time. A kernel iterates over their sums for a panel (16 KiB), the digits
// of a group (24 KiB as tiles) and its weights (8 KiB).
constexpr int64_t kBlockRows = 64;
// Blocks of rows are processed in passes, because threads synchronize after each one. A pass has as many blocks per
// thread as have kThreadBytes of digits, counting three layers per group, and at most kPassBytes in total.
constexpr int64_t kThreadBytes = 640 << 10, kPassBytes = 4 << 20;
// From kFetchedWeights bytes on, weights do not stay in the caches, and one row waits for them unless they are
// prefetched. From kFarWeights on, not even a part stays. One thread then gets them sooner without prefetching: the
// processor itself reads ahead on four panels.
constexpr int64_t kFetchedWeights = 20'000'000, kFarWeights = 40'000'000;
// As kMinParallelWork: fewer multiplications, since each takes longer than one of a matrix kernel.
constexpr double kMinParallelDigits = kMinParallelWork / 2;
constexpr int64_t kMinParallelSplit = 8 << 10, kMinParallelIntegers = 256 << 10;

// The memory layout of the digits of one group for a block of rows.
struct GroupLayout {
  GroupLayout(const DigitKernel& kernel, const DigitFormat& format, int64_t max_lines, int64_t rows) {
    lines = 64;
    special = lines + RoundUp(max_lines * int64_t{sizeof(DigitLine)}, 64);
    digits = special + RoundUp(rows, 64);
    bytes = digits + RoundUp(CeilDiv(max_lines, kernel.tile_rows) * kernel.TileBytes(format.GroupPitch()), 64);
  }
  // Offsets. The number of lines is at offset 0.
  int64_t lines, special, digits, bytes;
};

struct GroupView {
  GroupView(const GroupLayout& layout, char* scratch, int64_t g)
      : num_lines(reinterpret_cast<int64_t*>(scratch + g * layout.bytes)),
        lines(reinterpret_cast<DigitLine*>(scratch + g * layout.bytes + layout.lines)),
        special(scratch + g * layout.bytes + layout.special),
        digits(scratch + g * layout.bytes + layout.digits) {}
  int64_t* num_lines;
  DigitLine* lines;
  char* special;  // per row: whether an element is infinite or NaN
  char* digits;
};

// Rows [m0, m0 + rows) of matrix b, with their digits at `slot` of the scratch memory.
struct Block {
  int64_t b, m0, rows, slot;
};

class Product {
 public:
  Product(Target target, const GemmProblem& problem, const DigitArgs& args, int64_t rows, bool is_parallel = false)
      : target_(target),
        problem_(problem),
        args_(args),
        weights_(args.format.PackedBytes()),
        fetches_(weights_ >= kFetchedWeights && (is_parallel || weights_ < kFarWeights)),
        integers_(IsInteger(problem.lhs.dtype)),
        kernel_(internal::DigitKernelFor(target, args.format, rows, integers_)),
        layout_(kernel_, args.format, rows * (integers_ ? 1 : kMaxDigitLayers), rows),
        groups_(args.format.NumGroups()),
        pitch_(args.format.GroupPitch()),
        weight_bytes_(args.format.GroupWeightBytes()),
        group_bytes_(args.format.GroupBytes()),
        panel_bytes_(groups_ * group_bytes_) {}

  // Size of the digits of a block of rows.
  int64_t block_bytes() const { return groups_ * layout_.bytes; }

  // The number of blocks in a pass, out of `blocks`: the maximum, and the number for this many threads.
  int64_t MaxBlocksPerPass(int64_t blocks) const {
    return std::min(BlocksOf(kPassBytes), std::max<int64_t>(1, blocks));
  }
  int64_t BlocksPerPass(int64_t blocks, int64_t threads) const {
    return std::min(MaxBlocksPerPass(blocks), threads * BlocksOf(kThreadBytes));
  }

  // From this many elements on, splitting them on several threads pays off.
  int64_t MinParallelSplit() const { return integers_ ? kMinParallelIntegers : kMinParallelSplit; }

  // Work items of Split: scale groups, or groups if there are no scales.
  int64_t num_splits() const { return args_.format.has_scales() ? args_.format.NumScaleGroups() : groups_; }

  // Computes the digits of one work item for a block of rows.
  void Split(const Block& block, int64_t part) const {
    if (integers_) return PlaceIntegers(block, part);
    const auto [b, m0, rows, slot] = block;
    const int64_t share = groups_ / std::max<int64_t>(1, num_splits());
    const bool has_scales = args_.format.has_scales();
    DigitLine* last_line[kBlockRows] = {};
    bool special[kBlockRows] = {};
    for (int64_t g = part * share; g < (part + 1) * share; ++g) {
      const DigitFormat::Group group = args_.format.GroupAt(g);
      const GroupView to = Group(slot, g);
      DigitLayers layers;
      int64_t line = 0;
      for (int64_t r = 0; r < rows; ++r) {
        internal::SplitDigits(target_, problem_.lhs, b, m0 + r, group.begin, group.size, pitch_,
                              args_.format.is_short(), layers);
        to.special[r] = layers.is_finite ? 0 : 1;
        special[r] |= !layers.is_finite;
        // With scales, a row of zeros has a line too, since its scale may be infinite.
        const bool is_end = has_scales && g == (part + 1) * share - 1;
        if (is_end && layers.count == 0 && last_line[r] == nullptr && !special[r]) AddZeros(layers);
        for (int64_t i = 0; i < layers.count; ++i, ++line) {
          DigitLine& own = to.lines[line];
          PlaceLine(r, layers, i, own);
          own.is_first = last_line[r] == nullptr;
          own.is_last = own.is_plain = false;
          last_line[r] = &own;
          internal::PlaceDigits(target_, kernel_, layers.digits[i], pitch_, line, to.digits, own);
        }
      }
      *to.num_lines = line;
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (last_line[r] == nullptr || special[r]) continue;
      last_line[r]->is_last = true;
      last_line[r]->is_plain = last_line[r]->is_first && last_line[r]->unit >= internal::kPlainMagnitude;
    }
  }

  // Whether MultiplyRow supports `blocks` blocks of matrices with m rows: one row, with one line in each group, so that
  // no line depends on another.
  bool TakesRows(int64_t m, int64_t blocks) const {
    if (m != 1 || kernel_.row == nullptr || groups_ == 0) return false;
    for (int64_t i = 0; i < blocks * groups_; ++i) {
      const GroupView group = Group(i / groups_, i % groups_);
      if (*group.num_lines != 1 || group.special[0] != 0) return false;
      if (args_.format.has_scales() && !(group.lines->is_first && group.lines->is_last)) return false;
    }
    return true;
  }

  // The number of panels that MultiplyRow processes at a time. Several panels hide the latency between the last product
  // of a group and its scaled sums. They also make three digits wait less for weights from memory. In all other cases
  // one panel is read faster.
  int64_t PanelsOfRow() const {
    const bool several = integers_ ? args_.format.has_scales() : weights_ >= kFetchedWeights;
    return several ? kernel_.row_panels : 1;
  }

  // Multiplies a block of one row by at most PanelsOfRow panels.
  void MultiplyRow(const Block& block, int64_t panel, int64_t panels) const {
    alignas(64) float sums[internal::kMaxRowPanels * kPanelColumns] = {};
    DigitGroupArgs first = CallOf(block.rows, sums);
    SetGroup(block, panel, 0, first);
    kernel_.row({first, groups_, panels, layout_.bytes});
    for (int64_t p = 0; p < panels; ++p) Finish(block, panel + p, sums + p * kPanelColumns);
  }

  // The number of panels that are multiplied by a block before the block epilogue runs, if there is one.
  int64_t PanelsOfBlock() const {
    return problem_.epilogue.block == nullptr ? 1 : CeilDiv(internal::kEpilogueColumns, kPanelColumns);
  }

  // Runs Epilogue::block on panels [first, last).
  void RunEpilogue(const Block& block, int64_t first, int64_t last) const {
    internal::RunBlockEpilogue(problem_, block.b, block.m0, block.m0 + block.rows, first * kPanelColumns,
                               std::min(last * kPanelColumns, args_.format.n));
  }

  // Multiplies a block by one panel.
  void Multiply(const Block& block, int64_t panel) const {
    const auto [b, m0, rows, slot] = block;
    alignas(64) float sums[kBlockRows * kPanelColumns], parts[kBlockRows * kPanelColumns];
    DigitGroupArgs call = CallOf(rows, sums);
    call.parts = parts;
    std::fill(sums, sums + rows * kPanelColumns, 0.0f);
    bool special[kBlockRows] = {};
    bool any_special = false;
    for (int64_t g = 0; g < groups_; ++g) {
      const GroupView from = SetGroup(block, panel, g, call);
      kernel_.group(call);
      for (int64_t r = 0; r < rows; ++r) {
        special[r] |= from.special[r] != 0;
        any_special |= special[r];
      }
      if (!any_special) continue;
      const bool is_end = g == groups_ - 1 || args_.format.GroupAt(g).scale != args_.format.GroupAt(g + 1).scale;
      if (!is_end) continue;
      for (int64_t r = 0; r < rows; ++r) {
        if (special[r]) SumNonFinite(b, slot, m0 + r, r, panel, g, sums + r * kHalfColumns, call.half_stride);
        special[r] = false;
      }
      any_special = false;
    }
    Finish(block, panel, sums);
  }

 private:
  int64_t BlocksOf(int64_t bytes) const { return std::max<int64_t>(1, bytes / std::max<int64_t>(1, block_bytes())); }

  // The arguments that all groups of a product of this many rows share.
  DigitGroupArgs CallOf(int64_t rows, float* sums) const {
    DigitGroupArgs call = {};
    call.bits = args_.format.bits;
    call.pitch = pitch_;
    call.sums = sums;
    call.half_stride = rows * kHalfColumns;
    call.fetch = fetches_ ? internal::kFetchBytes : 0;
    return call;
  }
  GroupView SetGroup(const Block& block, int64_t panel, int64_t g, DigitGroupArgs& call) const {
    const GroupView from = Group(block.slot, g);
    call.weights = Weights(block.b, panel, g);
    call.scales = Scales(call.weights);
    call.lines = from.lines;
    call.num_lines = *from.num_lines;
    call.digits = from.digits;
    return from;
  }

  // Stores the sums of a panel.
  void Finish(const Block& block, int64_t panel, const float* sums) const {
    const auto [b, m0, rows, slot] = block;
    const int64_t n0 = panel * kPanelColumns, columns = std::min(kPanelColumns, args_.format.n - n0);
    for (int64_t half = 0; half * kHalfColumns < columns; ++half) {
      internal::FinishTile(target_, problem_, b, m0, rows, n0 + half * kHalfColumns,
                           std::min(kHalfColumns, columns - half * kHalfColumns), sums + half * rows * kHalfColumns,
                           kHalfColumns);
    }
  }

  GroupView Group(int64_t slot, int64_t g) const {
    return GroupView(layout_, static_cast<char*>(args_.scratch) + slot * block_bytes(), g);
  }

  const uint8_t* Weights(int64_t b, int64_t panel, int64_t g) const {
    return static_cast<const uint8_t*>(args_.rhs) + b * args_.rhs_batch_bytes + panel * panel_bytes_ + g * group_bytes_;
  }

  // Split for integers, for scale group g: one line per row.
  void PlaceIntegers(const Block& block, int64_t g) const {
    const int64_t tile_rows = kernel_.tile_rows;
    const auto [b, m0, rows, slot] = block;
    const DigitFormat::Group group = args_.format.GroupAt(g);
    const DigitScales& scales = args_.lhs_scales;
    const float* const units = scales.data + b * scales.batch_stride + g * scales.group_stride;
    const GroupView to = Group(slot, g);
    *to.num_lines = rows;
    std::fill_n(to.special, rows, char{0});
    char* tile = to.digits;
    for (int64_t r0 = 0; r0 < rows; r0 += tile_rows, tile += kernel_.TileBytes(pitch_)) {
      int32_t sums[internal::kMaxIntegerTileRows];
      const int64_t count = std::min(tile_rows, rows - r0);
      internal::PlaceIntegers(target_, problem_.lhs, b, m0 + r0, count, group.begin, group.size, pitch_, tile_rows,
                              tile, sums);
      for (int64_t i = 0; i < count; ++i) {
        DigitLine& line = to.lines[r0 + i];
        line.row = static_cast<int32_t>(r0 + i);
        line.unit = units[(m0 + r0 + i) * scales.column_stride];
        line.start[0] = -WeightOffset() * sums[i];
        line.is_first = line.is_last = true;
        line.is_plain = line.unit >= internal::kPlainMagnitude;
      }
    }
  }

  const float* Scales(const uint8_t* weights) const {
    if (!args_.format.has_scales()) return nullptr;
    return reinterpret_cast<const float*>(weights + weight_bytes_);
  }

  static void AddZeros(DigitLayers& layers) {
    layers.count = 1;
    layers.unit[0] = 0;
    std::fill(layers.digit_sum[0], layers.digit_sum[0] + kDigits, 0);
    std::fill(layers.digits[0], layers.digits[0] + kMaxDigitGroup, 0u);
  }

  // The offset that makes weights unsigned.
  int32_t WeightOffset() const { return 1 << (args_.format.bits - 1); }
  void PlaceLine(int64_t row, const DigitLayers& layers, int64_t i, DigitLine& line) const {
    line.row = static_cast<int32_t>(row);
    line.unit = layers.unit[i];
    for (int64_t d = 0; d < kDigits; ++d) line.start[d] = -WeightOffset() * layers.digit_sum[i][d];
  }

  // The sums of one row and panel over the infinite and NaN elements of the row. Without scales they cover all groups.
  // With scales they cover the scale group that ends with group `last` and are added to `sums`.
  void SumNonFinite(int64_t b, int64_t slot, int64_t m, int64_t row, int64_t panel, int64_t last, float* sums,
                    int64_t half_stride) const {
    const int bits = args_.format.bits, blocks = 8 / bits;
    const int64_t scale = args_.format.GroupAt(last).scale;
    float part[kPanelColumns] = {};
    for (int64_t g = 0; g <= last; ++g) {
      const DigitFormat::Group group = args_.format.GroupAt(g);
      if (group.scale != scale || Group(slot, g).special[row] == 0) continue;
      alignas(64) float values[kMaxDigitGroup];
      internal::LoadDigitSource(target_, problem_.lhs, b, m, group.begin, group.size, pitch_, values);
      const uint8_t* weights = Weights(b, panel, g);
      for (int64_t k = 0; k < group.size; ++k) {
        if (std::isfinite(values[k])) continue;
        const uint8_t* column = weights + k / 4 / blocks * 4 * kPanelColumns + k % 4;
        const int64_t shift = k / 4 % blocks * bits;
        for (int64_t c = 0; c < kPanelColumns; ++c) {
          const int q = (column[4 * c] >> shift & ((1 << bits) - 1)) - (1 << (bits - 1));
          part[c] += values[k] * static_cast<float>(q);
        }
      }
    }
    const float* scales = Scales(Weights(b, panel, last));
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      float& sum = sums[c / kHalfColumns * half_stride + c % kHalfColumns];
      sum = scales == nullptr ? part[c] : internal::AddScaled(sum, part[c], scales[c]);
    }
  }

  const Target target_;
  const GemmProblem& problem_;
  const DigitArgs& args_;
  const int64_t weights_;  // bytes of weights per matrix
  const bool fetches_;
  const bool integers_;
  const DigitKernel& kernel_;
  const GroupLayout layout_;
  const int64_t groups_, pitch_;
  const int64_t weight_bytes_, group_bytes_, panel_bytes_;
};

template <class F>
void ForEach(int64_t tasks, bool parallel, Executor* executor, const F& f) {
  if (parallel && executor != nullptr && tasks > 1) {
    executor->ParallelFor(tasks, f);
  } else {
    for (int64_t i = 0; i < tasks; ++i) f(i);
  }
}

}  // namespace

bool PrefersDigitsOfIntegers(Target target, int64_t scale_group) {
  const DigitFormat format{.n = DigitFormat::kPanelColumns, .k = scale_group, .scale_group = scale_group};
  const DigitKernel& kernel = internal::DigitKernelFor(target, format, /*rows=*/1, /*integers=*/true);
  return format.GroupPitch() == scale_group && !target.Has(Capability::kAmxInt8) &&
         &kernel != &internal::DigitsEmulatedOfIntegers();
}

int64_t DigitScratchBytes(Target target, const DigitFormat& format, int64_t batch, int64_t rows, bool integers) {
  GemmProblem problem;
  problem.lhs.dtype = integers ? DType::kS8 : DType::kF32;
  const DigitArgs args{.format = format};
  const Product product(target, problem, args, std::min(rows, kBlockRows));
  return product.MaxBlocksPerPass(batch * CeilDiv(rows, kBlockRows)) * product.block_bytes();
}

void MultiplyDigits(Target target, const GemmProblem& problem, const DigitArgs& args, Executor* executor) {
  const int64_t batch = problem.batch, m = problem.m;
  if (batch == 0 || m == 0 || args.format.n == 0) return;
  const int64_t threads = executor == nullptr ? 1 : executor->NumThreads();
  const Product product(target, problem, args, std::min(m, kBlockRows), threads > 1);
  const int64_t row_blocks = CeilDiv(m, kBlockRows), blocks = batch * row_blocks, parts = product.num_splits();
  const int64_t per_pass = product.BlocksPerPass(blocks, threads);
  for (int64_t first = 0; first < blocks; first += per_pass) {
    const int64_t count = std::min(per_pass, blocks - first);
    const auto block = [&](int64_t slot) -> Block {
      const int64_t m0 = (first + slot) % row_blocks * kBlockRows;
      return {.b = (first + slot) / row_blocks, .m0 = m0, .rows = std::min(kBlockRows, m - m0), .slot = slot};
    };
    const int64_t elements = count * std::min(m, kBlockRows) * args.format.k;
    ForEach(count * parts, elements >= product.MinParallelSplit(), executor,
            [&](int64_t i) { product.Split(block(i / parts), i % parts); });
    const bool takes_rows = product.TakesRows(m, count);
    const int64_t panels = args.format.NumPanels();
    const int64_t at_once = takes_rows ? product.PanelsOfRow() : product.PanelsOfBlock();
    // ThreadPool gives each thread a run of consecutive tasks. If there are enough blocks, a run has the same blocks as
    // above, whose digits are in that thread's caches. The blocks follow one another on a panel, so its weights are in
    // cache too.
    const int64_t together = count < threads ? count : CeilDiv(count, threads);
    const int64_t panel_tasks = CeilDiv(panels, at_once);
    ForEach(count * panel_tasks, static_cast<double>(elements) * args.format.n >= kMinParallelDigits, executor,
            [&](int64_t i) {
              const int64_t group = i / (together * panel_tasks), j = i % (together * panel_tasks);
              const int64_t group_size = std::min(together, count - group * together);
              const int64_t panel = j / group_size * at_once, slot = group * together + j % group_size;
              const int64_t end = std::min(panel + at_once, panels);
              if (takes_rows) {
                product.MultiplyRow(block(slot), panel, end - panel);
              } else {
                for (int64_t p = panel; p < end; ++p) product.Multiply(block(slot), p);
              }
              product.RunEpilogue(block(slot), panel, end);
            });
  }
}

}  // namespace aqt::kernels
