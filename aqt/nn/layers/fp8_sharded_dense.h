#ifndef AQT_NN_LAYERS_FP8_SHARDED_DENSE_H_
#define AQT_NN_LAYERS_FP8_SHARDED_DENSE_H_

// The layer of fp8_dense.h sharded over a mesh of processes: rules map the logical axes of its input and parameters to
// axes of the mesh (ops/fp8/fp8_sharding.h), and each process has its shards (ops/fp8/fp8_sharded_dense.h).

#include <array>
#include <source_location>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "aqt/collective/mesh.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/fp8_dense.h"
#include "aqt/ops/fp8/fp8_sharding.h"

namespace aqt::nn {

// The mesh, the rules that map logical axes to it, and the logical axes of x and the kernel.
struct Fp8LayerSharding {
  Mesh mesh;
  std::vector<AxisRule> rules;
  int rank = 0;  // the process that runs this program
  // The logical axes of rows and columns. The bias has the second axis of the kernel.
  std::array<std::string, 2> x_axes = {"batch", "embed"};
  std::array<std::string, 2> kernel_axes = {"embed", "mlp"};
};

// The part of process `rank` of Fp8Dense: x is its shard of a matrix [rows, in], and y its shard of [rows, features].
// Kernel and bias are sharded, too, and their initial values are the shards of those of Fp8Dense. Scales and histories
// are replicated. Poisoned: InvalidArgument unless x is a matrix, `features` is one number and `axis` the last; for
// extents that the processes cannot divide equally; and as PlanFp8Dot and ops::Fp8ShardedDense.
Value Fp8ShardedDense(const Value& x, absl::string_view name, const Fp8DenseOptions& options,
                      const Fp8LayerSharding& sharding,
                      const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_FP8_SHARDED_DENSE_H_
