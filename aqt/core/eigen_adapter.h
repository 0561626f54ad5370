#ifndef AQT_CORE_EIGEN_ADAPTER_H_
#define AQT_CORE_EIGEN_ADAPTER_H_

// Eigen matrices, vectors, maps, blocks and tensors as ArrayRef and MutableArrayRef, without copies. Header-only; the
// only public header that uses Eigen.
//
//   Eigen::MatrixXf x(8, 64), w(64, 16), y(8, 16);
//   plan.Forward(ViewOf(x), ViewOf(w), {}, MutableViewOf(y));
//
// A matrix is an array [rows, cols], a compile-time vector an array [size], a tensor an array of its dimensions. The
// storage order (column-major by default) becomes strides: the array equals the Eigen object element by element. The
// view is valid as long as the Eigen object's memory is.
// Element types: those of core/dtype.h; Eigen::half and Eigen::bfloat16 are f16 and bf16.

#include <cstdint>
#include <type_traits>

#include <Eigen/Core>

#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt {
namespace internal {

template <class T>
constexpr DType EigenDType() {
  if constexpr (std::is_same_v<T, Eigen::half>) return DType::kF16;
  else if constexpr (std::is_same_v<T, Eigen::bfloat16>) return DType::kBF16;
  else return kDTypeOf<T>;
}

template <class M>
constexpr bool HasMemory() {
  return (Eigen::internal::traits<M>::Flags & Eigen::DirectAccessBit) != 0;
}

// An Eigen matrix-like expression with memory, owned or not; not a sum, a product, a transpose of a product, ...
template <class M>
concept EigenMatrix = std::is_base_of_v<Eigen::DenseBase<std::remove_cv_t<M>>, std::remove_cv_t<M>> &&
    HasMemory<std::remove_cv_t<M>>();

// One that owns its memory.
template <class M>
concept OwningEigenMatrix = EigenMatrix<M> && std::is_base_of_v<Eigen::PlainObjectBase<M>, M>;

// Eigen::Tensor, TensorFixedSize or TensorMap of them. (Described structurally, because the tensor module may not be
// included.)
template <class T>
concept EigenTensor = !EigenMatrix<T> && requires(T & tensor) {
  T::NumDimensions;
  T::Layout;
  tensor.dimension(0);
  tensor.data();
};

template <class M>
concept EigenMatrixOrReference = EigenMatrix<std::remove_reference_t<M>>;
template <class T>
concept EigenTensorOrReference = EigenTensor<std::remove_reference_t<T>>;

struct EigenLayout {
  Shape shape;
  Strides strides;
};

template <class M>
EigenLayout LayoutOfMatrix(const M& m) {
  if constexpr (M::IsVectorAtCompileTime) {
    return {{m.size()}, {M::RowsAtCompileTime == 1 ? m.colStride() : m.rowStride()}};
  } else {
    return {{m.rows(), m.cols()}, {m.rowStride(), m.colStride()}};
  }
}

template <class T>
EigenLayout LayoutOfTensor(const T& tensor) {
  EigenLayout layout;
  const int rank = T::NumDimensions;
  for (int axis = 0; axis < rank; ++axis) layout.shape.push_back(tensor.dimension(axis));
  layout.strides = DenseStrides(layout.shape);
  if (static_cast<int>(T::Layout) == static_cast<int>(Eigen::ColMajor)) {
    int64_t stride = 1;
    for (int axis = 0; axis < rank; ++axis) {
      layout.strides[axis] = stride;
      stride *= layout.shape[axis];
    }
  }
  return layout;
}

}  // namespace internal

template <internal::EigenMatrix M>
ArrayRef ViewOf(const M& m) {
  const internal::EigenLayout layout = internal::LayoutOfMatrix(m);
  return {internal::EigenDType<typename M::Scalar>(), layout.shape, layout.strides, m.data()};
}
// A view of an Eigen tensor, without a copy.
template <internal::EigenTensor T>
ArrayRef ViewOf(const T& tensor) {
  const internal::EigenLayout layout = internal::LayoutOfTensor(tensor);
  return {internal::EigenDType<typename T::Scalar>(), layout.shape, layout.strides, tensor.data()};
}

// Deleted: the view would outlive the memory of a temporary matrix. (A temporary map or block is allowed.)
template <internal::OwningEigenMatrix M>
ArrayRef ViewOf(const M&&) = delete;

template <internal::EigenMatrixOrReference M>
MutableArrayRef MutableViewOf(M&& m) {
  static_assert(!std::is_const_v<std::remove_pointer_t<decltype(m.data())>>, "the Eigen object must not be const");
  const internal::EigenLayout layout = internal::LayoutOfMatrix(m);
  return {internal::EigenDType<typename std::remove_cvref_t<M>::Scalar>(), layout.shape, layout.strides, m.data()};
}
template <internal::EigenTensorOrReference T>
MutableArrayRef MutableViewOf(T&& tensor) {
  static_assert(!std::is_const_v<std::remove_pointer_t<decltype(tensor.data())>>, "the Eigen object must not be const");
  const internal::EigenLayout layout = internal::LayoutOfTensor(tensor);
  return {internal::EigenDType<typename std::remove_cvref_t<T>::Scalar>(), layout.shape, layout.strides, tensor.data()};
}

}  // namespace aqt

#endif  // AQT_CORE_EIGEN_ADAPTER_H_
