#include "serving/engine/text_engine.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/models/text/text_tokens.h"
#include "serving/engine/row_model.h"

namespace aqt::serving {

struct TextEngine::Impl {
  models::EncoderModel model;  // without weights
  models::TextTokens tokens;
  bool types = false;
  std::unique_ptr<Engine> engine;
};

absl::StatusOr<TextAnswer> TextTicket::Wait() const {
  if (!ticket_.has_value()) return error_;
  AQT_ASSIGN_OR_RETURN(SlotValues outputs, ticket_->Wait());
  return TextAnswer{std::move(outputs), encoding_};
}

absl::StatusOr<std::unique_ptr<TextEngine>> TextEngine::Open(const io::FileSystem& fs, absl::string_view folder,
                                                             const TextEngineOptions& options) {
  kernels::ThreadPool pool(options.engine.threads > 0 ? std::min(options.engine.threads, NumCpus()) : NumCpus());
  const UseExecutor use(&pool);
  AQT_ASSIGN_OR_RETURN(models::EncoderModel model, models::ModelFromFolder(fs, folder, options.given));
  AQT_ASSIGN_OR_RETURN(models::TextTokens tokens, models::TextTokens::Open(fs, folder, model));
  const bool types = model.facts().types > 1;
  const models::EncoderModel light = model.WithoutWeights();
  TracedModel traced = {.trace = {},
                        .weights = model.weights(),
                        .config = model.Rules(options.config),
                        .max_length = tokens.max_length()};
  model = light;  // frees what is only read packed
  traced.trace = [light, types, program = options.program](int64_t batch, int64_t length) {
    return program ? program(light, batch, length, types) : light.OutputProgram(batch, length, types);
  };
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<const RowModel> rows, MakeRowModel(std::move(traced)));
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Make(std::move(rows), options.engine));
  AQT_RETURN_IF_ERROR(engine->Warm({1}, /*most_rows=*/1));
  return std::unique_ptr<TextEngine>(
      new TextEngine(std::unique_ptr<Impl>(new Impl{light, std::move(tokens), types, std::move(engine)})));
}

TextEngine::TextEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TextEngine::~TextEngine() = default;

absl::StatusOr<tokenizers::Encoding> TextEngine::Encode(const TextRequest& request) const {
  const std::optional<models::Head>& head = impl_->model.head();
  if (!request.ids.has_value()) {
    return impl_->tokens.Encode(request.text, request.second, head.has_value() && head->OfTokens());
  }
  const int64_t vocabulary = impl_->model.facts().vocabulary;
  if (request.ids->empty()) return absl::InvalidArgumentError("there are no token ids, expected at least one");
  for (const int32_t id : *request.ids) {
    if (id >= 0 && id < vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", id, " is beyond the vocabulary of the model, 0 to ", vocabulary - 1));
  }
  tokenizers::Encoding encoding;
  encoding.ids = *request.ids;
  if (const auto all = static_cast<int64_t>(encoding.ids.size()); all > max_length()) {
    encoding.num_truncated = all - max_length();
    encoding.ids.resize(static_cast<size_t>(max_length()));
  }
  const size_t count = encoding.ids.size();
  encoding.type_ids.resize(count, 0);
  encoding.attention_mask.resize(count, 1);
  encoding.special_tokens_mask.resize(count, 0);
  encoding.offsets.resize(count);
  return encoding;
}

TextTicket TextEngine::Submit(const TextRequest& request, bool wait) {
  absl::StatusOr<tokenizers::Encoding> encoding = Encode(request);
  if (encoding.ok()) return Submit(*std::move(encoding), request.deadline, wait);
  TextTicket ticket;
  ticket.error_ = encoding.status();
  return ticket;
}

TextTicket TextEngine::Submit(tokenizers::Encoding encoding, absl::Time deadline, bool wait) {
  const int64_t tokens = static_cast<int64_t>(encoding.ids.size());
  Request row = {.inputs = {{models::kIds, Array::FromSpan(absl::MakeConstSpan(encoding.ids), {tokens})},
                            {models::kLengths, Array::Scalar(static_cast<int32_t>(tokens))}},
                 .deadline = deadline};
  if (impl_->types) {
    row.inputs.emplace(models::kTypes, Array::FromSpan(absl::MakeConstSpan(encoding.type_ids), {tokens}));
  }
  TextTicket ticket;
  ticket.encoding_ = std::move(encoding);
  ticket.ticket_ = wait ? impl_->engine->SubmitWhenRoom(std::move(row)) : impl_->engine->Submit(std::move(row));
  return ticket;
}

TextTicket TextEngine::Submit(const TextRequest& request) { return Submit(request, /*wait=*/false); }
TextTicket TextEngine::SubmitWhenRoom(const TextRequest& request) { return Submit(request, /*wait=*/true); }
TextTicket TextEngine::SubmitWhenRoom(tokenizers::Encoding encoding, absl::Time deadline) {
  return Submit(std::move(encoding), deadline, /*wait=*/true);
}

std::vector<absl::StatusOr<TextAnswer>> TextEngine::RunAll(const std::vector<TextRequest>& requests) {
  std::vector<TextTicket> tickets;
  tickets.reserve(requests.size());
  for (const TextRequest& request : requests) tickets.push_back(SubmitWhenRoom(request));
  std::vector<absl::StatusOr<TextAnswer>> answers;
  answers.reserve(tickets.size());
  for (const TextTicket& ticket : tickets) answers.push_back(ticket.Wait());
  return answers;
}

const models::EncoderModel& TextEngine::model() const { return impl_->model; }
int64_t TextEngine::max_length() const { return impl_->tokens.max_length(); }
Engine& TextEngine::engine() { return *impl_->engine; }

}  // namespace aqt::serving
