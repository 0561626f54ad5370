#include "serving/families/shape_evidence.h"

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/printable.h"
#include "serving/families/module_name.h"
#include "serving/formats/scheme.h"

namespace aqt::serving {
namespace {

constexpr absl::string_view kTokenEmbeddings[] = {
    "embed_tokens", "word_embeddings", "tok_embeddings", "wte",         "shared", "emb", "embed",
    "embed_in",     "embeddings",      "word_embedding", "tokens_embed"};
// The weights that lead from the hidden size to another one, those that lead back, and fused q, k, v.
constexpr absl::string_view kUp[] = {"c_fc",          "fc1", "fc_in", "up_proj", "gate_proj", "gate_up_proj",
                                     "dense_h_to_4h", "wi",  "wi_0",  "wi_1",    "lin1"};
constexpr absl::string_view kDown[] = {"fc2", "fc_out", "down_proj", "dense_4h_to_h", "lin2", "c_proj"};
constexpr absl::string_view kFusedQkv[] = {"c_attn", "qkv", "qkv_proj", "query_key_value", "in_proj", "Wqkv", "wqkv"};

// A weight [rows, columns] with the name of its module.
struct Weight {
  absl::string_view module;
  int64_t rows, columns;
};

template <class Visit>
void ForEachWeight(const io::TensorSource& source, Visit visit) {
  for (const io::TensorInfo& tensor : source.tensors()) {
    const std::optional<absl::string_view> module = ModuleOf(tensor.name);
    if (module.has_value() && tensor.shape.rank() == 2) visit(Weight{*module, tensor.shape[0], tensor.shape[1]});
  }
}

bool IsTokenEmbedding(absl::string_view module) {
  return absl::c_linear_search(kTokenEmbeddings, LastPartOf(WithoutTrailingNumbers(module)));
}

// Ignores numbers at the end of a name.
bool IsInLayer(absl::string_view module) {
  const absl::string_view name = WithoutTrailingNumbers(module);
  return BeforeFirstNumber(name) != name;
}

// "h.#" for "h.#.attn.c_attn": up to the first number. Empty without one.
std::string LayerOf(absl::string_view without_numbers) {
  const size_t number = absl::StrCat(".", without_numbers, ".").find(".#.");
  return number == std::string::npos ? "" : std::string(without_numbers.substr(0, number + 1));
}

// The evidence of shapes for the order of one weight.
struct Order {
  bool shown = false, transposed = false;
  std::string why = "";
};

Order OrderByBias(const io::TensorSource& source, const Weight& weight) {
  const io::TensorInfo* const bias = source.Find(absl::StrCat(weight.module, ".bias"));
  if (bias == nullptr || bias->shape.rank() != 1 || weight.rows == weight.columns) return {};
  if (bias->shape[0] == weight.rows) return {.shown = true};
  if (bias->shape[0] != weight.columns) return {};
  return {.shown = true,
          .transposed = true,
          .why = absl::StrCat("its bias has an element for each of the ", weight.columns, " columns")};
}

Order OrderByFusedQkv(const Weight& weight) {
  if (!absl::c_linear_search(kFusedQkv, LastPartOf(weight.module))) return {};
  if (weight.rows == 3 * weight.columns) return {.shown = true};
  if (weight.columns != 3 * weight.rows) return {};
  return {.shown = true, .transposed = true, .why = absl::StrCat("its ", weight.columns, " columns hold q, k and v")};
}

// The order of MLPs, which lead from the hidden size to another one and back: evidence from both weights together.
class MlpOrder {
 public:
  MlpOrder(const io::TensorSource& source, std::optional<int64_t> hidden) : hidden_(hidden) {
    if (!hidden.has_value()) return;
    ForEachWeight(source, [&](const Weight& weight) {
      Mlp& mlp = mlps_[ParentOf(weight.module)];
      if (IsUp(weight)) mlp.up = {weight.rows, weight.columns};
      if (IsDown(weight)) mlp.down = {weight.rows, weight.columns};
    });
  }
  Order Of(const Weight& weight) const {
    if (!hidden_.has_value() || (!IsUp(weight) && !IsDown(weight))) return {};
    const auto& [up, down] = mlps_.at(ParentOf(weight.module));
    const Sides there{down.columns, down.rows};
    if (up != there || up.rows == up.columns) return {};
    if (up.columns == *hidden_) return {.shown = true};
    if (up.rows != *hidden_) return {};
    return {.shown = true,
            .transposed = true,
            .why = absl::StrCat("its MLP leads from ", up.rows, " rows, the hidden size, to ", up.columns, " columns")};
  }

