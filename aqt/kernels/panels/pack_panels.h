#ifndef AQT_KERNELS_PANELS_PACK_PANELS_H_
#define AQT_KERNELS_PANELS_PACK_PANELS_H_

// Packs a few panels of an operand, for a product that packs its lhs one block at a time, just before the block is
// multiplied.

#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack_lines.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// Writes this part of the panels to the start of `panels`, with the bytes that Pack (pack.h) would write. Runs on the
// calling thread.
void PackPanels(Target target, const PanelFormat& format, const Operand& src, const PanelRange& range, void* panels,
                bool subnormals_are_zero);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_PANELS_PACK_PANELS_H_
