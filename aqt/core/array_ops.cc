#include "aqt/core/array_ops.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aqt {

namespace {

absl::Status CheckSameShape(const ArrayRef& src, const MutableArrayRef& dst) {
  if (src.shape == dst.shape) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("copy: shapes differ: source ", src.aval().ToString(), ", destination ", dst.aval().ToString()));
}

// to[i * to_stride] = from[i * from_stride], converted, for i < n.
using ConvertRowFn = void (*)(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t n,
                              Overflow overflow);

template <class From, class To>
void ConvertRow(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t n, Overflow overflow) {
  const From* x = static_cast<const From*>(from);
  To* y = static_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) y[i * to_stride] = ConvertElement<To>(x[i * from_stride], overflow);
}

ConvertRowFn ConvertRowOf(DType from, DType to) {
  return VisitDType(from, [&]<class From>() -> ConvertRowFn {
    return VisitDType(to, [&]<class To>() -> ConvertRowFn { return &ConvertRow<From, To>; });
  });
}

}  // namespace

absl::Status CopyArray(const ArrayRef& src, const MutableArrayRef& dst) {
  if (src.dtype != dst.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("copy: dtypes differ: source ", src.aval().ToString(), ", destination ", dst.aval().ToString()));
  }
  return CastArray(src, dst);
}

absl::Status CastArray(const ArrayRef& src, const MutableArrayRef& dst, Overflow overflow) {
  if (absl::Status s = CheckSameShape(src, dst); !s.ok()) return s;
  if (src.dtype == dst.dtype && src.IsDense() && dst.IsDense()) {
    const int64_t bytes = src.aval().num_bytes();
    if (bytes > 0) std::memcpy(dst.data, src.data, bytes);
    return absl::OkStatus();
  }
  if (src.shape.num_elements() == 0) return absl::OkStatus();
  // Converts one row at a time: the iteration over the other axes is compiled once, not for each pair of dtypes.
  const int64_t rank = src.shape.rank();
  const ConvertRowFn convert = ConvertRowOf(src.dtype, dst.dtype);
  if (rank == 0) {
    convert(src.data, 1, dst.data, 1, 1, overflow);
    return absl::OkStatus();
  }
  const Shape outer(src.shape.extents().first(rank - 1));
  ForEachIndex(outer, absl::MakeConstSpan(src.strides).first(rank - 1),
               absl::MakeConstSpan(dst.strides).first(rank - 1), [&](int64_t i, int64_t j) {
                 convert(static_cast<const char*>(src.data) + i * SizeOf(src.dtype), src.strides[rank - 1],
                         static_cast<char*>(dst.data) + j * SizeOf(dst.dtype), dst.strides[rank - 1],
                         src.shape[rank - 1], overflow);
               });
  return absl::OkStatus();
}

Array Cast(const ArrayRef& src, DType dtype, Overflow overflow) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({dtype, src.shape});
  AQT_CHECK(CastArray(src, builder.ref(), overflow).ok());
  return std::move(builder).Build();
}

}  // namespace aqt
