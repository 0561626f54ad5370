#ifndef AQT_TRANSFORMS_PIPELINE_H_
#define AQT_TRANSFORMS_PIPELINE_H_

// Runs transforms in order; an observer sees each stage.
//
//   Pipeline pipeline;
//   pipeline.Add(StageKind::kInject, "inject", [&](const Program& p) { return Inject(p, config); });
//   pipeline.Add(StageKind::kGrad, "grad", [&](const Program& p) { return ValueAndGrad(p, wrt); });
//   absl::StatusOr<Program> step = pipeline.Run(program);

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/program.h"

namespace aqt {

// The required order of stages; kDce may come anywhere.
enum class StageKind {
  kAmp,      // before injection: a quantized contraction is made for one dtype
  kInject,   // before gradients, so that a quantized contraction's own backward pass is used
  kGrad,     // includes a loss scaler (loss_scale.h)
  kScalify,  // after gradients, whose equations are scaled like all others
  kExpand,   // after gradients, which need the composites
  kFold,     // last, because its result is served
  kDce,
};
absl::string_view ToString(StageKind kind);  // "inject", ...

// A checked sequence of named transforms.
class Pipeline {
 public:
  using Transform = std::function<absl::StatusOr<Program>(const Program&)>;
  // Called with the source program as stage 0, "source", then after each stage.
  using Observer = std::function<void(int number, absl::string_view name, const Program& program)>;

  Pipeline& Add(StageKind kind, std::string name, Transform transform);

  // Runs the stages in the order in which they were added. InvalidArgument if the stages are not in the order of
  // StageKind, or one has no function; a stage's error, with its name. If the environment variable AQT_DUMP_PROGRAMS
  // names a folder, each stage is also written there as NN_name.txt; Unavailable if that fails.
  absl::StatusOr<Program> Run(const Program& program, const Observer& observer = nullptr) const;

 private:
  struct Stage {
    StageKind kind;
    std::string name;
    Transform transform;
  };
  std::vector<Stage> stages_;
};

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PIPELINE_H_
