#include "aqt/tokenizers/text/pattern.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::tokenizers {
namespace {

class Literal final : public Pattern {
 public:
  explicit Literal(absl::string_view text) : codes_(ToCodes(text)) {
    // The longest border of each beginning, for the search of Knuth, Morris and Pratt.
    border_.resize(codes_.size() + 1, 0);
    for (size_t i = 1, k = 0; i < codes_.size(); ++i) {
      while (k > 0 && codes_[i] != codes_[k]) k = border_[k];
      if (codes_[i] == codes_[k]) ++k;
      border_[i + 1] = k;
    }
  }

  void Find(absl::Span<const Char> text, Matches& matches) const override {
    size_t k = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      while (k > 0 && text[i].code != codes_[k]) k = border_[k];
      if (text[i].code == codes_[k]) ++k;
      if (k < codes_.size()) continue;
      matches.emplace_back(static_cast<uint32_t>(i + 1 - k), static_cast<uint32_t>(i + 1));
      k = 0;
    }
  }

 private:
  const std::u32string codes_;
  std::vector<size_t> border_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Pattern>> ParsePattern(const io::JsonValue& json, absl::string_view where) {
  io::JsonFields fields(json, std::string(where));
  const bool regex = !fields.Any("Regex").is_null();
  const std::string text = fields.Text(regex ? "Regex" : "String");
  if (text.empty()) fields.Fail(regex ? "Regex" : "String", "an empty pattern is not read");
  if (regex) fields.Any("String");
  AQT_RETURN_IF_ERROR(fields.Finish());
  if (!regex) return std::unique_ptr<const Pattern>(std::make_unique<Literal>(text));
  auto pattern = ParseRegex(text);
  if (!pattern.ok()) return io::WrongField(where, "Regex", io::JsonValue(text), pattern.status().message());
  return pattern;
}

}  // namespace aqt::tokenizers
