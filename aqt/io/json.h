#ifndef AQT_IO_JSON_H_
#define AQT_IO_JSON_H_

// Strict JSON as a stream of events: one RFC 8259 value in UTF-8, without byte order mark, NUL or comments, with
// bounded nesting. Duplicate keys are left to the handler. Only one token at a time is kept in memory.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::io {

struct JsonScalar {
  // kNumber: a number with a sign, a fraction, an exponent or more than 64 bits.
  enum Kind : uint8_t { kNull, kBool, kUnsigned, kNumber, kString };
  Kind kind = kNull;
  uint64_t unsigned_value = 0;    // for kUnsigned; 0 or 1 for kBool
  std::string* string = nullptr;  // for kString; may be moved from
};

// Called in the order of the text. An error stops the parse and is returned by ParseJson.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual absl::Status Scalar(const JsonScalar& value) = 0;
  virtual absl::Status StartObject() = 0;
  virtual absl::Status Key(std::string& key) = 0;  // may be moved from
  virtual absl::Status EndObject() = 0;
  virtual absl::Status StartArray() = 0;
  virtual absl::Status EndArray() = 0;
};

// DataLoss, with the byte position, if `text` is not JSON or nests objects and arrays deeper than `max_depth`.
absl::Status ParseJson(absl::string_view text, int max_depth, JsonHandler& handler);

// A JSON object as Python's json module reads and writes it: the words NaN, Infinity and -Infinity are also values, and
// numbers can have any size. Members that a program does not understand keep their text.
struct JsonObjectText {
  struct Member {
    std::string key;
    size_t key_begin = 0;  // where the key's opening quote is in the text
    size_t begin = 0;      // [begin, end): the value in the text, without surrounding space
    size_t end = 0;
  };
  std::vector<Member> members;  // in order
  // The text as standard JSON, for a parser: the three words, and numbers beyond the range of a double, become strings
  // such as "NaN", "-Infinity" or "1e999".
  std::string standard;
};
// DataLoss, beginning with "line L, column C: ", if `text` is not such an object, if a key occurs twice in one object
// (at any depth), if nesting is deeper than `max_depth`, or if the text is not UTF-8 without a byte order mark.
absl::StatusOr<JsonObjectText> ScanJsonObject(absl::string_view text, int max_depth);

// `text` as a quoted JSON string: `"`, `\` and control characters are escaped, everything else is unchanged.
// InvalidArgument if it is not UTF-8.
absl::StatusOr<std::string> JsonQuote(absl::string_view text);

// A string that occurs more than once in `strings`, or null.
const std::string* FindDuplicate(std::vector<const std::string*> strings);

// `text` for an error message: in quotes, made printable (printable.h) and cut after 100 bytes.
std::string QuoteForMessage(absl::string_view text);

}  // namespace aqt::io

#endif  // AQT_IO_JSON_H_
