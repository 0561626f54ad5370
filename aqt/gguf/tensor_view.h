#ifndef AQT_GGUF_TENSOR_VIEW_H_
#define AQT_GGUF_TENSOR_VIEW_H_

// The tensors that a model shows to the rest of the library: those of its files, or those of the checkpoint that it was
// made from, with other names, other orders of rows, and one tensor per expert.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/shape.h"
#include "aqt/gguf/gguf_file.h"

namespace aqt::gguf {

// Rows of a tensor of a file.
struct TensorView {
  std::string name;
  Shape shape;
  int file = 0;           // of GgufModel::files()
  int tensor = 0;         // of its tensors()
  int64_t first_row = 0;  // of that tensor
  // If not 0: each head has this many rows. Row s * head_rows / 2 + j of a head, with s = 0 or 1, is row 2 j + s of it
  // in the file, where the two parts of each rotated pair are neighbours.
  int64_t head_rows = 0;
  // Each value is reduced by 1, in f32: a norm whose module adds 1.
  bool minus_one = false;
};

// All tensors of the files, as they are, in their order.
std::vector<TensorView> ViewAsFile(const GgufModel& model);

struct ModelView {
  std::vector<TensorView> tensors;
  std::string config;                 // the text of config.json
  std::vector<std::string> warnings;  // for the user: what config.json does not say
};
// The tensors as transformers names them. Unimplemented, with the remedy, for an architecture that is not known here,
// or a tensor that the architecture does not have; DataLoss if the metadata lacks a number that is needed, or it and
// the tensors disagree.
absl::StatusOr<ModelView> ViewAsModel(const GgufModel& model);

}  // namespace aqt::gguf

#endif  // AQT_GGUF_TENSOR_VIEW_H_
