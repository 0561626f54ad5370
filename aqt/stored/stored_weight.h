#ifndef AQT_STORED_STORED_WEIGHT_H_
#define AQT_STORED_STORED_WEIGHT_H_

// One quantized weight: the tensors that a checkpoint stores for it, and how rows of it are read as floats.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/stored/part_reader.h"
#include "aqt/stored/stored_config.h"

namespace aqt::stored {

// A weight [rows, cols] as it is multiplied with quantized or float inputs:
//   w[r, c] = values[r, c] * scales[r, c / (cols / groups)]
struct WeightCodes {
  Array values;  // [rows, cols]: s8, integers of `bits` bits, which reach -2^(bits - 1); or e4m3fn
  int bits = 8;
  Array scales;                      // f32 [rows, groups]
  std::optional<InputArgs> input;    // how inputs are quantized; null: not at all
  std::string input_unknown;         // why it is not known, as WhyNoCodes says it; empty if it is
  std::optional<float> input_scale;  // of static inputs; positive
};

class StoredWeight {
 public:
  // `main` is the tensor that holds the values. No extent of `shape`, which has at least one, is negative.
  StoredWeight(std::string name, Shape shape, const io::TensorInfo* main);
  virtual ~StoredWeight() = default;

  const std::string& name() const { return name_; }  // of the float tensor: "model.layers.0.mlp.up_proj.weight"
  const Shape& shape() const { return shape_; }
  const io::TensorInfo& main() const { return *main_; }
  // The weight as a matrix: its last extent, and the product of the others.
  int64_t cols() const { return shape_[shape_.rank() - 1]; }
  int64_t rows() const { return rows_; }

  // Writes rows [first, first + n) of that matrix to `out`. DataLoss, naming the tensor, for a stored value that no
  // tool writes; the errors of reading. Thread-safe.
  virtual absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const = 0;

  // Why it has no WeightCodes, as the end of a sentence: "they have zero points"; empty if it has.
  virtual std::string WhyNoCodes() const { return "their layout is only read as floats"; }
  // Reads them. WhyNoCodes() must be empty. DataLoss, naming tensor and position, for a value that is not finite, and
  // for the errors of DecodeRows.
  virtual absl::StatusOr<WeightCodes> ReadCodes(const PartReader& reader) const;

 private:
  std::string name_;
  Shape shape_;
  const io::TensorInfo* main_;
  int64_t rows_;
};

// Finds the tensors of one weight. Its messages name the checkpoint, the weight, the tensor, the expectation and the
// remedy.
class Parts {
 public:
  // `weight` is the name of the float tensor.
  Parts(const io::TensorSource& source, absl::string_view weight) : source_(source), weight_(weight) {}

  // Null if there is no such tensor.
  const io::TensorInfo* Optional(absl::string_view name);
  // DataLoss if there is no such tensor.
  absl::StatusOr<const io::TensorInfo*> Need(absl::string_view name);
  // DataLoss unless the tensor has one of the dtypes and shapes.
  absl::Status Check(const io::TensorInfo& tensor, absl::Span<const io::FileDType> dtypes,
                     absl::Span<const Shape> shapes) const;
  // DataLoss unless it has one of the dtypes.
  absl::Status CheckDType(const io::TensorInfo& tensor, absl::Span<const io::FileDType> dtypes) const;
  // Need, then Check.
  absl::StatusOr<const io::TensorInfo*> Need(absl::string_view name, absl::Span<const io::FileDType> dtypes,
                                             absl::Span<const Shape> shapes);
  // DataLoss about a tensor of the weight.
  absl::Status Wrong(const io::TensorInfo& tensor, absl::string_view expected) const;

  // What was found so far.
  const std::vector<const io::TensorInfo*>& found() const { return found_; }

 private:
  const io::TensorSource& source_;
  std::string weight_;
  std::vector<const io::TensorInfo*> found_;
};

// The dtypes of scales that are plain floats.
inline constexpr io::FileDType kFloats[] = {io::FileDType::kF32, io::FileDType::kBF16, io::FileDType::kF16};

// "'DIR', tensor 'x' F32[2,3]", for messages.
std::string Describe(const io::TensorSource& source, const io::TensorInfo& tensor);

}  // namespace aqt::stored

#endif  // AQT_STORED_STORED_WEIGHT_H_
