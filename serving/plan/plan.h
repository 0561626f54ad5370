#ifndef AQT_SERVING_PLAN_PLAN_H_
#define AQT_SERVING_PLAN_PLAN_H_

// The plan of a conversion, computed from headers only: for each input tensor the decision, its output tensors and
// their file; and the resulting quantization_config.

#include <cstdint>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/formats/quantization_config.h"
#include "serving/plan/recipe.h"
#include "serving/plan/rules.h"
#include "serving/plan/tensor_plan.h"

namespace aqt::serving {

// What a user can do about experts whose layout is not known.
inline constexpr char kSplitExperts[] =
    "to quantize them, say how they are stored in `fused_experts` of a `family` of the configuration "
    "(docs/converting.md), or split them into one weight per expert";

struct CheckpointPlanOptions {
  bool single_file = false;     // all tensors go to one file; overrides the other options
  int64_t max_shard_bytes = 0;  // bytes of tensors per file; 0: no limit
  bool keep_shards = false;     // without a limit: files with the names of the input's, and an index
  std::string stem = "model";   // of the names of new files: "model.safetensors", "model-00001-of-00002.safetensors"
  std::set<std::string> keep_float;  // tensors to leave as they are, because they hold a NaN or an infinity
  RuleSet::ExpertsOfSource experts = {.part_of = nullptr, .why_kept = kSplitExperts};
};

struct Plan {
  std::vector<TensorPlan> tensors;  // in the order of the checkpoint
  std::vector<std::string> shard_names;
  bool has_index = false;                  // of the output
  QuantizationConfig quantization_config;  // without groups if nothing is quantized: then none is written
  std::string torch_dtype;  // for config.json, where nothing is quantized: "float32"; empty: that of the input
  std::string experts;      // how experts were split, for the user; empty if they were not
  std::vector<std::string> warnings;  // about the whole plan, not single tensors; AllWarnings has both
  int num_quantized = 0;
  int64_t old_bytes = 0;
  int64_t new_bytes = 0;
};

// A file beside the tensors that is copied as it is.
struct CopiedFile {
  std::string name;  // its path in the folder
  int64_t bytes = 0;
};

// InvalidArgument or Unimplemented, naming tensor, rule and remedy, if a rule cannot be followed. InvalidArgument if
// nothing would be quantized, the recipe is strict and a rule has no effect, two outputs would have the same name, or
// one file would exceed max_shard_bytes. Unimplemented if the model is quantized already (quantized_already.h). The
// plan refers to `source`, which must outlive it.
absl::StatusOr<Plan> MakePlan(const io::TensorSource& source, const ModelConfig& model, const Recipe& recipe,
                              const CheckpointPlanOptions& options = {});

// The plan that copies every tensor of the source.
absl::StatusOr<Plan> MakeCopyPlan(const io::TensorSource& source, const CheckpointPlanOptions& options);

// The warnings about tensors, then those about the whole plan. Tensors whose names differ only in numbers share a line.
std::vector<std::string> AllWarnings(const Plan& plan);

// Whether `module` has a weight.
bool HasModule(const io::TensorSource& source, absl::string_view module);

// The model's configuration: from a folder's config.json and the names of the files beside it. For a single file, from
// a readable config.json beside it, if any, and the metadata in which a conversion keeps its quantization_config. The
// errors of ReadConfigFile (whole_checkpoint.h), for a folder.
absl::StatusOr<ModelConfig> ReadModelConfig(const io::FileSystem& fs, const io::Checkpoint& checkpoint);

// Why a tensor is or is not quantized.
struct Explanation {
  io::TensorSpec tensor;
  std::string model;               // the family of the model, for people
  std::vector<std::string> rules;  // one line per rule that Decide tries
  std::string scheme;              // empty if the tensor is carried over
  std::string error;               // why a rule cannot be followed; empty if it can
  std::string split;  // the tensors of single experts into which it is split, for people; empty if it is not
};
// Explains the tensor, or the module, of that name. InvalidArgument, with similar names, if the source does not have
// it; Unimplemented as in MakePlan.
absl::StatusOr<Explanation> Explain(const io::TensorSource& source, const ModelConfig& model, const Recipe& recipe,
                                    absl::string_view tensor, const CheckpointPlanOptions& options = {});
void PrintExplanation(const Explanation& explanation, std::ostream& out);
std::string ExplanationToJson(const Explanation& explanation);

// A table: tensor, shape, dtype, deciding rule, scheme, bytes before and after, and a warning; then totals.
void PrintPlan(const Plan& plan, std::ostream& out);
// `copied`: the files that a conversion copies beside the tensors.
std::string PlanToJson(const Plan& plan, absl::Span<const CopiedFile> copied = {});

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_PLAN_H_
