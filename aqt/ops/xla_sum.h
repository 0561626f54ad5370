#ifndef AQT_OPS_XLA_SUM_H_
#define AQT_OPS_XLA_SUM_H_

// The sums of Compat::einsum_sums_in_dtype as an operation of a program. Internal.

#include <memory>

#include "absl/status/statusor.h"
#include "aqt/core/shape.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/value.h"

namespace aqt::internal {

// kernels::SumAsXla(x, axes), "xla_sum": x is f32, bf16 or f16, and `axes` are ascending. The gradient of each element
// is that of its sum.
Value SumAsXla(const Value& x, const Axes& axes);

// The fields of the operation (graph/composite_fields.h), and the operation. InvalidArgument unless the axes ascend.
struct XlaSumFields {
  Axes axes;
  static constexpr const char* kFieldNames[] = {"axes"};
  bool operator==(const XlaSumFields&) const = default;
};
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const XlaSumFields& fields);

}  // namespace aqt::internal

#endif  // AQT_OPS_XLA_SUM_H_
