#ifndef AQT_SERVING_ENGINE_ROOF_H_
#define AQT_SERVING_ENGINE_ROOF_H_

// How near a program is to what the machine can do: its products, and how fast this machine multiplies.

#include "absl/status/statusor.h"
#include "aqt/core/executor.h"
#include "aqt/graph/program.h"

namespace aqt::serving {

// Multiplications with an addition, of integers and of floats.
struct Products {
  double integer = 0, floating = 0;
};

// The products of one call of a program: those of its dot_generals, after all composites are replaced by their
// expansions. Everything else (norms, softmax, quantization) is not counted. The errors of Expand.
absl::StatusOr<Products> ProductsOf(const Program& program);

// Products per second, measured: the best of several products of square matrices, of int8 with 1024 rows and of f32
// with 512 rows, in about 0.2 seconds each. A product takes a few milliseconds, so that a busy machine interrupts few
// of them. On the threads of `executor`; null: on this thread.
absl::StatusOr<Products> MeasureRoof(Executor* executor);

// The time that the products alone need at this rate, as a share of `seconds`.
double ShareOfRoof(const Products& products, const Products& roof, double seconds);

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_ROOF_H_
