#include "tests/digest/digest.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
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

// A case on every target of this machine, with 1, 2 and 7 threads.
class CaseRuns {
 public:
  CaseRuns() : two_(2), seven_(7) {}

  // Appends what differs, although it should not, to `problems`.
  std::map<kernels::Target, Fields> Run(const Case& c, const std::string& name, std::vector<std::string>& problems) {
    std::map<kernels::Target, Fields> results;
    for (const kernels::Target target : kernels::SupportedTargets()) {
      const std::string on_target = absl::StrCat(name, " on ", kernels::ToString(target));
      const auto compare = [&](const std::string& difference, absl::string_view how) {
        if (!difference.empty()) problems.push_back(absl::StrCat(on_target, how, ":", difference, "\n", c.words));
      };
      Fields& fields = results[target] = c.run({.target = target});
      for (Executor* pool : {&two_, &seven_}) {
        compare(Difference(fields, c.run({.executor = pool, .target = target}), false),
                absl::StrCat(" with ", pool->NumThreads(), " threads"));
      }
      compare(Difference(fields, results.begin()->second, true), "");
      for (const EqualTargets& equal : AllEqualTargets()) {
        if (!absl::c_linear_search(equal.targets, target)) continue;
        compare(Difference(fields, results.at(equal.targets.front()), false), absl::StrCat(", unlike ", equal.name));
      }
    }
    return results;
  }

 private:
  kernels::ThreadPool two_, seven_;
};

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

absl::Span<const EqualTargets> AllEqualTargets() {
  using kernels::Target;
  static const auto* const all = new std::vector<EqualTargets>{
      {"scalar", {Target::kScalar, Target::kSse4}},
      {"avx2", {Target::kAvx2, Target::kAvxVnni, Target::kAvx512, Target::kAvx512Vnni}},
      {"avx512_bf16", {Target::kAvx512Bf16}},
      {"amx", {Target::kAmx}},
  };
  return *all;
}

std::map<std::string, std::string> GroupDigest::Entries() const {
  std::map<std::string, std::string> entries;
  entries[std::string(kEverywhere)] = absl::StrCat(Hex(everywhere), " refused=", refused);
  for (const auto& [targets, hash] : on_targets) entries[targets] = Hex(hash);
  return entries;
}

std::string GroupName(const Kind& kind, int64_t group) { return absl::StrCat(kind.name, "/", group); }

GroupDigest ComputeDigest(const Kind& kind, int64_t group, std::ostream* details) {
  CaseRuns runs;
  GroupDigest digest{.name = GroupName(kind, group)};
  Hash everywhere;
  std::map<std::string, Hash> on_targets;
  for (int64_t index = 0; index < kCasesPerGroup; ++index) {
    const Case c = DrawCase(kind, group, index);
    const std::string name = absl::StrCat(digest.name, "/", index);
    digest.refused += c.refused;
    digest.refusals += c.num_refused;
    AddTo(everywhere, c.fields, true);
    std::map<kernels::Target, Fields> results;
    if (!c.refused) {
      results = runs.Run(c, name, digest.problems);
      AddTo(everywhere, results.begin()->second, true);
      for (const EqualTargets& equal : AllEqualTargets()) {
        const auto result = results.find(equal.targets.front());
        if (result != results.end()) AddTo(on_targets[std::string(equal.name)], result->second, false);
      }
    }
    if (details != nullptr) Print(c, name, results, *details);
  }
  digest.everywhere = everywhere.value();
  for (const auto& [targets, hash] : on_targets) digest.on_targets[targets] = hash.value();
  return digest;
}

}  // namespace aqt::digest
