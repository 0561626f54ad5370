#ifndef AQT_QUANT_CONTRACTION_ENGINE_PASS_H_
#define AQT_QUANT_CONTRACTION_ENGINE_PASS_H_

// The three products of a trained contraction, and the names of their intermediates. Internal.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "aqt/core/dot_dims.h"

namespace aqt::internal {

// kDlhs: g x rhs, kDrhs: g x lhs. In both, g is the product's lhs.
enum class Pass : uint8_t { kFwd, kDlhs, kDrhs };
inline constexpr int kNumPasses = 3;
inline absl::string_view ToString(Pass pass) {
  switch (pass) {
    case Pass::kFwd: return "fwd";
    case Pass::kDlhs: return "dlhs";
    case Pass::kDrhs: return "drhs";
  }
  return "?";
}

inline const char* Name(Side side) { return side == Side::kLhs ? "lhs" : "rhs"; }
inline constexpr Side kSides[] = {Side::kLhs, Side::kRhs};

// Names that the observer receives, by pass and side.
struct SideNames {
  absl::string_view scale, bias, key, noise, qvalue, operand;
};
struct PassNames {
  SideNames lhs, rhs;
  absl::string_view accum;
  const SideNames& side(Side s) const { return s == Side::kLhs ? lhs : rhs; }
};
inline const PassNames& NamesOf(Pass pass) {
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

#endif  // AQT_QUANT_CONTRACTION_ENGINE_PASS_H_
