#include "tests/systems_check/systems_check.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "tests/systems_check/compare_values.h"
#include "tests/systems_check/fixed_systems.h"
#include "tests/systems_check/run_fp8layers.h"
#include "tests/systems_check/run_jaxamp.h"
#include "tests/systems_check/run_scalify.h"
#include "tests/systems_check/system_case.h"
#include "tests/systems_check/systems_compat.h"

namespace aqt::systems {
namespace {

struct Counts {
  int64_t passed = 0, failed = 0, not_supported = 0;
  std::string ToString() const {
    return absl::StrCat("passed ", passed, ", failed ", failed, ", not supported ", not_supported);
  }
  void Add(const Counts& other) {
    passed += other.passed;
    failed += other.failed;
    not_supported += other.not_supported;
  }
};

absl::StatusOr<SystemValue::Dict> RunCase(absl::string_view area, const SystemCase& system_case) {
  try {
    if (area == "jaxamp") return RunJaxamp(system_case);
    if (area == "scalify") return RunScalify(system_case);
    if (area == "fp8layers") return RunFp8Layers(system_case);
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("config: ", e.what()));
  }
  return absl::UnimplementedError(absl::StrCat("the area ", area));
}

// The entry for a case whose default results differ from the recorded ones.
absl::StatusOr<std::optional<FixedSystemCase>> DifferenceOf(absl::string_view area, const SystemCase& system_case) {
  AQT_ASSIGN_OR_RETURN(const std::optional<std::string> wrong, WrongIn(area, system_case, SystemsCompat()));
  if (!wrong.has_value()) return std::nullopt;
  FixedSystemCase fixed;
  for (const SystemsSwitch& one : SystemsSwitches()) {
    SystemsCompat behaviour = SystemsCompat::Original();
    one.of(behaviour) = false;
    AQT_ASSIGN_OR_RETURN(const std::optional<std::string> differs, WrongIn(area, system_case, behaviour));
    if (differs.has_value()) fixed.compat.emplace_back(one.name);
  }
  SystemCase by_default = system_case;
  by_default.behaviour = SystemsCompat();
  absl::StatusOr<SystemValue::Dict> got = RunCase(area, by_default);
  fixed.error = !got.ok();
  if (got.ok()) fixed.expected = *std::move(got);
  return fixed;
}

absl::Status Update(const io::FileSystem& fs, const std::string& path, const std::vector<SystemArea>& areas) {
  FixedSystems list;
  for (const SystemArea& area : areas) {
    for (const SystemCase& system_case : area.cases) {
      absl::StatusOr<std::optional<FixedSystemCase>> fixed = DifferenceOf(area.name, system_case);
      if (absl::IsUnimplemented(fixed.status())) continue;
      if (!fixed.ok()) return Annotate(fixed.status(), system_case.name);
      if (fixed->has_value()) list[area.name].emplace(system_case.name, **std::move(fixed));
    }
  }
  return SaveFixedSystems(fs, path, list);
}

}  // namespace

absl::StatusOr<std::optional<std::string>> WrongIn(absl::string_view area, const SystemCase& system_case,
                                                   const SystemsCompat& behaviour) {
  SystemCase run = system_case;
  run.behaviour = behaviour;
  const absl::StatusOr<SystemValue::Dict> got = RunCase(area, run);
  if (absl::IsUnimplemented(got.status())) return got.status();
  if (system_case.expects_error) {
    if (!got.ok()) return std::nullopt;
    return std::optional<std::string>("was computed, but expected to be refused");
  }
  if (!got.ok()) return std::optional<std::string>(got.status().ToString());
  return CompareOutputs(*got, system_case);
}

int CheckSystems(const io::FileSystem& fs, absl::string_view dir, const SystemsOptions& options, std::ostream& out,
                 std::ostream& err) {
  const auto bad = [&](const absl::Status& status) {
    err << "golden_check: " << status.message() << "\n";
    return 2;
  };
  absl::StatusOr<std::vector<SystemArea>> loaded = LoadSystems(fs, dir, options.areas);
  if (!loaded.ok()) return bad(loaded.status());
  FixedSystems fixed;
  if (options.update_fixed) {
    if (const absl::Status updated = Update(fs, options.fixed, *loaded); !updated.ok()) return bad(updated);
  }
  if (!options.fixed.empty()) {
    absl::StatusOr<FixedSystems> list = LoadFixedSystems(fs, options.fixed);
    if (!list.ok()) return bad(list.status());
    fixed = *std::move(list);
  }
  const SystemsCompat behaviour = options.original ? SystemsCompat::Original() : SystemsCompat();
  Counts total;
  for (SystemArea& area : *loaded) {
    Counts counts;
    for (SystemCase& system_case : area.cases) {
      const std::map<std::string, FixedSystemCase>& listed = fixed[area.name];
      if (const auto it = listed.find(system_case.name); it != listed.end()) {
        system_case.expected = it->second.expected;
        system_case.expects_error = it->second.error;
      }
      const absl::StatusOr<std::optional<std::string>> wrong = WrongIn(area.name, system_case, behaviour);
      if (!wrong.ok()) {
        ++counts.not_supported;
        if (options.verbose) {
          out << "NOT SUPPORTED " << area.name << " " << system_case.name << ": " << wrong.status() << "\n";
        }
        continue;
      }
      ++(wrong->has_value() ? counts.failed : counts.passed);
      if (wrong->has_value()) out << "FAILED " << area.name << " " << system_case.name << ": " << **wrong << "\n";
    }
    out << area.name << ": " << counts.ToString() << "\n";
    total.Add(counts);
  }
  out << "total: " << total.ToString() << "\n";
  return total.failed > 0 ? 1 : 0;
}

}  // namespace aqt::systems
