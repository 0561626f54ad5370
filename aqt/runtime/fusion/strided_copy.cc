#include "aqt/runtime/fusion/strided_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <variant>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"

namespace aqt::internal {
namespace {

constexpr int64_t kBlock = 16;  // rows and columns that a transpose moves at a time
// Waking a thread pays off from about two parts on. There are more parts than threads, because threads may be
// interrupted.
constexpr int64_t kPartBytes = 128 << 10, kPartsPerThread = 4;

}  // namespace

StridedCopy::StridedCopy(const Shape& shape, const Strides& strides, int64_t offset, int64_t element_bytes)
    : offset_(offset), element_bytes_(element_bytes), num_elements_(shape.num_elements()) {
  for (int64_t i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    if (!axes_.empty() && axes_.back().stride == strides[i] * shape[i])
      axes_.back() = {axes_.back().extent * shape[i], strides[i]};
    else axes_.push_back({shape[i], strides[i]});
  }
}

std::optional<StridedCopy> StridedCopy::Of(const Op& op, const Aval& in, const Aval& out) {
  const Strides from = DenseStrides(in.shape);
  Strides strides(out.shape.rank(), 0);
  int64_t offset = 0;
  if (const auto* broadcast = std::get_if<BroadcastOp>(&op)) {
    for (int64_t i = 0; i < in.shape.rank(); ++i) {
      if (in.shape[i] == out.shape[broadcast->axes[i]]) strides[broadcast->axes[i]] = from[i];
    }
  } else if (const auto* transpose = std::get_if<TransposeOp>(&op)) {
    for (int64_t i = 0; i < out.shape.rank(); ++i) strides[i] = from[transpose->permutation[i]];
  } else if (const auto* slice = std::get_if<SliceOp>(&op)) {
    for (int64_t i = 0; i < out.shape.rank(); ++i) {
      offset += slice->start[i] * from[i];
      strides[i] = out.shape[i] > 1 ? from[i] * slice->stride[i] : 0;
    }
  } else {
    return std::nullopt;
  }
  return StridedCopy(out.shape, strides, offset, SizeOf(out.dtype));
}

bool StridedCopy::IsIdentity() const {
  return offset_ == 0 && (axes_.empty() || (axes_.size() == 1 && axes_[0].stride == 1));
}

int64_t StridedCopy::period() const {
  if (axes_.empty()) return 1;
  return axes_[0].stride == 0 && axes_[0].extent > 0 ? num_elements_ / axes_[0].extent : num_elements_;
}

template <class F>
void StridedCopy::WithType(F&& f) const {
  switch (element_bytes_) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: AQT_CHECK(!"elements of 1, 2, 4 or 8 bytes");
  }
}

template <class T>
void StridedCopy::Part(const T* source, int64_t first, int64_t count, T* out) const {
  if (axes_.empty()) {
    std::fill_n(out, count, *source);
    return;
  }
  const size_t last = axes_.size() - 1;
  absl::InlinedVector<int64_t, 4> index(axes_.size());
  int64_t rest = first;
  for (size_t i = axes_.size(); i-- > 0;) {
    index[i] = rest % axes_[i].extent;
    rest /= axes_[i].extent;
    source += index[i] * axes_[i].stride;
  }
  while (true) {
    const auto [extent, stride] = axes_[last];
    const int64_t run = std::min(count, extent - index[last]);
    if (stride == 0) std::fill_n(out, run, *source);
    else if (stride == 1) std::copy_n(source, run, out);
    else
      for (int64_t i = 0; i < run; ++i) out[i] = source[i * stride];
    out += run;
    count -= run;
    if (count == 0) return;
    source -= index[last] * stride;
    index[last] = 0;
    for (size_t i = last; i-- > 0;) {
      source += axes_[i].stride;
      if (++index[i] < axes_[i].extent) break;
      source -= axes_[i].stride * axes_[i].extent;
      index[i] = 0;
    }
  }
}

int64_t StridedCopy::BandsOfMatrix() const { return (axes_[axes_.size() - 2].extent + kBlock - 1) / kBlock; }

// The last axis is strided in the source; the one before it is contiguous there.
template <class T>
void StridedCopy::Transposed(const T* source, int64_t first_band, int64_t end_band, T* out) const {
  const Axis rows = axes_[axes_.size() - 2], columns = axes_.back();
  const int64_t bands = BandsOfMatrix();
  for (int64_t band = first_band; band < end_band; ++band) {
    const int64_t matrix = band / bands, r = band % bands * kBlock;
    const T* from = source + r;
    int64_t rest = matrix;
    for (size_t i = axes_.size() - 2; i-- > 0;) {
      from += rest % axes_[i].extent * axes_[i].stride;
      rest /= axes_[i].extent;
    }
    T* const to = out + (matrix * rows.extent + r) * columns.extent;
    const int64_t height = std::min(kBlock, rows.extent - r);
    for (int64_t c = 0; c < columns.extent; c += kBlock) {
      const int64_t width = std::min(kBlock, columns.extent - c);
      const T* x = from + c * columns.stride;
      T block[kBlock][kBlock];
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < height; ++i) block[i][j] = x[j * columns.stride + i];
      }
      for (int64_t i = 0; i < height; ++i) std::copy_n(block[i], width, to + i * columns.extent + c);
    }
  }
}

void StridedCopy::Run(const void* source, void* out, Executor* executor) const {
  if (num_elements_ == 0) return;
  const size_t rank = axes_.size();
  const bool transposes = rank >= 2 && axes_[rank - 1].stride > 1 && axes_[rank - 2].stride == 1;
  // The work is divided into elements, or into bands.
  int64_t count = num_elements_;
  if (transposes) count = num_elements_ / (axes_[rank - 2].extent * axes_[rank - 1].extent) * BandsOfMatrix();
  const auto run = [&](int64_t first, int64_t end) {
    if (!transposes) return RunPart(source, first, end - first, static_cast<char*>(out) + first * element_bytes_);
    WithType(
        [&]<class T>(T) { Transposed(static_cast<const T*>(source) + offset_, first, end, static_cast<T*>(out)); });
  };
  const int64_t threads = executor == nullptr ? 1 : executor->NumThreads();
  const int64_t most_parts = std::min(count, num_elements_ * element_bytes_ / kPartBytes);
  const int64_t parts = threads == 1 ? 1 : std::min(most_parts, threads * kPartsPerThread);
  if (parts < 2) return run(0, count);
  executor->ParallelFor(parts, [&](int64_t part) { run(part * count / parts, (part + 1) * count / parts); });
}

void StridedCopy::RunPart(const void* source, int64_t first, int64_t count, void* out) const {
  if (count == 0) return;
  WithType([&]<class T>(T) { Part(static_cast<const T*>(source) + offset_, first, count, static_cast<T*>(out)); });
}

}  // namespace aqt::internal
