#include "examples/digits/program_text.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace digits {
namespace {

// `line` without the text from `first` up to `last`; unchanged if one of them is missing.
std::string Without(absl::string_view line, absl::string_view first, absl::string_view last) {
  const size_t from = line.find(first);
  const size_t to = from == absl::string_view::npos ? from : line.find(last, from);
  if (to == absl::string_view::npos) return std::string(line);
  return absl::StrCat(line.substr(0, from), line.substr(to));
}

}  // namespace

std::string ShortText(const aqt::Program& program) {
  std::string text;
  int others = 0;
  const std::string all = aqt::ToText(program);
  for (const absl::string_view line : absl::StrSplit(all, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "in ")) {
      if (!absl::StrContains(line, " stat \"")) absl::StrAppend(&text, line, "\n");
    } else if (absl::StrContains(line, " = aqt_dot_general_bwd(")) {
      absl::StrAppend(&text, Without(line, "fwd=", "dlhs="), "\n");
    } else if (absl::StrContains(line, " = dot_general(") || absl::StrContains(line, " = aqt_")) {
      absl::StrAppend(&text, Without(line, ", dlhs=", "}"), "\n");
    } else if (absl::StartsWith(line, "%")) {
      ++others;
    }
  }
  return absl::StrCat(text, "and ", others, " other equations\n");
}

}  // namespace digits
