#ifndef AQT_SERVING_FAMILIES_ZERO_TENSORS_H_
#define AQT_SERVING_FAMILIES_ZERO_TENSORS_H_

// Checkpoints for tests in which only names and shapes matter.

#include <string>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/memory_tensor_source.h"

namespace aqt::serving {

using TensorShapes = std::vector<std::pair<std::string, Shape>>;

// Tensors of bf16 zeros.
inline io::MemoryTensorSource ZeroTensors(const TensorShapes& shapes) {
  std::vector<std::pair<std::string, Array>> arrays;
  for (const auto& [name, shape] : shapes) arrays.emplace_back(name, Array::Zeros(DType::kBF16, shape));
  return io::MemoryTensorSource("model.safetensors", std::move(arrays));
}

}  // namespace aqt::serving

#endif  // AQT_SERVING_FAMILIES_ZERO_TENSORS_H_
