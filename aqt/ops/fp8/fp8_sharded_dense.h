#ifndef AQT_OPS_FP8_FP8_SHARDED_DENSE_H_
#define AQT_OPS_FP8_FP8_SHARDED_DENSE_H_

// The FP8 product of fp8_dot.h divided over a mesh of processes, each with its parts of x, kernel and y (planned by
// fp8_sharding.h). The program of a process is evaluated inside a UseMesh (collective_ops.h); its gradients are also
// parts.
//
// Scales and histories have the same bits as in one process with the full matrices, given equal x, kernel and dy. So
// does y if YSum() is empty, dk if DkSum() is, and dx if DxSum() is. Otherwise a process adds its own terms, and the
// sums are added in the order of ranks: for n terms t_i of the product, p processes, u = 2^-24 and scales that are
// powers of two, the result differs from that of one process by at most (n + n / p + p) u sum |t_i| to first order,
// before f16 and bf16 results are rounded once.

#include <optional>
#include <source_location>

#include "aqt/graph/value.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_sharding.h"

namespace aqt {

// Options of Fp8ShardedDense.
struct Fp8ShardedOptions {
  Fp8DotSharding sharding;
  int rank = 0;  // of the process that runs this program
  Fp8DotOptions dot = {};
};

namespace ops {

// y = x kernel + bias, each of them a part: x [m, k], kernel [k, n], bias [n] and y [m, n], all of one dtype, f32, bf16
// or f16. m, k and n are divided as the layouts say, and the bias like the columns of y. Fp8AddBias rounds an f32 bias.
// The gradients of kernel and bias are over all rows of the batch. InvalidArgument for parts that do not fit, for an
// axis that its processes cannot divide equally, and for a rank that is not in the mesh; AlreadyExists like Fp8Dot.
Value Fp8ShardedDense(const Value& x, const Value& kernel, const std::optional<Value>& bias, const Fp8DotState& state,
                      const Fp8ShardedOptions& options,
                      const std::source_location& where = std::source_location::current());

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_FP8_FP8_SHARDED_DENSE_H_
