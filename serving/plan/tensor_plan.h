#ifndef AQT_SERVING_PLAN_TENSOR_PLAN_H_
#define AQT_SERVING_PLAN_TENSOR_PLAN_H_

// The plan for one tensor of the input.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/formats/scheme.h"
#include "serving/plan/rules.h"

namespace aqt::serving {

struct TensorPlan {
  const io::TensorInfo* input = nullptr;  // owned by the source
  Decision decision;
  std::vector<io::TensorSpec> outputs;  // the input's own if it is copied; see OutputTensors in scheme.h
  int64_t old_bytes = 0;
  int64_t new_bytes = 0;
  int output_shard = 0;
  // For schemes with a global scale: what weights with the same scale have in common, a name for users.
  std::string scale_set;

  const std::string& name() const { return input->name; }
  bool quantized() const { return decision.scheme.has_value(); }
  // The name without ".weight". Only for candidates.
  absl::string_view module() const { return *ModuleOf(input->name); }
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_TENSOR_PLAN_H_
