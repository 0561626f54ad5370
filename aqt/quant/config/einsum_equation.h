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

// Reads an equation of two operands of these ranks. Spaces are ignored. A term is letters and at most one "...", which
// stands for the axes without a letter; these are aligned from the right, so that an operand with fewer of them is
// broadcast. Without "->" the result has the ellipsis, then, sorted, capitals first, each letter that occurs once in
// the two operands. Ellipsis axes get the first letters that the equation does not use, as in jax (the order of
// contraction depends on their names).
// InvalidArgument, with the equation, the position (from 0) and the letter, for any other text, a term that does not
// fit its rank, and a letter of the result that occurs twice there or in no operand.
absl::StatusOr<EinsumEquation> ParseEinsum(absl::string_view equation, int64_t lhs_rank, int64_t rhs_rank);

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_EINSUM_EQUATION_H_
