#ifndef AQT_KERNELS_PANELS_PACK_LINES_H_
#define AQT_KERNELS_PANELS_PACK_LINES_H_

// Packs operands that are runs of whole lines of 64 bytes, as windows of many channels are: a line of the source is a
// line of a panel, and nothing is staged.

#include <cstdint>

#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// The part of panels [first, last) of one matrix of a batch that holds k0 <= k < k1, as panels of an operand without
// any other k. k0 is a multiple of 16 groups.
struct PanelRange {
  int64_t matrix = 0, first = 0, last = 0;
  int64_t k0 = 0, k1 = 0;
};

// Whether PackLines takes it: elements of the format, and
//   - kRowSteps: k in contiguous runs of whole lines, and a part of k that is whole lines;
//   - kInterleaved, groups of one: rows in contiguous runs of whole panels of whole lines.
bool PacksLines(const PanelFormat& format, const Operand& src, const PanelRange& range);

// PackPanels (pack_panels.h) for these.
void PackLines(Target target, const PanelFormat& format, const Operand& src, const PanelRange& range, void* panels,
               bool subnormals_are_zero);

// `count` pieces, src_pitch bytes apart, of `lines` lines that lie side by side. The first lines of all pieces go to
// dst, side by side, the second ones dst_pitch bytes further, and so on.
struct LinePieces {
  const void* src;
  int64_t src_pitch, count, lines;
  void* dst;
  int64_t dst_pitch;
};
// Copies them as PackLines does.
void CopyLines(Target target, const PanelFormat& format, const LinePieces& pieces, bool subnormals_are_zero);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_PANELS_PACK_LINES_H_
