#ifndef AQT_SERVING_ENGINE_ENGINE_TESTING_H_
#define AQT_SERVING_ENGINE_ENGINE_TESTING_H_

// Small models for tests of engines.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/random.h"
#include "serving/engine/row_model.h"

namespace aqt::serving {

inline const Slot kX{SlotKind::kData, "x"}, kEach{SlotKind::kData, "each"}, kSum{SlotKind::kData, "sum"};
inline constexpr int64_t kWidth = 16, kMaxLength = 80;

// x [batch, length, width] -> each [batch, length, 8], a dense layer, and sum [batch, 8], of its positive elements.
// Positions of zeros do not change the sum.
inline absl::StatusOr<Program> PositionsProgram(int64_t batch, int64_t length) {
  const auto model = [](absl::Span<const Value> in) -> std::vector<Value> {
    const Value each = nn::Dense(in[0], "layer", {.features = 8, .use_bias = false});
    return {each, ops::ReduceSum(ops::Relu(each), {1})};
  };
  return Trace(model, std::vector<Input>{{kX, {DType::kF32, {batch, length, kWidth}}}}, std::vector<Slot>{kEach, kSum});
}

inline InjectConfig Int8(const DotGeneralConfig& dot_general = DotGeneralMake(8, 8)) {
  InjectConfig config;
  config.rules.push_back({.scope = ".*", .dot_general = dot_general});
  return config;
}
inline InjectConfig Int8PerTensor() {
  DotGeneralConfig config = DotGeneralMake(8, 8);
  config.fwd.lhs.quantizer.calib_shared_axes.per_tensor = true;
  return Int8(config);
}

inline SlotValues PositionsWeights() {
  return {{Slot{SlotKind::kParam, "layer/kernel"}, testing::RandomArray({DType::kF32, {kWidth, 8}}, 3)}};
}

inline absl::StatusOr<std::shared_ptr<const RowModel>> PositionsModel(const InjectConfig& config) {
  return MakeRowModel(TracedModel{
      .trace = PositionsProgram, .weights = PositionsWeights(), .config = config, .max_length = kMaxLength});
}

// Data of one row.
inline Array PositionsRow(int64_t length, int seed) {
  return testing::RandomArray({DType::kF32, {length, kWidth}}, seed);
}

// The same model behind a gate: no program is compiled before it opens.
class GatedModel final : public RowModel {
 public:
  explicit GatedModel(std::shared_ptr<const RowModel> model) : model_(std::move(model)) { facts_ = model_->facts(); }
  absl::StatusOr<Executable> Compile(int64_t batch, int64_t length) const override {
    entered_ = true;
    entered_.notify_all();
    open_.wait(false);
    return model_->Compile(batch, length);
  }
  int64_t weight_bytes() const override { return model_->weight_bytes(); }

  void WaitUntilEntered() const { entered_.wait(false); }
  void Open() const {
    open_ = true;
    open_.notify_all();
  }

 private:
  mutable std::atomic<bool> entered_ = false, open_ = false;
  const std::shared_ptr<const RowModel> model_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_ENGINE_TESTING_H_
