#ifndef AQT_TRANSFORMS_ROW_DEPENDENCE_H_
#define AQT_TRANSFORMS_ROW_DEPENDENCE_H_

// Whether the rows of a batch, and the padding of a row, can change each other's bits. Decided from several traces of
// one model: an axis whose extent differs between two batches is a batch axis, and so for lengths.

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/graph/program.h"

namespace aqt {

// Why a row may have other bits in another batch; "" if its bits are the same in each of these batches
// (docs/bits.md#what-a-row-may-depend-on). `programs` are one model for two or more batches, ascending; the batch is
// axis 0 of their data inputs and outputs. Composites are replaced by their expansions. An operation joins rows if it
// reduces, contracts, orders, counts or selects along a batch axis, or if it is a composite without an expansion. Rows
// also depend on the batch if the programs do not have the same arithmetic: the scale of a batch of one row
// (docs/bits.md#a-batch-of-one-row). InvalidArgument for fewer than two programs; the errors of Expand.
absl::StatusOr<std::string> WhyRowsDepend(absl::Span<const Program> programs);

// Why positions after the end of a row may change the others: a scale that is found from several positions, inside a
// quantized operation. "" if there is none. Only operations of `program` that quantize are looked at; reductions of the
// model itself, such as those of a softmax, are taken to be masked. `one` and `other` are one model for two lengths.
absl::StatusOr<std::string> WhyPaddingCounts(const Program& one, const Program& other);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_ROW_DEPENDENCE_H_
