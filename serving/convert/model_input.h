#ifndef AQT_SERVING_CONVERT_MODEL_INPUT_H_
#define AQT_SERVING_CONVERT_MODEL_INPUT_H_

// The input of all commands: a checkpoint, and how its tensors are read.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/gguf/gguf_source.h"
#include "aqt/io/containers/frozen_tree.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "aqt/io/tensors/tensor_views.h"
#include "aqt/stored/dequantized_source.h"
#include "serving/convert/carried_files.h"
#include "serving/families/expert_split.h"
#include "serving/formats/quantization_config.h"

namespace aqt::serving {

struct InputFileOptions {
  std::optional<io::FileDType> raw_dtype = {};  // ContainerOptions in open_container.h
  std::string leave_out = "";                   // as in io::CheckpointOptions
  gguf::Names gguf_names = gguf::Names::kModel;
  DType dtype = DType::kF32;  // of the blocks of a GGUF file
};
// How the files of an input are opened: those of every format that is read. `fs` must outlive the result.
io::CheckpointOptions InputFiles(const io::FileSystem& fs, const InputFileOptions& options = {});

struct InputOptions {
  bool dequantize = false;    // read weights that are quantized already in floating point
  bool keep_frozen = false;   // read a serving tree of AQT as a quantized checkpoint
  DType dtype = DType::kF32;  // of these weights
  // Families of models before the built-in ones; they say how experts are stored.
  absl::Span<const ModelFamily> families = {};
};

// A checkpoint's tensors and configuration after the steps that InputOptions asks for. A step is a TensorSource over
// the one before it.
class ModelInput {
 public:
  // `fs` and `checkpoint` must outlive the result. With `dequantize`, the errors of stored::DequantizedSource::Open,
  // and Unimplemented if the method is not known; a checkpoint that is not quantized is read as it is. The errors of
  // io::OpenFrozenTree for a serving tree of AQT, or Unimplemented if neither option is set. Unimplemented for a GGUF
  // file with blocks, without `dequantize`.
  static absl::StatusOr<ModelInput> Open(const io::FileSystem& fs, const io::Checkpoint& checkpoint,
                                         const InputOptions& options);

  // Refers to this object. Experts are as they are stored until one of the functions below splits them.
  const io::TensorSource& tensors() const;
  // Without what describes a quantization that was undone.
  const ModelConfig& model() const { return model_; }
  // The number of weights that are stored quantized, and read in floating point; 0 if nothing was dequantized.
  int64_t num_dequantized() const;
  // How they are stored, for people: "gptq: v1, 4 bits"; empty if nothing was dequantized.
  std::string stored_as() const;

  // The weights of a serving tree of AQT, with `keep_frozen`; null for other inputs.
  const io::FrozenTree* frozen() const { return frozen_.get(); }
  // How these are quantized.
  const QuantizationConfig& frozen_config() const { return frozen_config_; }

  // Unimplemented, naming the evidence and the remedy, for a checkpoint that is quantized and read as it is stored.
  absl::Status CheckFloat() const;

  // Splits tensors that hold all experts of a layer into one weight for each expert, if there are any and their layout
  // is known. The errors of SplitExperts (expert_split.h).
  absl::Status Split();
  // The same; InvalidArgument if there are such tensors and their layout is not known.
  absl::Status NeedSplit();
  // The same as Split if `output` lacks the fused tensor, because a conversion has split it.
  absl::Status SplitLike(const io::TensorSource& output);
  // Undoes Split.
  void Unsplit() { use_split_ = false; }
  // The single experts; null if none is split.
  const io::ViewSource* split() const { return use_split_ ? split_.get() : nullptr; }
  // How experts were split, for the user; empty if they were not.
  std::string DescribeExperts() const;

  // Removes the files that describe a quantization that was undone from those that are copied.
  void LeaveOutFiles(CarriedFiles& files) const;
  // For the user: how doubtful points were decided.
  std::vector<std::string> Notes() const;
  // Notes(), and what is lost when weights that were quantized are quantized again.
  std::vector<std::string> RequantizeWarnings() const;

 private:
  ModelInput(const io::FileSystem& fs, const io::Checkpoint& checkpoint, ModelConfig model)
      : fs_(&fs), checkpoint_(&checkpoint), model_(std::move(model)) {}
  absl::Status OpenFrozen(const InputOptions& options);
  absl::Status Dequantize(DType dtype);
  absl::Status UnknownMethod(absl::string_view evidence) const;
  // The step before the experts are split.
  const io::TensorSource& unsplit() const;

  const io::FileSystem* fs_;
  const io::Checkpoint* checkpoint_;
  std::unique_ptr<io::TensorSource> flax_;  // the parameters of a flax model under PyTorch's names; otherwise null
  ModelConfig model_;
  DType dtype_ = DType::kF32;
  std::unique_ptr<io::FrozenTree> frozen_;
  QuantizationConfig frozen_config_;
  std::unique_ptr<stored::DequantizedSource> dequantized_;  // over frozen_, if that exists
  ExpertLayout layout_;
  // The same weights with experts in the order in which they are stored, so that a part of one is a range of rows; null
  // if dequantized_ has that order.
  std::unique_ptr<stored::DequantizedSource> by_rows_;
  std::unique_ptr<io::ViewSource> split_;
  bool use_split_ = false;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_MODEL_INPUT_H_
