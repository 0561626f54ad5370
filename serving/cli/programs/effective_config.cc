#include "serving/cli/programs/effective_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/quant/text/config_proto.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_outline.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "serving/engine/read_program.h"
#include "serving/formats/quantization_config.h"
#include "serving/plan/convert_config.h"
#include "serving/plan/recipe.h"

namespace aqt::serving {
namespace {

absl::StatusOr<std::string> OfPreset(const io::FileSystem& fs, absl::string_view kind, absl::string_view name) {
  if (kind == "dot_general") {
    AQT_ASSIGN_OR_RETURN(const DotGeneralConfig config, DotGeneralFromPreset(name));
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
  if (kind == "dot_general") {
    AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxConfigBytes));
    AQT_ASSIGN_OR_RETURN(const DotGeneralConfig config, DotGeneralFromText(text, path));
    return ToText(config);
  }
  AQT_ASSIGN_OR_RETURN(const InjectConfig config, InjectConfigOfFile(fs, path));
  return ToText(config);
}

}  // namespace

absl::StatusOr<InjectConfig> InjectConfigOfFile(const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxConfigBytes));
  return InjectConfigFromText(text, path);
}

std::vector<std::string> ConfigKinds() { return {"dot_general", "inject", "convert"}; }

std::vector<std::string> PresetNames(absl::string_view kind) {
  if (kind == "dot_general") return DotGeneralPresetNames();
  return kind == "inject" ? InjectPresetNames() : ConvertPresetNames();
}

namespace {

// Whether the source is a preset; InvalidArgument if it is neither a preset nor a file.
absl::StatusOr<bool> IsPreset(const io::FileSystem& fs, absl::string_view kind, absl::string_view source) {
  const std::vector<std::string> presets = PresetNames(kind);
  if (std::find(presets.begin(), presets.end(), source) != presets.end()) return true;
  if (!absl::IsNotFound(fs.Stat(source).status())) return false;
  return absl::InvalidArgumentError(absl::StrCat(source, " is neither a file nor a preset of ", kind, "; presets are ",
                                                 absl::StrJoin(presets, ", ")));
}

}  // namespace

absl::StatusOr<std::string> EffectiveConfig(const io::FileSystem& fs, absl::string_view kind,
                                            absl::string_view source) {
  AQT_ASSIGN_OR_RETURN(const bool is_preset, IsPreset(fs, kind, source));
  return is_preset ? OfPreset(fs, kind, source) : OfFile(fs, kind, source);
}

absl::StatusOr<std::string> InjectionReport(const io::FileSystem& fs, absl::string_view source,
                                            absl::string_view program_file, std::vector<std::string>* unmatched) {
  AQT_ASSIGN_OR_RETURN(const bool is_preset, IsPreset(fs, "inject", source));
  AQT_ASSIGN_OR_RETURN(const InjectConfig config,
                       is_preset ? InjectConfigFromPreset(source) : InjectConfigOfFile(fs, source));
  AQT_ASSIGN_OR_RETURN(std::string program, io::ReadFile(fs, program_file, kMaxProgramBytes));
  if (IsSavedProgram(program)) {
    AQT_ASSIGN_OR_RETURN(const Program loaded, ReadProgram(fs, program_file));
    InjectReport report;
    const absl::Status injected = Inject(loaded, config, /*frozen=*/nullptr, &report).status();
    if (config.strict) *unmatched = report.unmatched;
    // The report lists the rules without matches; the caller reports that this is an error.
    if (!injected.ok() && unmatched->empty()) return Annotate(injected, program_file);
    return report.ToString(config);
  }
  absl::StatusOr<InjectReport> report = ReportInjection(program, config);
  if (!report.ok()) return Annotate(report.status(), program_file);
  if (config.strict) *unmatched = report->unmatched;
  return report->ToString(config);
}

}  // namespace aqt::serving
