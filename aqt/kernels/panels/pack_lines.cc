#include "aqt/kernels/panels/pack_lines.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/core/dtype.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/panels/pack_lines.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef AQT_KERNELS_PACK_LINES_ONCE_
#define AQT_KERNELS_PACK_LINES_ONCE_
namespace aqt::kernels {
namespace {

constexpr int64_t kLine = 64;

// The change to the bits of a line.
enum class LineChange { kNone, kFlipSigns, kFlushF32, kFlushBF16 };

// Lines are prefetched this many positions of k ahead.
constexpr int64_t kAhead = 8;
// The maximum number of rows of a panel.
constexpr int64_t kMaxRows = 64;

// Line i of row r, at rows[r] + offset, goes to dst + r lines + i * pitch.
struct RowLines {
  const char* const* rows;
  int64_t num_rows, offset, lines;
  char* dst;
  int64_t pitch;
};

// `count` pieces, src_pitch bytes apart, of `panels` parts with `lines` lines each. Parts of one panel go to
// consecutive places at dst, and those of the next panel dst_pitch bytes further.
struct Pieces {
  const char* src;
  int64_t src_pitch, count, panels, lines;
  char* dst;
  int64_t dst_pitch;
};

}  // namespace
}  // namespace aqt::kernels
#endif  // AQT_KERNELS_PACK_LINES_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <LineChange kChange, class D, class V = hn::Vec<D>>
V Changed(D d, V v) {
  if constexpr (kChange == LineChange::kFlipSigns) return hn::Xor(v, hn::Set(d, 0x80808080u));
  if constexpr (kChange == LineChange::kFlushF32) {
    const auto is_normal = hn::Ne(hn::And(v, hn::Set(d, 0x7f800000u)), hn::Zero(d));
    return hn::IfThenElse(is_normal, v, hn::And(v, hn::Set(d, 0x80000000u)));
  }
  if constexpr (kChange == LineChange::kFlushBF16) {
    const auto flushed = [&](uint32_t exponent, uint32_t sign, uint32_t all) {
      const auto is_normal = hn::Ne(hn::And(v, hn::Set(d, exponent)), hn::Zero(d));
      return hn::And(v, hn::IfThenElse(is_normal, hn::Set(d, all), hn::Set(d, sign)));
    };
    return hn::Or(flushed(0x7f800000u, 0x80000000u, 0xffff0000u), flushed(0x7f80u, 0x8000u, 0xffffu));
  }
  return v;
}

template <LineChange kChange>
HWY_INLINE void CopyLine(const char* src, char* dst) {
  const hn::CappedTag<uint32_t, kLine / 4> d;
  for (int64_t j = 0; j < kLine; j += 4 * static_cast<int64_t>(hn::Lanes(d))) {
    const auto v = hn::LoadU(d, reinterpret_cast<const uint32_t*>(src + j));
    hn::StoreU(Changed<kChange>(d, v), d, reinterpret_cast<uint32_t*>(dst + j));
  }
}

template <LineChange kChange>
void CopyRowsAs(const RowLines& copy) {
  for (int64_t r = 0; r < copy.num_rows; ++r) {
    const char* src = copy.rows[r] + copy.offset;
    char* dst = copy.dst + r * kLine;
    for (int64_t i = 0; i < copy.lines; ++i) CopyLine<kChange>(src + i * kLine, dst + i * copy.pitch);
  }
}

template <LineChange kChange>
void CopyPiecesAs(const Pieces& copy) {
  for (int64_t i = 0; i < copy.count; ++i) {
    const char* src = copy.src + i * copy.src_pitch;
    const bool fetches = i + kAhead < copy.count;
    for (int64_t p = 0; p < copy.panels; ++p) {
      char* dst = copy.dst + p * copy.dst_pitch + i * copy.lines * kLine;
      for (int64_t j = 0; j < copy.lines; ++j, src += kLine, dst += kLine) {
        if (fetches) __builtin_prefetch(src + kAhead * copy.src_pitch);
        CopyLine<kChange>(src, dst);
      }
    }
  }
}

void CopyRows(LineChange change, const RowLines& copy) {
  switch (change) {
    case LineChange::kNone: return CopyRowsAs<LineChange::kNone>(copy);
    case LineChange::kFlipSigns: return CopyRowsAs<LineChange::kFlipSigns>(copy);
    case LineChange::kFlushF32: return CopyRowsAs<LineChange::kFlushF32>(copy);
    case LineChange::kFlushBF16: return CopyRowsAs<LineChange::kFlushBF16>(copy);
  }
}

