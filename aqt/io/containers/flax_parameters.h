#ifndef AQT_IO_CONTAINERS_FLAX_PARAMETERS_H_
#define AQT_IO_CONTAINERS_FLAX_PARAMETERS_H_

// Private to this folder: parameters of a flax model as PyTorch names and lays them out.
//   kernel [in, out]                         weight [out, in]
//   kernel [in, heads, size]                 weight [heads * size, in]   if its bias is [heads, size], or in attention
//   kernel [heads, size, out]                weight [out, heads * size]  in attention
//   kernel [extents.., in, out]              weight [out, in, extents..] of a convolution
//   embedding, scale [n]                     weight
//   mean, var of the collection batch_stats  running_mean, running_var
// Attention is a module with the modules query, key, value and out. A kernel of rank 3 that is none of these keeps its
// name and layout.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/io/containers/container_source.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

// The end of the name of an embedding's table.
inline constexpr absl::string_view kFlaxEmbedding = ".embedding";

// A tensor of a tree under another name, with another shape and order of elements.
StoredTensor ViewOfTensor(const TensorSource& tree, const TensorInfo& tensor, std::string name, const Shape& shape,
                          std::vector<int64_t> strides = {});
// [columns, rows] of a tensor that is [rows, columns].
StoredTensor TransposedTensor(const TensorSource& tree, const TensorInfo& tensor, std::string name, int64_t columns,
                              int64_t rows);
// The views as a source.
absl::StatusOr<std::unique_ptr<TensorSource>> ViewsOfTree(const TensorSource& tree, std::vector<StoredTensor> views,
                                                          std::vector<std::string> warnings);

// How parameters of a tree are named and laid out.
class FlaxParameters {
 public:
  // `collection`: where the names of the parameters begin: "params.".
  FlaxParameters(const TensorSource& tree, absl::string_view collection) : tree_(tree), collection_(collection) {}
  // A parameter; its name begins with the collection.
  StoredTensor Convert(const TensorInfo& tensor);
  // The kernels that keep their layout, because it is not known.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  const TensorInfo* Find(absl::string_view module, absl::string_view name) const;
  bool InAttention(absl::string_view module) const;
  StoredTensor Kernel(const TensorInfo& tensor, absl::string_view module, absl::string_view name);

  const TensorSource& tree_;
  const std::string collection_;
  std::vector<std::string> unknown_;
};

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_FLAX_PARAMETERS_H_
