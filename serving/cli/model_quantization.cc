#include "serving/cli/model_quantization.h"

#include <algorithm>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "serving/cli/effective_config.h"
#include "serving/cli/suggest.h"
#include "serving/plan/convert_config.h"

namespace aqt::serving {
namespace {

// Those of `aqt convert` that write safetensors.
std::vector<std::string> FolderPresets() {
  std::vector<std::string> names = ConvertPresetNames();
  std::erase_if(names, [](const std::string& name) { return absl::StartsWith(name, "gguf_"); });
  return names;
}

bool IsInject(const std::string& preset) {
  const std::vector<std::string> names = InjectPresetNames();
  return std::find(names.begin(), names.end(), preset) != names.end();
}

}  // namespace

void AddModelQuantization(CLI::App& command, Flags& flags) {
  std::vector<std::string> names = FolderPresets();
  const std::vector<std::string> inject = InjectPresetNames();
  const std::string help = absl::StrCat("weights as `aqt convert` writes them: ", absl::StrJoin(names, ", "),
                                        "; or every product by AQT's ", "rules: ", absl::StrJoin(inject, ", "));
  names.insert(names.end(), inject.begin(), inject.end());
  auto* group = command.add_option_group("quantization; without it, as the folder stores its weights");
  group->add_option("--preset", flags.preset, help)->check(Suggest(names))->type_name("NAME");
  group->add_option("--config", flags.config, "a textproto of aqt.config.Inject")->type_name("FILE");
  group->require_option(0, 1);
  command
      .add_option("--calibration", flags.calibration,
                  "ranges of inputs, for presets with static ones: a .safetensors file, as for `aqt convert`")
      ->type_name("FILE");
}

absl::StatusOr<ModelQuantization> OpenModelQuantization(const Flags& flags, const io::FileSystem& fs,
                                                        const Console& console) {
  ModelQuantization quantization;
  const bool converts = !flags.preset.empty() && !IsInject(flags.preset);
  if (!flags.calibration.empty() && !converts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--calibration is for presets of `aqt convert`; give --preset with one of ",
                     absl::StrJoin(FolderPresets(), ", ")));
  }
  if (!flags.config.empty()) {
    AQT_ASSIGN_OR_RETURN(quantization.config, InjectConfigOfFile(fs, flags.config));
  } else if (converts) {
    QuantizeOptions options;
    options.recipe.preset = flags.preset;
    options.calibration = flags.calibration;
    options.cancelled = console.interrupted;
    if (absl::Status known = ConvertPreset(flags.preset).status(); !known.ok()) {
      return absl::Status(known.code(),
                          absl::StrCat(known.message(), "; or ", absl::StrJoin(InjectPresetNames(), ", ")));
    }
    AQT_ASSIGN_OR_RETURN(quantization.source, QuantizedSource::Open(fs, flags.input, options));
    quantization.given = models::GivenWeights{quantization.source.get(), quantization.source->config()};
    quantization.warnings = quantization.source->warnings();
  } else if (!flags.preset.empty()) {
    AQT_ASSIGN_OR_RETURN(quantization.config, InjectConfigFromPreset(flags.preset));
  }
  return quantization;
}

}  // namespace aqt::serving
