#include "aqt/kernels/pad.h"

#include <algorithm>
#include <cstring>

namespace aqt::kernels {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return a > 0 ? (a - 1) / b + 1 : 0; }

int64_t PaddedElements(absl::Span<const PadAxis> axes) {
  int64_t n = 1;
  for (const PadAxis& axis : axes) n *= axis.padded;
  return n;
}

// Copies the elements of `source` to `out`, which is all zeros.
void Place(const char* source, int64_t bytes, absl::Span<const PadAxis> axes, char* out) {
  const PadAxis& axis = axes[0];
  const auto [begin, end] = KeptElements(axis);
  if (begin == end) return;
  const absl::Span<const PadAxis> inner = axes.subspan(1);
  if (!inner.empty()) {
    const int64_t inner_bytes = PaddedElements(inner) * bytes;
    for (int64_t i = begin; i < end; ++i) {
      Place(source + i * axis.stride * bytes, bytes, inner, out + (i * axis.dilation + axis.low) * inner_bytes);
    }
    return;
  }
  char* first = out + (begin * axis.dilation + axis.low) * bytes;
  if (axis.stride == 1 && axis.dilation == 1) {
    std::memcpy(first, source + begin * bytes, (end - begin) * bytes);
    return;
  }
  for (int64_t i = begin; i < end; ++i) {
    std::memcpy(first + (i - begin) * axis.dilation * bytes, source + i * axis.stride * bytes, bytes);
  }
}

}  // namespace

KeptRange KeptElements(const PadAxis& axis) {
  const int64_t end = std::min(axis.size, CeilDiv(axis.padded - axis.low, axis.dilation));
  return {std::min(CeilDiv(-axis.low, axis.dilation), end), end};
}

void Pad(const void* source, int64_t element_bytes, absl::Span<const PadAxis> axes, void* out, Executor* executor) {
  const PadAxis& outer = axes[0];
  const absl::Span<const PadAxis> inner = axes.subspan(1);
  const int64_t inner_bytes = PaddedElements(inner) * element_bytes;
  const auto one = [&](int64_t place) {
    char* to = static_cast<char*>(out) + place * inner_bytes;
    std::memset(to, 0, inner_bytes);
    const int64_t offset = place - outer.low;
    if (offset < 0 || offset % outer.dilation != 0 || offset / outer.dilation >= outer.size) return;
    const char* from = static_cast<const char*>(source) + offset / outer.dilation * outer.stride * element_bytes;
    if (inner.empty()) {
      std::memcpy(to, from, element_bytes);
    } else {
      Place(from, element_bytes, inner, to);
    }
  };
  if (inner_bytes == 0) return;
  // Waking a thread pays off from about 256 KiB.
  if (executor == nullptr || executor->NumThreads() == 1 || outer.padded * inner_bytes < (256 << 10)) {
    for (int64_t place = 0; place < outer.padded; ++place) one(place);
  } else {
    executor->ParallelFor(outer.padded, one);
  }
}

}  // namespace aqt::kernels
