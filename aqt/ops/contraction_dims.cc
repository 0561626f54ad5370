#include "aqt/ops/contraction_dims.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace aqt {
namespace {

std::string Describe(const DotDims& dims) { return absl::StrCat("dims=", dims.ToString()); }

std::string Describe(const ConvDims& dims) {
  std::string text = "padding=";
  if (dims.padding == ConvPadding::kExplicit) {
    const auto pair = [](std::string* out, const std::pair<int64_t, int64_t>& p) {
      absl::StrAppend(out, "(", p.first, ",", p.second, ")");
    };
    absl::StrAppend(&text, "[", absl::StrJoin(dims.explicit_padding, ",", pair), "]");
  } else {
    absl::StrAppend(&text, ToString(dims.padding));
  }
  const auto append = [&](absl::string_view name, const Axes& values) {
    if (std::all_of(values.begin(), values.end(), [](int64_t value) { return value == 1; })) return;
    absl::StrAppend(&text, ", ", name, "=[", absl::StrJoin(values, ","), "]");
  };
  append("strides", dims.window_strides);
  append("lhs_dilation", dims.lhs_dilation);
  append("rhs_dilation", dims.rhs_dilation);
  if (dims.feature_group_count != 1) absl::StrAppend(&text, ", groups=", dims.feature_group_count);
  return text;
}

std::string Describe(const RaggedDims&) { return ""; }

absl::string_view NameOf(const DotDims&) { return "dot_general"; }
absl::string_view NameOf(const ConvDims&) { return "conv"; }
absl::string_view NameOf(const RaggedDims&) { return "ragged_dot"; }
absl::string_view NameOf(const EinsumDims&) { return "einsum"; }

}  // namespace

absl::string_view KindOf(const ContractionDims& dims) {
  return std::visit([](const auto& own) { return NameOf(own); }, dims);
}
absl::string_view KindOf(const PlannedDims& dims) {
  return std::visit([](const auto& own) { return NameOf(own); }, dims);
}

absl::Status ValidateKind(absl::string_view kind) {
  const absl::string_view kinds[] = {NameOf(DotDims()), NameOf(ConvDims()), NameOf(RaggedDims()), NameOf(EinsumDims())};
  if (std::find(std::begin(kinds), std::end(kinds), kind) != std::end(kinds)) return absl::OkStatus();
  const auto quoted = [](std::string* out, absl::string_view name) { absl::StrAppend(out, "\"", name, "\""); };
  return absl::InvalidArgumentError(
      absl::StrCat("op \"", kind, "\" cannot be quantized; ", absl::StrJoin(kinds, ", ", quoted), " can"));
}

std::string DescribeDims(const PlannedDims& dims) {
  return std::visit([](const auto& own) { return Describe(own); }, dims);
}

}  // namespace aqt
