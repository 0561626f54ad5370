#include "aqt/core/array_ref.h"

#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "aqt/core/aval.h"

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

}  // namespace aqt
