#ifndef AQT_KERNELS_PANELS_PACK_LINES_H_
#define AQT_KERNELS_PANELS_PACK_LINES_H_

// Packs operands that are runs of whole 64-byte lines, such as windows with many channels. A source line becomes a
// panel line, with no staging.

#include <cstdint>

#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// The part k0 <= k < k1 of panels [first, last) of one matrix of a batch, laid out as panels of an operand with only
// these k. k0 is a multiple of 16 groups.
struct PanelRange {
  int64_t matrix = 0, first = 0, last = 0;
  int64_t k0 = 0, k1 = 0;
};

// Whether PackLines supports this: elements of the format, and
//   - kRowSteps: k in contiguous runs of whole lines, and a range of k that is whole lines;
//   - kInterleaved, groups of one: rows in contiguous runs of whole panels of whole lines.
bool PacksLines(const PanelFormat& format, const Operand& src, const PanelRange& range);

// PackPanels (pack_panels.h) for the supported cases.
void PackLines(Target target, const PanelFormat& format, const Operand& src, const PanelRange& range, void* panels,
               bool subnormals_are_zero);

// `count` pieces of `lines` adjacent lines, src_pitch bytes apart. The first lines of all pieces go to dst, side by
// side, the second lines dst_pitch bytes further, and so on.
struct LinePieces {
  const void* src;
  int64_t src_pitch, count, lines;
  void* dst;
  int64_t dst_pitch;
};
// Copies the pieces in the way PackLines does.
void CopyLines(Target target, const PanelFormat& format, const LinePieces& pieces, bool subnormals_are_zero);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_PANELS_PACK_LINES_H_
