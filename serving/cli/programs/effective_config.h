#ifndef AQT_SERVING_CLI_PROGRAMS_EFFECTIVE_CONFIG_H_
#define AQT_SERVING_CLI_PROGRAMS_EFFECTIVE_CONFIG_H_

// `aqt config`: the library's configurations, checked and with their bases filled in.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::serving {

// "dot_general" (configs/quant.proto), "inject" (configs/inject.proto), "convert" (configs/convert.proto).
std::vector<std::string> ConfigKinds();

// The names of the presets of one of ConfigKinds().
std::vector<std::string> PresetNames(absl::string_view kind);

// The full configuration as a textproto; `source` names a preset or a file. InvalidArgument, beginning with
// file:line:column if the file is wrong, or listing the presets if `source` is neither.
absl::StatusOr<std::string> EffectiveConfig(const io::FileSystem& fs, absl::string_view kind, absl::string_view source);

// The inject configuration of a textproto file. The errors of reading, and of InjectConfigFromText.
absl::StatusOr<InjectConfig> InjectConfigOfFile(const io::FileSystem& fs, absl::string_view path);

// The effect of an inject configuration, a preset or a textproto, on the program in a file, saved or as text
// (transforms/quantize/inject_outline.h), kind by kind. `unmatched` receives the rules without matches, if these are an
// error (strict).
absl::StatusOr<std::string> InjectionReport(const io::FileSystem& fs, absl::string_view source,
                                            absl::string_view program_file, std::vector<std::string>* unmatched);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_PROGRAMS_EFFECTIVE_CONFIG_H_
