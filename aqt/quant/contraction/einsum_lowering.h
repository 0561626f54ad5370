#ifndef AQT_QUANT_CONTRACTION_EINSUM_LOWERING_H_
#define AQT_QUANT_CONTRACTION_EINSUM_LOWERING_H_

// What an einsum is made of, known from its equation and the avals of its operands (einsum.h has the steps). Internal:
// EinsumPlan runs it, //aqt/ops writes it in basic operations.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/einsum_equation.h"

namespace aqt::internal {

// How a given operand becomes the one that DotGeneral reads.
struct EinsumOperand {
  Aval given;
  // The view: one axis per letter (diagonals taken, broadcast axes dropped), made of these axes of the given array.
  std::string view_names = {};
  std::vector<Axes> view_axes = {};
  Axes summed = {};        // axes of the view
  std::string names = {};  // of the axes that DotGeneral sees
  Aval used = {};

  // `summed` as Compat::einsum_sums_in_dtype takes it: the axes of letters that occur once, then, one after the other,
  // those of letters that occur more often. Each are axes of what the sums before it have left.
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
  // The side of the product on which an operand of the equation is, and the other way round.
  Side InProduct(Side side) const { return swapped ? Other(side) : side; }
};

// Errors as for EinsumPlan::Make, as far as equation, shapes and dtypes are concerned.
absl::StatusOr<EinsumLowering> LowerEinsum(absl::string_view equation, const Aval& lhs, const Aval& rhs);

// Before a message about the product.
std::string ProductOf(absl::string_view equation, const EinsumLowering& lowering);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_EINSUM_LOWERING_H_
