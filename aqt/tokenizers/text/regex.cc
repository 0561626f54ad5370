#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/status_macros.h"
#include "aqt/tokenizers/text/pattern.h"
#include "aqt/tokenizers/text/regex_program.h"

namespace aqt::tokenizers {
namespace {

// One class, repeated: " {2,}".
class RepeatedSet final : public Pattern {
 public:
  RepeatedSet(CodeSet set, int min, int max) : set_(std::move(set)), min_(min), max_(max) {}

  void Find(absl::Span<const Char> text, Matches& matches) const override {
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin;
      while (end < text.size() && (max_ == RegexNode::kUnlimited || end - begin < static_cast<size_t>(max_)) &&
             set_.Has(text[end].code)) {
        ++end;
      }
      if (end - begin >= static_cast<size_t>(min_)) {
        matches.emplace_back(static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
        begin = end;
      } else {
        begin = end + 1;  // no code point up to the end begins a match
      }
    }
  }

 private:
  const CodeSet set_;
  const int min_;
  const int max_;
};

// Tries the alternatives in order, and goes back after a failure. No split is tried twice at one place, because it
// would fail again: that makes the time linear. A place that a match has used is never reached again.
class Regex final : public Pattern {
 public:
  explicit Regex(RegexProgram program) : program_(std::move(program)) {}

  void Find(absl::Span<const Char> text, Matches& matches) const override {
    Search search(program_, text);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = search.Match(begin);
      if (end > begin) {
        matches.emplace_back(static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
        begin = end;
      } else {
        ++begin;
      }
    }
  }

 private:
  class Search {
   public:
    Search(const RegexProgram& program, absl::Span<const Char> text)
        : program_(program), text_(text), tried_(static_cast<size_t>(program.num_splits) * (text.size() + 1)) {}

    // The end of the match that begins at `begin`, or `begin` if there is none.
    size_t Match(size_t begin) {
      stack_.assign(1, {0, begin});
      while (!stack_.empty()) {
        auto [step, at] = stack_.back();
        stack_.pop_back();
        while (step >= 0) {
          if (program_.steps[step].kind == RegexStep::kMatch) return at;
          step = Advance(step, at);
        }
      }
      return begin;
    }

   private:
    // The step after `step`, or -1 if it fails.
    int Advance(int step, size_t& at) {
      const RegexStep& s = program_.steps[step];
      const auto follows = [&] { return at < text_.size() && program_.sets[s.set].Has(text_[at].code); };
      switch (s.kind) {
        case RegexStep::kSet:
          if (!follows()) return -1;
          ++at;
          return step + 1;
        case RegexStep::kSplit: {
          std::vector<bool>::reference tried =
              tried_[at * static_cast<size_t>(program_.num_splits) + static_cast<size_t>(s.number)];
          if (tried) return -1;
          tried = true;
          stack_.emplace_back(s.second, at);
          return s.first;
        }
        case RegexStep::kJump: return s.first;
        case RegexStep::kLookAhead: return follows() ? step + 1 : -1;
        case RegexStep::kNegativeLookAhead: return follows() ? -1 : step + 1;
        case RegexStep::kMatch: break;
      }
      return -1;
    }

    const RegexProgram& program_;
    const absl::Span<const Char> text_;
    std::vector<bool> tried_;
    std::vector<std::pair<int, size_t>> stack_;
  };

  const RegexProgram program_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Pattern>> ParseRegex(absl::string_view regex) {
  AQT_ASSIGN_OR_RETURN(const RegexNode node, ParseRegexNode(regex));
  if (MatchesEmpty(node)) {
    return absl::InvalidArgumentError("a regular expression that matches the empty text is not read");
  }
  const RegexNode* simple = &node;
  while (simple->kind != RegexNode::kSet && simple->kind != RegexNode::kRepeat && simple->children.size() == 1) {
    simple = &simple->children[0];
  }
  if (simple->kind == RegexNode::kSet) return std::make_unique<const RepeatedSet>(simple->set, 1, 1);
  if (simple->kind == RegexNode::kRepeat && simple->greedy && simple->children[0].kind == RegexNode::kSet) {
    return std::make_unique<const RepeatedSet>(simple->children[0].set, simple->min, simple->max);
  }
  AQT_ASSIGN_OR_RETURN(RegexProgram program, CompileRegex(node));
  return std::make_unique<const Regex>(std::move(program));
}

}  // namespace aqt::tokenizers
