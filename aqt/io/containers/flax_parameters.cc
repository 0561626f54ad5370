#include "aqt/io/containers/flax_parameters.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"

namespace aqt::io {
namespace {

// The modules of attention. All but the last map to heads, which the last maps back.
constexpr absl::string_view kProjections[] = {"query", "key", "value", "out"};

// A tensor of a source as a file.
class TensorFile final : public RandomAccessFile {
 public:
  TensorFile(const TensorSource& source, const TensorInfo& tensor) : source_(source), tensor_(tensor) {
    info_.size = tensor.num_bytes();
  }
  const std::string& path() const override { return source_.path(); }
  const FileInfo& info() const override { return info_; }
  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override {
    return source_.Read(tensor_, offset, dst);
  }

 private:
  const TensorSource& source_;
  const TensorInfo& tensor_;
  FileInfo info_;
};

absl::string_view LastPart(absl::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == absl::string_view::npos ? module : module.substr(dot + 1);
}

// [extents.., in, out] as [out, in, extents..].
StoredTensor Convolution(const TensorSource& tree, const TensorInfo& tensor, std::string name) {
  const Shape& shape = tensor.shape;
  const int window = shape.rank() - 2;
  const int64_t in = shape[window], out = shape[window + 1];
  Shape turned = {out, in};
  std::vector<int64_t> strides = {1, out};
  int64_t stride = in * out;
  for (int axis = window; axis-- > 0; stride *= shape[axis]) strides.insert(strides.begin() + 2, stride);
  for (int axis = 0; axis < window; ++axis) turned.push_back(shape[axis]);
  return ViewOfTensor(tree, tensor, std::move(name), turned, std::move(strides));
}

}  // namespace

StoredTensor ViewOfTensor(const TensorSource& tree, const TensorInfo& tensor, std::string name, const Shape& shape,
                          std::vector<int64_t> strides) {
  StoredTensor stored;
  stored.spec = {std::move(name), tensor.dtype, shape};
  stored.data = std::make_shared<TensorFile>(tree, tensor);
  stored.strides = std::move(strides);
  return stored;
}

StoredTensor TransposedTensor(const TensorSource& tree, const TensorInfo& tensor, std::string name, int64_t columns,
                              int64_t rows) {
  return ViewOfTensor(tree, tensor, std::move(name), {columns, rows}, {1, columns});
}

absl::StatusOr<std::unique_ptr<TensorSource>> ViewsOfTree(const TensorSource& tree, std::vector<StoredTensor> views,
                                                          std::vector<std::string> warnings) {
  const TensorFile file(tree, tree.tensors()[0]);
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> source,
                       ContainerSource::Make(file, std::move(views), {}, std::move(warnings), ContainerMemory()));
  return source;
}

const TensorInfo* FlaxParameters::Find(absl::string_view module, absl::string_view name) const {
  return tree_.Find(absl::StrCat(collection_, module, ".", name));
}

bool FlaxParameters::InAttention(absl::string_view module) const {
  if (std::find(std::begin(kProjections), std::end(kProjections), LastPart(module)) == std::end(kProjections)) {
    return false;
  }
  absl::string_view above = module;
  above.remove_suffix(LastPart(module).size());
  return std::all_of(std::begin(kProjections), std::end(kProjections), [&](absl::string_view projection) {
    const TensorInfo* const kernel = tree_.Find(absl::StrCat(collection_, above, projection, ".kernel"));
    return kernel != nullptr && kernel->shape.rank() == 3;
  });
}

StoredTensor FlaxParameters::Kernel(const TensorInfo& tensor, absl::string_view module, absl::string_view name) {
  const Shape& shape = tensor.shape;
  std::string weight = absl::StrCat(module, ".weight");
  if (shape.rank() == 2) return TransposedTensor(tree_, tensor, std::move(weight), shape[1], shape[0]);
  if (shape.rank() > 3) return Convolution(tree_, tensor, std::move(weight));
  const TensorInfo* const bias = Find(module, "bias");
  const bool attention = InAttention(module), is_out = LastPart(module) == "out";
  if ((bias != nullptr && bias->shape == Shape{shape[1], shape[2]}) || (attention && !is_out)) {
    return TransposedTensor(tree_, tensor, std::move(weight), shape[1] * shape[2], shape[0]);
  }
  if (attention) return TransposedTensor(tree_, tensor, std::move(weight), shape[2], shape[0] * shape[1]);
  if (absl::StartsWithIgnoreCase(LastPart(module), "conv")) return Convolution(tree_, tensor, std::move(weight));
  unknown_.push_back(tensor.name);
  return ViewOfTensor(tree_, tensor, std::string(name), shape);
}

StoredTensor FlaxParameters::Convert(const TensorInfo& tensor) {
  absl::string_view name = tensor.name, module = name;
  absl::ConsumePrefix(&name, collection_);
  const Shape& shape = tensor.shape;
  module = name;
  if (absl::ConsumeSuffix(&module, ".kernel") && shape.rank() >= 2) return Kernel(tensor, module, name);
  module = name;
  if (absl::ConsumeSuffix(&module, ".bias") && shape.rank() == 2) {
    const TensorInfo* const kernel = Find(module, "kernel");
    if (kernel != nullptr && kernel->shape.rank() == 3 && shape == Shape{kernel->shape[1], kernel->shape[2]}) {
      return ViewOfTensor(tree_, tensor, std::string(name), {shape.num_elements()});
    }
  }
  module = name;
  const bool is_weight =
      absl::ConsumeSuffix(&module, kFlaxEmbedding) || (shape.rank() == 1 && absl::ConsumeSuffix(&module, ".scale"));
  return ViewOfTensor(tree_, tensor, is_weight ? absl::StrCat(module, ".weight") : std::string(name), shape);
}

}  // namespace aqt::io
