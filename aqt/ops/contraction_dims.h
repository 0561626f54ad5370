#ifndef AQT_OPS_CONTRACTION_DIMS_H_
#define AQT_OPS_CONTRACTION_DIMS_H_

#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/contraction/conv_dims.h"

namespace aqt {

// lhs [m,k] x rhs [groups,k,n] -> [m,n], with a third operand, group_sizes s32[groups]: each group of rows has its own
// matrix (quant/contraction/ragged_dot.h).
struct RaggedDims {
  bool operator==(const RaggedDims&) const = default;
};

// An einsum of two operands (quant/contraction/einsum.h): the equation lowers it to a dot_general.
struct EinsumDims {
  std::string equation;  // "bqhd,bkhd->bhqk"
  bool operator==(const EinsumDims&) const = default;
};

// The dimensions of a contraction of any kind.
using ContractionDims = std::variant<DotDims, ConvDims, RaggedDims, EinsumDims>;
// The dimensions of contractions with a plan of their own: an einsum is a dot_general.
using PlannedDims = std::variant<DotDims, ConvDims, RaggedDims>;

// The kind by name: "dot_general", "conv", "ragged_dot", "einsum".
absl::string_view KindOf(const ContractionDims& dims);
absl::string_view KindOf(const PlannedDims& dims);

// InvalidArgument, naming the known kinds, unless `kind` is one of them.
absl::Status ValidateKind(absl::string_view kind);

// The dims in the text of a program: "dims=(([1],[0]),([],[]))"; "padding=SAME, strides=[2,2], groups=4", without
// values of 1; nothing for a ragged contraction.
std::string DescribeDims(const PlannedDims& dims);

}  // namespace aqt

#endif  // AQT_OPS_CONTRACTION_DIMS_H_
