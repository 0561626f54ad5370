#include "serving/convert/convert.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/kernels/quantize/finite.h"
#include "serving/convert/read_blocks.h"
#include "serving/convert/weight_encoder.h"
#include "serving/convert/weight_loss.h"
#include "serving/formats/float_config.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/parallel.h"
#include "serving/tools/version.h"

namespace aqt::serving {
namespace {

constexpr int64_t kMinBlock = 64 << 10;

// A part of one tensor: rows of a weight to quantize, or bytes to copy.
struct Block {
  const TensorPlan* tensor = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bytes = 0;  // of the input
};

// Bytes of the input per block, so that all threads together stay within half the budget; results use the other half.
int64_t BlockBytes(int jobs) { return std::clamp(kMemoryBudget / 2 / std::max(jobs, 1), kMinBlock, kMaxBlock); }

void AddBlocks(const TensorPlan& tensor, int64_t count, int64_t bytes_each, int64_t per_block, int64_t min_last,
               std::vector<Block>& blocks) {
  for (int64_t begin = 0; begin < count;) {
    int64_t end = std::min(count, begin + per_block);
    if (count - end < min_last) end = count;
    blocks.push_back({&tensor, begin, end, (end - begin) * bytes_each});
    begin = end;
  }
}

void AddBlocks(const TensorPlan& tensor, WeightRules rules, int jobs, std::vector<Block>& blocks) {
  const io::TensorInfo& info = *tensor.input;
  if (!tensor.quantized()) {
    // Whole rows, where they fit: a source that computes them need not compute one twice.
    const int64_t row = info.shape.rank() < 2 || info.num_bytes() == 0
                            ? 1
                            : info.shape[info.shape.rank() - 1] * io::BitWidth(info.dtype) / 8;
    const int64_t per_block = row > 0 && row <= kMaxBlock ? kMaxBlock / row * row : kMaxBlock;
    AddBlocks(tensor, info.num_bytes(), 1, per_block, 0, blocks);
    return;
  }
  const int64_t rows = info.shape[0];
  const int64_t row_bytes = info.num_bytes() / rows;
  const Scheme& scheme = *tensor.decision.scheme;
  const int64_t unit = std::min(scheme.format->RowUnit(scheme.weights), rows);
  int64_t per_block = rows;
  if (unit > 0) {
    per_block = std::max(MinRows(rules), BlockBytes(jobs) / row_bytes);
    per_block = (per_block + unit - 1) / unit * unit;
  }
  AddBlocks(tensor, rows, row_bytes, per_block, MinRows(rules), blocks);
}

absl::Span<const uint8_t> Bytes(const Array& array) {
  return absl::MakeConstSpan(static_cast<const uint8_t*>(array.data()), array.num_bytes());
}

// The losses of weights, found by several threads block by block.
class LossCollector {
 public:
  void Add(const Block& block, WeightLoss loss) {
    if (loss.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    losses_[{block.tensor, block.begin}] = std::move(loss);
  }

  // Tensors in the order of the plan, which holds them in one array.
  void AppendTo(std::vector<std::string>& warnings) const {
    for (auto it = losses_.begin(); it != losses_.end();) {
      const TensorPlan& tensor = *it->first.first;
      WeightLoss loss;
      for (; it != losses_.end() && it->first.first == &tensor; ++it) loss.Append(it->second);
      for (const std::string& line :
           DescribeLoss(loss, *tensor.decision.scheme, tensor.input->dtype, tensor.input->shape)) {
        warnings.push_back(absl::StrCat(io::Printable(tensor.name()), ": ", line));
      }
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<const TensorPlan*, int64_t>, WeightLoss> losses_;
};

// Writes the tensors of one output file.
class ShardWriter {
 public:
  ShardWriter(const io::TensorSource& input, WeightRules rules, const WeightEncoder& encoder,
              const ConvertOptions& options, io::SafetensorsWriter& writer, BlockBuffers& buffers,
              LossCollector& losses)
      : input_(input),
        rules_(rules),
        encoder_(encoder),
        options_(options),
        writer_(writer),
        buffers_(buffers),
        losses_(losses) {}

  absl::Status Run(const Block& block) {
    AQT_RETURN_IF_ERROR(CheckCancelled(options_.cancelled));
    std::vector<uint8_t> buffer = buffers_.Take(block.bytes);
    const absl::Status status = block.tensor->quantized() ? Quantize(block, buffer) : Copy(block, buffer);
    buffers_.Give(std::move(buffer));
    if (options_.progress != nullptr) options_.progress->Add(block.bytes, block.tensor->name());
    return status;
  }

 private:
  absl::Status Copy(const Block& block, std::vector<uint8_t>& buffer) {
    AQT_RETURN_IF_ERROR(input_.Read(*block.tensor->input, block.begin, absl::MakeSpan(buffer)));
    return OutputError(writer_.Write(block.tensor->name(), block.begin, buffer));
  }

  absl::Status Quantize(const Block& block, std::vector<uint8_t>& buffer) {
    const TensorPlan& tensor = *block.tensor;
    const io::TensorInfo& info = *tensor.input;
    const Scheme& scheme = *tensor.decision.scheme;
    const int64_t columns = info.shape[1];
    const DType dtype = *io::ToDType(info.dtype);
    AQT_RETURN_IF_ERROR(input_.Read(*tensor.input, block.begin * columns * SizeOf(dtype), absl::MakeSpan(buffer)));
    const ArrayRef rows(dtype, {block.end - block.begin, columns}, buffer.data());
    AQT_ASSIGN_OR_RETURN(const std::vector<StoredRows> encoded, encoder_.Encode(tensor, block.begin, rows));
    if (options_.warnings != nullptr) {
      AQT_ASSIGN_OR_RETURN(WeightLoss loss,
                           FindLoss(rows, block.begin, scheme, rules_, encoded, encoder_.GlobalScaleOf(tensor)));
      losses_.Add(block, std::move(loss));
    }
    AQT_RETURN_IF_ERROR(Write(tensor, encoded));
    if (block.begin > 0) return absl::OkStatus();
    AQT_ASSIGN_OR_RETURN(const std::vector<StoredRows> input, encoder_.EncodeInput(tensor));
    return Write(tensor, input);
  }

  absl::Status Write(const TensorPlan& tensor, const std::vector<StoredRows>& parts) {
    for (const StoredRows& part : parts) {
      AQT_RETURN_IF_ERROR(Write(absl::StrCat(tensor.module(), part.suffix), part.first_row, part.rows));
    }
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& name, int64_t first_row, const Array& array) {
    const int64_t row_bytes = array.shape()[0] == 0 ? 0 : array.num_bytes() / array.shape()[0];
    return OutputError(writer_.Write(name, first_row * row_bytes, Bytes(array)));
  }

  const io::TensorSource& input_;
  const WeightRules rules_;
  const WeightEncoder& encoder_;
  const ConvertOptions& options_;
  io::SafetensorsWriter& writer_;
  BlockBuffers& buffers_;
  LossCollector& losses_;
};

// The metadata of the input's files, and how this one was made. The transformers library requires "format".
io::Metadata OutputMetadata(const io::TensorSource& input, const Plan& plan, const Recipe& recipe,
                            const OutputPlace& place) {
  io::Metadata metadata;
  const auto set = [&metadata](absl::string_view key, std::string value) {
    for (const auto& [existing, unused] : metadata) {
      if (existing == key) return;
    }
    metadata.emplace_back(std::string(key), std::move(value));
  };
  set(kVersionKey, kVersion);
  const std::set<std::string> of_recipe = {"aqt_config_digest", "aqt_weight_rules", kQuantizationConfigKey};
  if (!plan.quantization_config.groups.empty()) {
    set("aqt_config_digest", recipe.Digest());
    set("aqt_weight_rules", std::string(ToString(recipe.weight_rules)));
    if (place.is_file) set(kQuantizationConfigKey, QuantizationConfigToJson(plan.quantization_config));
  }
  for (const io::TensorSource::Shard& shard : input.shards()) {
    for (const auto& [key, value] : shard.metadata) {
      if (!of_recipe.contains(key)) set(key, value);
    }
  }
  set("format", "pt");
  return metadata;
}

absl::Status WriteShard(const io::FileSystem& fs, const io::TensorSource& input, const Plan& plan, const Recipe& recipe,
                        const WeightEncoder& encoder, const ConvertOptions& options, int shard, Output& output) {
  std::vector<io::TensorSpec> specs;
  std::vector<Block> blocks;
  for (const TensorPlan& tensor : plan.tensors) {
    if (tensor.output_shard != shard) continue;
    specs.insert(specs.end(), tensor.outputs.begin(), tensor.outputs.end());
    AddBlocks(tensor, recipe.weight_rules, options.jobs, blocks);
  }
  io::SafetensorsWriterOptions writer_options;
  writer_options.metadata = OutputMetadata(input, plan, recipe, output.place());
  writer_options.output = output.file_options();
  AQT_ASSIGN_OR_RETURN(const std::string path, output.PathOf(plan.shard_names[shard]));
  absl::StatusOr<std::unique_ptr<io::SafetensorsWriter>> writer =
      io::SafetensorsWriter::Create(fs, path, std::move(specs), writer_options);
  if (!writer.ok()) return OutputError(writer.status());
  BlockBuffers buffers;
  LossCollector losses;
  ShardWriter shard_writer(input, recipe.weight_rules, encoder, options, **writer, buffers, losses);
  AQT_RETURN_IF_ERROR(ParallelRun(
      static_cast<int64_t>(blocks.size()), {.threads = options.jobs, .memory_budget = kMemoryBudget},
      [&](int64_t i) { return 2 * blocks[i].bytes; }, [&](int64_t i) { return shard_writer.Run(blocks[i]); }));
  AQT_RETURN_IF_ERROR(CheckCancelled(options.cancelled));
  if (options.warnings != nullptr) losses.AppendTo(*options.warnings);
  return OutputError((*writer)->Finish());
}

// Writes config.json, the index and the copied files.
absl::Status WriteRest(const io::FileSystem& fs, const CarriedFiles& files, const Plan& plan,
                       const ConvertOptions& options, Output& output) {
  const auto write = [&](absl::string_view name, absl::string_view text) -> absl::Status {
    AQT_ASSIGN_OR_RETURN(const std::string path, output.PathOf(name));
    return OutputError(io::WriteFile(fs, path, text));
  };
  for (const std::string& name : files.copied) {
    AQT_RETURN_IF_ERROR(CheckCancelled(options.cancelled));
    AQT_ASSIGN_OR_RETURN(const std::string to, output.PathOf(name));
    AQT_RETURN_IF_ERROR(OutputError(io::CopyFile(fs, io::JoinPath(files.folder, name), to)));
  }
  std::string config = files.config_text;
  if (!files.config_file.empty()) {
    AQT_ASSIGN_OR_RETURN(config, io::ReadFile(fs, files.config_file, kMaxConfigBytes));
  }
  if (plan.has_index) {
    io::WeightMap map;
    for (const TensorPlan& tensor : plan.tensors) {
      for (const io::TensorSpec& spec : tensor.outputs)
        map.emplace_back(spec.name, plan.shard_names[tensor.output_shard]);
    }
    AQT_ASSIGN_OR_RETURN(const std::string index, io::MakeIndex(std::move(map), plan.new_bytes, files.index_extras));
    AQT_RETURN_IF_ERROR(write(files.index_name, index));
  }
  // Also from the parts of a model; a model that is in floating point has none.
  AQT_ASSIGN_OR_RETURN(std::string new_config, RemoveQuantizationConfig(config, plan.torch_dtype));
  if (!plan.quantization_config.groups.empty()) {
    AQT_ASSIGN_OR_RETURN(new_config, SetQuantizationConfig(new_config, plan.quantization_config));
  }
  return write(kConfigFile, new_config);
}

}  // namespace

absl::Status Convert(const io::FileSystem& fs, const io::TensorSource& input, const CarriedFiles& files,
                     const Plan& plan, const Recipe& recipe, const Calibration& calibration, const OutputPlace& place,
                     const ConvertOptions& options) {
  AQT_ASSIGN_OR_RETURN(Output output, Output::Create(fs, place));
  AQT_ASSIGN_OR_RETURN(const WeightEncoder encoder, WeightEncoder::Make(input, plan, recipe, calibration, options));
  for (size_t shard = 0; shard < plan.shard_names.size(); ++shard) {
    AQT_RETURN_IF_ERROR(WriteShard(fs, input, plan, recipe, encoder, options, static_cast<int>(shard), output));
  }
  if (!place.is_file) {
    AQT_RETURN_IF_ERROR(WriteRest(fs, files, plan, options, output));
    AQT_RETURN_IF_ERROR(CheckCancelled(options.cancelled));
  }
  return output.Commit();
}

int64_t BytesToRead(const Plan& plan) {
  int64_t bytes = plan.old_bytes;
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.scale_set.empty()) bytes += tensor.old_bytes;
  }
  return bytes;
}

absl::StatusOr<std::set<std::string>> FindNonFinite(const io::TensorSource& input, const Plan& plan,
                                                    const ConvertOptions& options) {
  std::mutex mutex;
  std::set<std::string> found;
  const auto find = [&](const TensorPlan& tensor, int64_t, absl::Span<const uint8_t> bytes) -> absl::Status {
    const DType dtype = *io::ToDType(tensor.input->dtype);
    if (kernels::FirstNotFinite(bytes.data(), dtype, static_cast<int64_t>(bytes.size()) / SizeOf(dtype)) >= 0) {
      const std::lock_guard<std::mutex> lock(mutex);
      found.insert(tensor.name());
    }
    return absl::OkStatus();
  };
  AQT_RETURN_IF_ERROR(ReadInBlocks(
      input, plan, options, [](const TensorPlan& tensor) { return tensor.quantized(); }, find));
  return found;
}

}  // namespace aqt::serving
