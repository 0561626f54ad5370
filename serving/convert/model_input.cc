#include "serving/convert/model_input.h"

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/io/containers/flax_tree.h"
#include "aqt/io/containers/open_container.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint_files.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/stored/stored_config.h"
#include "aqt/stored/stored_format.h"
#include "serving/families/module_name.h"
#include "serving/formats/plain_quantized.h"
#include "serving/formats/quantized_already.h"
#include "serving/formats/scheme.h"
#include "serving/plan/plan.h"

namespace aqt::serving {

io::CheckpointOptions InputFiles(const io::FileSystem& fs, const InputFileOptions& options) {
  io::CheckpointOptions result;
  result.leave_out = options.leave_out;
  const gguf::GgufSourceOptions as_gguf = {.names = options.gguf_names, .dtype = options.dtype};
  result.open_other =
      [&fs, as_gguf, other = io::OpenContainers({.raw_dtype = options.raw_dtype})](
          std::unique_ptr<io::RandomAccessFile>& file) -> absl::StatusOr<std::unique_ptr<io::TensorSource>> {
    if (!gguf::IsGguf(*file)) return other(file);
    return gguf::GgufSource::Open(fs, file->path(), as_gguf);
  };
  return result;
}

namespace {

constexpr char kMxfp4[] = "mxfp4";  // stored::DequantizedSource::format()

// A safetensors file says by its names what its tensors are.
bool IsFlaxModel(const io::Checkpoint& checkpoint) {
  return !absl::EndsWith(checkpoint.shards()[0].name, io::kSafetensorsSuffix) && io::IsFlaxTree(checkpoint);
}

// A tensor with all experts of a layer, by its name.
bool HoldsExperts(const io::TensorInfo& tensor) {
  return tensor.shape.rank() == 3 && LastPartOf(ParentOf(tensor.name)) == "experts";
}

// The scheme of a weight that AQT has frozen. Where only weights are frozen, AQT quantizes activations while serving.
Scheme SchemeOf(const io::FrozenWeight& weight) {
  Scheme scheme;
  scheme.weights.type = weight.is_float ? ValueType::kFloat : ValueType::kInt;
  scheme.weights.num_bits = weight.num_bits;
  scheme.weights.strategy = weight.units == io::FrozenWeight::kTensor  ? WeightStrategy::kTensor
                            : weight.units == io::FrozenWeight::kGroup ? WeightStrategy::kGroup
                                                                       : WeightStrategy::kChannel;
  scheme.weights.group_size = weight.group_size;
  scheme.format = weight.is_float ? &FloatQuantized() : &IntQuantized();
  scheme.input = InputScheme{.dynamic = !weight.has_input_scale,
                             .strategy = weight.has_input_scale ? InputStrategy::kTensor : InputStrategy::kToken,
                             .type = scheme.weights.type};
  return scheme;
}

// With one scheme: the class Linear, except the other modules. With several: every module by name.
QuantizationConfig ConfigOf(const io::FrozenTree& tree) {
  QuantizationConfig config;
  std::set<absl::string_view> frozen;
  for (const io::FrozenWeight& weight : tree.weights) {
    const Scheme scheme = SchemeOf(weight);
    size_t g = 0;
    while (g < config.groups.size() && config.groups[g].scheme != scheme) ++g;
    if (g == config.groups.size()) config.groups.push_back({absl::StrCat("group_", g), {}, scheme});
    config.groups[g].targets.push_back(weight.module);
    frozen.insert(weight.module);
  }
  if (config.groups.size() == 1) config.groups[0].targets = {"Linear"};
  for (const io::TensorInfo& tensor : tree.tensors->tensors()) {
    const std::optional<absl::string_view> module = ModuleOf(tensor.name);
    if (module.has_value() && tensor.shape.rank() == 2 && !frozen.contains(*module)) {
      config.ignore.emplace_back(*module);
    }
  }
  return config;
}

}  // namespace

absl::StatusOr<ModelInput> ModelInput::Open(const io::FileSystem& fs, const io::Checkpoint& checkpoint,
                                            const InputOptions& options) {
  AQT_ASSIGN_OR_RETURN(ModelConfig model, ReadModelConfig(fs, checkpoint));
  ModelInput input(fs, checkpoint, std::move(model));
  input.layout_ = ExpertLayoutOf(input.model_.facts, options.families);
  if (io::IsFrozenTree(checkpoint)) {
    AQT_RETURN_IF_ERROR(input.OpenFrozen(options));
    return input;
  }
  if (IsFlaxModel(checkpoint)) {
    AQT_ASSIGN_OR_RETURN(input.flax_, io::OpenFlaxTree(checkpoint));
    input.model_.facts.embeddings = io::FlaxEmbeddings(checkpoint);
    return input;
  }
  if (const io::TensorSource::Shard& file = checkpoint.shards()[0]; !file.stored_as.empty()) {
    if (options.dequantize) return input;
    return absl::UnimplementedError(absl::StrCat(io::PrintableLine(checkpoint.path()), " is quantized already (",
                                                 file.stored_as,
                                                 "). Start from the floating point original; or decode it: `aqt "
                                                 "dequantize`, --allow-requantize, or --dequantize of "
                                                 "`aqt diff`"));
  }
  if (options.dequantize) AQT_RETURN_IF_ERROR(input.Dequantize(options.dtype));
  return input;
}

int64_t ModelInput::num_dequantized() const {
  return dequantized_ != nullptr ? dequantized_->num_dequantized() : checkpoint_->shards()[0].num_decoded;
}

std::string ModelInput::stored_as() const {
  return dequantized_ != nullptr ? dequantized_->Description() : checkpoint_->shards()[0].stored_as;
}

absl::Status ModelInput::OpenFrozen(const InputOptions& options) {
  if (!options.keep_frozen && !options.dequantize) {
    return absl::UnimplementedError(absl::StrCat(
        io::PrintableLine(checkpoint_->path()), " is a model that AQT has converted for serving: its values are ",
        "frozen. `aqt convert IN OUT` without a preset writes them as they are; --allow-requantize quantizes them ",
        "again"));
  }
  AQT_ASSIGN_OR_RETURN(io::FrozenTree tree, io::OpenFrozenTree(*checkpoint_));
  frozen_ = std::make_unique<io::FrozenTree>(std::move(tree));
  frozen_config_ = ConfigOf(*frozen_);
  if (!options.dequantize) return absl::OkStatus();
  AQT_ASSIGN_OR_RETURN(const stored::StoredConfig config,
                       stored::ParseStoredConfig(QuantizationConfigToJson(frozen_config_), checkpoint_->path()));
  AQT_ASSIGN_OR_RETURN(dequantized_, stored::DequantizedSource::Open(*frozen_->tensors, config, options.dtype));
  return absl::OkStatus();
}

absl::Status ModelInput::Dequantize(DType dtype) {
  const std::string evidence = QuantizationEvidence(*checkpoint_, model_);
  if (evidence.empty()) return absl::OkStatus();
  dtype_ = dtype;
  AQT_ASSIGN_OR_RETURN(dequantized_, stored::DequantizedSource::OpenIfQuantized(*fs_, *checkpoint_, dtype));
  if (dequantized_ == nullptr) return UnknownMethod(evidence);
  model_.quantization_config.reset();
  model_.quant_method.clear();
  model_.quantization_file.clear();
  return absl::OkStatus();
}

// Something shows that the input is quantized, but in no format that can be read.
absl::Status ModelInput::UnknownMethod(absl::string_view evidence) const {
  return absl::UnimplementedError(absl::StrCat(io::PrintableLine(checkpoint_->path()),
                                               " is quantized already: ", evidence,
                                               "; its method cannot be read, so start from the floating "
                                               "point original"));
}

absl::Status ModelInput::CheckFloat() const {
  const std::string evidence = QuantizationEvidence(unsplit(), model_);
  if (evidence.empty()) return absl::OkStatus();
  // An error in the configuration is a matter of dequantizing, which names it.
  const absl::StatusOr<stored::StoredConfig> config = stored::ReadStoredConfig(*fs_, *checkpoint_);
  if (config.ok()) {
    AQT_ASSIGN_OR_RETURN(const stored::StoredFormat* const format, stored::FindStoredFormat(unsplit(), *config));
    if (format == nullptr) return UnknownMethod(evidence);
  }
  return CheckNotQuantized(unsplit(), model_);
}

const io::TensorSource& ModelInput::unsplit() const {
  if (dequantized_ != nullptr) return *dequantized_;
  if (frozen_ != nullptr) return *frozen_->tensors;
  if (flax_ != nullptr) return *flax_;
  return *checkpoint_;
}

const io::TensorSource& ModelInput::tensors() const {
  if (use_split_) return *split_;
  return unsplit();
}

absl::Status ModelInput::Split() {
  if (split_ == nullptr && !layout_.tensors.empty()) {
    if (dequantized_ != nullptr && dequantized_->format() == kMxfp4) {
      stored::StoredConfig config = dequantized_->config();
      config.experts_out_in = true;
      AQT_ASSIGN_OR_RETURN(by_rows_, stored::DequantizedSource::Open(*checkpoint_, config, dtype_));
    }
    const IsOutIn is_out_in = [this](absl::string_view name) {
      return by_rows_ != nullptr && by_rows_->IsDequantized(name);
    };
    const io::TensorSource& before = by_rows_ != nullptr ? static_cast<const io::TensorSource&>(*by_rows_) : unsplit();
    AQT_ASSIGN_OR_RETURN(split_, SplitExperts(before, layout_, is_out_in));
  }
  use_split_ = split_ != nullptr;
  return absl::OkStatus();
}

absl::Status ModelInput::NeedSplit() {
  AQT_RETURN_IF_ERROR(Split());
  if (!layout_.tensors.empty()) return absl::OkStatus();
  for (const io::TensorInfo& tensor : unsplit().tensors()) {
    if (!HoldsExperts(tensor)) continue;
    const std::string type = TypeName(model_.facts);
    return absl::InvalidArgumentError(
        absl::StrCat("--experts split: ", io::PrintableLine(checkpoint_->path()), " has ", io::Printable(tensor.name),
                     " ", tensor.shape.ToString(), ", and the table of model families does not say how ",
                     type.empty() ? std::string("such a model, of which no config.json names the type,")
                                  : absl::StrCat("the model type ", io::Printable(type)),
                     " stores its experts; add `fused_experts` to a `family` of a --config (docs/converting.md)"));
  }
  return absl::OkStatus();
}

absl::Status ModelInput::SplitLike(const io::TensorSource& output) {
  const std::vector<io::TensorInfo>& tensors = unsplit().tensors();
  const bool gone = std::any_of(tensors.begin(), tensors.end(), [&](const io::TensorInfo& tensor) {
    return HoldsExperts(tensor) && output.Find(tensor.name) == nullptr;
  });
  return gone ? Split() : absl::OkStatus();
}

std::string ModelInput::DescribeExperts() const { return use_split_ ? DescribeSplit(*split_, layout_) : ""; }

void ModelInput::LeaveOutFiles(CarriedFiles& files) const {
  if (dequantized_ == nullptr) return;
  std::erase_if(files.copied, [](const std::string& name) { return !FindQuantizationFile({name}).empty(); });
}

std::vector<std::string> ModelInput::Notes() const {
  std::vector<std::string> notes;
  if (dequantized_ != nullptr) notes = dequantized_->notes();
  if (frozen_ == nullptr) return notes;
  if (!frozen_->dropped.empty()) {
    notes.push_back(absl::StrCat(frozen_->dropped.size(), " float kernels are left out, because their frozen values ",
                                 "take their place: ", io::ListSome(frozen_->dropped)));
  }
  const auto fixed = [](const io::FrozenWeight& weight) { return weight.has_input_scale; };
  if (dequantized_ == nullptr && !absl::c_all_of(frozen_->weights, fixed)) {
    notes.push_back(
        "the tree does not say how activations are quantized; the output asks for 8 bits, dynamic per token, as AQT "
        "does where only weights are frozen");
  }
  return notes;
}

std::vector<std::string> ModelInput::RequantizeWarnings() const {
  std::vector<std::string> warnings = Notes();
  if (num_dequantized() == 0) return warnings;
  warnings.push_back(absl::StrCat("the input is quantized already (", stored_as(), "): its ", num_dequantized(),
                                  " weights are dequantized and rounded again, so that the errors of both roundings ",
                                  "are in the output; start from the floating point original if you can"));
  return warnings;
}

}  // namespace aqt::serving
