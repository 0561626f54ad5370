#ifndef AQT_TOKENIZERS_JSON_FIELDS_H_
#define AQT_TOKENIZERS_JSON_FIELDS_H_

// Reading the objects of tokenizer.json: every field must be known, and mistakes are named by their place.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/tokenizers/json_value.h"

namespace aqt::tokenizers {

// "WHERE.KEY is VALUE; EXPECTED".
absl::Status WrongField(absl::string_view where, absl::string_view key, const Json& value, absl::string_view expected);

// The fields of one object. The first mistake is kept, and Finish returns it; the values are then to be ignored.
class Fields {
 public:
  // `where` names the object, as in "tokenizer.json: normalizer".
  Fields(const Json& json, std::string where);

  const std::string& where() const { return where_; }
  // The value of a field, or null. Calls for a field make it a known one.
  const Json& Any(const char* key);
  std::string Text(const char* key);                      // must be there
  std::string Text(const char* key, std::string absent);  // null counts as absent, here and below
  bool Bool(const char* key);
  bool Bool(const char* key, bool absent);
  std::optional<bool> OptionalBool(const char* key);
  int64_t Int(const char* key);
  std::optional<int64_t> OptionalInt(const char* key);
  const Json& Array(const char* key);  // must be there
  // One of the words, as its index.
  size_t Word(const char* key, std::initializer_list<const char*> words, size_t absent);

  void Fail(const char* key, absl::string_view expected);
  // The first mistake, or an error that names a field that nothing has asked for.
  absl::Status Finish();

 private:
  const Json& json_;
  const std::string where_;
  std::set<std::string> known_;
  absl::Status status_;
};

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_JSON_FIELDS_H_
