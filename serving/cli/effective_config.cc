#include "serving/cli/effective_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/text/config_proto.h"
#include "aqt/transforms/inject_proto.h"
#include "serving/convert/convert_config.h"
#include "serving/convert/recipe.h"
#include "serving/formats/quantization_config.h"

namespace aqt::serving {
namespace {

absl::StatusOr<std::string> OfPreset(const io::FileSystem& fs, absl::string_view kind, absl::string_view name) {
  if (kind == "dot_general") {
    AQT_ASSIGN_OR_RETURN(const DotGeneral config, DotGeneralFromPreset(name));
    return ToText(config);
  }
  if (kind == "inject") {
    AQT_ASSIGN_OR_RETURN(const InjectConfig config, InjectConfigFromPreset(name));
    return ToText(config);
  }
  RecipeSource source;
  source.preset = std::string(name);
  AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadRecipe(fs, source));
  return recipe.Text();
}

absl::StatusOr<std::string> OfFile(const io::FileSystem& fs, absl::string_view kind, absl::string_view path) {
  if (kind == "convert") {
    RecipeSource source;
    source.config_file = std::string(path);
    AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadRecipe(fs, source));
    return recipe.Text();
  }
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxConfigBytes));
  if (kind == "dot_general") {
    AQT_ASSIGN_OR_RETURN(const DotGeneral config, DotGeneralFromText(text, path));
    return ToText(config);
  }
  AQT_ASSIGN_OR_RETURN(const InjectConfig config, InjectConfigFromText(text, path));
  return ToText(config);
}

}  // namespace

std::vector<std::string> ConfigKinds() { return {"dot_general", "inject", "convert"}; }

std::vector<std::string> PresetNames(absl::string_view kind) {
  if (kind == "dot_general") return DotGeneralPresetNames();
  return kind == "inject" ? InjectPresetNames() : ConvertPresetNames();
}

absl::StatusOr<std::string> EffectiveConfig(const io::FileSystem& fs, absl::string_view kind,
                                            absl::string_view source) {
  const std::vector<std::string> presets = PresetNames(kind);
  if (std::find(presets.begin(), presets.end(), source) != presets.end()) return OfPreset(fs, kind, source);
  if (absl::IsNotFound(fs.Stat(source).status())) {
    return absl::InvalidArgumentError(absl::StrCat(source, " is neither a file nor a preset of ", kind,
                                                   "; presets are ", absl::StrJoin(presets, ", ")));
  }
  return OfFile(fs, kind, source);
}

}  // namespace aqt::serving
