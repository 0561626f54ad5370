#include "aqt/nn/layers/embed.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/scaling/low_precision.h"

namespace aqt::nn {
namespace {

absl::Status Check(const EmbedOptions& options) {
  if (options.entries < 1 || options.features < 1) {
    return absl::InvalidArgumentError(absl::StrCat("entries = ", options.entries, ", features = ", options.features,
                                                   "; expected at least 1 of each"));
  }
  if (IsFloat(options.dtype) && SizeOf(options.dtype) > 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("dtype = ", ToString(options.dtype), ", expected f16, bf16, f32 or f64"));
}

Value Table(const EmbedOptions& options, const std::source_location& where) {
  const Initializer init =
      options.init != nullptr ? options.init : Normal(1 / std::sqrt(static_cast<double>(options.features)));
  return Parameter("embedding", {options.dtype, {options.entries, options.features}}, init, where);
}

}  // namespace

Value Embed(const Value& ids, absl::string_view name, const EmbedOptions& options, const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (absl::Status status = Check(options); !status.ok()) return Refuse(status, "embed", {ids}, where);
  const Value rows = ops::Take(Table(options, where), ids);
  if (!options.integer_rows.has_value()) return rows;
  return ops::RoundRowsToIntegers(rows, options.integer_rows->bits, options.integer_rows->half_shift);
}

Value EmbedLogits(const Value& x, absl::string_view name, const EmbedOptions& options,
                  const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (absl::Status status = Check(options); !status.ok()) return Refuse(status, "embed_logits", {x}, where);
  if (!x.status().ok()) return x;
  if (x.rank() == 0 || x.dim(-1) != options.features) {
    return Refuse(absl::InvalidArgumentError(
                      absl::StrCat("takes an array whose last axis has the ", options.features, " features")),
                  "embed_logits", {x}, where);
  }
  return ops::DotGeneral(x, Table(options, where),
                         {.lhs_contracting = {x.rank() - 1}, .rhs_contracting = {1}, .lhs_batch = {}, .rhs_batch = {}});
}

}  // namespace aqt::nn
