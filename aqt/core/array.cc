#include "aqt/core/array.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/memory_source.h"

namespace aqt {

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

}  // namespace aqt
