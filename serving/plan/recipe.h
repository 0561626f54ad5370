#ifndef AQT_SERVING_PLAN_RECIPE_H_
#define AQT_SERVING_PLAN_RECIPE_H_

// The user's request: a preset, a configuration file, or another model's quantization_config.

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "serving/formats/quantization_config.h"
#include "serving/plan/convert_config.h"

namespace aqt::serving {

struct Recipe {
  // Exactly one of the two is set.
  std::optional<ConvertConfig> config;     // --preset, --config
  std::optional<QuantizationConfig> like;  // --scheme-from
  WeightRules weight_rules = WeightRules::kCompressedTensors;
  bool keep_non_finite = false;
  Experts experts = Experts::kAuto;
  bool strict = false;  // a rule or ignore entry without effect is an error, not a warning

  // As text: a textproto or a JSON object.
  std::string Text() const;
  // 16 hexadecimal digits that change with any part that can change the output.
  std::string Digest() const;
};

// The options of the command line.
struct RecipeSource {
  // Exactly one of the four is not empty.
  std::string preset;
  std::string config_file;
  std::string config_text;  // what the file would hold; for programs, not from the command line
  std::string scheme_from;  // a config.json, or a folder with one
  // Each overrides the configuration.
  std::optional<WeightRules> weight_rules;
  std::optional<bool> keep_non_finite;
  std::optional<Experts> experts;
  bool strict = false;
};

// The errors of reading a file; InvalidArgument or Unimplemented, beginning with its name, if it is wrong.
absl::StatusOr<Recipe> LoadRecipe(const io::FileSystem& fs, const RecipeSource& source);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_RECIPE_H_
