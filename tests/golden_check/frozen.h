#ifndef AQT_TESTS_GOLDEN_CHECK_FROZEN_H_
#define AQT_TESTS_GOLDEN_CHECK_FROZEN_H_

// How cases that are served get their values.

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt::golden {

// The values of both; those of `a` where both have one.
SlotValues Union(SlotValues a, const SlotValues& b);

// What a program in mode CONVERT freezes: what Fold computes from `known`, and what depends on a key in `data`, too.
// The results of that program go to `out` if it is not null.
absl::StatusOr<SlotValues> Frozen(const Program& convert, const SlotValues& known, const SlotValues& data,
                                  SlotValues* out = nullptr);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_FROZEN_H_
