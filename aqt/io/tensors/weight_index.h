#ifndef AQT_IO_TENSORS_WEIGHT_INDEX_H_
#define AQT_IO_TENSORS_WEIGHT_INDEX_H_

// The text of an index, which gives the file of each tensor of a checkpoint.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::io {

// The shard of each tensor: {tensor name, file name}, in the order of the index.
using WeightMap = std::vector<std::pair<std::string, std::string>>;

// The rest of an index, for writing it anew: keys, and values as JSON text, in order.
struct IndexExtras {
  using Members = std::vector<std::pair<std::string, std::string>>;
  Members metadata;  // from `metadata`, without total_size; empty if that is not an object
  Members members;   // next to `metadata` and `weight_map`
};

// Reads the text of an index. DataLoss, naming the cause, unless `weight_map` maps distinct names to file names that
// end in `suffix` and contain no '/', '\\' or NUL. `metadata` is optional, and its total_size is not checked: it is
// often wrong in published files. If the text is not a JSON object, the error names line and column (ScanJsonObject in
// json.h). `extras` may be null.
absl::StatusOr<WeightMap> ParseIndex(absl::string_view json, IndexExtras* extras = nullptr,
                                     absl::string_view suffix = ".safetensors");

// The text of an index: indented by two spaces, sorted by name. `total_size` is the number of bytes of all tensors.
// InvalidArgument if a name is not UTF-8 or occurs twice.
absl::StatusOr<std::string> MakeIndex(WeightMap weight_map, int64_t total_size, const IndexExtras& extras = {});

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_WEIGHT_INDEX_H_
