#ifndef AQT_SERVING_HTTP_MODELS_SERVED_MODEL_H_
#define AQT_SERVING_HTTP_MODELS_SERVED_MODEL_H_

// A model as the protocols see it. They know nothing of engines and folders: text_model.h and program_model.h make one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/models/head.h"
#include "serving/http/wire/cancellation.h"

namespace aqt::serving {

enum class ModelTask : uint8_t {
  kEmbedding,       // a text to a vector
  kClassification,  // a text to a number (logit) for each label
  kScoring,         // a pair of texts to one number (logit): a cross-encoder
  kTensors,         // named tensors to named tensors
};

// A tensor of kTensors.
struct TensorPort {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // -1: any extent
};

struct ServedModelInfo {
  ModelTask task = ModelTask::kEmbedding;
  int64_t max_length = 0;           // in tokens; 0: there is no limit
  int64_t width = 0;                // the numbers of an answer
  std::vector<std::string> labels;  // for kClassification, one for each number
  // From numbers to scores; unset: the sigmoid for one number, the softmax for several.
  std::optional<models::ScoreFunction> scores;
  std::vector<TensorPort> inputs, outputs;  // for kTensors
  std::vector<std::string> notes;           // for whoever starts the server: doubtful points of the model's files
};

// A text, a pair of texts, or tokens.
struct TextInput {
  std::string text;
  std::optional<std::string> second;
  std::optional<std::vector<int32_t>> ids;  // instead of a text
};

struct TextOutput {
  std::vector<float> values;  // ServedModelInfo::width of them
  int64_t tokens = 0;         // that were read
};

struct CallOptions {
  absl::Time deadline = absl::InfiniteFuture();
  Cancellation* cancellation = nullptr;  // null: whoever asks waits for the answer
};

struct TextOptions {
  bool truncate = false;  // a text that is too long: cut it off, or InvalidArgument with both lengths
  CallOptions call = {};
};

struct NamedTensor {
  std::string name;
  Array array;
};

struct ServedModelStats {
  int64_t waiting = 0, running = 0;  // texts or tensors now
  int64_t positions = 0, padded_positions = 0;
  int64_t weight_bytes = 0;
  std::vector<int64_t> batches;    // batches[n]: the number of batches of n rows; empty if there are none
  std::vector<double> batch_sums;  // batch_sums[n]: the seconds that they took
  int64_t answered = 0;            // rows
  double latency_sum = 0;          // seconds of these rows in the engine
  double queue_sum = 0;            // the part of it before their batches were started
};

// Thread-safe. Errors: InvalidArgument for the caller's mistake, ResourceExhausted if there is no room to wait,
// DeadlineExceeded, Unavailable during shutdown; Cancelled if CallOptions::cancellation came before all was started.
class ServedModel {
 public:
  virtual ~ServedModel() = default;
  virtual const ServedModelInfo& info() const = 0;
  // One answer for each text, or the first error, which names the text by its number if there are several. Waits.
  virtual absl::StatusOr<std::vector<TextOutput>> RunTexts(absl::Span<const TextInput> texts,
                                                           const TextOptions& options) const;
  virtual absl::StatusOr<std::vector<NamedTensor>> RunTensors(absl::Span<const NamedTensor> inputs,
                                                              const CallOptions& call) const;
  virtual ServedModelStats stats() const { return {}; }
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_MODELS_SERVED_MODEL_H_
