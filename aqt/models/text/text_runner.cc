#include "aqt/models/text/text_runner.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/models/text/padded_length.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/tokenizers/tokenizer.h"
#include "aqt/transforms/quantize/serve.h"
#include "aqt/transforms/row_dependence.h"

namespace aqt::models {
namespace {

using Output = TextRunner::Output;

absl::Status CheckHead(const EncoderModel& model, Output output, absl::string_view folder) {
  if (output == Output::kEmbedding) return absl::OkStatus();
  const std::string what = absl::StrCat(io::PrintableLine(folder), " has ");
  if (!model.head().has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "no classes: architectures of config.json names no ...ForSequenceClassification and no ",
                     "...ForTokenClassification; use TextEmbedder"));
  }
  if (model.head()->OfTokens() == (output == Output::kClassesOfTokens)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(what, output == Output::kClassesOfTokens
                                                              ? "classes of texts; use TextClassifier"
                                                              : "classes of tokens; use TokenClassifier"));
}

absl::StatusOr<Program> ProgramOf(const EncoderModel& model, Output output, int64_t length, bool types) {
  if (output == Output::kEmbedding) return model.EmbeddingProgram(/*batch=*/1, length, types);
  return model.LogitsProgram(/*batch=*/1, length, types);
}

// Whether padding leaves the bits of a text alone.
absl::StatusOr<bool> PadsTexts(const EncoderModel& model, Output output, const InjectConfig& config,
                               const SlotValues& frozen) {
  const int64_t longest = model.facts().max_length;
  if (longest < 2) return false;
  const auto [length, other_length] = LengthsToCompare(longest);
  AQT_ASSIGN_OR_RETURN(const Program first, ProgramOf(model, output, length, /*types=*/false));
  AQT_ASSIGN_OR_RETURN(const Program second, ProgramOf(model, output, other_length, /*types=*/false));
  AQT_ASSIGN_OR_RETURN(const Program one, ServeProgram(first, config, frozen));
  AQT_ASSIGN_OR_RETURN(const Program other, ServeProgram(second, config, frozen));
  AQT_ASSIGN_OR_RETURN(const std::string why, WhyPaddingCounts(one, other));
  return why.empty();
}

Array Row(std::vector<int32_t> values, int64_t length) {
  values.resize(length, 0);
  return Array::FromSpan(absl::MakeConstSpan(values), {1, length});
}

}  // namespace

struct TextRunner::Impl {
  EncoderModel model;
  TextTokens tokens;
  Output output;
  InjectConfig config;
  SlotValues frozen;
  bool pads = true;
  std::mutex mutex;
  std::map<std::pair<int64_t, bool>, PreparedProgram> programs;  // by length, and with types

  // Compiles one program at a time.
  absl::StatusOr<PreparedProgram> ProgramFor(int64_t length, bool types) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = programs.find({length, types}); it != programs.end()) return it->second;
    AQT_ASSIGN_OR_RETURN(const Program program, ProgramOf(model, output, length, types));
    AQT_ASSIGN_OR_RETURN(PreparedProgram served, nn::Serve({program}, config, frozen));
    return programs.emplace(std::pair(length, types), std::move(served)).first->second;
  }
};

absl::StatusOr<TextRunner> TextRunner::Open(const io::FileSystem& fs, absl::string_view folder, Output output,
                                            const InjectConfig& config, const GivenWeights* given) {
  AQT_ASSIGN_OR_RETURN(EncoderModel model, ModelFromFolder(fs, folder, given));
  AQT_RETURN_IF_ERROR(CheckHead(model, output, folder));
  AQT_ASSIGN_OR_RETURN(TextTokens tokens, TextTokens::Open(fs, folder, model));
  AQT_ASSIGN_OR_RETURN(const Program program, ProgramOf(model, output, /*length=*/1, /*types=*/false));
  InjectConfig rules = model.Rules(config);
  AQT_ASSIGN_OR_RETURN(SlotValues frozen, Freeze(program, rules, model.weights()));
  AQT_ASSIGN_OR_RETURN(const bool pads, PadsTexts(model, output, rules, frozen));
  return TextRunner(std::shared_ptr<Impl>(
      new Impl{std::move(model), std::move(tokens), output, std::move(rules), std::move(frozen), pads, {}, {}}));
}

const EncoderModel& TextRunner::model() const { return impl_->model; }

const TextTokens& TextRunner::tokens() const { return impl_->tokens; }

absl::StatusOr<TextRunner::Result> TextRunner::Run(absl::string_view text,
                                                   std::optional<absl::string_view> second) const {
  AQT_ASSIGN_OR_RETURN(tokenizers::Encoding encoding,
                       impl_->tokens.Encode(text, second, impl_->output == Output::kClassesOfTokens));
  const bool types = impl_->model.facts().types > 1 && *absl::c_max_element(encoding.type_ids) > 0;
  const auto count = static_cast<int64_t>(encoding.ids.size());
  const int64_t length = impl_->pads ? PaddedLength(count, impl_->tokens.max_length()) : count;
  AQT_ASSIGN_OR_RETURN(const PreparedProgram program, impl_->ProgramFor(length, types));
  SlotValues inputs = {{kIds, Row(encoding.ids, length)},
                       {kLengths, Array::Of<int32_t>({static_cast<int32_t>(count)}, {1})}};
  if (types) inputs[kTypes] = Row(encoding.type_ids, length);
  AQT_ASSIGN_OR_RETURN(SlotValues out, program.Eval(inputs));
  return Result{std::move(encoding), std::move(out.begin()->second)};
}

}  // namespace aqt::models
