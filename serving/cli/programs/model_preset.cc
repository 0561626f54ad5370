#include "serving/cli/programs/model_preset.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "serving/plan/convert_config.h"

namespace aqt::serving {
namespace {

bool IsInject(const std::string& preset) {
  const std::vector<std::string> names = InjectPresetNames();
  return std::find(names.begin(), names.end(), preset) != names.end();
}

}  // namespace

std::vector<std::string> FolderPresets() {
  std::vector<std::string> names = ConvertPresetNames();
  std::erase_if(names, [](const std::string& name) { return absl::StartsWith(name, "gguf_"); });
  return names;
}

absl::StatusOr<ModelQuantization> OpenModelPreset(const io::FileSystem& fs, absl::string_view folder,
                                                  const ModelPreset& preset, absl::string_view calibration_option,
                                                  const std::atomic<bool>* cancelled) {
  ModelQuantization quantization;
  const bool converts = !preset.name.empty() && !IsInject(preset.name);
  if (!preset.calibration.empty() && !converts) {
    return absl::InvalidArgumentError(absl::StrCat(calibration_option,
                                                   " is for presets of `aqt convert`; give a preset that is one of ",
                                                   absl::StrJoin(FolderPresets(), ", ")));
  }
  if (converts) {
    if (const absl::Status known = ConvertPreset(preset.name).status(); !known.ok()) {
      return absl::Status(known.code(),
                          absl::StrCat(known.message(), "; or ", absl::StrJoin(InjectPresetNames(), ", ")));
    }
    QuantizeOptions options;
    options.recipe.preset = preset.name;
    options.calibration = preset.calibration;
    options.cancelled = cancelled;
    AQT_ASSIGN_OR_RETURN(quantization.source, QuantizedSource::Open(fs, folder, options));
    quantization.given = models::GivenWeights{quantization.source.get(), quantization.source->config()};
    quantization.warnings = quantization.source->warnings();
  } else if (!preset.name.empty()) {
    AQT_ASSIGN_OR_RETURN(quantization.config, InjectConfigFromPreset(preset.name));
  }
  return quantization;
}

}  // namespace aqt::serving