 private:
  struct Sides {
    int64_t rows = 0, columns = 0;
    bool operator==(const Sides&) const = default;
  };
  struct Mlp {
    Sides up, down;
  };
  static bool IsUp(const Weight& weight) { return absl::c_linear_search(kUp, LastPartOf(weight.module)); }
  static bool IsDown(const Weight& weight) { return absl::c_linear_search(kDown, LastPartOf(weight.module)); }

  std::optional<int64_t> hidden_;
  absl::flat_hash_map<absl::string_view, Mlp> mlps_;
};

// The columns of the token embeddings, if they agree. config.json is not used: a part of the model may have its own.
std::optional<int64_t> HiddenSize(const io::TensorSource& source) {
  std::vector<int64_t> sizes;
  ForEachWeight(source, [&](const Weight& weight) {
    if (IsTokenEmbedding(weight.module) && !absl::c_linear_search(sizes, weight.columns))
      sizes.push_back(weight.columns);
  });
  return sizes.size() == 1 ? std::optional(sizes[0]) : std::nullopt;
}

}  // namespace

ShapeEvidence::ShapeEvidence(const io::TensorSource& source, const ModelFacts& facts)
    : num_experts_(facts.num_experts) {
  FindVocabulary(source, facts);
  FindHeadsWithoutWeight(source);
  FindExperts(source);
  FindMultiheads(source);
  FindTransposed(source);
}

void ShapeEvidence::FindVocabulary(const io::TensorSource& source, const ModelFacts& facts) {
  for (const int64_t size : facts.vocab_sizes) vocab_sizes_.emplace(size, "vocab_size");
  absl::flat_hash_set<int64_t> hidden(facts.hidden_sizes.begin(), facts.hidden_sizes.end());
  ForEachWeight(source, [&](const Weight& weight) {
    if (!IsTokenEmbedding(weight.module)) return;
    vocab_sizes_.emplace(weight.rows, absl::StrCat("the rows of ", io::Printable(weight.module)));
    hidden.insert(weight.columns);
    has_token_embedding_ = true;
  });
  for (const int64_t size : hidden) vocab_sizes_.erase(size);  // this number of rows would prove nothing
}

void ShapeEvidence::FindHeadsWithoutWeight(const io::TensorSource& source) {
  // For each module, whether it contains other modules.
  std::vector<absl::string_view> heads;
  absl::flat_hash_map<absl::string_view, bool> is_parent;
  for (const io::TensorInfo& tensor : source.tensors()) {
    if (LastPartOf(tensor.name) != "bias" || tensor.shape.rank() != 1 || !vocab_sizes_.contains(tensor.shape[0]))
      continue;
    const absl::string_view module = ParentOf(tensor.name);
    if (module.empty() || IsInLayer(module) || source.Find(absl::StrCat(module, kWeight)) != nullptr) continue;
    if (is_parent.try_emplace(module, false).second) heads.push_back(module);
  }
  if (heads.empty()) return;
  for (const io::TensorInfo& tensor : source.tensors()) {
    // Starts at the grandparent: the parent of a tensor is its own module.
    for (absl::string_view path = ParentOf(ParentOf(tensor.name)); !path.empty(); path = ParentOf(path)) {
      if (const auto it = is_parent.find(path); it != is_parent.end()) it->second = true;
    }
  }
  for (const absl::string_view head : heads) {
    heads_without_weight_.emplace_back(head);
    // The linear layer is one of them: "lm_head.decoder" beside "lm_head.dense".
    if (is_parent[head]) heads_without_weight_.push_back(absl::StrCat(head, ".decoder"));
  }
}

void ShapeEvidence::FindExperts(const io::TensorSource& source) {
  for (const io::TensorInfo& tensor : source.tensors()) {
    const absl::string_view experts = ExpertsOf(tensor.name);
    if (experts.empty() || experts.size() == tensor.name.size()) continue;
    int64_t number = tensor.shape.rank() == 3 ? tensor.shape[0] : 0;
    const absl::string_view rest = absl::string_view(tensor.name).substr(experts.size() + 1);
    int64_t index;
    if (absl::SimpleAtoi(rest.substr(0, rest.find('.')), &index)) number = index + 1;
    int64_t& known = experts_[ParentOf(experts)];
    known = std::max(known, number);
  }
}

void ShapeEvidence::FindMultiheads(const io::TensorSource& source) {
  for (const io::TensorInfo& tensor : source.tensors()) {
    const absl::string_view last = LastPartOf(tensor.name);
    if (last == "in_proj_weight" || last == "q_proj_weight") multiheads_.emplace(ParentOf(tensor.name));
  }
}

void ShapeEvidence::FindTransposed(const io::TensorSource& source) {
  const MlpOrder mlps(source, HiddenSize(source));
  absl::flat_hash_set<std::string> neighbourhoods_in_order;
  std::vector<std::pair<std::string, std::string>> transposed;
  ForEachWeight(source, [&](const Weight& weight) {
    Order order = OrderByBias(source, weight);
    if (!order.shown) order = OrderByFusedQkv(weight);
    if (!order.shown) order = mlps.Of(weight);
    if (!order.shown) return;
    std::string name = WithoutNumbers(weight.module);
    if (order.transposed) {
      transposed.emplace_back(std::move(name), std::move(order.why));
    } else {
      neighbourhoods_in_order.insert(LayerOf(name));
      neighbourhoods_in_order.emplace(ParentOf(name));
      in_order_.insert(std::move(name));
    }
  });
  for (auto& [name, why] : transposed) {
    if (in_order_.contains(name)) continue;  // evidence for both orders: none
    const std::string neighbour = absl::StrCat("its neighbour ", LastPartOf(name), " does");
    for (const std::string& neighbourhood : {std::string(ParentOf(name)), LayerOf(name)}) {
      if (!neighbourhoods_in_order.contains(neighbourhood)) {
        transposed_neighbourhoods_.try_emplace(neighbourhood, neighbour);
      }
    }
    transposed_.try_emplace(std::move(name), std::move(why));
  }
}

std::string ShapeEvidence::Transposed(absl::string_view module, const Shape& shape) const {
  if (transposed_.empty() || shape.rank() != 2) return "";
  const std::string name = WithoutNumbers(module);
  if (const auto it = transposed_.find(name); it != transposed_.end()) return it->second;
  if (in_order_.contains(name)) return "";
  const std::string layer = LayerOf(name);
  if (layer.empty()) return "";
  for (const absl::string_view neighbourhood : {ParentOf(name), absl::string_view(layer)}) {
    if (const auto it = transposed_neighbourhoods_.find(neighbourhood); it != transposed_neighbourhoods_.end()) {
      return it->second;
    }
  }
  return "";
}

std::string ShapeEvidence::Vocabulary(absl::string_view module, const Shape& shape) const {
  if (shape.rank() != 2) return "";
  const auto it = vocab_sizes_.find(shape[0]);
  if (it == vocab_sizes_.end()) return "";
  if (IsInLayer(module)) return "";
  return absl::StrCat(shape[0], " rows = ", it->second);
}

std::string ShapeEvidence::Router(absl::string_view module, const Shape& shape) const {
  if (shape.rank() != 2 || experts_.empty() || !ExpertsOf(module).empty()) return "";
  absl::string_view parent = module;
  for (int level = 0; level < 2 && !parent.empty(); ++level) {
    parent = ParentOf(parent);
    const auto it = experts_.find(parent);
    if (it == experts_.end() || it->second != shape[0]) continue;
    return absl::StrCat(shape[0], " rows = number of experts");
  }
  return "";
}

bool ShapeEvidence::Multihead(absl::string_view module) const {
  return LastPartOf(module) == "out_proj" && multiheads_.contains(ParentOf(module));
}

bool ShapeEvidence::Experts(absl::string_view name, const Shape& shape) const {
  if (shape.rank() < 3) return false;
  return absl::StrContains(name, "expert") || absl::c_linear_search(num_experts_, shape[0]);
}

}  // namespace aqt::serving
