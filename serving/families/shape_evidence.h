#ifndef AQT_SERVING_FAMILIES_SHAPE_EVIDENCE_H_
#define AQT_SERVING_FAMILIES_SHAPE_EVIDENCE_H_

// Evidence for the roles of modules from the shapes of a checkpoint.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/formats/model_config.h"

namespace aqt::serving {

class ShapeEvidence {
 public:
  ShapeEvidence() = default;
  ShapeEvidence(const io::TensorSource& source, const ModelFacts& facts);

  // Each function returns its evidence, or an empty text. `module` has a weight [rows, columns] of that shape.

  // The weight is [in, out]. Evidence: a bias with as many elements as there are columns; the two weights of an MLP
  // that lead from rows of the hidden size to columns and back; three times the rows in a fused q, k, v; and, for
  // weights without evidence of their own, such as square ones, their neighbours.
  std::string Transposed(absl::string_view module, const Shape& shape) const;
  // A row for each token: outside of the layers, with as many rows as the vocabulary.
  std::string Vocabulary(absl::string_view module, const Shape& shape) const;
  // Modules without a weight, outside of the layers, with a bias that has an element for each token: heads that use the
  // embedding's tensor.
  const std::vector<std::string>& heads_without_weight() const { return heads_without_weight_; }
  // Whether there is an embedding of tokens.
  bool has_token_embedding() const { return has_token_embedding_; }
  // A row for each expert, beside the experts.
  std::string Router(absl::string_view module, const Shape& shape) const;
  // The output projection of torch's nn.MultiheadAttention: beside a tensor in_proj_weight.
  bool Multihead(absl::string_view module) const;
  // Whether the module has experts.
  bool HasExperts(absl::string_view parent) const { return experts_.contains(parent); }
  // All experts in one tensor: named so, or one layer for each expert of config.json.
  bool Experts(absl::string_view name, const Shape& shape) const;

 private:
  void FindVocabulary(const io::TensorSource& source, const ModelFacts& facts);
  void FindHeadsWithoutWeight(const io::TensorSource& source);
  void FindExperts(const io::TensorSource& source);
  void FindMultiheads(const io::TensorSource& source);
  void FindTransposed(const io::TensorSource& source);

  absl::flat_hash_map<int64_t, std::string> vocab_sizes_;  // and their origin
  bool has_token_embedding_ = false;
  std::vector<std::string> heads_without_weight_;
  absl::flat_hash_map<std::string, int64_t> experts_;  // the module that has experts -> their number
  std::vector<int64_t> num_experts_;                   // of config.json
  // By names without numbers. The evidence for modules; and for parents and layers, whose other modules follow them.
  absl::flat_hash_map<std::string, std::string> transposed_, transposed_neighbourhoods_;
  std::set<std::string, std::less<>> multiheads_;  // modules with an in_proj_weight
  std::set<std::string, std::less<>> in_order_;    // modules that show [out, in]
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_FAMILIES_SHAPE_EVIDENCE_H_