void CopyPieces(LineChange change, const Pieces& copy) {
  switch (change) {
    case LineChange::kNone: return CopyPiecesAs<LineChange::kNone>(copy);
    case LineChange::kFlipSigns: return CopyPiecesAs<LineChange::kFlipSigns>(copy);
    case LineChange::kFlushF32: return CopyPiecesAs<LineChange::kFlushF32>(copy);
    case LineChange::kFlushBF16: return CopyPiecesAs<LineChange::kFlushBF16>(copy);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {
namespace {

// Whether the format stores elements of this dtype, possibly with flipped signs.
bool Stores(PanelFormat::Element element, DType dtype) {
  switch (element) {
    case PanelFormat::Element::kU8Offset:
    case PanelFormat::Element::kS8: return dtype == DType::kS8;
    case PanelFormat::Element::kBF16: return dtype == DType::kBF16;
    case PanelFormat::Element::kF32: return dtype == DType::kF32;
    default: return false;
  }
}

LineChange ChangeOf(const PanelFormat& format, bool subnormals_are_zero) {
  switch (format.element) {
    case PanelFormat::Element::kU8Offset: return LineChange::kFlipSigns;
    case PanelFormat::Element::kF32: return subnormals_are_zero ? LineChange::kFlushF32 : LineChange::kNone;
    case PanelFormat::Element::kBF16: return subnormals_are_zero ? LineChange::kFlushBF16 : LineChange::kNone;
    default: return LineChange::kNone;
  }
}

// Packs the lines of one operand.
class LinePacker {
 public:
  LinePacker(Target target, const PanelFormat& format, const Operand& src, const PanelRange& range, bool flush)
      : target_(target),
        format_(format),
        src_(src),
        range_(range),
        size_(SizeOf(src.dtype)),
        matrix_(static_cast<const char*>(src.data) + src.batch.Offset(range.matrix) * size_),
        change_(ChangeOf(format, flush)) {}

  // The lines of a row are `width` lines apart.
  void RowSteps(char* panels) const {
    const auto copy = AQT_HWY_DISPATCH(target_, CopyRows);
    const int64_t width = format_.width, pitch = width * kLine, run = src_.k.InnerSize();
    const int64_t panel_bytes = format_.PanelBytes(range_.k1 - range_.k0);
    for (int64_t p = range_.first; p < range_.last; ++p, panels += panel_bytes) {
      const char* rows[kMaxRows];
      const int64_t count = Rows(p * width, rows);
      char* to = panels;
      for (int64_t k = range_.k0; k < range_.k1;) {
        const int64_t part = std::min(run - k % run, range_.k1 - k), lines = part * size_ / kLine;
        copy(change_, {rows, count, src_.k.Offset(k) * size_, lines, to, pitch});
        k += part;
        to += lines * pitch;
      }
      if (count == width) continue;  // otherwise zeros follow
      for (int64_t i = count * kLine; i < panel_bytes; i += pitch) {
        std::memset(panels + i, change_ == LineChange::kFlipSigns ? 0x80 : 0, (width - count) * kLine);
      }
    }
  }

  // The rows of a panel are side by side.
  void Interleaved(char* panels) const {
    const auto copy = AQT_HWY_DISPATCH(target_, CopyPieces);
    const int64_t width = format_.width, group_bytes = width * size_, run = src_.k.InnerSize();
    const int64_t pitch = src_.k.InnerStride() * size_, panel_bytes = format_.PanelBytes(range_.k1 - range_.k0);
    // Panels whose rows are adjacent are copied together.
    const int64_t side_by_side = src_.rows.InnerSize() / width;
    int64_t count = 0, panels_at_once = 0;
    for (int64_t k = range_.k0; k < range_.k1; k += count) {
      count = std::min(run - k % run, range_.k1 - k);
      const char* from = matrix_ + src_.k.Offset(k) * size_;
      char* to = panels + (k - range_.k0) * group_bytes;
      for (int64_t p = range_.first; p < range_.last; p += panels_at_once, to += panels_at_once * panel_bytes) {
        panels_at_once = std::min(side_by_side - p % side_by_side, range_.last - p);
        copy(change_, {from + src_.rows.Offset(p * width) * size_, pitch, count, panels_at_once, group_bytes / kLine,
                       to, panel_bytes});
      }
    }
  }

 private:
  // Finds the rows of the panel that starts at row r0, and returns how many there are.
  int64_t Rows(int64_t r0, const char** rows) const {
    const int64_t count = std::min<int64_t>(format_.width, src_.rows.Count() - r0), inner = src_.rows.InnerSize();
    int64_t left = 0;
    for (int64_t i = 0; i < count; ++i, --left) {
      rows[i] = left > 0 ? rows[i - 1] + src_.rows.InnerStride() * size_ : matrix_ + src_.rows.Offset(r0 + i) * size_;
      if (left == 0) left = inner - (r0 + i) % inner;
    }
    return count;
  }

  const Target target_;
  const PanelFormat& format_;
  const Operand& src_;
  const PanelRange& range_;
  const int64_t size_;
  const char* const matrix_;
  const LineChange change_;
};

}  // namespace

bool PacksLines(const PanelFormat& format, const Operand& src, const PanelRange& range) {
  if (format.has_correction || !Stores(format.element, src.dtype)) return false;
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    const auto is_whole = [&](int64_t k) { return k * SizeOf(src.dtype) % kLine == 0; };
    return format.width <= kMaxRows && src.k.InnerStride() == 1 && is_whole(src.k.InnerSize()) && is_whole(range.k0) &&
           is_whole(range.k1);
  }
  return format.k_group == 1 && src.rows.InnerStride() == 1 && src.rows.InnerSize() % format.width == 0 &&
         format.width * SizeOf(src.dtype) % kLine == 0;
}

void PackLines(Target target, const PanelFormat& format, const Operand& src, const PanelRange& range, void* panels,
               bool subnormals_are_zero) {
  const LinePacker packer(target, format, src, range, subnormals_are_zero);
  if (format.layout == PanelFormat::Layout::kRowSteps) packer.RowSteps(static_cast<char*>(panels));
  else packer.Interleaved(static_cast<char*>(panels));
}

void CopyLines(Target target, const PanelFormat& format, const LinePieces& pieces, bool subnormals_are_zero) {
  AQT_HWY_DISPATCH(target, CopyPieces)
  (ChangeOf(format, subnormals_are_zero), {.src = static_cast<const char*>(pieces.src),
                                           .src_pitch = pieces.src_pitch,
                                           .count = pieces.count,
                                           .panels = pieces.lines,
                                           .lines = 1,
                                           .dst = static_cast<char*>(pieces.dst),
                                           .dst_pitch = pieces.dst_pitch});
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
