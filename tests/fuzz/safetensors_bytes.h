#ifndef AQT_TESTS_FUZZ_SAFETENSORS_BYTES_H_
#define AQT_TESTS_FUZZ_SAFETENSORS_BYTES_H_

// A safetensors file in memory, for fuzz targets.

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::fuzz {

class SafetensorsBytes final : public io::TensorSource {
 public:
  // Null if the bytes, which must outlive the result, are no such file.
  static std::unique_ptr<SafetensorsBytes> Open(absl::string_view file) {
    uint64_t length = 0;
    if (file.size() < sizeof(length)) return nullptr;
    std::memcpy(&length, file.data(), sizeof(length));
    if (length > file.size() - sizeof(length)) return nullptr;
    const absl::string_view data = file.substr(sizeof(length) + length);
    auto header = io::ParseSafetensorsHeader(file.substr(sizeof(length), length), static_cast<int64_t>(data.size()));
    if (!header.ok()) return nullptr;
    return absl::WrapUnique(new SafetensorsBytes(*std::move(header), data));
  }

 private:
  SafetensorsBytes(io::SafetensorsHeader header, absl::string_view data) : data_(data) {
    SetContents("input", {{"input", "input", std::move(header.metadata)}}, std::move(header.tensors));
  }
  absl::Status ReadBytes(const io::TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override {
    std::memcpy(dst.data(), data_.data() + tensor.begin + offset, dst.size());
    return absl::OkStatus();
  }

  absl::string_view data_;
};

}  // namespace aqt::fuzz

#endif  // AQT_TESTS_FUZZ_SAFETENSORS_BYTES_H_
