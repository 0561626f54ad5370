#include "aqt/io/containers/strided.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "aqt/core/status_macros.h"

namespace aqt::io {
namespace {

constexpr int64_t kScratchBytes = 64 << 10;
// Elements that are closer are read with the bytes between them.
constexpr int64_t kMaxGapBytes = 512;

class Reader {
 public:
  Reader(const RandomAccessFile& file, const StridedView& view) : file_(file), view_(view) {}

  // Elements [first, first + n) of the part of the view from `axis` on that begins at element `base` of the file.
  absl::Status Range(size_t axis, int64_t base, int64_t first, int64_t n, uint8_t* dst) {
    if (n == 0) return absl::OkStatus();
    if (axis + 1 >= view_.extents.size()) return Box(axis, base + first * StrideOf(axis), n, dst);
    const int64_t inner = ElementsFrom(axis + 1);
    const int64_t head = std::min(n, (inner - first % inner) % inner);  // the rest of an incomplete row
    if (head > 0) {
      AQT_RETURN_IF_ERROR(Range(axis + 1, base + first / inner * StrideOf(axis), first % inner, head, dst));
      return Range(axis, base, first + head, n - head, dst + head * view_.element_bytes);
    }
    const int64_t rows = n / inner;
    const int64_t at = base + first / inner * StrideOf(axis);
    if (rows > 0) AQT_RETURN_IF_ERROR(Box(axis, at, rows, dst));
    return Range(axis + 1, at + rows * StrideOf(axis), 0, n - rows * inner, dst + rows * inner * view_.element_bytes);
  }

 private:
  int64_t StrideOf(size_t axis) const { return axis < view_.strides.size() ? view_.strides[axis] : 0; }
  int64_t ElementsFrom(size_t axis) const {
    int64_t n = 1;
    for (size_t i = axis; i < view_.extents.size(); ++i) n *= view_.extents[i];
    return n;
  }

  // The first `rows` of `axis`, and everything of the axes after it.
  absl::Status Box(size_t axis, int64_t base, int64_t rows, uint8_t* dst) {
    std::vector<int64_t> extents(view_.extents.begin() + static_cast<ptrdiff_t>(axis), view_.extents.end());
    if (extents.empty()) extents = {1};
    extents[0] = rows;
    std::vector<int64_t> steps(extents.size(), 1);  // in dst
    for (size_t i = extents.size() - 1; i > 0; --i) steps[i - 1] = steps[i] * extents[i];
    size_t run = extents.size() - 1;  // the axis with the closest elements
    for (size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] == 1) continue;
      if (extents[run] == 1 || StrideOf(axis + i) < StrideOf(axis + run)) run = i;
    }
    std::vector<int64_t> index(extents.size(), 0);
    while (true) {
      int64_t from = base, to = 0;
      for (size_t i = 0; i < extents.size(); ++i) {
        from += index[i] * StrideOf(axis + i);
        to += index[i] * steps[i];
      }
      AQT_RETURN_IF_ERROR(Run(from, StrideOf(axis + run), extents[run], dst + to * view_.element_bytes, steps[run]));
      size_t i = extents.size();
      while (i > 0 && (i - 1 == run || ++index[i - 1] == extents[i - 1])) index[--i] = 0;
      if (i == 0) return absl::OkStatus();
    }
  }

  // `n` elements, `stride` apart in the file and `step` apart in `dst`.
  absl::Status Run(int64_t from, int64_t stride, int64_t n, uint8_t* dst, int64_t step) {
    const int64_t size = view_.element_bytes;
    if (n > 1 && stride == 1 && step == 1) return file_.Read(from * size, absl::MakeSpan(dst, n * size));
    const bool apart = (stride - 1) * size > kMaxGapBytes;
    const int64_t most = apart ? 1 : stride == 0 ? n : std::max<int64_t>(1, kScratchBytes / (stride * size));
    for (int64_t begin = 0; begin < n; begin += most) {
      const int64_t count = std::min(most, n - begin);
      const int64_t span = (count - 1) * stride + 1;
      scratch_.resize(static_cast<size_t>(span * size));
      AQT_RETURN_IF_ERROR(file_.Read((from + begin * stride) * size, absl::MakeSpan(scratch_)));
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(dst + (begin + i) * step * size, scratch_.data() + i * stride * size, static_cast<size_t>(size));
      }
    }
    return absl::OkStatus();
  }

  const RandomAccessFile& file_;
  const StridedView& view_;
  std::vector<uint8_t> scratch_;
};

}  // namespace

StridedView Simplify(const Shape& shape, const std::vector<int64_t>& strides, int64_t element_bytes) {
  StridedView view;
  view.element_bytes = element_bytes;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t extent = shape[axis], stride = strides[static_cast<size_t>(axis)];
    if (extent == 1) continue;
    if (!view.extents.empty() && view.strides.back() == stride * extent) {
      view.extents.back() *= extent;
      view.strides.back() = stride;
      continue;
    }
    view.extents.push_back(extent);
    view.strides.push_back(stride);
  }
  return view;
}

bool IsRowMajor(const StridedView& view) {
  return view.extents.empty() || (view.extents.size() == 1 && view.strides[0] == 1);
}

std::vector<int64_t> ColumnMajorStrides(const Shape& shape) {
  std::vector<int64_t> strides;
  int64_t stride = 1;
  for (const int64_t extent : shape) {
    strides.push_back(stride);
    stride *= extent;
  }
  return strides;
}

absl::Status ReadStrided(const RandomAccessFile& file, const StridedView& view, int64_t first, int64_t n,
                         uint8_t* dst) {
  return Reader(file, view).Range(0, 0, first, n, dst);
}

}  // namespace aqt::io
