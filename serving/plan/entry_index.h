#ifndef AQT_SERVING_PLAN_ENTRY_INDEX_H_
#define AQT_SERVING_PLAN_ENTRY_INDEX_H_

// Finds the few entries of a long list of names and patterns that can match a given name.
//
// Entries that are names, or patterns of literal characters and ".", are found by hashing. A configuration may list
// every module of a model: testing each entry on each module would take quadratic time.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace aqt::serving {

// Entries are numbered from 0 in the order of insertion.
class EntryIndex {
 public:
  // An entry that matches only one name.
  void AddName(absl::string_view name);
  // An RE2 pattern that matches full names, or any prefix of a name.
  void AddFullPattern(absl::string_view pattern);
  void AddPrefixPattern(absl::string_view pattern);
  // An entry that may match any name.
  void AddAny();

  // The entries that may match `name` or `other`, in ascending order. All others match neither.
  std::vector<size_t> Candidates(absl::string_view name, absl::string_view other) const;
  std::vector<size_t> All() const;

 private:
  // The length of a pattern, the positions of its wildcards, and whether it matches only full names.
  using Form = std::tuple<size_t, std::vector<size_t>, bool>;

  void Add(absl::string_view pattern, bool whole);
  void AddFixed(std::string text, std::vector<size_t> wildcards, bool whole);
  void Find(absl::string_view name, std::vector<size_t>& found) const;

  size_t size_ = 0;
  bool has_wildcards_ = false;
  std::vector<size_t> any_;
  // For each form, the entries by their text, with a 0 at the wildcards.
  std::map<Form, absl::flat_hash_map<std::string, std::vector<size_t>>> fixed_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_ENTRY_INDEX_H_
