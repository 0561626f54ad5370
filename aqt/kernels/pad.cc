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

// Fills `out`, writing no byte twice unless elements are apart from each other.
void Fill(const char* source, int64_t bytes, absl::Span<const PadAxis> axes, char* out) {
  const PadAxis& axis = axes[0];
  const auto [begin, end] = KeptElements(axis);
  const absl::Span<const PadAxis> inner = axes.subspan(1);
  const int64_t place_bytes = PaddedElements(inner) * bytes;
  if (begin == end || axis.dilation > 1) std::memset(out, 0, axis.padded * place_bytes);
  if (begin == end) return;
  char* to = out + (begin * axis.dilation + axis.low) * place_bytes;
  if (axis.dilation == 1) {
    char* const behind = to + (end - begin) * place_bytes;
    std::memset(out, 0, to - out);
    std::memset(behind, 0, out + axis.padded * place_bytes - behind);
    if (inner.empty() && axis.stride == 1) {
      std::memcpy(to, source + begin * bytes, (end - begin) * bytes);
      return;
    }
  }
  for (int64_t i = begin; i < end; ++i, to += axis.dilation * place_bytes) {
    const char* from = source + i * axis.stride * bytes;
    if (inner.empty()) {
      std::memcpy(to, from, bytes);
    } else {
      Fill(from, bytes, inner, to);
    }
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
    const int64_t offset = place - outer.low;
    if (offset < 0 || offset % outer.dilation != 0 || offset / outer.dilation >= outer.size) {
      std::memset(to, 0, inner_bytes);
      return;
    }
    const char* from = static_cast<const char*>(source) + offset / outer.dilation * outer.stride * element_bytes;
    if (inner.empty()) {
      std::memcpy(to, from, element_bytes);
    } else {
      Fill(from, element_bytes, inner, to);
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
