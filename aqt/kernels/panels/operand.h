#ifndef AQT_KERNELS_PANELS_OPERAND_H_
#define AQT_KERNELS_PANELS_OPERAND_H_

// The kernels' view of a tensor: a pointer and three groups of axes, batch, rows and k. A dot_general operand with any
// dimension numbers has this form without a copy: rows are its remaining axes, and k its contracting axes.

#include <cstdint>
#include <utility>

#include "aqt/core/dtype.h"

namespace aqt::kernels {

// Axes that are traversed as one, the last one fastest. Rank 0 is one element. Strides are in elements and may be zero
// or negative.
struct AxisGroup {
  static constexpr int kMaxRank = 8;

  int rank = 0;
  int64_t size[kMaxRank] = {}, stride[kMaxRank] = {};  // the first `rank` of each

  static AxisGroup Of(int64_t size, int64_t stride) {
    AxisGroup group;
    group.Append(size, stride);
    return group;
  }
  // Adds an axis that varies faster than the existing ones. It is merged with the last one if together they form an
  // arithmetic sequence. Axes of size 1 are dropped. The caller ensures that at most kMaxRank axes remain.
  void Append(int64_t axis_size, int64_t axis_stride);
  int64_t Count() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= size[i];
    return count;
  }
  // The offset, in elements, of the element with this index in [0, Count()).
  int64_t Offset(int64_t index) const {
    int64_t offset = 0;
    for (int i = rank - 1; i > 0; --i) {
      offset += index % size[i] * stride[i];
      index /= size[i];
    }
    return rank == 0 ? 0 : offset + index * stride[0];
  }
  // The length and stride of the innermost run.
  int64_t InnerSize() const { return rank == 0 ? 1 : size[rank - 1]; }
  int64_t InnerStride() const { return rank == 0 ? 1 : stride[rank - 1]; }
};

// [B, rows, k]; element (b, r, i) is at data + batch.Offset(b) + rows.Offset(r) + k.Offset(i), in elements of dtype.
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  AxisGroup batch = {}, rows = {}, k = {};

  // A dense row-major matrix [rows, k], or a batch of them.
  static Operand Dense(const void* data, DType dtype, int64_t rows, int64_t k, int64_t batch = 1) {
    return {data, dtype, AxisGroup::Of(batch, rows * k), AxisGroup::Of(rows, k), AxisGroup::Of(k, 1)};
  }
  // The same matrix stored as its transpose [k, rows].
  static Operand Transposed(const void* data, DType dtype, int64_t rows, int64_t k, int64_t batch = 1) {
    return {data, dtype, AxisGroup::Of(batch, rows * k), AxisGroup::Of(rows, 1), AxisGroup::Of(k, rows)};
  }
};

// Appends an axis to two groups with equal sizes and keeps their sizes equal: it is merged only if both can merge it.
inline void AppendToBoth(int64_t axis_size, int64_t first_stride, int64_t second_stride, AxisGroup& first,
                         AxisGroup& second) {
  if (axis_size == 1) return;
  const auto merges = [&](const AxisGroup& group, int64_t axis_stride) {
    return group.rank > 0 && group.stride[group.rank - 1] == axis_size * axis_stride;
  };
  const bool merge = merges(first, first_stride) && merges(second, second_stride);
  for (const auto& [group, axis_stride] : {std::pair(&first, first_stride), std::pair(&second, second_stride)}) {
    if (!merge) group->size[group->rank++] = 1;
    group->size[group->rank - 1] *= axis_size;
    group->stride[group->rank - 1] = axis_stride;
  }
}

inline void AxisGroup::Append(int64_t axis_size, int64_t axis_stride) {
  if (axis_size == 1) return;
  if (rank > 0 && stride[rank - 1] == axis_size * axis_stride) {
    size[rank - 1] *= axis_size;
    stride[rank - 1] = axis_stride;
    return;
  }
  size[rank] = axis_size;
  stride[rank] = axis_stride;
  ++rank;
}

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_PANELS_OPERAND_H_
