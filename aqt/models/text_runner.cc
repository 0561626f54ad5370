#include "aqt/models/text_runner.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/models/padded_length.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/tokenizers/tokenizer.h"
#include "aqt/transforms/quantize/serve.h"

namespace aqt::models {
namespace {

absl::Status CheckHead(const EncoderModel& model, bool of_tokens, absl::string_view folder) {
  const std::string what = absl::StrCat(io::PrintableLine(folder), " has ");
  if (!model.head().has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "no classes: architectures of config.json names no ...ForSequenceClassification and no ",
                     "...ForTokenClassification; use TextEmbedder"));
  }
  if (model.head()->OfTokens() == of_tokens) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, of_tokens ? "classes of texts; use TextClassifier" : "classes of tokens; use TokenClassifier"));
}

Array Row(std::vector<int32_t> values, int64_t length) {
  values.resize(length, 0);
  return Array::FromSpan(absl::MakeConstSpan(values), {1, length});
}

}  // namespace

struct TextRunner::Impl {
  EncoderModel model;
  TextTokens tokens;
  InjectConfig config;
  SlotValues frozen;
  std::mutex mutex;
  std::map<std::pair<int64_t, bool>, PreparedProgram> programs;  // by length, and with types

  // Compiles one program at a time.
  absl::StatusOr<PreparedProgram> ProgramFor(int64_t length, bool types) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = programs.find({length, types}); it != programs.end()) return it->second;
    AQT_ASSIGN_OR_RETURN(const Program program, model.LogitsProgram(/*batch=*/1, length, types));
    AQT_ASSIGN_OR_RETURN(PreparedProgram served, nn::Serve({program}, config, frozen));
    return programs.emplace(std::pair(length, types), std::move(served)).first->second;
  }
};

absl::StatusOr<TextRunner> TextRunner::Open(const io::FileSystem& fs, absl::string_view folder, bool of_tokens,
                                            const InjectConfig& config) {
  AQT_ASSIGN_OR_RETURN(EncoderModel model, ModelFromFolder(fs, folder));
  AQT_RETURN_IF_ERROR(CheckHead(model, of_tokens, folder));
  AQT_ASSIGN_OR_RETURN(TextTokens tokens, TextTokens::Open(fs, folder, model));
  AQT_ASSIGN_OR_RETURN(const Program program, model.LogitsProgram(/*batch=*/1, /*length=*/1));
  InjectConfig rules = model.Rules(config);
  AQT_ASSIGN_OR_RETURN(SlotValues frozen, Freeze(program, rules, model.weights()));
  return TextRunner(std::shared_ptr<Impl>(
      new Impl{std::move(model), std::move(tokens), std::move(rules), std::move(frozen), {}, {}}));
}

const EncoderModel& TextRunner::model() const { return impl_->model; }

const TextTokens& TextRunner::tokens() const { return impl_->tokens; }

absl::StatusOr<TextRunner::Result> TextRunner::Run(absl::string_view text,
                                                   std::optional<absl::string_view> second) const {
  AQT_ASSIGN_OR_RETURN(tokenizers::Encoding encoding,
                       impl_->tokens.Encode(text, second, impl_->model.head()->OfTokens()));
  const int64_t types = impl_->model.facts().types;
  const int32_t largest = *absl::c_max_element(encoding.type_ids);
  const bool with_types = types > 1 && largest > 0;
  if (with_types && largest >= types) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer gives tokens the segment ", largest,
                                                   ", and the model knows ", types,
                                                   "; they belong to different models"));
  }
  const auto count = static_cast<int64_t>(encoding.ids.size());
  const int64_t length = PaddedLength(count, impl_->tokens.max_length());
  AQT_ASSIGN_OR_RETURN(const PreparedProgram program, impl_->ProgramFor(length, with_types));
  SlotValues inputs = {{kIds, Row(encoding.ids, length)},
                       {kLengths, Array::Of<int32_t>({static_cast<int32_t>(count)}, {1})}};
  if (with_types) inputs[kTypes] = Row(encoding.type_ids, length);
  AQT_ASSIGN_OR_RETURN(SlotValues out, program.Eval(inputs));
  return Result{std::move(encoding), std::move(out.at(kLogits))};
}

}  // namespace aqt::models
