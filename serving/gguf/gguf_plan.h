#ifndef AQT_SERVING_GGUF_GGUF_PLAN_H_
#define AQT_SERVING_GGUF_GGUF_PLAN_H_

// Which tensors of a GGUF file change their type.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/quant/weights/ggml_types.h"
#include "serving/plan/convert_config.h"

namespace aqt::serving {

struct GgufTensorPlan {
  int file = 0;    // of GgufModel::files()
  int tensor = 0;  // of its tensors()
  ggml::Type type = ggml::Type::kF32;
  bool changed = false;  // else the bytes are copied
  std::string reason;    // "rule 1 \"weights of layers\"", "rank 1"
};

struct GgufPlan {
  std::vector<GgufTensorPlan> tensors;  // in the order of the files
  int num_changed = 0;
  int num_requantized = 0;  // of those, from blocks to blocks
  int64_t old_bytes = 0;
  int64_t new_bytes = 0;
  std::vector<std::string> warnings;
};

struct GgufPlanOptions {
  bool strict = false;            // a rule or ignore entry without effect is an error, not a warning
  bool allow_requantize = false;  // blocks may be decoded and encoded again
};

// Candidates are the tensors NAME.weight of rank 2 or more whose values are floats. The first rule whose pattern
// matches a candidate decides, except that one of a GGUF type is skipped for what `ignore` or, with default_ignore,
// IsIgnoredInGguf matches, unless it has override_ignore. InvalidArgument, naming rule and tensor: a rule that
// quantizes for other files; rows that do not suit the type, without keep_unsuitable; nothing that changes; blocks that
// would be encoded again without allow_requantize.
absl::StatusOr<GgufPlan> MakeGgufPlan(const gguf::GgufModel& model, const ConvertConfig& config,
                                      const GgufPlanOptions& options);

// Whether a module stays as it is by default: embeddings, output heads, norms, routers, positions, convolutions of
// state-space models.
bool IsIgnoredInGguf(absl::string_view module);

}  // namespace aqt::serving

#endif  // AQT_SERVING_GGUF_GGUF_PLAN_H_
