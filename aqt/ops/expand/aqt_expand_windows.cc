// A convolution and its gradients in basic operations: one slice of the padded operand for each element of the window.

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/ops/expand/aqt_expand.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/windows.h"

namespace aqt::internal {
namespace {

// How windows slide over one spatial axis. The axis is dilated and padded first; then window element w of position p is
// element p * stride + first + w * step.
struct Slide {
  int64_t dilation, low, padded;
  int64_t positions, stride;
  int64_t elements, first, step;
};
using Slides = absl::InlinedVector<Slide, 3>;

// Windows over the input of the convolution.
Slides InputSlides(const ConvGeometry& conv) {
  Slides slides;
  for (const ConvAxis& axis : conv.axes) {
    slides.push_back({.dilation = axis.lhs_dilation,
                      .low = axis.low,
                      .padded = axis.padded(),
                      .positions = axis.out,
                      .stride = axis.stride,
                      .elements = axis.kernel,
                      .first = 0,
                      .step = axis.rhs_dilation});
  }
  return slides;
}

// Windows over the gradient of its result: each element of the input meets the reversed kernel.
Slides GradientSlides(const ConvGeometry& conv) {
  Slides slides;
  for (const ConvAxis& axis : conv.axes) {
    const int64_t reach = (axis.kernel - 1) * axis.rhs_dilation;
    slides.push_back({.dilation = axis.stride,
                      .low = reach - axis.low,
                      .padded = (axis.in - 1) * axis.lhs_dilation + reach + 1,
                      .positions = axis.in,
                      .stride = axis.lhs_dilation,
                      .elements = axis.kernel,
                      .first = reach,
                      .step = -axis.rhs_dilation});
  }
  return slides;
}

// x [B, spatial..., C], dilated and padded with zeros; negative padding cuts.
Value Padded(const Value& x, const Slides& slides) {
  PerAxis low(x.rank(), 0), high = low, interior = low;
  for (size_t i = 0; i < slides.size(); ++i) {
    const Slide& slide = slides[i];
    const int64_t axis = static_cast<int64_t>(i) + 1, extent = x.shape()[axis];
    const int64_t dilated = extent == 0 ? 0 : (extent - 1) * slide.dilation + 1;
    interior[axis] = slide.dilation - 1;
    low[axis] = slide.low;
    high[axis] = slide.padded - slide.low - dilated;
  }
  return ops::Pad(x, low, high, interior);
}

// [B, positions..., window elements, groups, C / groups].
Value WindowsOf(const Value& x, const Slides& slides, int64_t groups) {
  const int64_t batch = x.shape()[0], channels = x.shape()[x.rank() - 1];
  int64_t elements = 1;
  Shape one{batch};  // the window elements as an axis
  for (const Slide& slide : slides) {
    one.push_back(slide.positions);
    elements *= slide.elements;
  }
  Shape all = one;
  one.push_back(1);
  one.push_back(channels);
  for (const int64_t extent : {elements, groups, channels / groups}) all.push_back(extent);
  if (all.num_elements() == 0) return Zeros({x.dtype(), all});
  const Value padded = Padded(x, slides);
  std::vector<Value> parts;
  for (int64_t element = 0; element < elements; ++element) {
    PerAxis start(x.rank(), 0), limit(padded.shape().begin(), padded.shape().end()), stride(x.rank(), 1);
    int64_t rest = element;
    for (size_t i = slides.size(); i-- > 0;) {
      const Slide& slide = slides[i];
      start[i + 1] = slide.first + rest % slide.elements * slide.step;
      limit[i + 1] = start[i + 1] + (slide.positions - 1) * slide.stride + 1;
      stride[i + 1] = slide.stride;
      rest /= slide.elements;
    }
    parts.push_back(ops::Reshape(ops::Slice(padded, start, limit, stride), one));
  }
  return ops::Reshape(ops::Concatenate(parts, one.rank() - 2), all);
}

Axes Range(int64_t first, int64_t last) {
  Axes axes;
  for (int64_t axis = first; axis < last; ++axis) axes.push_back(axis);
  return axes;
}

}  // namespace

Value ExpandWindowSums(const Windows& windows, const Value& lhs, const Value& rhs) {
  const ConvGeometry& conv = windows.conv;
  const int64_t spatial = static_cast<int64_t>(conv.axes.size());
  const int64_t group_in = conv.in_channels / conv.groups, group_out = conv.out_channels / conv.groups;
  // For windows: the examples and positions come before, the groups after the window elements.
  const int64_t element = spatial + 1, group = spatial + 2;
  if (windows.pass == Pass::kDrhs) {
    // lhs is g, rhs the input: for each window element and channel the sum over examples and positions.
    Shape shape(lhs.shape().extents().first(element));
    shape.push_back(conv.groups);
    shape.push_back(group_out);
    const DotDims dims{.lhs_contracting = Range(0, element),
                       .rhs_contracting = Range(0, element),
                       .lhs_batch = {group},
                       .rhs_batch = {element}};
    const Value sums = SumOf(WindowsOf(rhs, InputSlides(conv), conv.groups), ops::Reshape(lhs, shape), dims);
    return ops::Reshape(ops::Transpose(sums, {1, 2, 0, 3}), conv.RhsShape());
  }
  // rhs is the kernel: [window elements, group_in, groups, group_out].
  const bool forward = windows.pass == Pass::kFwd;
  int64_t elements = 1;
  for (const ConvAxis& axis : conv.axes) elements *= axis.kernel;
  const Value kernel = ops::Reshape(rhs, {elements, group_in, conv.groups, group_out});
  const DotDims dims{.lhs_contracting = {element, group + 1},
                     .rhs_contracting = {0, forward ? 1 : 3},
                     .lhs_batch = {group},
                     .rhs_batch = {2}};
  const Slides slides = forward ? InputSlides(conv) : GradientSlides(conv);
  const Value sums = SumOf(WindowsOf(lhs, slides, conv.groups), kernel, dims);
  Axes permutation = Range(1, element + 1);
  permutation.push_back(0);
  permutation.push_back(element + 1);
  return ops::Reshape(ops::Transpose(sums, permutation), forward ? conv.OutShape() : conv.LhsShape());
}

}  // namespace aqt::internal
