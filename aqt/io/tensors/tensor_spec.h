#ifndef AQT_IO_TENSORS_TENSOR_SPEC_H_
#define AQT_IO_TENSORS_TENSOR_SPEC_H_

// Name, element type and shape of a tensor in a file.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt::io {

// The element types of safetensors, which include the plain types of other formats. The writer sorts tensors by this
// order, reversed.
enum class FileDType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
inline constexpr int kNumFileDTypes = 22;

// Bits of one element in the file: 4 for F4, 6 for F6_*, 8 for BOOL, 64 for C64 (two f32), ...
int BitWidth(FileDType dtype);
// "BOOL", "F4", "F6_E2M3", ...: the text in the header.
absl::string_view ToString(FileDType dtype);
std::optional<FileDType> FileDTypeFromString(absl::string_view text);
std::ostream& operator<<(std::ostream& os, FileDType dtype);
// The dtype of these elements in memory. Null for F4, F6_*, F8_E8M0, F8_*FNUZ, U16, C64 and U64, which are only copied
// as bytes.
std::optional<DType> ToDType(FileDType dtype);
// Null for s2 and s4, which the format lacks.
std::optional<FileDType> ToFileDType(DType dtype);

// NumPy's limit. It also keeps messages short.
inline constexpr int64_t kMaxTensorRank = 64;

// The size of a tensor in bytes. InvalidArgument if the rank exceeds kMaxTensorRank, an extent is negative, the size
// exceeds 2^63 - 1 bits, or the bits do not fill whole bytes (an odd number of F4).
absl::StatusOr<int64_t> TensorBytes(FileDType dtype, const Shape& shape);

struct TensorSpec {
  std::string name;  // UTF-8; may be empty; not "__metadata__"
  FileDType dtype = FileDType::kF32;
  Shape shape;
  bool operator==(const TensorSpec&) const = default;
};

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_TENSOR_SPEC_H_
