#include "configs/config_text.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"

namespace aqt::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;

// Keeps the first syntax error.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  FirstError(absl::string_view source, absl::Span<const Rename> renames) : source_(source), renames_(renames) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (!message_.empty()) return;
    message_ = absl::StrCat(source_, ":", line + 1, ":", column + 1, ": ", message);
    for (const Rename& rename : renames_) {
      if (!absl::StrContains(message, absl::StrCat("\"", rename.word, "\""))) continue;
      if (!rename.message.empty() && !absl::StrContains(message, absl::StrCat(".", rename.message, "\""))) continue;
      absl::StrAppend(&message_, " Write ", rename.remedy, ".");
      return;
    }
  }
  const std::string& message() const { return message_; }

 private:
  std::string source_;
  absl::Span<const Rename> renames_;
  std::string message_;
};

const FieldDescriptor* Field(const Message& message, absl::string_view name) {
  return message.GetDescriptor()->FindFieldByName(std::string(name));
}

bool IsMessage(const FieldDescriptor* field) { return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE; }

// The fields of `over` replace those of `base`, which has the same type.
void MergeOver(const Message& over, Message* base) {
  const Reflection* reflection = over.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(over, &fields);
  std::unique_ptr<Message> rest(over.New());  // scalars and lists
  rest->CopyFrom(over);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) {
      reflection->ClearField(base, field);
    } else if (IsMessage(field)) {
      MergeOver(reflection->GetMessage(over, field), reflection->MutableMessage(base, field));
      reflection->ClearField(rest.get(), field);
    }
  }
  base->MergeFrom(*rest);
}

// Clears the field that a path like "dlhs.lhs.quantizer" names; false when it is not set.
bool ClearPath(absl::string_view path, Message* message) {
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const Reflection* reflection = message->GetReflection();
    const FieldDescriptor* field = Field(*message, names[i]);
    if (field == nullptr) return false;
    if (field->is_repeated() ? reflection->FieldSize(*message, field) == 0 : !reflection->HasField(*message, field)) {
      return false;
    }
    if (i + 1 == names.size()) {
      reflection->ClearField(message, field);
      return true;
    }
    if (field->is_repeated() || !IsMessage(field)) return false;
    message = reflection->MutableMessage(message, field);
  }
  return false;
}

// TextFormat accepts any number as an enum value.
absl::Status CheckEnums(const Message& message, const Place& place) {
  const Reflection* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_enum = field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
    if (!is_enum && !IsMessage(field)) continue;
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const Place at = place.In(message, field->name().c_str(), field->is_repeated() ? i : -1);
      if (is_enum) {
        const int value = field->is_repeated() ? reflection->GetRepeatedEnumValue(message, field, i)
                                               : reflection->GetEnumValue(message, field);
        if (field->enum_type()->FindValueByNumber(value) != nullptr) continue;
        return at.Error(absl::StrCat(value, " is not a value of the enum ", field->enum_type()->name()));
      }
      const absl::Status status = CheckEnums(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                                                  : reflection->GetMessage(message, field),
                                             at);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

Place Place::In(const Message& message, const char* field, int index) const {
  if (tree_ == nullptr) return *this;
  const FieldDescriptor* descriptor = Field(message, field);
  if (descriptor->is_repeated() && index < 0) index = 0;
  const TextFormat::ParseLocation at = tree_->GetLocation(descriptor, index);
  if (at.line < 0) return *this;
  return Place(source_, IsMessage(descriptor) ? tree_->GetTreeForNested(descriptor, index) : nullptr, at.line,
               at.column);
}

std::string Place::Text(absl::string_view message) const {
  return source_.empty() ? std::string(message)
                         : absl::StrCat(source_, ":", line_ + 1, ":", column_ + 1, ": ", message);
}

absl::Status Place::Error(absl::string_view message) const { return absl::InvalidArgumentError(Text(message)); }

absl::Status Place::At(const absl::Status& status) const {
  return status.ok() ? status : absl::Status(status.code(), Text(status.message()));
}

absl::Status ParseText(absl::string_view text, absl::string_view source, absl::Span<const Rename> renames,
                       Message* message, TextFormat::ParseInfoTree* tree) {
  FirstError errors(source, renames);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(tree);
  if (!parser.ParseFromString(std::string(text), message)) return absl::InvalidArgumentError(errors.message());
  return CheckEnums(*message, Place(source, tree));
}

absl::Status CheckSchema(const Message& message, const Place& place) {
  const FieldDescriptor* schema = Field(message, "schema");
  if (!message.GetReflection()->HasField(message, schema)) return place.Error("the first field must be  schema: 1");
  const uint32_t version = message.GetReflection()->GetUInt32(message, schema);
  if (version == 1) return absl::OkStatus();
  return place.In(message, "schema")
      .Error(absl::StrCat("schema ", version, " is not known; this version reads schema 1"));
}

absl::Status ResolveBase(absl::Span<const EmbeddedText> presets, const Place& place, Message* message) {
  const Reflection* reflection = message->GetReflection();
  const FieldDescriptor* base_field = Field(*message, "base");
  const FieldDescriptor* clear_field = Field(*message, "clear");
  const int num_cleared = clear_field == nullptr ? 0 : reflection->FieldSize(*message, clear_field);
  if (!reflection->HasField(*message, base_field)) {
    if (num_cleared == 0) return absl::OkStatus();
    return place.In(*message, "clear", 0).Error("clear names fields of a base, but there is no base");
  }
  const std::string name = reflection->GetString(*message, base_field);
  const EmbeddedText* preset = nullptr;
  for (const EmbeddedText& text : presets) {
    if (text.name == name) preset = &text;
  }
  if (preset == nullptr) return place.In(*message, "base").Error(NoSuchPreset(name, presets));

  const std::string source = absl::StrCat("preset ", name);
  std::unique_ptr<Message> base(message->New());
  TextFormat::ParseInfoTree tree;
  absl::Status status = ParseText(preset->text, source, {}, base.get(), &tree);
  if (status.ok()) status = ResolveBase(presets, Place(source, &tree), base.get());
  if (!status.ok()) return status;
  reflection->ClearField(base.get(), Field(*base, "schema"));
  for (int i = 0; i < num_cleared; ++i) {
    const std::string path = reflection->GetRepeatedString(*message, clear_field, i);
    if (ClearPath(path, base.get())) continue;
    return place.In(*message, "clear", i).Error(absl::StrCat("\"", path, "\" is not set by the base \"", name, "\""));
  }
  reflection->ClearField(message, base_field);
  if (clear_field != nullptr) reflection->ClearField(message, clear_field);
  MergeOver(*message, base.get());
  message->GetReflection()->Swap(message, base.get());
  return absl::OkStatus();
}

std::string NoSuchPreset(absl::string_view name, absl::Span<const EmbeddedText> presets) {
  return absl::StrCat("there is no preset \"", name, "\"; presets are ", absl::StrJoin(PresetNames(presets), ", "));
}

std::vector<std::string> PresetNames(absl::Span<const EmbeddedText> presets) {
  std::vector<std::string> names;
  for (const EmbeddedText& preset : presets) names.push_back(preset.name);
  return names;
}

std::string PrintText(const Message& message) {
  TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(message, &text);
  return text;
}

}  // namespace aqt::config
