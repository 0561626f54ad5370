#ifndef AQT_STORED_STORED_FORMAT_H_
#define AQT_STORED_STORED_FORMAT_H_

// A way in which a tool stores quantized weights. To add one, write a file that defines a StoredFormat, its test, and a
// line in the table of stored_format.cc.

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/stored/stored_config.h"
#include "aqt/stored/stored_weight.h"

namespace aqt::stored {

// The quantized weights of a checkpoint.
struct StoredWeights {
  std::vector<std::unique_ptr<StoredWeight>> weights;
  // The tensors that the weights are made of, and others that only a server of the quantized model uses, such as scales
  // of activations. They do not exist in the float checkpoint. Tensors may occur twice.
  std::vector<const io::TensorInfo*> consumed;
  std::string details;             // "4 bits, groups of 32"; may be empty
  std::vector<std::string> notes;  // for the user: how a doubtful point was decided

  // Adds a weight, and the tensors that it is made of.
  void Add(std::unique_ptr<StoredWeight> weight, const Parts& parts);
  // Marks the tensors of these names as consumed, where they exist.
  void Drop(const io::TensorSource& source, absl::string_view module, std::initializer_list<const char*> suffixes);
  // Marks all tensors whose names end so as consumed.
  void DropAll(const io::TensorSource& source, std::initializer_list<absl::string_view> suffixes);
};

class StoredFormat {
 public:
  virtual ~StoredFormat() = default;

  // "GPTQ".
  virtual absl::string_view name() const = 0;
  // Whether a configuration with this (not empty) method describes it.
  virtual bool IsMethod(absl::string_view method) const = 0;
  // Whether names and dtypes of tensors show it, for a checkpoint without a configuration.
  virtual bool IsShownBy(const io::TensorSource& source) const = 0;
  // The ends of names that only parts of quantized weights have. Empty: Find refuses what is left over.
  virtual absl::Span<const absl::string_view> PartSuffixes() const = 0;

  // DataLoss, naming tensor, expectation and remedy, for an incomplete set of tensors; InvalidArgument or
  // Unimplemented, naming the field, for a configuration that leaves the values open. Reads headers, and values that
  // shapes depend on.
  virtual absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig& config) const = 0;
};

const StoredFormat& CompressedTensors();
const StoredFormat& Fp8();
const StoredFormat& Awq();
const StoredFormat& Gptq();
const StoredFormat& ModelOpt();
const StoredFormat& GptOss();
const StoredFormat& BitsAndBytes();
const StoredFormat& Native();

// All formats.
absl::Span<const StoredFormat* const> StoredFormats();
// The format of a checkpoint; null if nothing shows that it is quantized. Unimplemented, with the known methods, for
// another method.
absl::StatusOr<const StoredFormat*> FindStoredFormat(const io::TensorSource& source, const StoredConfig& config);

// `tensor` without the suffix, if it ends so and has something before it; otherwise empty.
absl::string_view StemOf(absl::string_view tensor, absl::string_view suffix);
// Whether a tensor's name ends so.
bool HasTensor(const io::TensorSource& source, absl::string_view suffix);
// Whether a module has a ".weight" of this dtype, and a tensor whose name ends so.
bool HasScaled(const io::TensorSource& source, absl::string_view suffix, io::FileDType dtype);

}  // namespace aqt::stored

#endif  // AQT_STORED_STORED_FORMAT_H_
