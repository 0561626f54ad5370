#include "aqt/core/array.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/memory_source.h"

namespace aqt {

std::string Aval::ToString() const { return absl::StrCat(aqt::ToString(dtype), shape.ToString()); }

std::ostream& operator<<(std::ostream& os, const Aval& aval) { return os << aval.ToString(); }

bool ArrayRef::IsDense() const {
  if (shape.num_elements() == 0) return true;
  int64_t stride = 1;
  for (int64_t axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && strides[axis] != stride) return false;
    stride *= shape[axis];
  }
  return true;
}

namespace {

constexpr size_t kAlignment = 64;
// From this size on an array asks for huge pages: fewer page faults and fewer TLB misses.
constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kMinHugeBytes = 2 * kHugePage;

size_t AllocatedSize(int64_t bytes) { return (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment; }

template <size_t alignment>
std::shared_ptr<void> AllocateWithAlignment(size_t size) {
  // Throws std::bad_alloc, like std::vector.
  void* p = ::operator new (size, std::align_val_t{alignment});
  return std::shared_ptr<void>(p, [](void* q) { ::operator delete (q, std::align_val_t{alignment}); });
}

}  // namespace

std::shared_ptr<void> AllocateUninitialized(int64_t bytes) {
  const size_t size = AllocatedSize(bytes);
  MemorySource* const source = UseMemorySource::Current();
  if (source != nullptr && bytes >= kMinSourceBytes) return source->Take(static_cast<int64_t>(size));
  if (size < kMinHugeBytes) return AllocateWithAlignment<kAlignment>(size);
  std::shared_ptr<void> data = AllocateWithAlignment<kHugePage>(size);
#ifdef MADV_HUGEPAGE
  madvise(data.get(), size / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint; refusal is harmless
#endif
  return data;
}

std::shared_ptr<void> AllocateAligned(int64_t bytes) {
  std::shared_ptr<void> data = AllocateUninitialized(bytes);
  std::memset(data.get(), 0, AllocatedSize(bytes));
  return data;
}

Array Array::Zeros(DType dtype, Shape shape) { return ArrayBuilder(dtype, std::move(shape)).Build(); }

Array Array::ScalarFromBytes(DType dtype, const void* value) {
  static const Shape& scalar = *new Shape();  // GCC 12 warns that a temporary is uninitialized
  ArrayBuilder builder(dtype, scalar);
  std::memcpy(builder.data(), value, SizeOf(dtype));
  return std::move(builder).Build();
}

Array Array::CopyOf(const ArrayRef& ref) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(ref.aval());
  AQT_CHECK(CopyArray(ref, builder.ref()).ok());
  return std::move(builder).Build();
}

absl::StatusOr<Array> Array::Reshaped(Shape shape) const {
  if (const absl::Status status = CheckShape(shape); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot view ", aval_.ToString(), ": ", status.message()));
  }
  if (shape.num_elements() != num_elements()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot view ", aval_.ToString(), " as ", shape.ToString(),
                                                   ": the numbers of elements differ (", num_elements(), " and ",
                                                   shape.num_elements(), ")"));
  }
  return Array(Aval{aval_.dtype, std::move(shape)}, data_);
}

bool BitEqual(const Array& a, const Array& b) {
  return a.aval_ == b.aval_ && (a.num_bytes() == 0 || std::memcmp(a.data(), b.data(), a.num_bytes()) == 0);
}

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
