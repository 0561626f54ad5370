#ifndef AQT_STORED_DEQUANTIZED_SOURCE_H_
#define AQT_STORED_DEQUANTIZED_SOURCE_H_

// A quantized checkpoint, read as if it had never been quantized: every quantized weight is one float tensor, the
// tensors that it was stored in do not appear, and all other tensors keep their bytes.
//
//   AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, io::Checkpoint::Open(fs, "model-awq"));
//   AQT_ASSIGN_OR_RETURN(const stored::StoredConfig config, stored::ReadStoredConfig(fs, checkpoint));
//   AQT_ASSIGN_OR_RETURN(const auto weights, stored::DequantizedSource::Open(checkpoint, config));
//   AQT_ASSIGN_OR_RETURN(const Array w, weights->ReadArray("model.layers.0.mlp.up_proj.weight"));

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/stored/part_reader.h"
#include "aqt/stored/stored_config.h"
#include "aqt/stored/stored_format.h"
#include "aqt/stored/stored_weight.h"

namespace aqt::stored {

// Reading decodes only the rows that are asked for. Memory: that of PartReader, and 1 MiB per thread. DataLoss, naming
// tensor and position, for an element that is not finite, or not in the dtype.
class DequantizedSource final : public io::TensorSource {
 public:
  // With the description that belongs to the checkpoint (ReadStoredConfig). Null if nothing shows that it is quantized;
  // otherwise as below.
  static absl::StatusOr<std::unique_ptr<DequantizedSource>> OpenIfQuantized(const io::FileSystem& fs,
                                                                            const io::Checkpoint& base,
                                                                            DType dtype = DType::kF32);
  // `dtype` is that of the quantized weights: kF32 (exact), or kBF16 or kF16 (the f32 value rounded once). `base` must
  // outlive the result. FailedPrecondition if nothing shows that `base` is quantized; DataLoss, naming the tensor, for
  // a quantized weight without all of its tensors, or a tensor without its weight; the errors of StoredFormat::Find.
  static absl::StatusOr<std::unique_ptr<DequantizedSource>> Open(const io::TensorSource& base,
                                                                 const StoredConfig& config, DType dtype = DType::kF32);

  // "gptq".
  const std::string& format() const { return format_; }
  // "gptq: v1, 4 bits".
  std::string Description() const;
  // For the user: how doubtful points were decided.
  const std::vector<std::string>& notes() const { return notes_; }
  int64_t num_dequantized() const { return static_cast<int64_t>(weights_.size()); }
  // Whether the tensor of this name was quantized.
  bool IsDequantized(absl::string_view name) const { return FindWeight(name) != nullptr; }
  // The stored form of the tensor of this name; null if it was not quantized.
  const StoredWeight* FindWeight(absl::string_view name) const;
  // Its codes: see StoredWeight::ReadCodes.
  absl::StatusOr<WeightCodes> ReadCodes(const StoredWeight& weight) const { return weight.ReadCodes(reader_); }
  const StoredConfig& config() const { return config_; }

 private:
  DequantizedSource(const io::TensorSource& base, StoredConfig config, DType dtype)
      : base_(base), config_(std::move(config)), dtype_(dtype), reader_(base) {}
  absl::Status ReadBytes(const io::TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override;
  // `consumed`: the names of the tensors that do not appear.
  absl::Status SetTensors(const StoredFormat& format, StoredWeights found, const std::set<absl::string_view>& consumed);
  absl::Status CheckFinite(const StoredWeight& weight, int64_t first_row, absl::Span<const float> values) const;

  const io::TensorSource& base_;
  const StoredConfig config_;
  const DType dtype_;
  PartReader reader_;
  std::string format_;
  std::string details_;
  std::vector<std::string> notes_;
  std::vector<std::unique_ptr<StoredWeight>> weights_;  // sorted by name
};

}  // namespace aqt::stored

#endif  // AQT_STORED_DEQUANTIZED_SOURCE_H_
