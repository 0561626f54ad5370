#include "aqt/quant/weights/ggml_types.h"

#include "absl/strings/match.h"
#include "aqt/core/check.h"

namespace aqt::ggml {
namespace {

// clang-format off
constexpr TypeInfo kTypes[] = {
    {Type::kF32, "F32", 1, 4, 0},
    {Type::kF16, "F16", 1, 2, 1},
    {Type::kQ4_0, "Q4_0", 32, 18, 2},
    {Type::kQ4_1, "Q4_1", 32, 20, 3},
    {Type::kQ5_0, "Q5_0", 32, 22, 8},
    {Type::kQ5_1, "Q5_1", 32, 24, 9},
    {Type::kQ8_0, "Q8_0", 32, 34, 7},
    {Type::kQ8_1, "Q8_1", 32, 40, kNoFileType},
    {Type::kQ2K, "Q2_K", 256, 84, 10},
    {Type::kQ3K, "Q3_K", 256, 110, 11},
    {Type::kQ4K, "Q4_K", 256, 144, 14},
    {Type::kQ5K, "Q5_K", 256, 176, 16},
    {Type::kQ6K, "Q6_K", 256, 210, 18},
    {Type::kQ8K, "Q8_K", 256, 292, kNoFileType},
    {Type::kIQ2XXS, "IQ2_XXS", 256, 66, 19},
    {Type::kIQ2XS, "IQ2_XS", 256, 74, 20},
    {Type::kIQ3XXS, "IQ3_XXS", 256, 98, 23},
    {Type::kIQ1S, "IQ1_S", 256, 50, 24},
    {Type::kIQ4NL, "IQ4_NL", 32, 18, 25},
    {Type::kIQ3S, "IQ3_S", 256, 110, 26},
    {Type::kIQ2S, "IQ2_S", 256, 82, 28},
    {Type::kIQ4XS, "IQ4_XS", 256, 136, 30},
    {Type::kI8, "I8", 1, 1, kNoFileType},
    {Type::kI16, "I16", 1, 2, kNoFileType},
    {Type::kI32, "I32", 1, 4, kNoFileType},
    {Type::kI64, "I64", 1, 8, kNoFileType},
    {Type::kF64, "F64", 1, 8, kNoFileType},
    {Type::kIQ1M, "IQ1_M", 256, 56, 31},
    {Type::kBF16, "BF16", 1, 2, 32},
    {Type::kTQ1_0, "TQ1_0", 256, 54, 36},
    {Type::kTQ2_0, "TQ2_0", 256, 66, 37},
    {Type::kMXFP4, "MXFP4", 32, 17, 38},
    {Type::kNVFP4, "NVFP4", 64, 36, 39},
    {Type::kQ1_0, "Q1_0", 128, 18, 40},
};
// clang-format on

constexpr Type kWritten[] = {Type::kQ8_0,  Type::kQ4_0, Type::kQ4K, Type::kQ6K,
                             Type::kMXFP4, Type::kF32,  Type::kF16, Type::kBF16};

}  // namespace

absl::Span<const Type> WrittenTypes() { return kWritten; }
absl::Span<const TypeInfo> Types() { return kTypes; }

const TypeInfo* FindType(uint32_t id) {
  for (const TypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == id) return &info;
  }
  return nullptr;
}

const TypeInfo* FindTypeByName(absl::string_view name) {
  for (const TypeInfo& info : kTypes) {
    if (absl::EqualsIgnoreCase(info.name, name)) return &info;
  }
  return nullptr;
}

const TypeInfo& InfoOf(Type type) {
  const TypeInfo* const info = FindType(static_cast<uint32_t>(type));
  AQT_CHECK(info != nullptr);
  return *info;
}

}  // namespace aqt::ggml
