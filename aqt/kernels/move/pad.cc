#include "aqt/kernels/move/pad.h"

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

// Whether the elements of these axes are contiguous in the source and stay contiguous.
bool AreCopied(absl::Span<const PadAxis> axes) {
  int64_t stride = 1;
  for (size_t i = axes.size(); i-- > 0; stride *= axes[i].size) {
    const PadAxis& axis = axes[i];
    if (axis.dilation != 1 || axis.low != 0 || axis.padded != axis.size || axis.stride != stride) return false;
  }
  return true;
}

// Writes each element of `out` once, from `source` or as zeros.
void Fill(const char* source, int64_t bytes, absl::Span<const PadAxis> axes, char* out) {
  const PadAxis& axis = axes[0];
  const absl::Span<const PadAxis> inner = axes.subspan(1);
  const int64_t inner_bytes = PaddedElements(inner) * bytes;
  const auto place = [&](int64_t i) { return i * axis.dilation + axis.low; };
  const auto zero = [&](int64_t first, int64_t last) {
    std::memset(out + first * inner_bytes, 0, (last - first) * inner_bytes);
  };
  const auto [begin, end] = KeptElements(axis);
  if (begin == end) return zero(0, axis.padded);
  zero(0, place(begin));
  const bool copied = AreCopied(inner);
  if (copied && axis.dilation == 1 && axis.stride * bytes == inner_bytes) {
    std::memcpy(out + place(begin) * inner_bytes, source + begin * inner_bytes, (end - begin) * inner_bytes);
  } else {
    for (int64_t i = begin; i < end; ++i) {
      const char* from = source + i * axis.stride * bytes;
      char* to = out + place(i) * inner_bytes;
      if (copied) std::memcpy(to, from, inner_bytes);
      else Fill(from, bytes, inner, to);
      if (axis.dilation > 1 && i + 1 < end) zero(place(i) + 1, place(i + 1));
    }
  }
  zero(place(end - 1) + 1, axis.padded);
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
  const bool copied = AreCopied(inner);
  const auto one = [&](int64_t place) {
    char* to = static_cast<char*>(out) + place * inner_bytes;
    const int64_t offset = place - outer.low;
    if (offset < 0 || offset % outer.dilation != 0 || offset / outer.dilation >= outer.size) {
      std::memset(to, 0, inner_bytes);
      return;
    }
    const char* from = static_cast<const char*>(source) + offset / outer.dilation * outer.stride * element_bytes;
    if (copied) std::memcpy(to, from, inner_bytes);
    else Fill(from, element_bytes, inner, to);
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
