#ifndef AQT_QUANT_WEIGHTS_GGML_TYPES_H_
#define AQT_QUANT_WEIGHTS_GGML_TYPES_H_

// The element types of GGUF files. A type stores a row of values as blocks: `block_values` values in `block_bytes`
// bytes. Plain types have blocks of one value.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aqt::ggml {

// The values are the ids in the file. Ids that are missing here were never released, or have been removed from the
// format.
enum class Type : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kQ8K = 15,
  kIQ2XXS = 16,
  kIQ2XS = 17,
  kIQ3XXS = 18,
  kIQ1S = 19,
  kIQ4NL = 20,
  kIQ3S = 21,
  kIQ2S = 22,
  kIQ4XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
};

// What a file says of its tensors as a whole (general.file_type) if most of them have a type, and there is no such
// number.
inline constexpr int kNoFileType = -1;

struct TypeInfo {
  Type type;
  absl::string_view name;  // "Q4_K"
  int block_values;
  int block_bytes;
  int file_type;  // or kNoFileType
};

// All of them, by id.
absl::Span<const TypeInfo> Types();
// Null if there is no such type.
const TypeInfo* FindType(uint32_t id);
// By name, ignoring case. Null if there is no such type.
const TypeInfo* FindTypeByName(absl::string_view name);
// The entry of a type.
const TypeInfo& InfoOf(Type type);
// The types that this library writes: those of EncodeBlocks (ggml_blocks.h), F32, F16 and BF16.
absl::Span<const Type> WrittenTypes();

}  // namespace aqt::ggml

#endif  // AQT_QUANT_WEIGHTS_GGML_TYPES_H_
