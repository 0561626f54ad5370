#ifndef AQT_CONFIGS_CONFIG_TEXT_H_
#define AQT_CONFIGS_CONFIG_TEXT_H_

// Shared by the configurations of this folder: reading a textproto so that every syntax or semantic error has a
// position, and starting from a preset. For the converters from messages to structs.
//
//   google::protobuf::TextFormat::ParseInfoTree tree;
//   RETURN_IF_ERROR(ParseText(text, source, /*renames=*/{}, &message, &tree));
//   const Place place(source, &tree);
//   RETURN_IF_ERROR(CheckSchema(message, place));
//   RETURN_IF_ERROR(ResolveBase(Presets(), place, &message));
//   if (message.rule(2).bits() > 8) return place.In(message, "rule", 2).Error("...");

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "configs/embedded_text.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace aqt::config {

// The position of a message in the text.
class Place {
 public:
  // For a message that is not from a text: errors have no position.
  Place() = default;
  // For the whole text. The tree is not copied.
  Place(absl::string_view source, const google::protobuf::TextFormat::ParseInfoTree* tree)
      : Place(source, tree, 0, 0) {}

  // The place of a field (of element `index`, or of the first one, of a repeated field); the place of this message when
  // the text has no such field because it is missing or comes from the base.
  Place In(const google::protobuf::Message& message, const char* field, int index = -1) const;

  // InvalidArgument "source:line:column: message", both counted from 1.
  absl::Status Error(absl::string_view message) const;
  // `status` with the position before its message.
  absl::Status At(const absl::Status& status) const;

 private:
  Place(absl::string_view source, const google::protobuf::TextFormat::ParseInfoTree* tree, int line, int column)
      : source_(source), tree_(tree), line_(line), column_(column) {}
  std::string Text(absl::string_view message) const;

  std::string source_;  // empty: no position
  const google::protobuf::TextFormat::ParseInfoTree* tree_ = nullptr;
  int line_ = 0, column_ = 0;
};

// An unknown word that users may try, and its replacement.
struct Rename {
  absl::string_view message;  // short name of the message type that lacks the field; empty for any, and for other words
  absl::string_view word;
  absl::string_view remedy;  // what to write instead
};

// Parses. InvalidArgument with the position of the first error, and with the remedy if `renames` has one. An enum value
// given as a number must be known.
absl::Status ParseText(absl::string_view text, absl::string_view source, absl::Span<const Rename> renames,
                       google::protobuf::Message* message, google::protobuf::TextFormat::ParseInfoTree* tree);

// InvalidArgument unless the field `schema` of `message` is 1.
absl::Status CheckSchema(const google::protobuf::Message& message, const Place& place);

// Replaces `message`, whose field `base` names a preset, by that preset (with its own base resolved), without the
// fields that `clear` lists (if the message has such a field), overridden by `message`: scalars and lists are replaced,
// messages merged field by field. `schema` is not inherited; `base` and `clear` are left out of the result. Without a
// base nothing changes.
// InvalidArgument for an unknown preset, listing the known ones; for a path in `clear` that the base does not set; for
// `clear` without a base.
absl::Status ResolveBase(absl::Span<const EmbeddedText> presets, const Place& place,
                         google::protobuf::Message* message);

// "there is no preset ...; presets are ..."
std::string NoSuchPreset(absl::string_view name, absl::Span<const EmbeddedText> presets);
std::vector<std::string> PresetNames(absl::Span<const EmbeddedText> presets);

// The textproto of a message. Doubles are printed so that they read back unchanged.
std::string PrintText(const google::protobuf::Message& message);

}  // namespace aqt::config

#endif  // AQT_CONFIGS_CONFIG_TEXT_H_
