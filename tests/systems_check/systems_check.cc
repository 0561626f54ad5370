#include "tests/systems_check/systems_check.h"

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tests/systems_check/compare_values.h"
#include "tests/systems_check/run_fp8layers.h"
#include "tests/systems_check/run_jaxamp.h"
#include "tests/systems_check/run_scalify.h"
#include "tests/systems_check/system_case.h"

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

}  // namespace

int CheckSystems(const io::FileSystem& fs, absl::string_view dir, const std::vector<std::string>& areas, bool verbose,
                 std::ostream& out, std::ostream& err) {
  const absl::StatusOr<std::vector<SystemArea>> loaded = LoadSystems(fs, dir, areas);
  if (!loaded.ok()) {
    err << "golden_check: " << loaded.status().message() << "\n";
    return 2;
  }
  Counts total;
  for (const SystemArea& area : *loaded) {
    Counts counts;
    for (const SystemCase& system_case : area.cases) {
      const absl::StatusOr<SystemValue::Dict> got = RunCase(area.name, system_case);
      if (absl::IsUnimplemented(got.status())) {
        ++counts.not_supported;
        if (verbose) out << "NOT SUPPORTED " << area.name << " " << system_case.name << ": " << got.status() << "\n";
        continue;
      }
      std::optional<std::string> wrong;
      if (system_case.expects_error) {
        if (got.ok()) wrong = "was computed, but the original refuses it";
      } else if (!got.ok()) {
        wrong = got.status().ToString();
      } else {
        wrong = CompareOutputs(*got, system_case);
      }
      ++(wrong.has_value() ? counts.failed : counts.passed);
      if (wrong.has_value()) out << "FAILED " << area.name << " " << system_case.name << ": " << *wrong << "\n";
    }
    out << area.name << ": " << counts.ToString() << "\n";
    total.Add(counts);
  }
  out << "total: " << total.ToString() << "\n";
  return total.failed > 0 ? 1 : 0;
}

}  // namespace aqt::systems
