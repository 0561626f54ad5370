#ifndef AQT_GGUF_ARCHITECTURE_H_
#define AQT_GGUF_ARCHITECTURE_H_

// Private to this folder: the architectures whose tensors and configuration are known under the names of transformers.

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aqt::gguf {

// A module's name in the file, and in the model.
struct ModuleName {
  absl::string_view file;
  absl::string_view model;
};

// A key of the metadata, after "ARCHITECTURE.", and of config.json.
struct ConfigKey {
  absl::string_view file;
  absl::string_view model;
};

struct Architecture {
  absl::string_view name;        // general.architecture
  absl::string_view model_type;  // of config.json
  absl::string_view class_name;  // in `architectures`
  absl::Span<const ModuleName> modules;
  absl::Span<const ModuleName> more_modules;
  // In addition to those that all have.
  absl::Span<const ConfigKey> keys;
  bool paired_heads = false;    // rows of q and k: TensorView::head_rows
  bool norms_plus_one = false;  // TensorView::minus_one
  bool head_dim = false;        // config.json has head_dim
};

// The entry for general.architecture, and whether the model has experts; null if there is none.
const Architecture* FindArchitecture(absl::string_view name, bool experts);
// "gemma, gemma2, ...".
absl::Span<const Architecture> Architectures();

// Modules of layer L are "blk.L.NAME" in the file and "model.layers.L.NAME" in the model. Outside layers:
absl::Span<const ModuleName> OuterModules();
// The keys that all have.
absl::Span<const ConfigKey> CommonKeys();

// In the name of a module of experts: its number.
inline constexpr char kExpertNumber[] = "{E}";

}  // namespace aqt::gguf

#endif  // AQT_GGUF_ARCHITECTURE_H_
