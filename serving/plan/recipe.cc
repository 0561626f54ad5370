#include "serving/plan/recipe.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/foreign_file.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {
namespace {

absl::StatusOr<QuantizationConfig> LoadSchemeFrom(const io::FileSystem& fs, std::string path) {
  const absl::StatusOr<io::FileInfo> info = fs.Stat(path);
  if (!info.ok()) return info.status();
  if (info->kind == io::FileKind::kFolder) path = io::JoinPath(path, kConfigFile);
  const absl::StatusOr<std::string> text = io::ReadFile(fs, path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  const absl::StatusOr<ModelConfig> model = ParseModelConfig(*text);
  if (!model.ok()) {
    return UsageError(absl::DataLossError(absl::StrCat(path, ": ", model.status().message(), io::GuessContent(*text))));
  }
  // A file with only the quantization_config is accepted, too.
  if (!model->quantization_config.has_value() && !absl::StrContains(*text, "config_groups") &&
      !absl::StrContains(*text, "quant_method")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": there is no quantization_config; expected the config.json of a quantized model"));
  }
  absl::StatusOr<QuantizationConfig> config = ParseQuantizationConfig(model->quantization_config.value_or(*text));
  if (!config.ok()) return Annotate(config.status(), path);
  return config;
}

}  // namespace

std::string Recipe::Text() const {
  return like.has_value() ? QuantizationConfigToJson(*like) : config.has_value() ? config->text : "";
}

std::string Recipe::Digest() const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const char* const chosen = experts == Experts::kAuto ? "" : experts == Experts::kSplit ? "\nsplit" : "\nkeep";
  for (const char c : absl::StrCat(Text(), "\n", ToString(weight_rules), "\n", keep_non_finite, chosen)) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return absl::StrFormat("%016x", hash);
}

absl::StatusOr<Recipe> LoadRecipe(const io::FileSystem& fs, const RecipeSource& source) {
  if (const int given = !source.preset.empty() + !source.config_file.empty() + !source.config_text.empty() +
                        !source.scheme_from.empty();
      given != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("exactly one of --preset NAME, --config FILE and --scheme-from CONFIG.JSON is needed, got ",
                     given == 0 ? "none" : "", given == 0 ? "" : absl::StrCat(given, ": leave out all but one")));
  }
  Recipe recipe;
  recipe.strict = source.strict;
  if (!source.scheme_from.empty()) {
    AQT_ASSIGN_OR_RETURN(recipe.like, LoadSchemeFrom(fs, source.scheme_from));
  } else if (!source.preset.empty()) {
    AQT_ASSIGN_OR_RETURN(recipe.config, ConvertPreset(source.preset));
  } else if (!source.config_text.empty()) {
    AQT_ASSIGN_OR_RETURN(recipe.config, ParseConvertConfig(source.config_text, "config"));
  } else {
    AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, source.config_file, kMaxConfigBytes));
    AQT_ASSIGN_OR_RETURN(recipe.config, ParseConvertConfig(text, source.config_file));
  }
  if (recipe.config.has_value()) {
    recipe.weight_rules = recipe.config->weight_rules;
    recipe.keep_non_finite = recipe.config->keep_non_finite;
    recipe.experts = recipe.config->experts;
  }
  recipe.weight_rules = source.weight_rules.value_or(recipe.weight_rules);
  recipe.keep_non_finite = source.keep_non_finite.value_or(recipe.keep_non_finite);
  recipe.experts = source.experts.value_or(recipe.experts);
  if (recipe.config.has_value()) {
    recipe.config->text = TextWith(*recipe.config, recipe.weight_rules, recipe.keep_non_finite, recipe.experts);
  }
  return recipe;
}

}  // namespace aqt::serving
