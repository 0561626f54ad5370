#ifndef AQT_IO_CONTAINERS_FLAX_TREE_H_
#define AQT_IO_CONTAINERS_FLAX_TREE_H_

// The variables of a flax model, named and laid out as the state of the same model in PyTorch (flax_parameters.h).

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

// Whether the tensors are a flax model without frozen values: some are named `kernel` and none `weight`.
bool IsFlaxTree(const TensorSource& tree);

// `tree` must outlive the result. Names lose the collection `params`. The state of an optimizer is left out, which a
// warning says. DataLoss, naming it, if two tensors get the same name.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenFlaxTree(const TensorSource& tree);

// The modules whose parameter is called `embedding`, which only flax's nn.Embed does, under the names that their
// tensors have in OpenFlaxTree.
std::vector<std::string> FlaxEmbeddings(const TensorSource& tree);

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_FLAX_TREE_H_
