#ifndef AQT_IO_JSON_H_
#define AQT_IO_JSON_H_

// JSON as a stream of events, strict: RFC 8259 text in UTF-8 without byte order mark, NUL or comments, one value,
// bounded nesting. Duplicate keys are the handler's business. Nothing is built up in memory but one token.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::io {

struct JsonScalar {
  // kNumber: one with a sign, a fraction, an exponent or more than 64 bits.
  enum Kind : uint8_t { kNull, kBool, kUnsigned, kNumber, kString };
  Kind kind = kNull;
  uint64_t unsigned_value = 0;    // of kUnsigned; 0 or 1 of kBool
  std::string* string = nullptr;  // of kString; may be moved from
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

// DataLoss with the byte position when `text` is not JSON or nests deeper than `max_depth` objects and arrays.
absl::Status ParseJson(absl::string_view text, int max_depth, JsonHandler& handler);

// A JSON object as Python's json module reads and writes it: the words NaN, Infinity and -Infinity are values, too, and
// numbers have any size. What a program does not understand stays the text that it was.
struct JsonObjectText {
  struct Member {
    std::string key;
    size_t key_begin = 0;  // of its opening quote in the text
    size_t begin = 0;      // [begin, end): the value in the text, without space around it
    size_t end = 0;
  };
  std::vector<Member> members;  // in order
  // The text in standard JSON, for a parser: the three words, and numbers beyond the range of a double, are the strings
  // "NaN", "Infinity", "-Infinity", "1e999".
  std::string standard;
};
// DataLoss, beginning with "line L, column C: ", when `text` is anything else: also for a key that occurs twice in one
// object (at any depth), for deeper nesting than `max_depth`, and for other encodings than UTF-8 without a byte order
// mark.
absl::StatusOr<JsonObjectText> ScanJsonObject(absl::string_view text, int max_depth);

// `text` as a JSON string with its quotes: `"`, `\` and control characters escaped, everything else as it is.
// InvalidArgument when it is not UTF-8.
absl::StatusOr<std::string> JsonQuote(absl::string_view text);

// One of `strings` that equals another of them, or null.
const std::string* FindDuplicate(std::vector<const std::string*> strings);

// `text` for an error message: in quotes, as Printable (printable.h) shows it, cut after 100 bytes.
std::string QuoteForMessage(absl::string_view text);

}  // namespace aqt::io

#endif  // AQT_IO_JSON_H_
