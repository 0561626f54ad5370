#ifndef AQT_IO_CONTAINERS_FROZEN_TREE_H_
#define AQT_IO_CONTAINERS_FROZEN_TREE_H_

// The variables of a flax model that AQT has converted for serving, as the tensors of a quantized checkpoint. AQT keeps
// the float kernels beside the frozen values:
//
//   params.Dense_0.kernel [in, out]
//   aqt.Dense_0.AqtDotGeneral_0.qrhs.frozen.{qvalue [in, out], scale.0 [1, out]}   or, before,
//   aqt.Dense_0.AqtDotGeneral_0.qrhs.{value, scale}
//
// becomes
//
//   Dense_0.weight [out, in], Dense_0.weight_scale [out, 1]
//
// with the values and scales as they are. Parameters that are not frozen keep their values as well; kernels of layers
// are transposed, and named as in PyTorch.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

struct FrozenWeight {
  // The elements that share a scale: all; one output; group_size inputs of one output.
  enum Units : uint8_t { kTensor, kChannel, kGroup };

  std::string module;     // "Dense_0"
  int num_bits = 8;       // of an integer, or 8 for e4m3
  bool is_float = false;  // e4m3
  Units units = kChannel;
  int64_t group_size = 0;
  bool has_input_scale = false;  // a fixed scale of the activations is stored as well, as `input_scale`
};

struct FrozenTree {
  std::unique_ptr<TensorSource> tensors;
  std::vector<FrozenWeight> weights;
  std::vector<std::string> dropped;  // the float kernels of frozen values
};

// Whether the tensors hold frozen values.
bool IsFrozenTree(const TensorSource& tree);

// `tree` must outlive the result. DataLoss, naming the tensor, for a value without scale; Unimplemented, naming the
// tensor and its shape or type, for what the tensors above cannot express: several scales, biases, sparsity masks,
// other types, scales along other axes.
absl::StatusOr<FrozenTree> OpenFrozenTree(const TensorSource& tree);

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_FROZEN_TREE_H_
