#ifndef AQT_TESTS_DIGEST_HASH_H_
#define AQT_TESTS_DIGEST_HASH_H_

// A 64-bit hash (FNV-1a) of what is promised of arrays: dtype, shape, and all bits but the sign and payload of a NaN.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "aqt/core/array_ref.h"

namespace aqt::digest {

class Hash {
 public:
  Hash& Add(absl::string_view text);  // and its length
  Hash& Add(int64_t number);
  Hash& Add(const ArrayRef& array);  // any strides
  uint64_t value() const { return value_; }

 private:
  void AddBytes(const void* data, int64_t n);

  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace aqt::digest

#endif  // AQT_TESTS_DIGEST_HASH_H_
