#include "aqt/io/containers/frozen_tree.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/containers/container_source.h"
#include "aqt/io/containers/flax_parameters.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

constexpr absl::string_view kParams = "params.";
// How the names of frozen values end, and those of their scales: the freezer of today, and the one before.
struct Freezer {
  absl::string_view value, scale;
};
constexpr Freezer kFreezers[] = {{"frozen.qvalue", "frozen.scale.0"}, {"value", "scale"}};
// The sides of a contraction. Weights are nearly always on the right.
constexpr absl::string_view kSides[] = {".qrhs.", ".qlhs."};

// The most parts of a name, which are compared with each other.
constexpr size_t kMaxParts = 100;

// A frozen value and what belongs to it.
struct Frozen {
  std::string stem;        // "aqt.Dense_0.AqtDotGeneral_0"
  absl::string_view side;  // of kSides
  const Freezer* freezer = nullptr;
  const TensorInfo* value = nullptr;
  const TensorInfo* scale = nullptr;
  const TensorInfo* kernel = nullptr;       // the float kernel; null if it is not stored
  const TensorInfo* input_scale = nullptr;  // may be null
  std::string module;
};

std::optional<Frozen> ParseFrozen(const TensorInfo& tensor) {
  for (const absl::string_view side : kSides) {
    for (const Freezer& freezer : kFreezers) {
      absl::string_view stem = tensor.name;
      if (!absl::ConsumeSuffix(&stem, freezer.value) || !absl::EndsWith(stem, side)) continue;
      stem.remove_suffix(side.size());
      if (stem.empty()) continue;
      Frozen frozen;
      frozen.stem = std::string(stem);
      frozen.side = side;
      frozen.freezer = &freezer;
      frozen.value = &tensor;
      return frozen;
    }
  }
  return std::nullopt;
}

