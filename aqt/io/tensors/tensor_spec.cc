#include "aqt/io/tensors/tensor_spec.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace aqt::io {
namespace {

struct FileDTypeRow {
  absl::string_view name;
  int bits;
  std::optional<DType> dtype;
};

constexpr FileDTypeRow kRows[kNumFileDTypes] = {
    {"BOOL", 8, DType::kBool},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, DType::kU8},
    {"I8", 8, DType::kS8},
    {"F8_E5M2", 8, DType::kE5M2},
    {"F8_E4M3", 8, DType::kE4M3FN},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, DType::kS16},
    {"U16", 16, {}},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kS32},
    {"U32", 32, DType::kU32},
    {"F32", 32, DType::kF32},
    {"C64", 64, {}},
    {"F64", 64, DType::kF64},
    {"I64", 64, DType::kS64},
    {"U64", 64, {}},
};

const FileDTypeRow& Row(FileDType dtype) { return kRows[static_cast<int>(dtype)]; }

}  // namespace

int BitWidth(FileDType dtype) { return Row(dtype).bits; }
absl::string_view ToString(FileDType dtype) { return Row(dtype).name; }
std::optional<DType> ToDType(FileDType dtype) { return Row(dtype).dtype; }

std::optional<FileDType> FileDTypeFromString(absl::string_view text) {
  for (int i = 0; i < kNumFileDTypes; ++i) {
    if (kRows[i].name == text) return static_cast<FileDType>(i);
  }
  return std::nullopt;
}

std::optional<FileDType> ToFileDType(DType dtype) {
  for (int i = 0; i < kNumFileDTypes; ++i) {
    if (kRows[i].dtype == dtype) return static_cast<FileDType>(i);
  }
  return std::nullopt;
}

std::ostream& operator<<(std::ostream& os, FileDType dtype) { return os << ToString(dtype); }

absl::StatusOr<int64_t> TensorBytes(FileDType dtype, const Shape& shape) {
  if (shape.rank() > kMaxTensorRank)
    return absl::InvalidArgumentError(absl::StrCat("the rank exceeds ", kMaxTensorRank));
  int64_t bits = BitWidth(dtype);
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0)
      return absl::InvalidArgumentError(absl::StrCat("shape ", shape.ToString(), " has a negative extent"));
    empty |= extent == 0;
    // Other extents must not overflow even if one is 0.
    if (extent != 0 && __builtin_mul_overflow(bits, extent, &bits)) {
      return absl::InvalidArgumentError(absl::StrCat(ToString(dtype), shape.ToString(), " exceeds 2^63-1 bits"));
    }
  }
  if (empty) return 0;
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(dtype), shape.ToString(), " takes ", bits,
                                                   " bits, which is not a whole number of bytes"));
  }
  return bits / 8;
}

}  // namespace aqt::io
