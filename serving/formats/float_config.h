#ifndef AQT_SERVING_FORMATS_FLOAT_CONFIG_H_
#define AQT_SERVING_FORMATS_FLOAT_CONFIG_H_

// The config.json of a model whose weights were dequantized.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::serving {

// `config_json` without its `quantization_config` and `compression_config`, also in the configurations of the model's
// parts (`text_config`). With `torch_dtype` ("float32"; empty: unchanged), `torch_dtype` and `dtype` have this value:
// those of the whole model, and those of a part from which a quantization_config was removed. If there is neither,
// `torch_dtype` is added. All other text is kept byte for byte. DataLoss as in ParseModelConfig. An empty text gives an
// object with only the dtype.
absl::StatusOr<std::string> RemoveQuantizationConfig(absl::string_view config_json, absl::string_view torch_dtype);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_FLOAT_CONFIG_H_
