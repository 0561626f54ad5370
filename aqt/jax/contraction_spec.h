#ifndef AQT_JAX_CONTRACTION_SPEC_H_
#define AQT_JAX_CONTRACTION_SPEC_H_

// What a call contracts, as the text that Python passes:
//
//   dims 1|0||                      contracting axes of lhs, of rhs, batch axes of lhs, of rhs, separated by commas
//   compat original                 or qwix, or names of fields of Compat, separated by spaces; may be left out
//   layout original                 keys of jax_threefry_partitionable = False; may be left out
//   arithmetic ieee                 may be left out
//   levels 110000 000000            a leading batch axis of both operands for each word, outermost first, as vmap adds
//                                   them: axes in the configuration do not count them. The digits stand for fwd.lhs,
//                                   fwd.rhs, dlhs.lhs, dlhs.rhs, drhs.lhs and drhs.rhs: 1 where one key, and so the
//                                   same noise, serves all entries of the axis. May be left out
//   config                          the rest is a textproto of aqt.config.DotGeneral
//   schema: 1 ...

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"

namespace aqt::jax {

struct ContractionSpec {
  DotGeneralConfig config;  // without the leading batch axes of `levels`
  DotDims dims;             // with them
  Semantics semantics;
  std::vector<std::string> levels;
};

// InvalidArgument, naming the line, or with the position in the configuration.
absl::StatusOr<ContractionSpec> ParseContractionSpec(absl::string_view text);

// The plan for operands of these dtypes and shapes. Errors are those of DotGeneralPlan::Make; Unimplemented for levels
// with a configuration whose axes cannot be moved (a tiling), or that draws random bits with one key for all entries.
absl::StatusOr<DotGeneralPlan> MakePlan(const ContractionSpec& spec, const Aval& lhs, const Aval& rhs,
                                        PlanPasses passes);

}  // namespace aqt::jax

#endif  // AQT_JAX_CONTRACTION_SPEC_H_
