#ifndef AQT_NATIVE_NATIVE_FILE_H_
#define AQT_NATIVE_NATIVE_FILE_H_

// Quantized weights of any width, tiling and axes in a safetensors file, with or without the program that uses them:
// docs/formats/native.md.
//
//   native::NativeFile file;
//   file.weights["fc/kernel"] = {.tensor = quantized, .bits = 3, .contracting = {0}, .remaining = {1}};
//   AQT_RETURN_IF_ERROR(native::WriteNative(fs, "model.safetensors", file));
//
//   AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, io::Checkpoint::Open(fs, "model.safetensors"));
//   AQT_ASSIGN_OR_RETURN(const auto reader, native::NativeReader::Open(checkpoint));
//   AQT_ASSIGN_OR_RETURN(const native::NativeWeight weight, reader.ReadWeight("fc/kernel"));

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/shape.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/native/weight_header.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::native {

// A quantized weight.
struct NativeWeight {
  QTensor tensor = {};  // with a qvalue
  // 1 to 8: each value of the qvalue is stored in as many bits. 0: in the qvalue's dtype (s2 and s4: in 2 and 4 bits).
  int bits = 0;
  bool half = false;  // the values are ..., -0.5, 0.5, ..., in a float dtype
  // The axes of the untiled shape over which a contraction sums, and those of its result. Others are batch axes.
  Axes contracting = {}, remaining = {};
  std::string config_digest = {};  // of the configuration that made it: ConfigDigest, or empty
};

// What a file holds.
struct NativeFile {
  std::map<std::string, NativeWeight> weights = {};
  std::map<std::string, Array> tensors = {};  // everything that is not quantized
  std::string program = {};                   // the bytes of SaveProgram (graph/saved/program_proto.h), or empty
  std::map<std::string, std::string> metadata = {};
};

// 64 bits of the text of a configuration (FNV-1a), as 16 hexadecimal digits.
std::string ConfigDigest(absl::string_view config_text);

// Writes a file, atomically. The same contents give the same bytes. InvalidArgument, naming the weight, if a value does
// not fit its number of bits, the parts do not fit together, or a key of the metadata or the name of a tensor belongs
// to the format; AlreadyExists unless `overwrite`; otherwise the errors of io::SafetensorsWriter.
absl::Status WriteNative(const io::FileSystem& fs, absl::string_view path, const NativeFile& file,
                         bool overwrite = false);

// Whether a source says that it has this format.
bool IsNative(const io::TensorSource& source);
// Whether a key of a file's metadata belongs to the format.
bool IsNativeKey(absl::string_view key);
// The tensor with the program.
inline constexpr char kProgramTensor[] = "aqt_program";
// The tensors of a weight: the qvalue first.
std::vector<std::string> TensorNamesOf(absl::string_view weight, const WeightHeader& header);

// Reads weight by weight, from one file or several.
class NativeReader {
 public:
  // Checks headers, dtypes and shapes of all weights; reads no data. `source` must outlive the result. DataLoss, naming
  // the weight, for a wrong header, and for a part that is missing, left over, or of another dtype or shape;
  // Unimplemented for a later version; FailedPrecondition if the source does not have this format.
  static absl::StatusOr<NativeReader> Open(const io::TensorSource& source);

  // By name.
  const std::map<std::string, WeightHeader>& weights() const { return weights_; }
  // The names of the tensors that belong to no weight, sorted.
  const std::vector<std::string>& tensors() const { return tensors_; }
  // Without the keys of the format.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // NotFound; DataLoss if the data have bits past the last element, or values that the dtype cannot hold; the errors
  // of the source.
  absl::StatusOr<NativeWeight> ReadWeight(const std::string& name) const;
  // Empty if there is none.
  absl::StatusOr<std::string> ReadProgram() const;
  // Everything.
  absl::StatusOr<NativeFile> ReadAll() const;

 private:
  explicit NativeReader(const io::TensorSource& source) : source_(&source) {}
  absl::Status ReadMetadata();
  absl::Status SortTensors();

  const io::TensorSource* source_;
  std::map<std::string, WeightHeader> weights_;
  std::vector<std::string> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace aqt::native

#endif  // AQT_NATIVE_NATIVE_FILE_H_
