#ifndef AQT_RUNTIME_FUSION_STRIDED_COPY_H_
#define AQT_RUNTIME_FUSION_STRIDED_COPY_H_

// Broadcasts, transposes and slices: each element of a dense result is an element of one operand, at a position that is
// linear in the result's index. Internal.

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "aqt/core/aval.h"
#include "aqt/core/executor.h"
#include "aqt/core/shape.h"
#include "aqt/graph/op.h"

namespace aqt::internal {

class StridedCopy {
 public:
  // The result has this shape; its element (i0, i1, ...) is at source[offset + i0 * strides[0] + ...].
  StridedCopy(const Shape& shape, const Strides& strides, int64_t offset, int64_t element_bytes);

  // How `op` copies; null for any other operation.
  static std::optional<StridedCopy> Of(const Op& op, const Aval& in, const Aval& out);

  // Whether the result has the bytes of the source, in the same order.
  bool IsIdentity() const;
  int64_t num_elements() const { return num_elements_; }
  // The number of elements after which the result repeats; num_elements() if it does not.
  int64_t period() const;

  // Writes all elements, on the threads of `executor` if that pays off; null: only on the calling thread.
  void Run(const void* source, void* out, Executor* executor = nullptr) const;
  // Writes the elements first, first + 1, ..., first + count - 1 of the result, in row-major order.
  void RunPart(const void* source, int64_t first, int64_t count, void* out) const;

 private:
  // Without extents of 1; adjacent axes are merged where possible.
  struct Axis {
    int64_t extent, stride;
  };
  template <class T>
  void Part(const T* source, int64_t first, int64_t count, T* out) const;
  // A band is up to kBlock rows of a matrix that is transposed.
  int64_t BandsOfMatrix() const;
  template <class T>
  void Transposed(const T* source, int64_t first_band, int64_t end_band, T* out) const;
  template <class F>
  void WithType(F&& f) const;

  absl::InlinedVector<Axis, 4> axes_;
  int64_t offset_, element_bytes_, num_elements_;
};

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_FUSION_STRIDED_COPY_H_
