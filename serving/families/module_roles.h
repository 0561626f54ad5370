#ifndef AQT_SERVING_FAMILIES_MODULE_ROLES_H_
#define AQT_SERVING_FAMILIES_MODULE_ROLES_H_

// The roles of a checkpoint's modules: linear layers, embeddings, output heads, routers and so on. The table of model
// families decides by name. For other modules evidence decides: the shapes of the weights, of their biases and of their
// neighbours, and the numbers in config.json.

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/families/model_family.h"
#include "serving/families/role.h"
#include "serving/families/shape_evidence.h"
#include "serving/formats/model_config.h"

namespace aqt::serving {

struct ModuleRole {
  Role role = Role::kLinear;
  // The reason, unless it is a name that is the same in every model: "model family Whisper", "96 rows = vocab_size".
  std::string why;
  // For a tower: the module that contains it.
  std::string tower;
};

class ModuleRoles {
 public:
  // Uses only names that are the same in every model.
  ModuleRoles();
  // `own` precedes the built-in table. No reference to the arguments is kept.
  ModuleRoles(const io::TensorSource& source, const ModelFacts& facts, absl::Span<const ModelFamily> own = {});
  ModuleRoles(ModuleRoles&&);
  ModuleRoles& operator=(ModuleRoles&&);
  ~ModuleRoles();

  // The role of a module with a weight of that shape; or, by name, of a tensor that is not called `<module>.weight`.
  ModuleRole Of(absl::string_view module, const Shape& shape) const;

  // The names under which loaders look for an output head that is not stored because it shares the embedding's tensor.
  // `tied`: config.json says so. Empty without evidence for such a head.
  std::vector<std::string> HeadsWithoutWeight(bool tied) const;
  // Names of modules with one parent that servers merge.
  const std::vector<std::vector<std::string>>& fused() const { return fused_; }
  // The name by which servers ask for a part of an expert; empty if it is the stored name.
  absl::string_view AskedName(absl::string_view stored) const;
  // Whether loaders ask for the module by this name although no tensor has it: a tied head, the experts of a layer
  // together, a part of an expert.
  bool IsLoaderName(absl::string_view module) const;
  // The model has several parts, whose modules may have another prefix in loaders than in the checkpoint.
  bool has_parts() const { return has_parts_; }
  // "model family Whisper (model_type whisper)", or other known facts; for `explain`.
  const std::string& description() const { return description_; }
  // Not empty if config.json names a model type that is not in the table.
  const std::string& unknown_type() const { return unknown_type_; }

 private:
  class Names;  // the patterns of one family, compiled
  struct Towers;

  static std::shared_ptr<const Names> NamesOf(const ModelFamily& family);
  void AddFamilies(const ModelFacts& facts, absl::Span<const ModelFamily> own);
  bool FindTower(absl::string_view module, ModuleRole& role) const;

  std::vector<std::shared_ptr<const Names>> names_;  // in order; the first that matches a module decides
  std::vector<std::unique_ptr<const Towers>> towers_;
  ShapeEvidence evidence_;
  std::vector<std::string> tied_heads_;  // from the table
  bool expects_head_ = false;            // according to the table and the classes of the model, or nothing is known
                                         // about it
  std::vector<std::vector<std::string>> fused_;
  std::vector<std::pair<std::string, std::string>> expert_names_;
  std::set<std::string, std::less<>> embeddings_;  // ModelFacts
  bool has_parts_ = false;
  std::string description_;
  std::string unknown_type_;
};

// True for names such as "model.embed_tokens" and "transformer.wte", which are never modules of the class Linear.
bool IsEmbeddingName(absl::string_view module);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FAMILIES_MODULE_ROLES_H_
