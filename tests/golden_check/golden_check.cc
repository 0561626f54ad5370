#include "tests/golden_check/golden_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/golden_check/compare.h"
#include "tests/golden_check/manifest.h"

namespace aqt::golden {
namespace {

// The tensors computed from these given ones.
absl::StatusOr<Tensors> RunGiven(const GoldenCase& golden_case, const Environment& environment, Runner runner,
                                 const std::vector<std::string>& names) {
  Tensors tensors;
  for (const ExpectedTensor& expected : golden_case.expected) {
    if (std::find(names.begin(), names.end(), expected.name) != names.end()) {
      tensors.emplace(expected.name, expected.value);
    }
  }
  if (tensors.size() != names.size()) return absl::InvalidArgumentError("a given tensor is not recorded");
  Given given(std::move(tensors));
  absl::StatusOr<Tensors> result = runner(golden_case, environment, given);
  if (result.ok() && !given.AllUsed()) return absl::UnimplementedError("no public API takes the given tensor");
  return result;
}

// Counts by verdict.
struct Counts {
  std::array<int64_t, 3> of = {0, 0, 0};
  std::string ToString() const {
    const auto number = [&](Verdict verdict) { return of[static_cast<int>(verdict)]; };
    return absl::StrCat("passed ", number(Verdict::kPassed), ", failed ", number(Verdict::kFailed), ", not supported ",
                        number(Verdict::kNotSupported));
  }
};

struct Arguments {
  std::string golden_dir;
  std::vector<std::string> families;
  bool verbose = false;
};

constexpr char kUsage[] = "usage: golden_check --golden_dir=DIR [--families=NAME,NAME...] [--verbose]\n";

std::optional<Arguments> ParseArguments(const std::vector<std::string>& arguments) {
  Arguments parsed;
  for (const std::string& argument : arguments) {
    absl::string_view value = argument;
    if (absl::ConsumePrefix(&value, "--golden_dir=")) {
      parsed.golden_dir = std::string(value);
    } else if (absl::ConsumePrefix(&value, "--families=")) {
      parsed.families = absl::StrSplit(value, ',');
    } else if (value == "--verbose") {
      parsed.verbose = true;
    } else {
      return std::nullopt;
    }
  }
  if (parsed.golden_dir.empty()) return std::nullopt;
  return parsed;
}

}  // namespace

CaseResult CheckCase(const GoldenCase& golden_case, const Environment& environment, Runner runner) {
  std::map<std::vector<std::string>, absl::StatusOr<Tensors>> runs;
  int failures = 0;
  std::string first;
  std::optional<std::string> not_supported;
  for (const ExpectedTensor& expected : golden_case.expected) {
    if (expected.tolerance.kind == Tolerance::Kind::kInfo) continue;
    auto run = runs.find(expected.tolerance.given);
    if (run == runs.end()) {
      run = runs.emplace(expected.tolerance.given, RunGiven(golden_case, environment, runner, expected.tolerance.given))
                .first;
    }
    const absl::StatusOr<Tensors>& tensors = run->second;
    if (absl::IsUnimplemented(tensors.status())) {
      not_supported = std::string(tensors.status().message());
      continue;
    }
    if (!tensors.ok()) return {Verdict::kFailed, tensors.status().ToString()};
    const auto got = tensors->find(expected.name);
    const std::optional<std::string> wrong =
        got == tensors->end() ? "did not come out" : Compare(got->second, expected.value, expected.tolerance);
    if (!wrong.has_value()) continue;
    if (++failures == 1) first = absl::StrCat(expected.name, " ", *wrong);
  }
  if (failures == 0 && not_supported.has_value()) return {Verdict::kNotSupported, *std::move(not_supported)};
  if (failures == 0) return {Verdict::kPassed, ""};
  if (failures > 1) absl::StrAppend(&first, " (and ", failures - 1, " more)");
  return {Verdict::kFailed, std::move(first)};
}

int GoldenCheckMain(const io::FileSystem& fs, const std::vector<std::string>& arguments, std::ostream& out,
                    std::ostream& err) {
  const std::optional<Arguments> parsed = ParseArguments(arguments);
  if (!parsed.has_value()) {
    err << kUsage;
    return 2;
  }
  const absl::StatusOr<GoldenSet> set = LoadGolden(fs, parsed->golden_dir, parsed->families);
  if (!set.ok()) {
    err << "golden_check: " << set.status().message() << "\n";
    return 2;
  }
  Counts total;
  std::string summary;
  for (const GoldenFamily& family : set->families) {
    Counts counts;
    for (const GoldenCase& golden_case : family.cases) {
      const CaseResult result = CheckCase(golden_case, set->environment);
      ++counts.of[static_cast<int>(result.verdict)];
      ++total.of[static_cast<int>(result.verdict)];
      if (result.verdict == Verdict::kFailed) out << "FAILED " << golden_case.name << ": " << result.reason << "\n";
      if (result.verdict == Verdict::kNotSupported && parsed->verbose) {
        out << "NOT SUPPORTED " << golden_case.name << ": " << result.reason << "\n";
      }
    }
    absl::StrAppend(&summary, family.name, ": ", counts.ToString(), "\n");
  }
  out << summary << total.ToString() << "\n";
  return total.of[static_cast<int>(Verdict::kFailed)] > 0 ? 1 : 0;
}

}  // namespace aqt::golden
