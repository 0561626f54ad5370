#include "serving/formats/float_config.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"

namespace aqt::serving {
namespace {

constexpr int kMaxDepth = 64;
// An indentation that is wider is not copied.
constexpr size_t kMaxIndent = 16;

using Members = std::vector<io::JsonObjectText::Member>;

bool IsQuantization(const std::string& key) { return key == "quantization_config" || key == "compression_config"; }
bool IsDtype(const std::string& key) { return key == "torch_dtype" || key == "dtype"; }

// Replaces text[begin, end).
struct Edit {
  size_t begin, end;
  std::string text;
};

// The part of the text that makes member i go, with a comma if others remain.
Edit Removal(const Members& members, size_t i, size_t* last_kept_end) {
  const bool last = i + 1 == members.size();
  if (!last) return {members[i].key_begin, members[i + 1].key_begin, ""};
  return {*last_kept_end != 0 ? *last_kept_end : members[i].key_begin, members[i].end, ""};
}

std::string Apply(absl::string_view text, const std::vector<Edit>& edits) {
  std::string out;
  size_t at = 0;
  for (const Edit& edit : edits) {
    absl::StrAppend(&out, text.substr(at, edit.begin - at), edit.text);
    at = edit.end;
  }
  absl::StrAppend(&out, text.substr(at));
  return out;
}

// What stands before the first key: "\n  ".
std::string IndentOf(absl::string_view text, const Members& members) {
  if (members.empty()) return "\n  ";
  const size_t open = text.find('{') + 1;
  const absl::string_view before = text.substr(open, members[0].key_begin - open);
  return before.size() <= kMaxIndent + 1 ? std::string(before.data(), before.size()) : std::string("\n  ");
}

// `text` is one object. Removes the configurations in it, and sets its dtype if there was one, or if `outermost`.
absl::StatusOr<std::string> Clean(absl::string_view text, absl::string_view dtype, bool outermost, int depth) {
  AQT_ASSIGN_OR_RETURN(const io::JsonObjectText object, io::ScanJsonObject(text, kMaxDepth));
  const Members& members = object.members;
  bool set_dtype = outermost && !dtype.empty();
  for (const auto& member : members) set_dtype = set_dtype || (IsQuantization(member.key) && !dtype.empty());
  const std::string quoted = absl::StrCat("\"", dtype, "\"");
  std::vector<Edit> edits;
  size_t last_kept_end = 0;
  bool has_dtype = false;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto& member = members[i];
    const absl::string_view value = text.substr(member.begin, member.end - member.begin);
    if (IsQuantization(member.key)) {
      const Edit removal = Removal(members, i, &last_kept_end);
      // Members that were removed just before this one are part of the same range.
      while (!edits.empty() && edits.back().text.empty() && edits.back().end > removal.begin) edits.pop_back();
      edits.push_back(removal);
      continue;
    }
    last_kept_end = member.end;
    if (IsDtype(member.key) && set_dtype) {
      has_dtype = true;
      edits.push_back({member.begin, member.end, quoted});
    } else if (!value.empty() && value[0] == '{' && depth < kMaxDepth) {
      AQT_ASSIGN_OR_RETURN(std::string part, Clean(value, dtype, /*outermost=*/false, depth + 1));
      if (part != value) edits.push_back({member.begin, member.end, std::move(part)});
    }
  }
  std::string out = Apply(text, edits);
  if (!set_dtype || has_dtype || !outermost) return out;
  // After the last member, or as the only one.
  AQT_ASSIGN_OR_RETURN(const io::JsonObjectText cleaned, io::ScanJsonObject(out, kMaxDepth));
  const std::string indent = IndentOf(out, cleaned.members);
  const size_t end = cleaned.members.empty() ? out.find('{') + 1 : cleaned.members.back().end;
  const std::string rest = out.substr(end);
  return absl::StrCat(out.substr(0, end), cleaned.members.empty() ? "" : ",", indent, "\"torch_dtype\": ", quoted,
                      rest[0] == '}' && indent.find('\n') != std::string::npos ? "\n" : "", rest);
}

}  // namespace

absl::StatusOr<std::string> RemoveQuantizationConfig(absl::string_view config_json, absl::string_view torch_dtype) {
  return Clean(config_json.empty() ? "{\n}\n" : config_json, torch_dtype, /*outermost=*/true, 0);
}

}  // namespace aqt::serving
