#ifndef AQT_GGUF_MODEL_CONFIG_H_
#define AQT_GGUF_MODEL_CONFIG_H_

// Private to this folder: config.json of a model, from the metadata of its file.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/gguf/architecture.h"
#include "aqt/gguf/gguf_file.h"

namespace aqt::gguf {

// Adds to `warnings` what config.json should say and the file does not. DataLoss if a key has a value of another type.
absl::StatusOr<std::string> MakeModelConfig(const GgufModel& model, const Architecture& architecture,
                                            std::vector<std::string>& warnings);

// Finds a tensor in the files of a model, or null.
const GgufTensor* FindTensor(const GgufModel& model, absl::string_view name);

}  // namespace aqt::gguf

#endif  // AQT_GGUF_MODEL_CONFIG_H_
