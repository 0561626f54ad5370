#ifndef AQT_IO_JSON_FIELDS_H_
#define AQT_IO_JSON_FIELDS_H_

// Reading the fields of a JSON object: mistakes are named by their place, and unknown fields are found.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/io/json_value.h"

namespace aqt::io {

// InvalidArgument: "WHERE.KEY is VALUE; EXPECTED". `where` is a file, or a file and the path of an object in it:
// "tokenizer.json: model". Between a file and a key there is ": ".
absl::Status WrongField(absl::string_view where, absl::string_view key, const JsonValue& value,
                        absl::string_view expected);

// The fields of one object, which outlives this. The first mistake is kept, and Finish returns it; the values are then
// to be ignored. Without a default, a field must be there. Null counts as absent.
class JsonFields {
 public:
  // A value that is not an object is the first mistake.
  JsonFields(const JsonValue& object, std::string where);

  const std::string& where() const { return where_; }
  // The value of a field, or null. Calls for a field make it a known one.
  const JsonValue& Any(absl::string_view key);
  bool Has(absl::string_view key) const { return !(*object_)[key].is_null(); }
  std::string Text(absl::string_view key, const std::optional<std::string>& absent = std::nullopt);
  bool Bool(absl::string_view key, std::optional<bool> absent = std::nullopt);
  std::optional<bool> OptionalBool(absl::string_view key);
  // An integer of [min, max]. Some files have a "no limit" beyond 64 bits, which counts as the largest int64.
  int64_t Int(absl::string_view key, int64_t min = 0, int64_t max = std::numeric_limits<int64_t>::max());
  std::optional<int64_t> OptionalInt(absl::string_view key, int64_t min = 0,
                                     int64_t max = std::numeric_limits<int64_t>::max());
  // Finite.
  std::optional<double> OptionalNumber(absl::string_view key);
  // Empty if it is absent.
  std::vector<std::string> Texts(absl::string_view key);
  const JsonValue& Array(absl::string_view key);
  // One of the words, as its index. `absent` beyond the words: the field must be there.
  size_t Word(absl::string_view key, std::initializer_list<const char*> words, size_t absent);

  // Adds a mistake of this field.
  void Fail(absl::string_view key, absl::string_view expected);
  // Adds a mistake of an object in this one, if it is one.
  void Add(const absl::Status& mistake) { status_.Update(mistake); }
  const absl::Status& status() const { return status_; }
  // The keys that nothing has asked for, in the order of the text.
  std::vector<std::string> Unread() const;
  // The first mistake, or an error that names a field that nothing has asked for.
  absl::Status Finish() const;

 private:
  const JsonValue* object_;
  std::string where_;
  std::set<std::string, std::less<>> read_;
  absl::Status status_;
};

}  // namespace aqt::io

#endif  // AQT_IO_JSON_FIELDS_H_
