#ifndef AQT_MODELS_ENCODER_MODEL_H_
#define AQT_MODELS_ENCODER_MODEL_H_

// A text encoder from its folder:
//
//   AQT_ASSIGN_OR_RETURN(const models::EncoderModel model, models::ModelFromFolder(fs, "all-MiniLM-L6-v2"));
//   AQT_ASSIGN_OR_RETURN(const Program program, model.EmbeddingProgram(/*batch=*/8, /*length=*/128));
//   AQT_ASSIGN_OR_RETURN(const PreparedProgram served, model.Serve({program}, config));
//   AQT_ASSIGN_OR_RETURN(const SlotValues out, served.Eval({{models::kIds, ids}, {models::kLengths, lengths}}));
//   const Array& embeddings = out.at(models::kEmbeddings);

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"
#include "aqt/models/coded_table.h"
#include "aqt/models/families/encoder.h"
#include "aqt/models/families/pooling.h"
#include "aqt/models/folder_weights.h"
#include "aqt/models/head.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::models {

inline const Slot kIds{SlotKind::kData, "ids"};                // s32 [batch, length]
inline const Slot kLengths{SlotKind::kData, "lengths"};        // s32 [batch]: the tokens of each row that count
inline const Slot kTypes{SlotKind::kData, "types"};            // s32 [batch, length]: numbers of segments
inline const Slot kHidden{SlotKind::kData, "hidden"};          // f32 [batch, length, width]
inline const Slot kEmbeddings{SlotKind::kData, "embeddings"};  // f32 [batch, pooling().width]
// f32 [batch, labels], or f32 [batch, length, labels] for a head that classifies tokens.
inline const Slot kLogits{SlotKind::kData, "logits"};

// Immutable; cheap to copy.
class EncoderModel {
 public:
  const EncoderFacts& facts() const { return encoder_->facts(); }
  const Pooling& pooling() const { return pooling_; }
  // The classes, if the folder's model has any.
  const std::optional<Head>& head() const { return head_; }
  // The parameters of all programs, in f32. Weights that run as the folder stores them are there as frozen values, for
  // the config of Rules; for tables, such as embeddings, these are inputs of the programs.
  const SlotValues& weights() const { return *weights_; }
  // `config` after the rules for the weights that run as the folder stores them: Serve with its parts,
  //   Freeze(program, model.Rules(config), model.weights()), then nn::Serve({program}, model.Rules(config), frozen)
  InjectConfig Rules(InjectConfig config) const;
  // The same model without weights(), for programs that get them from elsewhere.
  EncoderModel WithoutWeights() const;
  // For the user: how doubtful points were decided, and which tensors are not used.
  const std::vector<std::string>& notes() const { return notes_; }

  // kIds, kLengths -> kHidden; with `types`, also from kTypes. InvalidArgument, naming the numbers, if batch or length
  // is below 1, if the length exceeds facts().max_length, or if the model has no segments.
  absl::StatusOr<Program> HiddenProgram(int64_t batch, int64_t length, bool types = false) const;
  // The same -> kEmbeddings.
  absl::StatusOr<Program> EmbeddingProgram(int64_t batch, int64_t length, bool types = false) const;
  // The same -> kLogits. FailedPrecondition without a head.
  absl::StatusOr<Program> LogitsProgram(int64_t batch, int64_t length, bool types = false) const;
  // LogitsProgram if there is a head, otherwise EmbeddingProgram.
  absl::StatusOr<Program> OutputProgram(int64_t batch, int64_t length, bool types = false) const;
  // The programs with the model's weights. Those that the folder stores as integers or 8-bit floats are computed as the
  // folder says; all other products as `config` says, or in floating point if it is empty.
  absl::StatusOr<PreparedProgram> Serve(absl::Span<const Program> programs, const InjectConfig& config) const;

 private:
  friend absl::StatusOr<EncoderModel> ModelFromFolder(const io::FileSystem& fs, absl::string_view folder,
                                                      const GivenWeights* given);
  EncoderModel() = default;
  absl::StatusOr<Program> Trace(int64_t batch, int64_t length, bool types, const Slot& output) const;

  std::shared_ptr<const Encoder> encoder_;
  Pooling pooling_;
  std::optional<Head> head_;
  std::shared_ptr<const SlotValues> weights_;
  std::vector<InjectRule> rules_;
  CodedTables tables_;
  std::vector<std::string> notes_;
};

// Reads config.json, modules.json and the folders that it names, and the weights: safetensors in floating point, or
// quantized in a layout that stored::DequantizedSource reads. Weights in a layout of compressed-tensors with one scale
// per tensor, row, group or block run as they are stored; notes() says which do not. `given` replaces the files of
// weights. NotFound if a file is missing; the errors of ReadArchitecture and LoadFolderWeights: a tensor
// without a place in the model, and a place without a tensor, are errors by name.
absl::StatusOr<EncoderModel> ModelFromFolder(const io::FileSystem& fs, absl::string_view folder,
                                             const GivenWeights* given = nullptr);

}  // namespace aqt::models

#endif  // AQT_MODELS_ENCODER_MODEL_H_
