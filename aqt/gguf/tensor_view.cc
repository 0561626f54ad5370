#include "aqt/gguf/tensor_view.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "aqt/core/status_macros.h"
#include "aqt/gguf/architecture.h"
#include "aqt/gguf/model_config.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"

namespace aqt::gguf {
namespace {

constexpr char kKeepNames[] = "keep the names of the file instead (--gguf-names)";

// A tensor of the file that a model of transformers computes from its configuration.
bool IsComputed(absl::string_view name) {
  return name == "rope_freqs.weight" || name == "rope_factors_long.weight" || name == "rope_factors_short.weight";
}

const ModuleName* FindModule(absl::Span<const ModuleName> modules, absl::string_view name) {
  const auto it = std::find_if(modules.begin(), modules.end(), [&](const ModuleName& m) { return m.file == name; });
  return it == modules.end() ? nullptr : &*it;
}

// Maps the tensors of a model.
class Mapper {
 public:
  Mapper(const GgufModel& model, const Architecture& architecture) : model_(model), architecture_(architecture) {}

  absl::Status ReadNumbers() {
    const GgufFile& file = model_.first();
    const auto key = [&](absl::string_view name) { return absl::StrCat(architecture_.name, ".", name); };
    AQT_ASSIGN_OR_RETURN(const auto heads, file.Integer(key("attention.head_count")));
    AQT_ASSIGN_OR_RETURN(const auto kv_heads, file.Integer(key("attention.head_count_kv")));
    AQT_ASSIGN_OR_RETURN(const auto experts, file.Integer(key("expert_count")));
    heads_ = heads.value_or(0);
    kv_heads_ = kv_heads.value_or(heads_);
    experts_ = experts.value_or(0);
    return absl::OkStatus();
  }

