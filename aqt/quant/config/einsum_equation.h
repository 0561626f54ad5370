#ifndef AQT_QUANT_CONFIG_EINSUM_EQUATION_H_
#define AQT_QUANT_CONFIG_EINSUM_EQUATION_H_

// The text of an einsum: "bqhd,bkhd->bhqk".

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt {

// One letter (a-z, A-Z) per axis of each array, ellipses expanded.
struct EinsumEquation {
  std::string lhs, rhs, out;
  bool operator==(const EinsumEquation&) const = default;
};

// Parses an equation of two operands with these ranks. Spaces are ignored. A term is letters and at most one "...",
// which stands for the axes without a letter; these are aligned from the right, so that an operand with fewer of them
// is broadcast. Without "->" the result has the ellipsis, then each letter that occurs exactly once in the two
// operands, sorted with capitals first. Ellipsis axes get the first letters that the equation does not use, as in jax
// (the order of contraction depends on their names).
// InvalidArgument, with the equation, the position (from 0) and the letter, for any other text, for a term that does
// not fit its rank, and for a result letter that is repeated or that no operand has.
absl::StatusOr<EinsumEquation> ParseEinsum(absl::string_view equation, int64_t lhs_rank, int64_t rhs_rank);

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_EINSUM_EQUATION_H_