int64_t Product(absl::Span<const int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

bool IsScaleType(FileDType dtype) {
  return dtype == FileDType::kF32 || dtype == FileDType::kBF16 || dtype == FileDType::kF16;
}

class Builder {
 public:
  explicit Builder(const TensorSource& tree) : tree_(tree) {
    for (const TensorInfo& tensor : tree.tensors()) names_.insert(tensor.name);
  }

  absl::StatusOr<FrozenTree> Build() {
    for (const TensorInfo& tensor : tree_.tensors()) {
      std::optional<Frozen> frozen = ParseFrozen(tensor);
      if (!frozen.has_value()) continue;
      AQT_RETURN_IF_ERROR(Complete(*frozen));
      AQT_RETURN_IF_ERROR(AddFrozen(*frozen));
    }
    for (const TensorInfo& tensor : tree_.tensors()) {
      if (!consumed_.contains(tensor.name)) AddOther(tensor);
    }
    AQT_ASSIGN_OR_RETURN(result_.tensors, ViewsOfTree(tree_, std::move(tensors_), {}));
    return std::move(result_);
  }

 private:
  static absl::Status Refuse(const TensorInfo& tensor, absl::string_view cause) {
    return absl::UnimplementedError(absl::StrCat("frozen value ", QuoteForMessage(tensor.name), " ",
                                                 ToString(tensor.dtype), tensor.shape.ToString(), " ", cause));
  }

  // Finds scales, kernel and module.
  absl::Status Complete(Frozen& frozen) {
    const std::string begin = absl::StrCat(frozen.stem, frozen.side);
    frozen.scale = tree_.Find(absl::StrCat(begin, frozen.freezer->scale));
    if (frozen.scale == nullptr) {
      return absl::DataLossError(absl::StrCat("frozen value ", QuoteForMessage(frozen.value->name), " has no scale, ",
                                              QuoteForMessage(absl::StrCat(begin, frozen.freezer->scale)),
                                              "; convert the model again with CALIBRATION_AND_VALUE"));
    }
    const absl::string_view other = frozen.side == kSides[0] ? kSides[1] : kSides[0];
    frozen.input_scale = tree_.Find(absl::StrCat(frozen.stem, other, frozen.freezer->scale));
    for (const TensorInfo* tensor : {frozen.value, frozen.scale, frozen.input_scale}) {
      if (tensor != nullptr) consumed_.insert(tensor->name);
    }
    // What else is stored there changes the values: more scales, biases, masks.
    for (auto it = names_.lower_bound(begin); it != names_.end() && absl::StartsWith(*it, begin); ++it) {
      if (!consumed_.contains(*it)) {
        return Refuse(*frozen.value, absl::StrCat("comes with ", QuoteForMessage(*it),
                                                  ", for which compressed-tensors has no equivalent"));
      }
    }
    return FindModule(frozen);
  }

  // The module is what stands between the collection and the contraction, as far as parameters have it.
  absl::Status FindModule(Frozen& frozen) {
    const std::vector<std::string> parts = absl::StrSplit(frozen.stem, '.');
    if (parts.size() > kMaxParts) return Refuse(*frozen.value, absl::StrCat("has a name of ", parts.size(), " parts"));
    std::string root;
    size_t first = 1;
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string begin = i == 0 ? "" : absl::StrCat(absl::StrJoin(parts.begin(), parts.begin() + i, "."), ".");
      if (!HasPrefix(absl::StrCat(begin, kParams))) continue;
      root = begin;
      first = i + 1;
      break;
    }
    for (size_t end = parts.size(); end > first; --end) {
      const std::string module = absl::StrJoin(parts.begin() + first, parts.begin() + end, ".");
      frozen.kernel = tree_.Find(absl::StrCat(root, kParams, module, ".kernel"));
      const std::string parameters = absl::StrCat(root, kParams, module, ".");
      if (frozen.kernel == nullptr && !HasPrefix(parameters)) continue;
      if (frozen.kernel == nullptr) frozen.kernel = OnlyMatrix(parameters, frozen.value->shape.num_elements());
      frozen.module = module;
      break;
    }
    if (frozen.module.empty() && parts.size() > first + 1) {
      frozen.module = absl::StrJoin(parts.begin() + first, parts.end() - 1, ".");
    }
    if (frozen.module.empty()) return Refuse(*frozen.value, "is not inside a module, so that it has no name");
    if (!modules_.insert(frozen.module).second) {
      return Refuse(*frozen.value, absl::StrCat("is the second one of the module ", QuoteForMessage(frozen.module),
                                                ", which can have only one weight"));
    }
    if (frozen.kernel == nullptr) return absl::OkStatus();
    if (frozen.kernel->shape.num_elements() != frozen.value->shape.num_elements()) {
      return Refuse(*frozen.value, absl::StrCat("does not have the size of ", QuoteForMessage(frozen.kernel->name), " ",
                                                frozen.kernel->shape.ToString()));
    }
    consumed_.insert(frozen.kernel->name);
    result_.dropped.push_back(frozen.kernel->name);
    return absl::OkStatus();
  }

  bool HasPrefix(absl::string_view prefix) const {
    const auto it = names_.lower_bound(prefix);
    return it != names_.end() && absl::StartsWith(*it, prefix);
  }

  // The parameter of a module that can be the float kernel of a value, by its size; null if there is not exactly one.
  const TensorInfo* OnlyMatrix(const std::string& module, int64_t elements) const {
    const TensorInfo* found = nullptr;
    for (auto it = names_.lower_bound(module); it != names_.end() && absl::StartsWith(*it, module); ++it) {
      const TensorInfo* tensor = tree_.Find(*it);
      if (absl::StrContains(it->substr(module.size()), '.') || tensor->shape.rank() < 2) continue;
      if (tensor->shape.num_elements() != elements) continue;
      if (found != nullptr) return nullptr;
      found = tensor;
    }
    return found;
  }

  absl::Status AddFrozen(const Frozen& frozen) {
    FrozenWeight weight;
    weight.module = frozen.module;
    weight.is_float = frozen.value->dtype == FileDType::kF8E4M3;
    weight.num_bits = frozen.value->value_bits > 0 ? frozen.value->value_bits : 8;
    weight.has_input_scale = frozen.input_scale != nullptr;
    if (!weight.is_float && frozen.value->dtype != FileDType::kI8) {
      return Refuse(*frozen.value,
                    "is of a type that compressed-tensors does not have; int8, int4, int2 and "
                    "float8_e4m3fn are converted");
    }
    if (!IsScaleType(frozen.scale->dtype)) return Refuse(*frozen.scale, "is not a scale in f32, bf16 or f16");
    AQT_RETURN_IF_ERROR(AddWeight(frozen, weight));
    if (frozen.input_scale != nullptr) {
      if (frozen.input_scale->shape.num_elements() != 1 || !IsScaleType(frozen.input_scale->dtype)) {
        return Refuse(*frozen.input_scale,
                      "is a scale of activations that is not one number in f32, bf16 or f16, "
                      "for which compressed-tensors has no equivalent");
      }
      Add(*frozen.input_scale, absl::StrCat(frozen.module, ".input_scale"), {1});
    }
    result_.weights.push_back(std::move(weight));
    return absl::OkStatus();
  }

  // Adds value and scale, as the scale's shape says which axes are contracted.
  absl::Status AddWeight(const Frozen& frozen, FrozenWeight& weight) {
    const Shape& value = frozen.value->shape;
    const Shape& scale = frozen.scale->shape;
    const int64_t n = value.num_elements();
    const std::string name = absl::StrCat(weight.module, ".weight");
    const std::string scale_name = absl::StrCat(name, "_scale");
    if (n == 0) return Refuse(*frozen.value, "has no elements");
    if (scale.num_elements() == 1 && value.rank() == 2) {
      weight.units = value[1] == 1 ? FrozenWeight::kChannel : FrozenWeight::kTensor;
      AddTransposed(*frozen.value, name, value[1], value[0]);
      Add(*frozen.scale, scale_name, weight.units == FrozenWeight::kTensor ? Shape{1} : Shape{1, 1});
      return absl::OkStatus();
    }
    // Groups of inputs: the value is [groups, inputs of a group, outputs].
    if (value.rank() == 3 && frozen.kernel != nullptr && frozen.kernel->shape.rank() == 2 &&
        scale == Shape{value[0], 1, value[2]} && frozen.kernel->shape == Shape{value[0] * value[1], value[2]}) {
      weight.units = value[0] == 1 ? FrozenWeight::kChannel : FrozenWeight::kGroup;
      weight.group_size = value[0] == 1 ? 0 : value[1];
      AddTransposed(*frozen.value, name, value[2], value[0] * value[1]);
      AddTransposed(*frozen.scale, scale_name, value[2], value[0]);
      return absl::OkStatus();
    }
    AQT_ASSIGN_OR_RETURN(const int64_t outputs, OutputsOf(frozen));
    if (outputs > 0) {  // [inputs, outputs]
      AddTransposed(*frozen.value, name, outputs, n / outputs);
    } else {  // [outputs, inputs]
      Add(*frozen.value, name, {-outputs, n / -outputs});
    }
    Add(*frozen.scale, scale_name, {std::max(outputs, -outputs), 1});
    return absl::OkStatus();
  }

  // The number of outputs, if a scale for each says which axes of the value these are: the last ones; negative if they
  // are the first ones.
  static absl::StatusOr<int64_t> OutputsOf(const Frozen& frozen) {
    const Shape& value = frozen.value->shape;
    const Shape& scale = frozen.scale->shape;
    const int64_t outputs = scale.num_elements();
    const std::vector<int64_t> extents(value.begin(), value.end());
    std::vector<int64_t> wanted;  // the scale's extents without 1
    std::copy_if(scale.begin(), scale.end(), std::back_inserter(wanted), [](int64_t extent) { return extent != 1; });
    const auto without_1 = [](absl::Span<const int64_t> all) {
      std::vector<int64_t> some;
      std::copy_if(all.begin(), all.end(), std::back_inserter(some), [](int64_t extent) { return extent != 1; });
      return some;
    };
    // The freezer of today keeps the rank, so that the axes are certain; the one before gives the output's shape.
    const bool same_rank = scale.rank() == value.rank() && frozen.freezer == &kFreezers[0];
    const absl::Span<const int64_t> all = extents;
    const auto ones = [&](int begin, int end) {
      for (int axis = begin; axis < end; ++axis) {
        if (same_rank && scale[axis] != 1) return false;
      }
      return true;
    };
    for (size_t split = 1; split < extents.size(); ++split) {
      if (without_1(all.subspan(split)) == wanted && ones(0, static_cast<int>(split))) {
        return Product(all.subspan(split));
      }
    }
    for (size_t split = 1; split < extents.size(); ++split) {
      if (without_1(all.first(split)) == wanted && ones(static_cast<int>(split), value.rank())) {
        return -Product(all.first(split));
      }
    }
    return Refuse(*frozen.value, absl::StrCat("has scales of shape ", scale.ToString(), ", and ", outputs,
                                              " scales along these axes have no equivalent in compressed-tensors; it "
                                              "has one for each output, for groups of inputs, or for all"));
  }

  // A parameter that is not frozen, or a variable of another collection.
  void AddOther(const TensorInfo& tensor) {
    const absl::string_view name = tensor.name;
    const size_t params = absl::StartsWith(name, kParams) ? 0 : name.find(absl::StrCat(".", kParams));
    if (params == absl::string_view::npos) return Add(tensor, std::string(name), tensor.shape);
    const size_t begin = params == 0 ? kParams.size() : params + 1 + kParams.size();
    tensors_.push_back(FlaxParameters(tree_, name.substr(0, begin)).Convert(tensor));
  }

  void AddTransposed(const TensorInfo& tensor, std::string name, int64_t columns, int64_t rows) {
    tensors_.push_back(TransposedTensor(tree_, tensor, std::move(name), columns, rows));
  }
  void Add(const TensorInfo& tensor, std::string name, const Shape& shape) {
    tensors_.push_back(ViewOfTensor(tree_, tensor, std::move(name), shape));
  }

  const TensorSource& tree_;
  std::set<absl::string_view> names_;     // of the tree's tensors
  std::set<absl::string_view> consumed_;  // of those that are not in the result under their own names
  std::set<std::string> modules_;
  std::vector<StoredTensor> tensors_;
  FrozenTree result_;
};

}  // namespace

bool IsFrozenTree(const TensorSource& tree) {
  return std::any_of(tree.tensors().begin(), tree.tensors().end(),
                     [](const TensorInfo& tensor) { return ParseFrozen(tensor).has_value(); });
}

absl::StatusOr<FrozenTree> OpenFrozenTree(const TensorSource& tree) {
  absl::StatusOr<FrozenTree> result = Builder(tree).Build();
  if (result.ok()) return result;
  return Annotate(result.status(), absl::StrCat("AQT serving tree '", tree.path(), "'"));
}

}  // namespace aqt::io
