#ifndef AQT_NN_LAYERS_PARAMETER_H_
#define AQT_NN_LAYERS_PARAMETER_H_

// A model's parameters, by name. A layer asks for its parameter where it needs it:
//   const Value kernel = nn::Parameter("kernel", {DType::kF32, {in, out}}, nn::LecunUniform({0}));
// The enclosing named scopes complete the name: "mlp/fc1/kernel". The result of the call depends on the context, not on
// the layer:
//   inside Trace:              the input of kind param with that name
//   inside InitParams:         the same; its initializer is run afterwards
//   while EagerParams exists:  the array with that name
// A parameter that is used twice is one parameter.

#include <cstdint>
#include <functional>
#include <source_location>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"

namespace aqt::nn {

// Makes a parameter's initial value; each parameter has its own `key`.
using Initializer = std::function<Array(const Aval& aval, Key key)>;

// All elements 0.
Initializer Zeros();
// All elements 1.
Initializer Ones();
// Normally distributed with mean 0 (Box and Muller 1958). The bits are the same on every machine.
Initializer Normal(double standard_deviation);
// Uniform in [-limit, limit), where limit = sqrt(3 / n) and n is the product of the extents of `fan_in_axes` (negative
// axes count from the end; precondition: the parameter has them), so the variance is 1 / n. The bits are the same on
// every machine.
Initializer LecunUniform(Axes fan_in_axes);

// Returns the parameter `name` of the enclosing scope. Poisoned: FailedPrecondition if there is neither a trace nor
// EagerParams; NotFound if EagerParams has no parameter with that name, InvalidArgument if it has one with another
// dtype or shape.
Value Parameter(absl::string_view name, const Aval& aval, const Initializer& init,
                const std::source_location& where = std::source_location::current());

// A statistic that training updates, such as a running mean: like a parameter, but of kind stat. It has no gradient,
// and no optimizer changes it.
Value Statistic(absl::string_view name, const Aval& aval, const Initializer& init,
                const std::source_location& where = std::source_location::current());
// Sets the next value of a statistic: an output of the trace. Does nothing if no trace is active.
void WriteStatistic(absl::string_view name, const Value& value,
                    const std::source_location& where = std::source_location::current());

// Values for the parameters and statistics that `fn` asks for, each from FoldInName(key, its name), so they do not
// depend on the order or on other parameters. Inputs and errors are those of Trace; InvalidArgument if there is no
// initializer, or one returns another dtype or shape.
absl::StatusOr<SlotValues> InitParams(TracedFunction fn, absl::Span<const Input> inputs, Key key);

// While this object exists, Parameter() outside of traces takes values from `params`, which must outlive it. For
// running a model eagerly.
class EagerParams {
 public:
  explicit EagerParams(const SlotValues& params);
  ~EagerParams();
  EagerParams(const EagerParams&) = delete;
  EagerParams& operator=(const EagerParams&) = delete;

 private:
  const SlotValues* saved_;
};

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_PARAMETER_H_
