#include "serving/plan/entry_index.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace aqt::serving {
namespace {

// In such a name "." matches one byte. In others it may match several, or none at a line feed.
bool IsPlain(absl::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isascii(c) && c != '\n'; });
}

// False unless `pattern` consists only of literal characters and ".". Then `text` is the text that it matches.
bool ParseFixed(absl::string_view pattern, std::string& text, std::vector<size_t>& wildcards) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '.') {
      wildcards.push_back(text.size());
      c = '\0';
    } else if (c == '\\') {
      if (++i == pattern.size() || !absl::ascii_ispunct(pattern[i])) return false;
      c = pattern[i];
    } else if (absl::StrContains("^$|()[]{}*+?", c)) {
      return false;
    }
    text.push_back(c);
  }
  return true;
}

}  // namespace

void EntryIndex::AddName(absl::string_view name) { AddFixed(std::string(name), {}, /*whole=*/true); }

void EntryIndex::AddFullPattern(absl::string_view pattern) { Add(pattern, /*whole=*/true); }

void EntryIndex::AddPrefixPattern(absl::string_view pattern) {
  absl::ConsumePrefix(&pattern, "^");
  // "a(\.|$)", a module and its descendants, counts as "a", which matches more.
  absl::ConsumeSuffix(&pattern, R"((\.|$))");
  std::string text;
  std::vector<size_t> wildcards;
  // If the "$" is escaped, a trailing backslash remains, and this fails.
  if (absl::EndsWith(pattern, "$") && ParseFixed(pattern.substr(0, pattern.size() - 1), text, wildcards)) {
    return AddFixed(std::move(text), std::move(wildcards), /*whole=*/true);
  }
  Add(pattern, /*whole=*/false);
}

void EntryIndex::AddAny() { any_.push_back(size_++); }

void EntryIndex::Add(absl::string_view pattern, bool whole) {
  std::string text;
  std::vector<size_t> wildcards;
  if (!ParseFixed(pattern, text, wildcards)) return AddAny();
  AddFixed(std::move(text), std::move(wildcards), whole);
}

void EntryIndex::AddFixed(std::string text, std::vector<size_t> wildcards, bool whole) {
  has_wildcards_ = has_wildcards_ || !wildcards.empty();
  fixed_[Form(text.size(), std::move(wildcards), whole)][std::move(text)].push_back(size_++);
}

void EntryIndex::Find(absl::string_view name, std::vector<size_t>& found) const {
  for (const auto& [form, entries] : fixed_) {
    const auto& [length, wildcards, whole] = form;
    if (length > name.size()) break;  // forms are sorted by length
    if (whole && length != name.size()) continue;
    std::string text(name.substr(0, length));
    for (const size_t at : wildcards) text[at] = '\0';
    const auto it = entries.find(text);
    if (it != entries.end()) found.insert(found.end(), it->second.begin(), it->second.end());
  }
}

std::vector<size_t> EntryIndex::Candidates(absl::string_view name, absl::string_view other) const {
  if (has_wildcards_ && !(IsPlain(name) && IsPlain(other))) return All();
  std::vector<size_t> found = any_;
  Find(name, found);
  Find(other, found);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<size_t> EntryIndex::All() const {
  std::vector<size_t> all(size_);
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

}  // namespace aqt::serving
