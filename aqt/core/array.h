#ifndef AQT_CORE_ARRAY_H_
#define AQT_CORE_ARRAY_H_

// `Array` owns its data: immutable, dense, row-major. `ArrayBuilder` fills one.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/aval.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt {

// Zeroed memory aligned to 64 bytes (a cache line, an AVX-512 register). Throws std::bad_alloc if there is not enough.
std::shared_ptr<void> AllocateAligned(int64_t bytes);
// Like AllocateAligned, but uninitialized.
std::shared_ptr<void> AllocateUninitialized(int64_t bytes);

// An immutable, dense, row-major array with shared ownership: copying an Array copies a pointer.
class Array {
 public:
  Array() : Array(Aval{DType::kF32, {0}}, nullptr) {}
  // Wraps memory that stays valid and unchanged as long as `data` is held.
  Array(Aval aval, std::shared_ptr<const void> data) : aval_(std::move(aval)), data_(std::move(data)) {}

  // Wraps memory that someone else owns and may change between uses of the array. Caches do not keep such arrays.
  static Array Unowned(Aval aval, const void* data) {
    return Array(std::move(aval), std::shared_ptr<const void>(std::shared_ptr<const void>(), data));
  }

  static Array Zeros(DType dtype, Shape shape);
  // A copy of `values`, which must hold shape.num_elements() values.
  template <class T>
  static Array FromSpan(absl::Span<const T> values, Shape shape);
  template <class T>
  static Array Of(std::initializer_list<T> values, Shape shape) {
    return FromSpan(absl::MakeConstSpan(values.begin(), values.size()), std::move(shape));
  }
  template <class T>
  static Array Scalar(T value) {
    return ScalarFromBytes(kDTypeOf<T>, &value);
  }
  // A dense copy of the elements of `ref`.
  static Array CopyOf(const ArrayRef& ref);

  const Aval& aval() const { return aval_; }
  DType dtype() const { return aval_.dtype; }
  const Shape& shape() const { return aval_.shape; }
  int64_t num_elements() const { return aval_.shape.num_elements(); }
  int64_t num_bytes() const { return aval_.num_bytes(); }
  const void* data() const { return data_.get(); }
  const std::shared_ptr<const void>& buffer() const { return data_; }
  bool owns_memory() const { return data_.use_count() > 0; }

  // The elements in row-major order; T must be the storage type of dtype().
  template <class T>
  absl::Span<const T> View() const {
    AQT_CHECK(aval_.dtype == kDTypeOf<T>);
    return absl::MakeConstSpan(static_cast<const T*>(data_.get()), num_elements());
  }
  ArrayRef ref() const { return {aval_.dtype, aval_.shape, data_.get()}; }
  operator ArrayRef() const { return ref(); }

  // The same data with another shape of the same number of elements (InvalidArgument otherwise).
  absl::StatusOr<Array> Reshaped(Shape shape) const;

  friend bool BitEqual(const Array& a, const Array& b);

 private:
  static Array ScalarFromBytes(DType dtype, const void* value);

  Aval aval_;
  std::shared_ptr<const void> data_;
};

// Whether dtypes, shapes and bytes are equal (so NaN equals the same NaN, and -0 differs from +0).
bool BitEqual(const Array& a, const Array& b);

// Zeroed memory that is filled and then frozen. Usage:
//   ArrayBuilder b(dtype, shape); fill(b.ref()); Array a = std::move(b).Build();
class ArrayBuilder {
 public:
  ArrayBuilder(DType dtype, Shape shape) : aval_{dtype, std::move(shape)}, data_(AllocateAligned(aval_.num_bytes())) {}
  explicit ArrayBuilder(const Aval& aval) : ArrayBuilder(aval.dtype, aval.shape) {}
  // Starts with uninitialized memory; the caller writes every element.
  static ArrayBuilder ForOverwrite(const Aval& aval) {
    return ArrayBuilder(aval, AllocateUninitialized(aval.num_bytes()));
  }

  const Aval& aval() const { return aval_; }
  void* data() { return data_.get(); }
  MutableArrayRef ref() { return {aval_.dtype, aval_.shape, data_.get()}; }
  template <class T>
  absl::Span<T> Mutable() {
    AQT_CHECK(aval_.dtype == kDTypeOf<T>);
    return absl::MakeSpan(static_cast<T*>(data_.get()), aval_.shape.num_elements());
  }
  Array Build() && { return Array(std::move(aval_), std::move(data_)); }

 private:
  ArrayBuilder(Aval aval, std::shared_ptr<void> data) : aval_(std::move(aval)), data_(std::move(data)) {}

  Aval aval_;
  std::shared_ptr<void> data_;
};

// ---- implementation

template <class T>
Array Array::FromSpan(absl::Span<const T> values, Shape shape) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({kDTypeOf<T>, std::move(shape)});
  absl::Span<T> out = builder.Mutable<T>();
  AQT_CHECK(out.size() == values.size());
  std::copy(values.begin(), values.end(), out.begin());
  return std::move(builder).Build();
}

}  // namespace aqt

#endif  // AQT_CORE_ARRAY_H_
