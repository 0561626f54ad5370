#include "tests/digest/digest.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "tests/digest/cases.h"
#include "tests/digest/contraction.h"
#include "tests/digest/hash.h"

namespace aqt::digest {
namespace {

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

// The names of the fields in which two results differ; of those of Level 1 only, if so asked.
std::string Difference(const Fields& a, const Fields& b, bool only_everywhere) {
  if (a.size() != b.size()) return absl::StrCat(" ", a.size(), " and ", b.size(), " fields");
  std::string names;
  for (size_t i = 0; i < a.size(); ++i) {
    if (only_everywhere && !a[i].everywhere) continue;
    if (a[i].name != b[i].name || a[i].hash != b[i].hash) absl::StrAppend(&names, " ", a[i].name);
  }
  return names;
}

void AddTo(Hash& hash, const Fields& fields, bool everywhere) {
  for (const Field& field : fields) {
    if (field.everywhere == everywhere) hash.Add(field.name).Add(static_cast<int64_t>(field.hash));
  }
}

void Print(const Case& c, const std::string& name, const std::map<kernels::Target, Fields>& results, std::ostream& os) {
  os << "==== " << name << (c.refused ? " refused" : "") << "\n" << c.words << "\n";
  for (const Field& field : c.fields) os << "  " << field.name << " " << field.hash << "\n";
  if (results.empty()) return;
  const Fields& first = results.begin()->second;
  for (size_t i = 0; i < first.size(); ++i) {
    os << "  " << first[i].name;
    if (first[i].everywhere) {
      os << " " << Hex(first[i].hash);
    } else {
      for (const auto& [target, fields] : results) os << " " << target << "=" << Hex(fields[i].hash);
    }
    os << "\n";
  }
}

}  // namespace

std::string GroupDigest::ToString() const {
  std::string text = absl::StrCat(name, " refused=", refused, " all=", Hex(everywhere));
  for (const auto& [target, hash] : on_target) absl::StrAppend(&text, " ", kernels::ToString(target), "=", Hex(hash));
  return text;
}

std::string GroupName(const Kind& kind, int64_t group) { return absl::StrCat(kind.name, "/", group); }

GroupDigest ComputeDigest(const Kind& kind, int64_t group, std::ostream* details) {
  kernels::ThreadPool two(2), seven(7);
  GroupDigest digest{.name = GroupName(kind, group)};
  Hash everywhere;
  std::map<kernels::Target, Hash> on_target;
  for (const kernels::Target target : kernels::SupportedTargets()) on_target[target] = Hash();
  for (int64_t index = 0; index < kCasesPerGroup; ++index) {
    const Case c = DrawCase(kind, group, index);
    const std::string name = absl::StrCat(digest.name, "/", index);
    digest.refused += c.refused;
    digest.refusals += c.num_refused;
    AddTo(everywhere, c.fields, true);
    std::map<kernels::Target, Fields> results;
    if (!c.refused) {
      for (const kernels::Target target : kernels::SupportedTargets()) {
        Fields& fields = results[target] = c.run({.target = target});
        for (Executor* pool : {&two, &seven}) {
          const std::string different = Difference(fields, c.run({.executor = pool, .target = target}), false);
          if (different.empty()) continue;
          digest.problems.push_back(absl::StrCat(name, " on ", kernels::ToString(target), " with ", pool->NumThreads(),
                                                 " threads:", different, "\n", c.words));
        }
        const std::string different = Difference(fields, results.begin()->second, true);
        if (!different.empty()) {
          digest.problems.push_back(
              absl::StrCat(name, " on ", kernels::ToString(target), ":", different, "\n", c.words));
        }
        AddTo(on_target[target], fields, false);
      }
      AddTo(everywhere, results.begin()->second, true);
    }
    if (details != nullptr) Print(c, name, results, *details);
  }
  digest.everywhere = everywhere.value();
  for (const auto& [target, hash] : on_target) digest.on_target[target] = hash.value();
  return digest;
}

}  // namespace aqt::digest
