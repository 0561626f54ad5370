#ifndef AQT_IO_TENSORS_WEIGHT_INDEX_H_
#define AQT_IO_TENSORS_WEIGHT_INDEX_H_

// The text of an index, which says in which file of a checkpoint each tensor is.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::io {

// Which shard holds which tensor: {tensor name, file name}, in the order of the index.
using WeightMap = std::vector<std::pair<std::string, std::string>>;

// What else an index says, for one that is written anew: keys, and values as JSON text, in order.
struct IndexExtras {
  using Members = std::vector<std::pair<std::string, std::string>>;
  Members metadata;  // of `metadata`, without total_size; empty if that is not an object
  Members members;   // beside `metadata` and `weight_map`
};

// Reads the text of an index. DataLoss, naming the cause, unless `weight_map` maps distinct names to file names that
// end in ".safetensors" and contain no '/', '\\' or NUL. `metadata` is optional, and total_size is often wrong in the
// wild. If the text is not a JSON object, the error names line and column (ScanJsonObject in json.h). `extras` may be
// null.
absl::StatusOr<WeightMap> ParseIndex(absl::string_view json, IndexExtras* extras = nullptr);

// The text of an index: indented by two spaces, sorted by name. `total_size` is the number of bytes of all tensors.
// InvalidArgument if a name is not UTF-8 or occurs twice.
absl::StatusOr<std::string> MakeIndex(WeightMap weight_map, int64_t total_size, const IndexExtras& extras = {});

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_WEIGHT_INDEX_H_
