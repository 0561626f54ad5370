#include "aqt/tokenizers/added_tokens.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/tokenizers/text/unicode.h"

namespace aqt::tokenizers {
namespace {

constexpr int kNoToken = -1;
constexpr size_t kFilterSize = 512;

uint64_t ChildKey(int node, char32_t code) { return static_cast<uint64_t>(node) << 32 | code; }

bool IsWord(char32_t code) { return (CodeFlags(code) & kWord) != 0; }

}  // namespace

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const io::JsonValue& json, const Model& model,
                                                         const std::string& where) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) return tokens;
  if (!json.is_array())
    return absl::InvalidArgumentError(absl::StrCat(where, " is ", json.Shown(), "; expected a list"));
  absl::flat_hash_map<std::string, int32_t> seen;
  int64_t next_id = model.size();
  for (size_t i = 0; i < json.size(); ++i) {
    io::JsonFields fields(json[i], absl::StrCat(where, "[", i, "]"));
    AddedToken token;
    token.content = fields.Text("content");
    const int64_t id = fields.Int("id");
    token.single_word = fields.Bool("single_word");
    token.lstrip = fields.Bool("lstrip");
    token.rstrip = fields.Bool("rstrip");
    token.normalized = fields.Bool("normalized");
    fields.Bool("special");  // matters only when text is made from ids
    if (token.content.empty() || token.content.size() > kMaxTokenBytes) {
      fields.Fail("content", absl::StrCat("expected 1 to ", kMaxTokenBytes, " bytes"));
    }
    AQT_RETURN_IF_ERROR(fields.Finish());
    token.id = model.Find(token.content);
    if (token.id < 0)
      token.id = static_cast<int32_t>(std::min<int64_t>(next_id++, std::numeric_limits<int32_t>::max()));
    if (id != token.id) {
      return io::WrongField(fields.where(), "id", fields.Any("id"),
                            absl::StrCat("the vocabulary gives ", io::Printable(token.content), " the id ", token.id));
    }
    if (!seen.emplace(token.content, token.id).second) {
      return io::WrongField(fields.where(), "content", fields.Any("content"), "this token occurs twice");
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::StatusOr<AddedTokenFinder> AddedTokenFinder::Make(std::vector<std::pair<AddedToken, std::u32string>> tokens) {
  AddedTokenFinder finder;
  finder.token_of_node_.push_back(kNoToken);
  finder.begins_token_.resize(kFilterSize, false);
  for (auto& [token, codes] : tokens) {
    int node = 0;
    for (const char32_t code : codes) {
      const auto [it, added] =
          finder.children_.emplace(ChildKey(node, code), static_cast<int>(finder.token_of_node_.size()));
      if (added) finder.token_of_node_.push_back(kNoToken);
      node = it->second;
    }
    if (node == 0 || finder.token_of_node_[node] != kNoToken) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the added token ", io::Printable(token.content),
          node == 0 ? " is empty in its normalized form" : " has the same normalized form as another one"));
    }
    finder.token_of_node_[node] = static_cast<int>(finder.tokens_.size());
    finder.begins_token_[codes[0] % kFilterSize] = true;
    finder.tokens_.push_back(std::move(token));
  }
  return finder;
}

AddedTokenFinder::Match AddedTokenFinder::FindAt(const Text& text, uint32_t begin) const {
  Match match = {begin, begin, kNoToken};
  int node = 0;
  for (uint32_t i = begin; i < text.size(); ++i) {
    const auto it = children_.find(ChildKey(node, text[i].code));
    if (it == children_.end()) break;
    node = it->second;
    if (token_of_node_[node] != kNoToken) match = {begin, i + 1, token_of_node_[node]};
  }
  return match;
}

bool AddedTokenFinder::Adjust(const Text& text, uint32_t done, Match& match) const {
  const AddedToken& token = tokens_[match.token];
  if (token.single_word && ((match.begin > 0 && IsWord(text[match.begin - 1].code)) ||
                            (match.end < text.size() && IsWord(text[match.end].code)))) {
    return false;
  }
  if (token.lstrip) {
    while (match.begin > done && IsSpace(text[match.begin - 1].code)) --match.begin;
    match.begin = std::max(match.begin, done);
  }
  if (token.rstrip) {
    while (match.end < text.size() && IsSpace(text[match.end].code)) ++match.end;
  }
  return true;
}

void AddedTokenFinder::Split(const Text& text, std::vector<Piece>& out) const {
  const auto add = [&](uint32_t begin, uint32_t end, int32_t id) {
    if (begin < end) out.push_back({begin, end, id, text[begin].begin == 0});
  };
  uint32_t done = 0;
  const auto size = static_cast<uint32_t>(text.size());
  for (uint32_t i = 0; i < size;) {
    if (tokens_.empty()) break;
    if (!begins_token_[text[i].code % kFilterSize]) {
      ++i;
      continue;
    }
    Match match = FindAt(text, i);
    if (match.token == kNoToken) {
      ++i;
      continue;
    }
    i = match.end;
    if (!Adjust(text, done, match)) continue;
    add(done, match.begin, Piece::kNoToken);
    add(match.begin, match.end, tokens_[match.token].id);
    done = match.end;
  }
  add(done, size, Piece::kNoToken);
}

}  // namespace aqt::tokenizers
