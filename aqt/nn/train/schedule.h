#ifndef AQT_NN_TRAIN_SCHEDULE_H_
#define AQT_NN_TRAIN_SCHEDULE_H_

// Learning rates that change during a training, as operations of the step program. The formulas, and the order of their
// operations, are those of optax; t is the number of updates that the optimizer has made, 0 in the first one.
//
//   nn::AdamW{.learning_rate = nn::WarmupCosineSchedule{.peak_value = 3e-4, .warmup_steps = 100, .decay_steps = 2000}}
//
// They are computed in f32 (f64 for parameters of f64). t is an s32, and every comparison with it is exact. It is
// rounded once when converted to a float, so it is exact in f32 up to 2^24. All bits are of Level 1 (docs/bits.md).

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/value.h"

namespace aqt::nn {

// With s = min(max(t - transition_begin, 0), transition_steps):
//   (init_value - end_value) * (1 - s / transition_steps)^power + end_value
struct PolynomialSchedule {
  double init_value = 0, end_value = 0, power = 1;
  int64_t transition_steps = 1, transition_begin = 0;
};

// PolynomialSchedule with power 1: a warm-up followed by the constant end_value, or a decay.
struct LinearSchedule {
  double init_value = 0, end_value = 0;
  int64_t transition_steps = 1, transition_begin = 0;
};

// init_value * ((1 - alpha) * (0.5 * (1 + cos(pi * min(t, decay_steps) / decay_steps)))^exponent + alpha)
struct CosineSchedule {
  double init_value = 0;
  int64_t decay_steps = 1;
  double alpha = 0, exponent = 1;
};

// init_value * decay_rate^((t - transition_begin) / transition_steps), and init_value while t <= transition_begin. With
// `staircase` the exponent is rounded down. end_value is a lower bound if decay_rate < 1, otherwise an upper bound.
struct ExponentialSchedule {
  double init_value = 0, decay_rate = 1;
  int64_t transition_steps = 1, transition_begin = 0;
  bool staircase = false;
  std::optional<double> end_value = std::nullopt;
};

// init_value times every scale whose boundary is at most t, multiplied in the order of the boundaries.
struct PiecewiseConstantSchedule {
  double init_value = 0;
  absl::btree_map<int64_t, double> boundaries_and_scales = {};
};

// Linear from init_value to peak_value in warmup_steps, then CosineSchedule down to end_value at t = decay_steps.
struct WarmupCosineSchedule {
  double init_value = 0, peak_value = 0;
  int64_t warmup_steps = 0, decay_steps = 1;
  double end_value = 0, exponent = 1;
};

class Schedule;

// Schedule i + 1 applies from t = boundaries[i], with its own t counted from there.
struct JoinedSchedule {
  std::vector<Schedule> schedules = {};
  std::vector<int64_t> boundaries = {};
};

// Any of the schedules. A number is a constant rate.
class Schedule {
 public:
  using Kind = std::variant<double, PolynomialSchedule, LinearSchedule, CosineSchedule, ExponentialSchedule,
                            PiecewiseConstantSchedule, WarmupCosineSchedule, JoinedSchedule>;
  // Implicit, so that an option takes a number or one of the structs.
  Schedule(double rate) : kind_(rate) {}                                        // NOLINT
  Schedule(PolynomialSchedule schedule) : kind_(schedule) {}                    // NOLINT
  Schedule(LinearSchedule schedule) : kind_(schedule) {}                        // NOLINT
  Schedule(CosineSchedule schedule) : kind_(schedule) {}                        // NOLINT
  Schedule(ExponentialSchedule schedule) : kind_(schedule) {}                   // NOLINT
  Schedule(PiecewiseConstantSchedule schedule) : kind_(std::move(schedule)) {}  // NOLINT
  Schedule(WarmupCosineSchedule schedule) : kind_(schedule) {}                  // NOLINT
  Schedule(JoinedSchedule schedule) : kind_(std::move(schedule)) {}             // NOLINT

  const Kind& kind() const { return kind_; }
  bool is_constant() const { return std::holds_alternative<double>(kind_); }

  // InvalidArgument, beginning with `name`, for a field that is not finite or out of its range, which the message
  // states.
  absl::Status Validate(absl::string_view name) const;

  // The rate, a scalar of `dtype` (f32 or f64), for the scalar t of s32. Precondition: Validate.
  Value Rate(const Value& t, DType dtype) const;
  // The result of Rate for one t, computed eagerly; for progress lines.
  float RateAt(int32_t t) const;

 private:
  Kind kind_;
};

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_SCHEDULE_H_
