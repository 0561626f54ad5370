#include "serving/http/engine_model.h"

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/program.h"
#include "aqt/io/printable.h"
#include "aqt/models/encoder_model.h"
#include "aqt/tokenizers/tokenizer.h"
#include "serving/engine/read_program.h"
#include "serving/engine/row_model.h"
#include "serving/engine/text_engine.h"
#include "serving/http/api/infer_tensors.h"

namespace aqt::serving {
namespace {

ServedModelStats StatsOf(const EngineStats& stats) {
  return {.waiting = stats.waiting,
          .running = stats.running,
          .positions = stats.positions,
          .padded_positions = stats.padded_positions,
          .weight_bytes = stats.weight_bytes,
          .batches = stats.batches,
          .batch_sums = stats.batch_sums,
          .answered = stats.answered,
          .latency_sum = stats.latency_sum,
          .queue_sum = stats.queue_sum};
}

// The error of one of several texts.
absl::Status OfText(const absl::Status& status, size_t index, size_t count) {
  return count == 1 ? status : Annotate(status, absl::StrCat("text ", index));
}

bool IsCancelled(const CallOptions& call) { return call.cancellation != nullptr && call.cancellation->cancelled(); }

absl::Status NobodyWaits() { return absl::CancelledError("the client does not wait for the answer"); }

// Runs a function when the call is cancelled, for as long as it lives.
class CancelHook {
 public:
  CancelHook(const CallOptions& call, std::function<void()> hook) : cancellation_(call.cancellation) {
    if (cancellation_ != nullptr) cancellation_->SetHook(std::move(hook));
  }
  ~CancelHook() {
    if (cancellation_ != nullptr) cancellation_->SetHook(nullptr);
  }
  CancelHook(const CancelHook&) = delete;
  CancelHook& operator=(const CancelHook&) = delete;

 private:
  Cancellation* const cancellation_;
};

class TextModel final : public ServedModel {
 public:
  explicit TextModel(std::unique_ptr<TextEngine> engine) : engine_(std::move(engine)) {
    const std::optional<models::Head>& head = engine_->model().head();
    info_.task = ModelTask::kEmbedding;
    info_.max_length = engine_->max_length();
    info_.width = engine_->model().pooling().width;
    info_.notes = engine_->model().notes();
    if (!head.has_value()) return;
    // Rerankers are not always marked as cross-encoders.
    info_.task = head->labels.size() == 1 ? ModelTask::kScoring : ModelTask::kClassification;
    info_.width = static_cast<int64_t>(head->labels.size());
    info_.labels = head->labels;
    info_.scores = head->scores;
  }

  const ServedModelInfo& info() const override { return info_; }

  absl::StatusOr<std::vector<TextOutput>> RunTexts(absl::Span<const TextInput> texts,
                                                   const TextOptions& options) const override {
    // Everything is checked before anything is computed.
    std::vector<tokenizers::Encoding> encodings;
    for (size_t i = 0; i < texts.size(); ++i) {
      absl::StatusOr<tokenizers::Encoding> encoding = Encode(texts[i], options);
      if (!encoding.ok()) return OfText(encoding.status(), i, texts.size());
      encodings.push_back(*std::move(encoding));
    }
    std::vector<TextTicket> pending;
    pending.reserve(texts.size());
    for (tokenizers::Encoding& encoding : encodings) {
      if (IsCancelled(options.call)) break;
      pending.push_back(engine_->SubmitWhenRoom(std::move(encoding), options.call.deadline));
    }
    const CancelHook hook(options.call, [&] {
      for (const TextTicket& ticket : pending) ticket.Cancel();
    });
    std::vector<TextOutput> outputs;
    absl::Status error;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (!error.ok()) pending[i].Cancel();
      absl::StatusOr<TextOutput> output = Output(pending[i].Wait());
      if (output.ok()) {
        outputs.push_back(*std::move(output));
      } else if (error.ok()) {
        error = OfText(output.status(), i, texts.size());
      }
    }
    if (!error.ok()) return error;
    if (outputs.size() < texts.size()) return NobodyWaits();
    return outputs;
  }

  ServedModelStats stats() const override { return StatsOf(engine_->engine().stats()); }

 private:
  absl::StatusOr<TextOutput> Output(const absl::StatusOr<TextAnswer>& answer) const {
    AQT_RETURN_IF_ERROR(answer.status());
    const Slot& slot = engine_->model().head().has_value() ? models::kLogits : models::kEmbeddings;
    const absl::Span<const float> values = answer->outputs.at(slot).View<float>();
    return TextOutput{{values.begin(), values.end()}, answer->tokens()};
  }

