#include "serving/cli/models/model_quantization.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "serving/cli/flags/suggest.h"
#include "serving/cli/programs/effective_config.h"

namespace aqt::serving {

void AddModelQuantization(CLI::App& command, Flags& flags) {
  std::vector<std::string> names = FolderPresets();
  const std::vector<std::string> inject = InjectPresetNames();
  const std::string help = absl::StrCat("weights as `aqt convert` writes them: ", absl::StrJoin(names, ", "),
                                        "; or every product by AQT's rules: ", absl::StrJoin(inject, ", "));
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
  AQT_ASSIGN_OR_RETURN(
      ModelQuantization quantization,
      OpenModelPreset(fs, flags.input, {flags.preset, flags.calibration}, "--calibration", console.interrupted));
  if (!flags.config.empty()) {
    AQT_ASSIGN_OR_RETURN(quantization.config, InjectConfigOfFile(fs, flags.config));
  }
  return quantization;
}

}  // namespace aqt::serving
