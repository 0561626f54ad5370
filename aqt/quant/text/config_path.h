#ifndef AQT_QUANT_TEXT_CONFIG_PATH_H_
#define AQT_QUANT_TEXT_CONFIG_PATH_H_

// The location of a message in a configuration, for errors; data types as text. Internal.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "configs/config_text.h"
#include "google/protobuf/message.h"

namespace aqt::internal {

// The place of a message in the text, and its field path for messages without a place.
struct ConfigPath {
  config::Place place;
  std::string path;

  ConfigPath In(const google::protobuf::Message& message, const char* field) const;
  absl::Status At(const absl::Status& status) const;
  absl::Status Error(absl::string_view message) const;
};

// "bf16"; "none" for null.
std::string DTypeText(std::optional<DType> dtype);
absl::StatusOr<std::optional<DType>> ReadDType(const std::string& text, const ConfigPath& path);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TEXT_CONFIG_PATH_H_
