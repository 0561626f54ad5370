#ifndef AQT_GGUF_GGUF_SOURCE_H_
#define AQT_GGUF_GGUF_SOURCE_H_

// A GGUF model as float tensors: blocks are decoded when they are read, plain tensors keep their bytes.
//
//   AQT_ASSIGN_OR_RETURN(const auto model, gguf::GgufSource::Open(fs, "model-Q4_K_M.gguf"));
//   AQT_ASSIGN_OR_RETURN(const Array w, model->ReadArray("model.layers.0.mlp.up_proj.weight"));

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/gguf/tensor_view.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::gguf {

enum class Names : uint8_t {
  kModel,  // those of transformers, with its order of rows, and one tensor per expert
  kFile,   // those of the file
};

struct GgufSourceOptions {
  Names names = Names::kModel;
  DType dtype = DType::kF32;  // of decoded blocks: kF32 (exact), or kBF16 or kF16 (rounded once)
};

// The bytes of blocks that are not finite are DataLoss, naming tensor and element. Memory: 512 KiB per thread that
// reads. A shard is a file of the model.
class GgufSource final : public io::TensorSource {
 public:
  // The errors of GgufModel::Open; with kModel those of ViewAsModel; Unimplemented, naming the tensor, for a type that
  // cannot be decoded; InvalidArgument for another dtype.
  static absl::StatusOr<std::unique_ptr<GgufSource>> Open(const io::FileSystem& fs, absl::string_view path,
                                                          const GgufSourceOptions& options = {});

  const GgufModel& model() const { return model_; }
  // The text of config.json, made from the metadata; empty with kFile.
  const std::string& config() const { return config_; }
  // "gguf: llama, 14 x Q4_K, 2 x Q6_K, 5 x F32".
  std::string Description() const;
  // The number of tensors that are decoded from blocks.
  int64_t num_decoded() const { return num_decoded_; }
  // The type of a tensor in the file. `tensor` is one of tensors().
  ggml::Type TypeOf(const io::TensorInfo& tensor) const;

 private:
  explicit GgufSource(GgufModel model, DType dtype) : model_(std::move(model)), dtype_(dtype) {}
  absl::Status SetViews(std::vector<TensorView> views, std::vector<std::string> warnings, bool metadata);
  absl::Status ReadBytes(const io::TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override;
  // Elements [begin, end) of a run of elements of the file's tensor, which starts at element `first` of it.
  absl::Status ReadRun(const TensorView& view, int64_t begin, int64_t end, uint8_t* dst) const;
  const GgufTensor& TensorOf(const TensorView& view) const { return model_.files()[view.file].tensors()[view.tensor]; }
  bool IsDecoded(const TensorView& view) const;

  GgufModel model_;
  DType dtype_;
  std::string config_;
  std::vector<TensorView> views_;  // of tensors(), by their `begin`
  int64_t num_decoded_ = 0;
};

}  // namespace aqt::gguf

#endif  // AQT_GGUF_GGUF_SOURCE_H_