  absl::Status Add(int file, int index, std::vector<TensorView>& views) const {
    const GgufTensor& tensor = model_.files()[file].tensors()[index];
    if (IsComputed(tensor.name)) return absl::OkStatus();
    const size_t dot = tensor.name.rfind('.');
    const absl::string_view name = tensor.name;
    const absl::string_view suffix = dot == std::string::npos ? "" : name.substr(dot);
    if (suffix != ".weight" && suffix != ".bias") return Unknown(tensor);
    absl::string_view module = name.substr(0, dot);
    if (const ModuleName* outer = FindModule(OuterModules(), module); outer != nullptr) {
      views.push_back(Whole(file, index, absl::StrCat(outer->model, suffix)));
      views.back().minus_one = architecture_.norms_plus_one && module == "output_norm";
      return absl::OkStatus();
    }
    int layer = 0;
    const size_t end = absl::StartsWith(module, "blk.") ? module.find('.', 4) : absl::string_view::npos;
    if (end == absl::string_view::npos || !absl::SimpleAtoi(module.substr(4, end - 4), &layer) || layer < 0 ||
        absl::StrCat(layer) != module.substr(4, end - 4)) {
      return Unknown(tensor);
    }
    module = module.substr(end + 1);
    const ModuleName* known = FindModule(architecture_.modules, module);
    if (known == nullptr) known = FindModule(architecture_.more_modules, module);
    if (known == nullptr) return Unknown(tensor);
    const std::string model_name = absl::StrCat("model.layers.", layer, ".", known->model, suffix);
    if (absl::StrContains(known->model, kExpertNumber)) return AddExperts(file, index, model_name, views);
    views.push_back(Whole(file, index, model_name));
    TensorView& view = views.back();
    view.minus_one = architecture_.norms_plus_one && suffix == ".weight" && absl::EndsWith(module, "norm");
    if (module == "ffn_gate_inp_shexp" && view.shape.rank() == 1) view.shape = Shape{1, view.shape[0]};
    if (architecture_.paired_heads && (module == "attn_q" || module == "attn_k")) {
      return PairHeads(tensor, module == "attn_q" ? heads_ : kv_heads_, view);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Unknown(const GgufTensor& tensor) const {
    return absl::UnimplementedError(absl::StrCat(
        "'", io::PrintableLine(model_.path()), "': the tensor ", io::QuoteForMessage(tensor.name),
        " is not one of the architecture ", architecture_.name, " whose name in transformers is known; ", kKeepNames));
  }

  TensorView Whole(int file, int index, std::string name) const {
    const GgufTensor& tensor = model_.files()[file].tensors()[index];
    return {.name = std::move(name), .shape = tensor.shape, .file = file, .tensor = index};
  }

  absl::Status PairHeads(const GgufTensor& tensor, int64_t heads, TensorView& view) const {
    // A bias has one value per row of the weight.
    const int64_t rows = tensor.shape.rank() == 0 ? 1 : tensor.shape[0];
    if (heads <= 0 || rows % (2 * heads) != 0 || tensor.shape.rank() > 2) {
      return absl::DataLossError(absl::StrCat(
          "'", io::PrintableLine(model_.path()), "': the tensor ", io::QuoteForMessage(tensor.name), " has the shape ",
          tensor.shape.ToString(), ", which ", heads, " heads of an even number of rows do not fill; ", kKeepNames));
    }
    view.head_rows = rows / heads;
    return absl::OkStatus();
  }

  absl::Status AddExperts(int file, int index, const std::string& name, std::vector<TensorView>& views) const {
    const GgufTensor& tensor = model_.files()[file].tensors()[index];
    if (tensor.shape.rank() < 2 || tensor.shape[0] != experts_) {
      return absl::DataLossError(absl::StrCat(
          "'", io::PrintableLine(model_.path()), "': the tensor ", io::QuoteForMessage(tensor.name), " has the shape ",
          tensor.shape.ToString(), "; expected ", experts_, " experts first; ", kKeepNames));
    }
    const int64_t rows = tensor.rows() / std::max<int64_t>(1, experts_);
    for (int64_t expert = 0; expert < experts_; ++expert) {
      TensorView view = Whole(file, index, absl::StrReplaceAll(name, {{kExpertNumber, absl::StrCat(expert)}}));
      view.shape = Shape(tensor.shape.extents().subspan(1));
      view.first_row = expert * rows;
      views.push_back(std::move(view));
    }
    return absl::OkStatus();
  }

  const GgufModel& model_;
  const Architecture& architecture_;
  int64_t heads_ = 0, kv_heads_ = 0, experts_ = 0;
};

// Hundreds of experts in a hundred layers have fewer tensors.
constexpr size_t kMaxViews = 1 << 20;

}  // namespace

std::vector<TensorView> ViewAsFile(const GgufModel& model) {
  std::vector<TensorView> views;
  for (size_t file = 0; file < model.files().size(); ++file) {
    const std::vector<GgufTensor>& tensors = model.files()[file].tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      views.push_back({.name = tensors[i].name,
                       .shape = tensors[i].shape,
                       .file = static_cast<int>(file),
                       .tensor = static_cast<int>(i)});
    }
  }
  return views;
}

absl::StatusOr<ModelView> ViewAsModel(const GgufModel& model) {
  const std::string path = absl::StrCat("'", io::PrintableLine(model.path()), "'");
  AQT_ASSIGN_OR_RETURN(const std::optional<std::string> name, model.first().String(kArchitectureKey));
  if (!name.has_value()) {
    return absl::DataLossError(absl::StrCat(path, ": the metadata has no text ", kArchitectureKey, "; ", kKeepNames));
  }
  AQT_ASSIGN_OR_RETURN(const auto experts, model.first().Integer(absl::StrCat(*name, ".expert_count")));
  const Architecture* const architecture = FindArchitecture(*name, experts.value_or(0) > 0);
  if (architecture == nullptr) {
    std::vector<absl::string_view> known;
    for (const Architecture& a : Architectures()) {
      if (known.empty() || known.back() != a.name) known.push_back(a.name);
    }
    return absl::UnimplementedError(absl::StrCat(path, ": the names of the architecture ", io::QuoteForMessage(*name),
                                                 " in transformers are not known (those of ",
                                                 absl::StrJoin(known, ", "), " are); ", kKeepNames));
  }
  ModelView view;
  Mapper mapper(model, *architecture);
  AQT_RETURN_IF_ERROR(mapper.ReadNumbers());
  for (size_t file = 0; file < model.files().size(); ++file) {
    for (size_t i = 0; i < model.files()[file].tensors().size(); ++i) {
      AQT_RETURN_IF_ERROR(mapper.Add(static_cast<int>(file), static_cast<int>(i), view.tensors));
      if (view.tensors.size() > kMaxViews) {
        return absl::UnimplementedError(
            absl::StrCat(path, ": it has more than ", kMaxViews, " weights of experts; ", kKeepNames));
      }
    }
  }
  AQT_ASSIGN_OR_RETURN(view.config, MakeModelConfig(model, *architecture, view.warnings));
  return view;
}

}  // namespace aqt::gguf
