#ifndef AQT_CORE_ARRAY_REF_H_
#define AQT_CORE_ARRAY_REF_H_

// `ArrayRef` and `MutableArrayRef` borrow the data of an array, with any strides.

#include <cstdint>
#include <utility>

#include "aqt/core/aval.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt {

// A borrowed, read-only view: element (i0, i1, ...) is at data[i0 * strides[0] + i1 * strides[1] + ...].
// Strides count elements and may be 0 (broadcast) or negative. The caller keeps the memory alive.
struct ArrayRef {
  DType dtype = DType::kF32;
  Shape shape;
  Strides strides;
  const void* data = nullptr;

  ArrayRef() = default;
  // Dense row-major.
  ArrayRef(DType dtype_in, Shape shape_in, const void* data_in)
      : dtype(dtype_in), shape(std::move(shape_in)), strides(DenseStrides(shape)), data(data_in) {}
  ArrayRef(DType dtype_in, Shape shape_in, Strides strides_in, const void* data_in)
      : dtype(dtype_in), shape(std::move(shape_in)), strides(std::move(strides_in)), data(data_in) {}
  template <class T>
  ArrayRef(const T* data_in, Shape shape_in) : ArrayRef(kDTypeOf<T>, std::move(shape_in), data_in) {}

  Aval aval() const { return {dtype, shape}; }
  bool IsDense() const;
  template <class T>
  const T* As() const {
    AQT_CHECK(dtype == kDTypeOf<T>);
    return static_cast<const T*>(data);
  }
};

// Like ArrayRef, but writable: a destination for results. No two elements may share memory.
struct MutableArrayRef {
  DType dtype = DType::kF32;
  Shape shape;
  Strides strides;
  void* data = nullptr;

  MutableArrayRef() = default;
  MutableArrayRef(DType dtype_in, Shape shape_in, void* data_in)
      : dtype(dtype_in), shape(std::move(shape_in)), strides(DenseStrides(shape)), data(data_in) {}
  MutableArrayRef(DType dtype_in, Shape shape_in, Strides strides_in, void* data_in)
      : dtype(dtype_in), shape(std::move(shape_in)), strides(std::move(strides_in)), data(data_in) {}
  template <class T>
  MutableArrayRef(T* data_in, Shape shape_in) : MutableArrayRef(kDTypeOf<T>, std::move(shape_in), data_in) {}

  operator ArrayRef() const { return {dtype, shape, strides, data}; }
  Aval aval() const { return {dtype, shape}; }
  bool IsDense() const { return ArrayRef(*this).IsDense(); }
  template <class T>
  T* As() const {
    AQT_CHECK(dtype == kDTypeOf<T>);
    return static_cast<T*>(data);
  }
};

}  // namespace aqt

#endif  // AQT_CORE_ARRAY_REF_H_
