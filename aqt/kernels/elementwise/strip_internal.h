#ifndef AQT_KERNELS_ELEMENTWISE_STRIP_INTERNAL_H_
#define AQT_KERNELS_ELEMENTWISE_STRIP_INTERNAL_H_

// The interface between strip.cc, which orders steps, and strip_run.cc, which runs them.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/strip.h"

namespace aqt::kernels {

// a is the accumulator; x and y are the operands of the step.
enum class StripFunction::Kind : uint8_t {
  kLoad,  // x
  kLoadBf16,
  kLoadF16,
  kLoadBool,
  kKeep,   // a, stored in slot x
  kWrite,  // a, stored in output x
  kWriteBf16,
  kWriteF16,
  kWriteBool,
  kSumRow,   // a, added to row sum x
  kAdd,      // a + x
  kSub,      // a - x
  kSubFrom,  // x - a
  kMul,
  kSquare,  // a * a
  // Fused steps. Each product is rounded before it is used.
  kLoadAdd,     // x + y
  kLoadSub,     // x - y
  kLoadDiv,     // x / y
  kMulAddEach,  // a * y + x
  // The same, where y is a number and z is a number or absent.
  kLoadMul,         // x * y
  kMulAdd,          // a * y + x
  kMulSub,          // a * y - x
  kMulSubFrom,      // x - a * y
  kMulMul,          // a * y * x
  kAddProduct,      // a + x * y * z
  kSubProduct,      // a - x * y * z
  kSubFromProduct,  // x * y * z - a
  kDiv,             // a / x
  kDivInto,         // x / a
  kMax,
  kMin,
  // All bits set where the relation holds, otherwise none.
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kSelect,  // x where the bits of a are set, otherwise y
  // Steps of a alone.
  kCopy,  // only for nodes, not a step
  kRoundBf16,
  kRoundF16,
  kNeg,
  kAbs,
  kFlush,
  kSqrt,
  // Functions from here on.
  kRsqrt,
  kExp,
  kExpm1,
  kLog,
  kLog1p,
  kTanh,
  kLogistic,
  kErf,
};

namespace internal {

// The members of a StripFunction.
struct StripParts {
  absl::Span<const StripFunction::Step> steps;
  absl::Span<const StripFunction::Number> numbers;
  absl::Span<const int> row_sums;  // indices of their outputs
  int num_slots;
};

// Stored at the start of prepared memory.
using RunPrepared = void (*)(const StripCall& call, void* prepared);

int64_t PreparedStripBytes(const StripParts& parts, Target target);
void PrepareStrip(const StripParts& parts, const StripCall& call, void* prepared, Target target);

}  // namespace internal
}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_STRIP_INTERNAL_H_
