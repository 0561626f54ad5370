#ifndef AQT_QUANT_CONTRACTION_ENGINE_WINDOWS_H_
#define AQT_QUANT_CONTRACTION_ENGINE_WINDOWS_H_

// A convolution and its two gradients as matrix products: the windows are a strided operand of the packer. Internal.
//
// Rows slide over a padded array, columns are channels, batches are the feature groups:
//   kFwd   rows: examples, positions of out     k: kernel, input channels     columns: output channels
//   kDlhs  rows: examples, positions of lhs     k: kernel, output channels    columns: input channels
//   kDrhs  rows: kernel, input channels         k: examples, positions        columns: output channels
// Windows are prepared block by block, just before they are multiplied: blocks of rows, or for kDrhs of k. Where that
// is faster, rows are stored by lines (kernels/gemm/by_lines.h), in at most 12 MiB. Otherwise they are packed, in at
// most 8 MiB, or one group of one example if that is larger.

#include "aqt/core/array_ref.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/workspace.h"

namespace aqt::internal {

struct Windows {
  ConvGeometry conv;
  Pass pass = Pass::kFwd;
};

// One scale per example and one per output channel, for kFwd.
struct WindowScales {
  const float* example = nullptr;
  const float* channel = nullptr;
  kernels::Epilogue epilogue;  // the rest; its scales and strides are not read
};

// out = the product of lhs and rhs, summed as the kernel does: the raw sums (s32 or f32), or scaled. lhs is the input
// of the convolution (kFwd) or g, rhs the kernel or, for kDrhs, the input of the convolution. Any strides.
// For kFwd the kernel may already be packed (WindowKernel); then only its shape is read.
void ContractWindows(const kernels::GemmKernel& kernel, const Windows& windows, const ArrayRef& lhs,
                     const ArrayRef& rhs, const void* rhs_panels, const MutableArrayRef& out,
                     const WindowScales& scales, Workspace& workspace, const Runtime& runtime);

// The number of rows of the matrix products, over all examples.
int64_t RowsOf(const Windows& windows);

// The kernel of the convolution as ContractWindows packs it for kFwd.
kernels::Operand WindowKernel(const ConvGeometry& conv, const ArrayRef& rhs);

// The scratch memory of ContractWindows; `padded` is the dtype of the operand that windows slide over.
void AddWindowSlots(const kernels::GemmKernel& kernel, const Windows& windows, DType padded, bool scaled,
                    SlotSizes& sizes);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_WINDOWS_H_
