#include "serving/families/expert_split.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/families/module_name.h"
#include "serving/formats/scheme.h"

namespace aqt::serving {
namespace {

constexpr char kBias[] = ".bias";
constexpr char kBiasOfAll[] = "_bias";
// A layer has a few hundred experts, and a large model a hundred layers.
constexpr int64_t kMaxExperts = 1 << 14;
constexpr int64_t kMaxParts = 1 << 20;
constexpr int64_t kMaxNameBytes = 256 << 20;

constexpr char kKeep[] = "; --experts keep copies the tensors as they are";

// A tensor of all experts, as the layout understands it.
struct Fused {
  const FusedExperts* layout = nullptr;
  const io::TensorInfo* weight = nullptr;
  const io::TensorInfo* bias = nullptr;
  bool in_out = false;

  int64_t experts() const { return weight->shape[0]; }
  int64_t outputs() const { return weight->shape[in_out ? 2 : 1]; }
  int64_t inputs() const { return weight->shape[in_out ? 1 : 2]; }
  int64_t parts() const { return static_cast<int64_t>(layout->parts.size()); }
};

class Splitter {
 public:
  Splitter(const io::TensorSource& source, const ExpertLayout& layout, const IsOutIn& is_out_in)
      : source_(source), layout_(layout), is_out_in_(is_out_in) {}

  absl::StatusOr<std::vector<io::ViewSource::Views>> Run() {
    std::map<absl::string_view, std::vector<Fused>> modules;  // those called `experts`
    for (const io::TensorInfo& tensor : source_.tensors()) {
      const absl::string_view module = ParentOf(tensor.name);
      if (LastPartOf(module) != "experts" || modules.contains(module)) continue;
      if (std::none_of(layout_.tensors.begin(), layout_.tensors.end(),
                       [&](const FusedExperts& fused) { return IsPartOf(tensor, fused); })) {
        continue;
      }
      AQT_ASSIGN_OR_RETURN(modules[module], FindAll(module, tensor));
    }
    for (auto& [module, all] : modules) {
      const bool empty = std::any_of(all.begin(), all.end(),
                                     [](const Fused& fused) { return fused.weight->shape.num_elements() == 0; });
      if (empty) continue;
      AQT_RETURN_IF_ERROR(SettleOrder(all));
      AQT_RETURN_IF_ERROR(CheckShapes(all));
      for (const Fused& fused : all) AQT_RETURN_IF_ERROR(AddViews(module, fused));
    }
    return std::move(views_);
  }

 private:
  static bool IsPartOf(const io::TensorInfo& tensor, const FusedExperts& fused) {
    const absl::string_view name = LastPartOf(tensor.name);
    return (tensor.shape.rank() == 3 && name == fused.stored) ||
           (tensor.shape.rank() == 2 && name == absl::StrCat(fused.stored, kBiasOfAll));
  }

  absl::Status Error(const io::TensorInfo& tensor, absl::string_view what) const {
    return absl::DataLossError(absl::StrCat("'", io::PrintableLine(source_.path()), "', tensor ",
                                            io::Printable(tensor.name), " ", tensor.shape.ToString(), ": ", what,
                                            " (model family ", layout_.family, ")", kKeep));
  }

  // The tensors of a module that has `shown`.
  absl::StatusOr<std::vector<Fused>> FindAll(absl::string_view module, const io::TensorInfo& shown) const {
    std::vector<Fused> all;
    for (const FusedExperts& layout : layout_.tensors) {
      const std::string name = absl::StrCat(module, ".", layout.stored);
      Fused fused{&layout, source_.Find(name), source_.Find(name + kBiasOfAll)};
      if (fused.weight == nullptr || fused.weight->shape.rank() != 3) {
        return Error(shown, absl::StrCat("the experts are incomplete without ", io::Printable(name),
                                         " of rank 3; download the checkpoint again"));
      }
      fused.in_out = layout.in_out && !(is_out_in_ && is_out_in_(name));
      all.push_back(fused);
    }
    return all;
  }

  // Whether the second of two matrices leads from the outputs of a part of the first back to its inputs.
  static bool LeadsBack(const std::vector<Fused>& all) {
    return all[1].inputs() * all[0].parts() == all[0].outputs() && all[1].outputs() == all[0].inputs();
  }

  // Compares the order of two tensors with their shapes, which decide if the family has both orders.
  absl::Status SettleOrder(std::vector<Fused>& all) const {
    if (all.size() != 2 || LeadsBack(all)) return absl::OkStatus();
    std::vector<Fused> opposite = all;
    for (Fused& fused : opposite) fused.in_out = !fused.in_out;
    const bool fits = LeadsBack(opposite);
    if (fits && all[0].layout->either_order && all[1].layout->either_order) {
      all = std::move(opposite);
      return absl::OkStatus();
    }
    return Error(*all[0].weight,
                 absl::StrCat("it and ", io::Printable(all[1].weight->name), " ", all[1].weight->shape.ToString(),
                              " do not fit the order [experts, ", all[0].in_out ? "in, out" : "out, in",
                              "] of this family", fits ? ", but the opposite one" : ""));
  }

