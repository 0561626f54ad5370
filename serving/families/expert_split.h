#ifndef AQT_SERVING_FAMILIES_EXPERT_SPLIT_H_
#define AQT_SERVING_FAMILIES_EXPERT_SPLIT_H_

// All experts of a layer in one tensor, read as one weight for each expert: `m.experts.7.gate_proj.weight` [out, in]
// instead of a part of `m.experts.gate_up_proj`. The model's family says how its tensors are laid out: their shapes do
// not tell whether the outputs of gate and up take turns, and that of one tensor may fit both orders.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_views.h"
#include "serving/families/model_family.h"
#include "serving/formats/model_config.h"

namespace aqt::serving {

// How a model lays out its experts, according to the first of its families that says so.
struct ExpertLayout {
  std::string family;
  std::vector<FusedExperts> tensors;  // none: unknown
};
ExpertLayout ExpertLayoutOf(const ModelFacts& facts, absl::Span<const ModelFamily> own = {});

// Whether a tensor has the order [experts, out, in] although its family says otherwise.
using IsOutIn = std::function<bool(absl::string_view)>;

// The source with its experts split; null if it has none to split: no tensor of the layout, or only tensors without
// elements. `source` must outlive the result. DataLoss, naming the tensors, if those of a module `experts` are not
// complete, contradict each other or the layout, or if the result would have a name twice.
absl::StatusOr<std::unique_ptr<io::ViewSource>> SplitExperts(const io::TensorSource& source, const ExpertLayout& layout,
                                                             const IsOutIn& is_out_in = nullptr);

// "4 tensors with all experts of a layer split into 24 of single experts (model family gpt-oss)".
std::string DescribeSplit(const io::ViewSource& split, const ExpertLayout& layout);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FAMILIES_EXPERT_SPLIT_H_
