#ifndef AQT_QUANT_CONTRACTION_EINSUM_LOWERING_H_
#define AQT_QUANT_CONTRACTION_EINSUM_LOWERING_H_

// The parts of an einsum, derived from its equation and the avals of its operands (einsum.h has the steps). Internal:
// EinsumPlan runs it, //aqt/ops expresses it in basic operations.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/einsum_equation.h"

namespace aqt::internal {

// How a given operand is turned into the one that DotGeneral reads.
struct EinsumOperand {
  Aval given;
  // The view: one axis per letter (diagonals taken, broadcast axes dropped), made of these axes of the given array.
  std::string view_names = {};
  std::vector<Axes> view_axes = {};
  Axes summed = {};        // axes of the view
  std::string names = {};  // of the axes that DotGeneral sees
  Aval used = {};

  // `summed` as the successive sums of Compat::einsum_sums_in_dtype: first the axes of letters that occur once, then,
  // one by one, those of letters that occur more often. Each entry refers to the axes that earlier sums left.
  std::vector<Axes> SumsInDType() const;

  bool converts() const { return given.dtype != used.dtype; }
  bool materializes() const { return converts() || !summed.empty(); }
  bool permutes_only() const { return summed.empty() && static_cast<int64_t>(view_names.size()) == given.shape.rank(); }
  Shape ViewShape() const {
    Shape shape;
    for (const Axes& axes : view_axes) shape.push_back(given.shape[axes[0]]);
    return shape;
  }
};

struct EinsumLowering {
  EinsumEquation equation;
  EinsumOperand lhs, rhs;  // of the equation
  Aval out;
  bool swapped = false;       // the product is rhs x lhs
  DotDims dims;               // of the product
  std::string product_names;  // of the axes of the product

  const EinsumOperand& operand(Side side) const { return side == Side::kLhs ? lhs : rhs; }
  // Maps a side of the equation to the side of the product, and back.
  Side InProduct(Side side) const { return swapped ? Other(side) : side; }
};

// Errors as for EinsumPlan::Make, as far as equation, shapes and dtypes are concerned.
absl::StatusOr<EinsumLowering> LowerEinsum(absl::string_view equation, const Aval& lhs, const Aval& rhs);

// The prefix of a message about the product.
std::string ProductOf(absl::string_view equation, const EinsumLowering& lowering);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_EINSUM_LOWERING_H_
