#ifndef AQT_STORED_STORED_CONFIG_H_
#define AQT_STORED_STORED_CONFIG_H_

// What a checkpoint's files say about how its weights are quantized, in the words of all tools. Only the fields that
// are needed to read weights are kept.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"

namespace aqt::stored {

// How a server of the quantized model quantizes the inputs of a module, in the words of compressed-tensors.
struct InputArgs {
  int64_t num_bits = 8;
  bool is_float = false;
  bool symmetric = true;
  std::string strategy;           // "token", "tensor", "group", "tensor_group"
  int64_t group_size = 0;         // of "group"
  std::string dynamic = "false";  // "true": scales of each input; "false": a stored one; "local": both (NVFP4)
  bool operator==(const InputArgs&) const = default;
};

// The weights of one of the `config_groups` of compressed-tensors.
struct WeightGroup {
  std::string name;                  // "group_0"
  std::vector<std::string> targets;  // module names, "re:..." or class names
  std::string format;                // "pack-quantized"; empty: not given
  int64_t num_bits = 8;
  bool is_float = false;
  bool symmetric = true;
  std::string strategy;  // "tensor", "channel", "group", "tensor_group", "block"
  int64_t group_size = 0;
  std::array<int64_t, 2> block = {0, 0};  // rows and columns; zero: not given
  std::optional<InputArgs> input;         // null: inputs stay in floating point
  bool quantizes_output = false;

  // Whether both describe the same stored weights.
  bool SameScheme(const WeightGroup& other) const;
};

struct StoredConfig {
  std::string where;   // "config.json", for messages; empty if no file describes a quantization
  std::string method;  // "gptq", "awq", "fp8", ...; empty if not given
  // GPTQ and AWQ.
  std::optional<int64_t> bits;
  std::optional<int64_t> group_size;  // -1: one group per output
  std::optional<bool> symmetric;
  bool act_order = false;
  std::string layout;  // `checkpoint_format` of GPTQ, `version` of AWQ, `packing_format` of AutoRound
  std::string writer;  // "gptqmodel:7.7.0"
  // FP8.
  std::optional<std::array<int64_t, 2>> block;
  // gpt-oss. How weights are presented, which no file says: [experts, out, in], the order in which they are stored,
  // instead of [experts, in, out].
  bool experts_out_in = false;
  // ModelOpt.
  std::string algorithm;  // "NVFP4"
  // compressed-tensors.
  std::string version;  // "0.20.0"
  std::vector<WeightGroup> groups;
  std::string unreadable;  // a field, with its value, because of which weights cannot be read; empty if there is none
};

// Reads the text of a quantization_config, a quantize_config.json (GPTQ), quant_config.json (AWQ) or
// hf_quant_config.json (ModelOpt). `where` is the name of the file. InvalidArgument, naming the field, its value and
// the expectation, if a field that is needed has a wrong type or value.
absl::StatusOr<StoredConfig> ParseStoredConfig(absl::string_view json, absl::string_view where);

// The text of the outermost quantization_config or compression_config in a config.json that is not null; empty if there
// is none. A model of several parts may have it in a part: text_config, llm_config, thinker_config.text_config.
// DataLoss if `json` is not an object.
absl::StatusOr<std::string> FindQuantizationConfig(absl::string_view json);

// The description that belongs to a checkpoint: the quantization_config in the metadata of a single file, or else in
// its config.json, or else a file of ParseStoredConfig beside it. All fields are empty if there is none.
absl::StatusOr<StoredConfig> ReadStoredConfig(const io::FileSystem& fs, const io::Checkpoint& checkpoint);

}  // namespace aqt::stored

#endif  // AQT_STORED_STORED_CONFIG_H_
