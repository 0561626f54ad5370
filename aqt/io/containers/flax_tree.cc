#include "aqt/io/containers/flax_tree.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/containers/flax_parameters.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint_files.h"

namespace aqt::io {
namespace {

constexpr absl::string_view kParams = "params.";
constexpr absl::string_view kStatistics = "batch_stats.";
constexpr absl::string_view kOptimizer = "opt_state.";
absl::string_view LastPart(absl::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == absl::string_view::npos ? module : module.substr(dot + 1);
}

bool IsKernel(const TensorInfo& tensor) { return tensor.shape.rank() >= 2 && LastPart(tensor.name) == "kernel"; }

// The beginning of the names of parameters; empty if there is no such collection.
absl::string_view CollectionOf(const TensorSource& tree) {
  constexpr absl::string_view kTwice = "params.params.";  // the variables as the parameters of a training state
  absl::string_view found;
  for (const TensorInfo& tensor : tree.tensors()) {
    if (absl::StartsWith(tensor.name, kTwice)) return kTwice;
    if (absl::StartsWith(tensor.name, kParams)) found = kParams;
  }
  return found;
}

}  // namespace

bool IsFlaxTree(const TensorSource& tree) {
  const std::vector<TensorInfo>& tensors = tree.tensors();
  return std::any_of(tensors.begin(), tensors.end(), IsKernel) &&
         std::none_of(tensors.begin(), tensors.end(),
                      [](const TensorInfo& tensor) { return LastPart(tensor.name) == "weight"; });
}

std::vector<std::string> FlaxEmbeddings(const TensorSource& tree) {
  const absl::string_view collection = CollectionOf(tree);
  std::vector<std::string> modules;
  for (const TensorInfo& tensor : tree.tensors()) {
    absl::string_view module = tensor.name;
    if (absl::ConsumePrefix(&module, collection) && absl::ConsumeSuffix(&module, kFlaxEmbedding)) {
      modules.emplace_back(module);
    }
  }
  return modules;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenFlaxTree(const TensorSource& tree) {
  const absl::string_view collection = CollectionOf(tree);
  const std::string statistics =
      collection.empty() ? "" : absl::StrCat(absl::StripSuffix(collection, kParams), kStatistics);
  FlaxParameters parameters(tree, collection);
  std::vector<StoredTensor> tensors;
  int64_t left_out = 0;
  for (const TensorInfo& tensor : tree.tensors()) {
    absl::string_view name = tensor.name;
    if (absl::StartsWith(name, collection)) {
      tensors.push_back(parameters.Convert(tensor));
    } else if (absl::StartsWith(name, kOptimizer)) {
      ++left_out;
    } else if (absl::ConsumePrefix(&name, statistics)) {
      absl::string_view module = name;
      std::string as_torch(name);
      if (absl::ConsumeSuffix(&module, ".mean")) as_torch = absl::StrCat(module, ".running_mean");
      else if (absl::ConsumeSuffix(&module, ".var")) as_torch = absl::StrCat(module, ".running_var");
      tensors.push_back(ViewOfTensor(tree, tensor, std::move(as_torch), tensor.shape));
    } else {
      tensors.push_back(ViewOfTensor(tree, tensor, tensor.name, tensor.shape));
    }
  }
  std::vector<std::string> warnings = tree.warnings();
  if (left_out > 0) {
    warnings.push_back(absl::StrCat(left_out, " tensors of an optimizer's state (", kOptimizer, "*) are left out"));
  }
  if (!parameters.unknown().empty()) {
    warnings.push_back(absl::StrCat(parameters.unknown().size(),
                                    " kernels of rank 3 keep their names and layout, because nothing shows which of "
                                    "their axes are inputs: ",
                                    ListSome(parameters.unknown())));
  }
  absl::StatusOr<std::unique_ptr<TensorSource>> result = ViewsOfTree(tree, std::move(tensors), std::move(warnings));
  if (result.ok()) return result;
  return Annotate(result.status(), absl::StrCat("flax model '", PrintableLine(tree.path()), "'"));
}

}  // namespace aqt::io
