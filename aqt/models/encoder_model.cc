#include "aqt/models/encoder_model.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/trace.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/models/architecture.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/models/float_weights.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/transforms/quantize/serve.h"

namespace aqt::models {
namespace {

// Adds the parameters of the dense steps.
absl::Status LoadDense(const io::FileSystem& fs, absl::string_view folder, const Pooling& pooling,
                       SlotValues& weights) {
  for (const PoolingStep& step : pooling.steps) {
    const auto* dense = std::get_if<DenseStep>(&step);
    if (dense == nullptr) continue;
    nn::WeightsMap map;
    map.rules.push_back({.tensor = "linear\\.weight",
                         .slot = Slot{SlotKind::kParam, dense->scope + "/kernel"},
                         .transpose = {1, 0},
                         .cast = true});
    if (dense->bias) AddRule("linear\\.bias", dense->scope + "/bias", map);
    std::vector<Input> inputs = {{*map.rules[0].slot, {DType::kF32, {dense->in, dense->out}}}};
    if (dense->bias) inputs.push_back({*map.rules[1].slot, {DType::kF32, {dense->out}}});
    AQT_ASSIGN_OR_RETURN(const Program program,
                         aqt::Trace([](absl::Span<const Value> in) { return std::vector<Value>{in[0]}; }, inputs,
                                    std::vector<Slot>{Slot{SlotKind::kData, "kernel"}}));
    AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint,
                         io::Checkpoint::Open(fs, io::JoinPath(folder, dense->folder)));
    AQT_ASSIGN_OR_RETURN(const SlotValues values, LoadFloats(map, checkpoint, program));
    weights.insert(values.begin(), values.end());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Program> EncoderModel::Trace(int64_t batch, int64_t length, bool types, const Slot& output) const {
  if (batch < 1 || length < 1 || length > facts().max_length) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch, " texts of ", length,
                                                   " tokens, expected at least 1 of each, and at most the ",
                                                   facts().max_length, " tokens of the model"));
  }
  if (types && facts().types == 0) {
    return absl::InvalidArgumentError("the model does not distinguish segments; leave types out");
  }
  std::vector<Input> inputs = {{kIds, {DType::kS32, {batch, length}}}, {kLengths, {DType::kS32, {batch}}}};
  if (types) inputs.push_back({kTypes, {DType::kS32, {batch, length}}});
  const auto trace = [&](absl::Span<const Value> in) -> std::vector<Value> {
    EncoderInputs encoder_inputs = {in[0], in[1], std::nullopt};
    if (types) encoder_inputs.types = in[2];
    const Value hidden = encoder_->Hidden(encoder_inputs);
    if (output == kHidden) return {hidden};
    if (output == kEmbeddings) return {Pool(hidden, in[1], pooling_)};
    return {Logits(hidden, in[1], head_->layers, static_cast<int64_t>(head_->labels.size()))};
  };
  absl::StatusOr<Program> program = aqt::Trace(trace, inputs, std::vector<Slot>{output});
  if (!program.ok() || tables_.empty()) return program;
  return WithCodedTables(*program, tables_);
}

absl::StatusOr<Program> EncoderModel::HiddenProgram(int64_t batch, int64_t length, bool types) const {
  return Trace(batch, length, types, kHidden);
}

absl::StatusOr<Program> EncoderModel::EmbeddingProgram(int64_t batch, int64_t length, bool types) const {
  return Trace(batch, length, types, kEmbeddings);
}

absl::StatusOr<Program> EncoderModel::LogitsProgram(int64_t batch, int64_t length, bool types) const {
  if (head_.has_value()) return Trace(batch, length, types, kLogits);
  return absl::FailedPreconditionError(
      "the model has no classes: architectures of config.json names no ...ForSequenceClassification and no "
      "...ForTokenClassification");
}

absl::StatusOr<Program> EncoderModel::OutputProgram(int64_t batch, int64_t length, bool types) const {
  return Trace(batch, length, types, head_.has_value() ? kLogits : kEmbeddings);
}

EncoderModel EncoderModel::WithoutWeights() const {
  EncoderModel model = *this;
  model.weights_ = std::make_shared<const SlotValues>();
  return model;
}

InjectConfig EncoderModel::Rules(InjectConfig config) const {
  config.rules.insert(config.rules.begin(), rules_.begin(), rules_.end());
  return config;
}

absl::StatusOr<PreparedProgram> EncoderModel::Serve(absl::Span<const Program> programs,
                                                    const InjectConfig& config) const {
  if (programs.empty()) return absl::InvalidArgumentError("no programs, expected at least one");
  const InjectConfig rules = Rules(config);
  AQT_ASSIGN_OR_RETURN(const SlotValues frozen, Freeze(programs[0], rules, *weights_));
  return nn::Serve(programs, rules, frozen, {.keep_values = false});
}

absl::StatusOr<EncoderModel> ModelFromFolder(const io::FileSystem& fs, absl::string_view folder,
                                             const GivenWeights* given) {
  EncoderModel model;
  AQT_ASSIGN_OR_RETURN(Architecture architecture, ReadArchitecture(fs, folder));
  const nn::WeightsMap map = architecture.Weights();
  model.encoder_ = std::move(architecture.encoder);
  model.pooling_ = std::move(architecture.pooling);
  model.head_ = std::move(architecture.head);
  AQT_ASSIGN_OR_RETURN(const Program program, model.Trace(1, 1, /*types=*/false, model.head_ ? kLogits : kHidden));
  AQT_ASSIGN_OR_RETURN(FolderWeights weights, LoadFolderWeights(fs, folder, map, program, given));
  model.rules_ = std::move(weights.rules);
  model.tables_ = std::move(weights.tables);
  model.notes_ = std::move(weights.notes);
  AQT_RETURN_IF_ERROR(LoadDense(fs, folder, model.pooling_, weights.values));
  model.weights_ = std::make_shared<const SlotValues>(std::move(weights.values));
  return model;
}

}  // namespace aqt::models
