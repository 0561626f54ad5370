#include "aqt/kernels/reduce/reduce_kind.h"

namespace aqt::kernels {

absl::string_view ToString(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum: return "sum";
    case ReduceKind::kMax: return "max";
    case ReduceKind::kMin: return "min";
    case ReduceKind::kProd: return "prod";
  }
  return "?";
}

absl::string_view ToString(ArgKind kind) { return kind == ArgKind::kMax ? "max" : "min"; }

}  // namespace aqt::kernels
