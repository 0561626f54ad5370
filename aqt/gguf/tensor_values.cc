#include "aqt/gguf/tensor_values.h"

#include <algorithm>
#include <cstring>

#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/weights/ggml_blocks.h"

namespace aqt::gguf {
namespace {

using ggml::Type;

bool IsPlainFloat(Type type) { return type == Type::kF32 || type == Type::kF16 || type == Type::kBF16; }

void PlainFloats(Type type, const uint8_t* bytes, int64_t n, float* values) {
  if (type == Type::kF32) {
    std::memcpy(values, bytes, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + i * 2, sizeof(bits));
    values[i] = type == Type::kF16 ? ToFloat(Float16{bits}) : ToFloat(BFloat16{bits});
  }
}

}  // namespace

bool HasFloats(Type type) { return IsPlainFloat(type) || ggml::CanDecode(type); }

absl::Status ReadFloats(const GgufFile& file, const GgufTensor& tensor, int64_t first, absl::Span<float> values) {
  const ggml::TypeInfo& info = ggml::InfoOf(tensor.type);
  const int64_t end = first + static_cast<int64_t>(values.size()), size = info.block_values;
  const int64_t first_block = first / size, n = (end + size - 1) / size - first_block;
  std::vector<uint8_t> blocks(static_cast<size_t>(n * info.block_bytes));
  AQT_RETURN_IF_ERROR(file.file().Read(tensor.begin + first_block * info.block_bytes, absl::MakeSpan(blocks)));
  if (IsPlainFloat(tensor.type)) {
    PlainFloats(tensor.type, blocks.data(), n, values.data());
  } else if (first % size == 0 && end % size == 0) {
    ggml::DecodeBlocks(tensor.type, blocks.data(), n, values.data());
  } else {
    std::vector<float> decoded(static_cast<size_t>(n * size));
    ggml::DecodeBlocks(tensor.type, blocks.data(), n, decoded.data());
    std::copy_n(decoded.begin() + (first - first_block * size), values.size(), values.begin());
  }
  return absl::OkStatus();
}

}  // namespace aqt::gguf
