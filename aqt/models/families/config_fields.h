#ifndef AQT_MODELS_FAMILIES_CONFIG_FIELDS_H_
#define AQT_MODELS_FAMILIES_CONFIG_FIELDS_H_

// The fields of a config.json, read so that none that changes the result is overlooked.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/json_fields.h"
#include "aqt/io/json_value.h"

namespace aqt::models {

// Reads fields and collects the errors. Finish returns them, and refuses fields that nobody has read.
class ConfigFields {
 public:
  // NotFound without the file; DataLoss if it is not a JSON object.
  static absl::StatusOr<ConfigFields> Open(const io::FileSystem& fs, absl::string_view path);
  // `source` names the text in messages.
  static absl::StatusOr<ConfigFields> Parse(absl::string_view text, absl::string_view source);

  // A number from 1 on. Without a default, the field must be there; null counts as missing.
  int64_t Count(const std::string& name, std::optional<int64_t> otherwise = std::nullopt);
  // A number of layers: from 1 to 1000. Each is traced.
  int64_t Layers(const std::string& name);
  // A number from 0 on.
  int64_t Index(const std::string& name, int64_t otherwise);
  // A finite number above 0.
  double Positive(const std::string& name, double otherwise);
  // A finite number from 0 on.
  double NotNegative(const std::string& name, double otherwise);
  std::string Text(const std::string& name, const std::string& otherwise);
  // A string, or a list of strings.
  std::vector<std::string> Texts(const std::string& name);
  bool Flag(const std::string& name, bool otherwise);
  // A field that must be missing, null or one of `values`, as JSON: the code computes this case only.
  void Only(const std::string& name, std::initializer_list<const char*> values);
  // The values of an object {"0": ..., "1": ..., ...} in the order of their numbers; numbers as text. Empty if missing.
  std::vector<std::string> Numbered(const std::string& name);
  // The fields of an object; none if it is missing. Its errors are its own.
  ConfigFields Object(const std::string& name);
  // Fields that this model does not use, whatever they say.
  void NotRead(std::initializer_list<const char*> names);
  bool IsNull(const std::string& name);                                  // there, and null
  bool Has(const std::string& name) const { return fields_.Has(name); }  // there, and not null
  const std::string& source() const { return fields_.where(); }
  // Adds an error, if it is one: that of an object of this one.
  void Add(const absl::Status& status) { fields_.Add(status); }
  // Adds an error: the field is not what is expected, "a number above 0".
  void Refuse(const std::string& name, absl::string_view expected);

  // The first error so far.
  const absl::Status& status() const { return fields_.status(); }
  // The first error; then Unimplemented, naming all of them, if there are fields that were not read and that are not
  // known to leave the result as it is (dropout, labels, dtype, versions, ...).
  absl::Status Finish() const;

 private:
  ConfigFields(io::JsonValue object, absl::string_view source)
      : object_(std::make_shared<const io::JsonValue>(std::move(object))), fields_(*object_, std::string(source)) {}

  std::shared_ptr<const io::JsonValue> object_;
  io::JsonFields fields_;
};

}  // namespace aqt::models

#endif  // AQT_MODELS_FAMILIES_CONFIG_FIELDS_H_
