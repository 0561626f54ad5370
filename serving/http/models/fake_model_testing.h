#ifndef AQT_SERVING_HTTP_MODELS_FAKE_MODEL_TESTING_H_
#define AQT_SERVING_HTTP_MODELS_FAKE_MODEL_TESTING_H_

// Models whose answers tests can compute in their head.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "serving/http/models/model_repository.h"
#include "serving/http/models/served_model.h"

namespace aqt::serving {

// A text of n bytes has n tokens, and at most 20 of them are read.
class FakeModel final : public ServedModel {
 public:
  explicit FakeModel(ModelTask task) {
    info_.task = task;
    info_.max_length = 20;
    info_.width = task == ModelTask::kEmbedding ? 4 : task == ModelTask::kClassification ? 3 : 1;
    if (task == ModelTask::kClassification) info_.labels = {"low", "middle", "high"};
    if (task != ModelTask::kTensors) return;
    info_.inputs = {{"x", DType::kF32, {2, -1}}, {"k", DType::kS32, {}}};
    info_.outputs = {{"y", DType::kF32, {2, -1}}, {"n", DType::kS64, {1}}};
  }
  const ServedModelInfo& info() const override { return info_; }

  // Embeddings: n, 3, 0, 4 (or the ids). Labels: -n/10, 0, n/10, and m/10 more for a second text of m bytes. Scores of
  // a pair: bytes of the second text - 4.
  absl::StatusOr<std::vector<TextOutput>> RunTexts(absl::Span<const TextInput> texts,
                                                   const TextOptions& options) const override {
    std::vector<TextOutput> outputs;
    for (const TextInput& text : texts) {
      const int64_t n = static_cast<int64_t>(text.ids.has_value() ? text.ids->size() : text.text.size());
      if (n > info_.max_length && !options.truncate) {
        return absl::InvalidArgumentError(absl::StrCat("the text has ", n, " tokens, expected at most 20"));
      }
      const float x = static_cast<float>(std::min(n, info_.max_length));
      if (text.text == "busy") return absl::ResourceExhaustedError("the engine's queue is full");
      if (text.text == "late") return absl::DeadlineExceededError("the request waited too long");
      if (text.text == "bug") return absl::InternalError("/secret/path is gone");
      TextOutput& output = outputs.emplace_back();
      output.tokens = static_cast<int64_t>(x);
      if (info_.task == ModelTask::kEmbedding) output.values = {x, 3, 0, 4};
      const float y = x + static_cast<float>(text.second.has_value() ? text.second->size() : 0);
      if (info_.task == ModelTask::kClassification) output.values = {-x / 10, 0, y / 10};
      if (info_.task == ModelTask::kScoring) output.values = {static_cast<float>(text.second->size()) - 4};
    }
    return outputs;
  }

  // y = x + k, n = the number of elements of x.
  absl::StatusOr<std::vector<NamedTensor>> RunTensors(absl::Span<const NamedTensor> inputs,
                                                      const CallOptions&) const override {
    const Array& x = inputs[inputs[0].name == "x" ? 0 : 1].array;
    const Array& k = inputs[inputs[0].name == "x" ? 1 : 0].array;
    if (x.shape().rank() != 2 || x.shape()[0] != 2 || k.shape().rank() != 0) {
      return absl::InvalidArgumentError(absl::StrCat("x is ", x.shape().ToString(), ", expected [2,n]"));
    }
    std::vector<float> y;
    for (const float value : x.View<float>()) y.push_back(value + static_cast<float>(k.View<int32_t>()[0]));
    return std::vector<NamedTensor>{{"y", Array::FromSpan(absl::MakeConstSpan(y), x.shape())},
                                    {"n", Array::Of<int64_t>({x.num_elements()}, {1})}};
  }

 private:
  ServedModelInfo info_;
};

// "embed", "org/label", "rank", "tensors", and "broken", which cannot be loaded.
inline std::vector<ModelSource> FakeSources() {
  return {{"embed", "/secret/a"},
          {"org/label", "/secret/b"},
          {"rank", "/secret/c"},
          {"tensors", "/secret/d"},
          {"broken", "/secret/e"}};
}
inline absl::StatusOr<std::shared_ptr<const ServedModel>> OpenFake(const ModelSource& source) {
  if (source.name == "broken") return absl::NotFoundError("cannot open /secret/e/config.json");
  const ModelTask task = source.name == "embed"       ? ModelTask::kEmbedding
                         : source.name == "org/label" ? ModelTask::kClassification
                         : source.name == "rank"      ? ModelTask::kScoring
                                                      : ModelTask::kTensors;
  return std::make_shared<FakeModel>(task);
}

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_MODELS_FAKE_MODEL_TESTING_H_
