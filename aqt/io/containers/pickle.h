#ifndef AQT_IO_CONTAINERS_PICKLE_H_
#define AQT_IO_CONTAINERS_PICKLE_H_

// Private to this folder: the pickles in which PyTorch describes tensors. A pickle is a program that can call any
// function of Python. This reader has no functions: it knows the few names with which tensors are described, gives each
// a fixed meaning, and refuses everything else.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/tensor_spec.h"

namespace aqt::io {

// The longest pickle that is read.
inline constexpr int64_t kMaxPickleBytes = 16 << 20;

// The bytes of one or more tensors, in another place.
struct PickledStorage {
  std::string key;
  std::optional<FileDType> dtype;  // null: of any type
  int64_t elements = 0;            // of `dtype`; otherwise bytes

  int64_t bytes() const { return dtype.has_value() ? elements * (BitWidth(*dtype) / 8) : elements; }
};

struct PickledTensor {
  std::string name;
  FileDType dtype = FileDType::kF32;
  Shape shape;
  std::vector<int64_t> strides;  // in elements, as many as extents
  int64_t offset = 0;            // the element of the storage that is (0, 0, ..)
  int storage = 0;
};

struct PickledTensors {
  std::vector<PickledStorage> storages;
  std::vector<PickledTensor> tensors;
  int64_t num_left_out = 0;  // values that are not tensors
  std::string left_out;      // the name of the first of them
  int64_t bytes = 0;         // of the pickle
};

// Reads the pickle at the beginning of `bytes`. The keys of dicts in each other and the positions in lists give names
// such as "model.layers.0.weight". Unimplemented, naming the opcode, its byte, and what it asks for, for everything
// that is not a part of describing tensors; DataLoss for a damaged pickle. Memory and time are bounded.
absl::StatusOr<PickledTensors> ReadPickledTensors(absl::string_view bytes);

// The number of bytes of the pickle there, which may describe anything that needs no names. The same errors.
absl::StatusOr<int64_t> SkipPickle(absl::string_view bytes);
// The texts in the pickle there, which is a list of them.
absl::StatusOr<std::vector<std::string>> ReadPickledTexts(absl::string_view bytes, int64_t* size);

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_PICKLE_H_
