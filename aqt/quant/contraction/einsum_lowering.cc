#include "aqt/quant/contraction/einsum_lowering.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/engine/pass.h"

namespace aqt::internal {
namespace {

bool Has(const std::string& names, char letter) { return names.find(letter) != std::string::npos; }
int64_t Find(const std::string& names, char letter) { return static_cast<int64_t>(names.find(letter)); }

// The axes of one operand, given the names of the other one.
absl::StatusOr<EinsumOperand> MakeOperand(absl::string_view equation, Side side, const Aval& own,
                                          const std::string& names, const Aval& other, const std::string& other_names,
                                          const std::string& out) {
  EinsumOperand plan;
  plan.given = own;
  for (int64_t axis = 0; axis < own.shape.rank(); ++axis) {
    const char letter = names[axis];
    const int64_t first = Find(names, letter);
    if (own.shape[axis] != own.shape[first]) {
      return absl::InvalidArgumentError(absl::StrCat("einsum \"", equation, "\": '", std::string(1, letter), "' is ",
                                                     own.shape[first], " and ", own.shape[axis], " in ", Name(side),
                                                     " ", own.ToString(), "; a repeated letter needs equal extents"));
    }
    if (Has(other_names, letter)) {
      const int64_t extent = other.shape[Find(other_names, letter)];
      if (extent != own.shape[axis] && extent != 1 && own.shape[axis] != 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "einsum \"", equation, "\": '", std::string(1, letter), "' is ", own.shape[axis], " in ", Name(side), " ",
            own.ToString(), ", but ", extent, " in the other operand, ", other.ToString(), "; expected equal, or 1"));
      }
      if (own.shape[axis] == 1 && extent != 1) continue;
    }
    if (first == axis) {
      plan.view_names.push_back(letter);
      plan.view_axes.push_back({axis});
    } else {
      plan.view_axes[Find(plan.view_names, letter)].push_back(axis);
    }
  }
  for (size_t i = 0; i < plan.view_names.size(); ++i) {
    const char letter = plan.view_names[i];
    const bool in_other = Has(other_names, letter) &&
                          (own.shape[Find(names, letter)] == 1 || other.shape[Find(other_names, letter)] != 1);
    if (in_other || Has(out, letter)) {
      plan.names.push_back(letter);
      plan.used.shape.push_back(own.shape[plan.view_axes[i][0]]);
    } else {
      plan.summed.push_back(static_cast<int64_t>(i));
    }
  }
  return plan;
}

}  // namespace

std::vector<Axes> EinsumOperand::SumsInDType() const {
  std::vector<Axes> sums(1);
  for (const int64_t axis : summed) {
    if (view_axes[static_cast<size_t>(axis)].size() == 1) sums[0].push_back(axis);
  }
  for (const int64_t axis : summed) {
    if (view_axes[static_cast<size_t>(axis)].size() == 1) continue;
    // All axes before it in `summed` are already summed.
    sums.push_back({axis - (std::find(summed.begin(), summed.end(), axis) - summed.begin())});
  }
  if (sums[0].empty()) sums.erase(sums.begin());
  return sums;
}

absl::StatusOr<EinsumLowering> LowerEinsum(absl::string_view equation, const Aval& lhs, const Aval& rhs) {
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(lhs.shape), "einsum: lhs"));
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(rhs.shape), "einsum: rhs"));
  EinsumLowering lowering;
  AQT_ASSIGN_OR_RETURN(lowering.equation, ParseEinsum(equation, lhs.shape.rank(), rhs.shape.rank()));
  const EinsumEquation& names = lowering.equation;
  AQT_ASSIGN_OR_RETURN(lowering.lhs, MakeOperand(equation, Side::kLhs, lhs, names.lhs, rhs, names.rhs, names.out));
  AQT_ASSIGN_OR_RETURN(lowering.rhs, MakeOperand(equation, Side::kRhs, rhs, names.rhs, lhs, names.lhs, names.out));
  AQT_ASSIGN_OR_RETURN(const DType dtype, EinsumDType(lhs.dtype, rhs.dtype));
  lowering.lhs.used.dtype = lowering.rhs.used.dtype = dtype;

  const std::string &a = lowering.lhs.names, &b = lowering.rhs.names;
  std::string batch, contracted, a_rest, b_rest;
  lowering.out.dtype = dtype;
  for (const char letter : names.out) {
    if (Has(a, letter) && Has(b, letter)) batch.push_back(letter);
    lowering.out.shape.push_back(Has(a, letter) ? lowering.lhs.used.shape[Find(a, letter)]
                                                : lowering.rhs.used.shape[Find(b, letter)]);
  }
  for (const char letter : a) {
    if (!Has(b, letter)) a_rest.push_back(letter);
    if (Has(b, letter) && !Has(names.out, letter)) contracted.push_back(letter);
  }
  for (const char letter : b) {
    if (!Has(a, letter)) b_rest.push_back(letter);
  }
  std::sort(contracted.begin(), contracted.end());
  lowering.swapped = batch + a_rest + b_rest != names.out;
  lowering.product_names = batch + (lowering.swapped ? b_rest + a_rest : a_rest + b_rest);

  const EinsumOperand& first = lowering.operand(lowering.InProduct(Side::kLhs));
  const EinsumOperand& second = lowering.operand(lowering.InProduct(Side::kRhs));
  DotDims& dims = lowering.dims;
  for (const char letter : batch) {
    dims.lhs_batch.push_back(Find(first.names, letter));
    dims.rhs_batch.push_back(Find(second.names, letter));
  }
  for (const char letter : contracted) {
    dims.lhs_contracting.push_back(Find(first.names, letter));
    dims.rhs_contracting.push_back(Find(second.names, letter));
  }
  return lowering;
}

std::string ProductOf(absl::string_view equation, const EinsumLowering& lowering) {
  return absl::StrCat("einsum \"", equation, "\"",
                      lowering.swapped ? " (as rhs x lhs: sides and passes are exchanged)" : "");
}

}  // namespace aqt::internal