  absl::StatusOr<tokenizers::Encoding> Encode(const TextInput& input, const TextOptions& options) const {
    AQT_ASSIGN_OR_RETURN(tokenizers::Encoding encoding,
                         engine_->Encode({.text = input.text, .second = input.second, .ids = input.ids}));
    if (encoding.num_truncated == 0 || options.truncate) return encoding;
    const int64_t tokens = static_cast<int64_t>(encoding.ids.size()) + encoding.num_truncated;
    return absl::InvalidArgumentError(
        absl::StrCat("This model's maximum context length is ", info_.max_length, " tokens, and the text has ", tokens,
                     ". Shorten it, or send \"truncate\": true, or start the server with --truncate"));
  }

  const std::unique_ptr<TextEngine> engine_;
  ServedModelInfo info_;
};

class ProgramModel final : public ServedModel {
 public:
  explicit ProgramModel(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  absl::Status Init() {
    info_.task = ModelTask::kTensors;
    const RowFacts& facts = engine_->model().facts();
    AQT_RETURN_IF_ERROR(ReadPorts(facts.inputs, info_.inputs));
    return ReadPorts(facts.outputs, info_.outputs);
  }

  const ServedModelInfo& info() const override { return info_; }

  absl::StatusOr<std::vector<NamedTensor>> RunTensors(absl::Span<const NamedTensor> inputs,
                                                      const CallOptions& call) const override {
    if (IsCancelled(call)) return NobodyWaits();
    Request request = {.inputs = {}, .deadline = call.deadline};
    for (const NamedTensor& input : inputs) request.inputs[Slot{SlotKind::kData, input.name}] = input.array;
    const Ticket ticket = engine_->SubmitWhenRoom(std::move(request));
    const CancelHook hook(call, [&] { ticket.Cancel(); });
    AQT_ASSIGN_OR_RETURN(const SlotValues values, ticket.Wait());
    std::vector<NamedTensor> outputs;
    for (const RowPort& port : engine_->model().facts().outputs) {
      outputs.push_back({port.slot.path, values.at(port.slot)});
    }
    return outputs;
  }

  ServedModelStats stats() const override { return StatsOf(engine_->stats()); }

 private:
  static absl::Status ReadPorts(const std::vector<RowPort>& from, std::vector<TensorPort>& to) {
    for (const RowPort& port : from) {
      if (port.slot.kind != SlotKind::kData || DatatypeOf(port.dtype).empty()) {
        return absl::UnimplementedError(absl::StrCat("the program's ", port.slot.ToString(), " is ",
                                                     ToString(port.dtype), ", expected data of a dtype that the Open ",
                                                     "Inference Protocol has; convert it in the program"));
      }
      to.push_back({port.slot.path, port.dtype, {port.shape.begin(), port.shape.end()}});
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<Engine> engine_;
  ServedModelInfo info_;
};

absl::StatusOr<std::shared_ptr<const ServedModel>> ServeProgram(Program program, const EngineOptions& options) {
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const RowModel> rows, MakeRowModel({std::move(program)}, {}, {}));
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Make(rows, options));
  auto model = std::make_shared<ProgramModel>(std::move(engine));
  AQT_RETURN_IF_ERROR(model->Init());
  return model;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ServedModel>> OpenModel(const io::FileSystem& fs, absl::string_view path,
                                                             const OpenModelOptions& options) {
  AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(path));
  if (info.kind != io::FileKind::kFolder) {
    AQT_ASSIGN_OR_RETURN(Program program, ReadProgram(fs, path));
    absl::StatusOr<std::shared_ptr<const ServedModel>> model = ServeProgram(std::move(program), options.engine);
    if (model.ok()) return model;
    return Annotate(model.status(), io::PrintableLine(path));
  }
  FolderQuantization quantization;
  if (options.quantize != nullptr) {
    AQT_ASSIGN_OR_RETURN(quantization, options.quantize(std::string(path)));
  }
  AQT_ASSIGN_OR_RETURN(
      std::unique_ptr<TextEngine> engine,
      TextEngine::Open(fs, path,
                       {.config = quantization.config, .given = quantization.given, .engine = options.engine}));
  if (const std::optional<models::Head>& head = engine->model().head(); head.has_value() && head->OfTokens()) {
    return absl::UnimplementedError(
        absl::StrCat(io::PrintableLine(path), " classifies tokens, which is not served; ", "`aqt run` prints them"));
  }
  return std::make_shared<TextModel>(std::move(engine));
}

}  // namespace aqt::serving
