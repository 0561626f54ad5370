#include "aqt/quant/contraction/pass.h"

namespace aqt::internal {

absl::string_view ToString(Pass pass) {
  switch (pass) {
    case Pass::kFwd: return "fwd";
    case Pass::kDlhs: return "dlhs";
    case Pass::kDrhs: return "drhs";
  }
  return "?";
}

const PassNames& NamesOf(Pass pass) {
#define AQT_PASS_NAMES(pass)                                                                                           \
  {                                                                                                                    \
    {pass ".lhs.scale", pass ".lhs.bias", pass ".lhs.key", pass ".lhs.noise", pass ".lhs.qvalue", pass ".dg_lhs"},     \
        {pass ".rhs.scale", pass ".rhs.bias", pass ".rhs.key", pass ".rhs.noise", pass ".rhs.qvalue", pass ".dg_rhs"}, \
        pass ".accum"                                                                                                  \
  }
  static constexpr PassNames kPassNames[] = {AQT_PASS_NAMES("fwd"), AQT_PASS_NAMES("dlhs"), AQT_PASS_NAMES("drhs")};
#undef AQT_PASS_NAMES
  return kPassNames[static_cast<int>(pass)];
}

}  // namespace aqt::internal