  absl::Status CheckShapes(const std::vector<Fused>& all) const {
    const Fused& first = all.front();
    for (const Fused& fused : all) {
      if (fused.experts() > kMaxExperts) {
        return Error(*fused.weight, absl::StrCat("at most ", kMaxExperts, " experts are supported"));
      }
      if (fused.experts() != first.experts()) {
        return Error(*fused.weight, absl::StrCat("its number of experts is not the ", first.experts(), " of ",
                                                 io::Printable(first.weight->name)));
      }
      if (fused.outputs() % fused.parts() != 0) {
        return Error(*fused.weight, absl::StrCat("its ", fused.outputs(), " outputs do not hold ",
                                                 absl::StrJoin(fused.layout->parts, " and ")));
      }
      if (fused.bias != nullptr && fused.bias->shape != Shape{fused.experts(), fused.outputs()}) {
        return Error(*fused.bias,
                     absl::StrCat("expected the shape ", Shape{fused.experts(), fused.outputs()}.ToString(), " beside ",
                                  io::Printable(fused.weight->name), " ", fused.weight->shape.ToString()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddViews(absl::string_view module, const Fused& fused) {
    const int64_t outputs = fused.outputs(), inputs = fused.inputs(), of_part = outputs / fused.parts();
    const int64_t more = fused.experts() * fused.parts() * (fused.bias != nullptr ? 2 : 1);
    parts_ += more;
    name_bytes_ += more * static_cast<int64_t>(module.size() + 32);
    if (parts_ > kMaxParts || name_bytes_ > kMaxNameBytes) {
      return Error(*fused.weight,
                   absl::StrCat("the experts up to it would become ", parts_, " tensors with ", name_bytes_,
                                " bytes of names; at most ", kMaxParts, " and ", kMaxNameBytes, " are supported"));
    }
    const int64_t out_step = fused.in_out ? 1 : inputs, in_step = fused.in_out ? outputs : 1;
    std::vector<io::TensorView> weights, biases;
    for (int64_t expert = 0; expert < fused.experts(); ++expert) {
      for (int64_t part = 0; part < fused.parts(); ++part) {
        const std::string name = absl::StrCat(module, ".", expert, ".", fused.layout->parts[part]);
        // The position of the first output, and the distance from one output to the next.
        const int64_t first = fused.layout->interleaved ? part : part * of_part;
        const int64_t step = fused.layout->interleaved ? fused.parts() : 1;
        weights.push_back({absl::StrCat(name, kWeight),
                           {of_part, inputs},
                           expert * outputs * inputs + first * out_step,
                           step * out_step,
                           in_step});
        if (fused.bias != nullptr) {
          biases.push_back({absl::StrCat(name, kBias), {of_part}, expert * outputs + first, 1, step});
        }
      }
    }
    for (const std::vector<io::TensorView>& views : {weights, biases}) {
      for (const io::TensorView& view : views) {
        if (source_.Find(view.name) == nullptr) continue;
        return Error(*fused.weight, absl::StrCat("the checkpoint has ", io::Printable(view.name),
                                                 ", too, which is a part of it; remove one of the two"));
      }
    }
    views_.emplace_back(fused.weight, std::move(weights));
    if (fused.bias != nullptr) views_.emplace_back(fused.bias, std::move(biases));
    return absl::OkStatus();
  }

  const io::TensorSource& source_;
  const ExpertLayout& layout_;
  const IsOutIn& is_out_in_;
  std::vector<io::ViewSource::Views> views_;
  int64_t parts_ = 0, name_bytes_ = 0;  // so far
};

}  // namespace

ExpertLayout ExpertLayoutOf(const ModelFacts& facts, absl::Span<const ModelFamily> own) {
  for (const ModelFamily* family : FamiliesOf(facts, own)) {
    if (!family->fused_experts.empty()) return {family->name, family->fused_experts};
  }
  return {};
}

absl::StatusOr<std::unique_ptr<io::ViewSource>> SplitExperts(const io::TensorSource& source, const ExpertLayout& layout,
                                                             const IsOutIn& is_out_in) {
  AQT_ASSIGN_OR_RETURN(std::vector<io::ViewSource::Views> views, Splitter(source, layout, is_out_in).Run());
  if (views.empty()) return std::unique_ptr<io::ViewSource>();
  return io::ViewSource::Create(source, std::move(views));
}

std::string DescribeSplit(const io::ViewSource& split, const ExpertLayout& layout) {
  return absl::StrCat(split.num_viewed(), split.num_viewed() == 1 ? " tensor" : " tensors",
                      " with all experts of a layer split into ", split.num_views(),
                      " of single experts (model family ", layout.family, ")");
}

}  // namespace aqt::serving
