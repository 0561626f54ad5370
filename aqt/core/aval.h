#ifndef AQT_CORE_AVAL_H_
#define AQT_CORE_AVAL_H_

// `Aval`: the dtype and shape of an array.

#include <cstdint>
#include <ostream>
#include <string>

#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt {

// An array's dtype and shape, without its data.
struct Aval {
  DType dtype = DType::kF32;
  Shape shape;
  bool operator==(const Aval&) const = default;
  std::string ToString() const;  // "f32[2,3]"
  int64_t num_bytes() const { return shape.num_elements() * SizeOf(dtype); }
};
std::ostream& operator<<(std::ostream& os, const Aval& aval);

}  // namespace aqt

#endif  // AQT_CORE_AVAL_H_
