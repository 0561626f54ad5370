#ifndef AQT_MODELS_READ_POOLING_H_
#define AQT_MODELS_READ_POOLING_H_

// How sentence-transformers describes pooling in a model's folder: modules.json lists the steps, and each step has a
// folder.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/models/families/pooling.h"

namespace aqt::models {

// Reads modules.json and the steps' folders. A folder without modules.json has the steps that sentence-transformers
// adds itself: the mean. The longest text is max_seq_length of sentence_bert_config.json, else model_max_length of
// tokenizer_config.json; the prompt is the one that default_prompt_name of config_sentence_transformers.json names.
// `width` is that of the tokens' vectors. Unimplemented, naming file and field, for a step, a
// mode or an activation that is not computed; InvalidArgument for widths that do not fit.
absl::StatusOr<Pooling> ReadPooling(const io::FileSystem& fs, absl::string_view folder, int64_t width);

}  // namespace aqt::models

#endif  // AQT_MODELS_READ_POOLING_H_
