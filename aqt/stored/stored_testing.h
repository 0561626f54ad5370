#ifndef AQT_STORED_STORED_TESTING_H_
#define AQT_STORED_STORED_TESTING_H_

// Checkpoints in memory, for the tests of the formats.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "aqt/stored/dequantized_source.h"

namespace aqt::stored {

using NamedArrays = std::vector<std::pair<std::string, Array>>;

// A checkpoint, and the same one dequantized.
class Opened {
 public:
  // `config`: the text of a quantization_config; empty: none.
  Opened(NamedArrays tensors, absl::string_view config, DType dtype = DType::kF32)
      : base_(std::make_unique<io::MemoryTensorSource>("memory", std::move(tensors))) {
    absl::StatusOr<StoredConfig> parsed = StoredConfig();
    if (!config.empty()) parsed = ParseStoredConfig(config, "config.json, quantization_config");
    status_ = parsed.status();
    if (!status_.ok()) return;
    absl::StatusOr<std::unique_ptr<DequantizedSource>> source = DequantizedSource::Open(*base_, *parsed, dtype);
    status_ = source.status();
    if (status_.ok()) source_ = *std::move(source);
  }

  const absl::Status& status() const { return status_; }
  const DequantizedSource& operator*() const { return *source_; }
  const DequantizedSource* operator->() const { return source_.get(); }
  const io::MemoryTensorSource& base() const { return *base_; }
  // The names of its tensors.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const io::TensorInfo& tensor : source_->tensors()) names.push_back(tensor.name);
    return names;
  }
  // The values of a tensor; or, as one NaN, that it cannot be read.
  std::vector<float> Values(absl::string_view name) const {
    const absl::StatusOr<Array> array = source_->ReadArray(name);
    if (!array.ok()) return {std::numeric_limits<float>::quiet_NaN()};
    const Array f32 = Cast(*array, DType::kF32);
    const absl::Span<const float> values = f32.View<float>();
    return {values.begin(), values.end()};
  }

 private:
  std::unique_ptr<io::MemoryTensorSource> base_;
  absl::Status status_;
  std::unique_ptr<DequantizedSource> source_;
};

inline NamedArrays Without(NamedArrays tensors, absl::string_view name) {
  std::erase_if(tensors, [&](const auto& tensor) { return tensor.first == name; });
  return tensors;
}
inline NamedArrays With(NamedArrays tensors, const std::string& name, Array array) {
  tensors = Without(std::move(tensors), name);
  tensors.emplace_back(name, std::move(array));
  return tensors;
}

}  // namespace aqt::stored

#endif  // AQT_STORED_STORED_TESTING_H_
