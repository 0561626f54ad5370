#include "tests/golden_check/golden_check.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/semantics.h"
#include "tests/golden_check/compare.h"
#include "tests/golden_check/manifest.h"

namespace aqt::golden {
namespace {

// The runs of a case, by the names of the given tensors.
using Runs = std::map<std::vector<std::string>, absl::StatusOr<Tensors>>;

// The tensors computed from these given ones.
absl::StatusOr<Tensors> RunGiven(const GoldenCase& golden_case, const Semantics& semantics, Runner runner,
                                 const std::vector<std::string>& names) {
  Tensors tensors;
  for (const ExpectedTensor& expected : golden_case.expected) {
    if (std::find(names.begin(), names.end(), expected.name) != names.end()) {
      tensors.emplace(expected.name, expected.value);
    }
  }
  if (tensors.size() != names.size()) return absl::InvalidArgumentError("a given tensor is not recorded");
  Given given(std::move(tensors));
  absl::StatusOr<Tensors> result = runner(golden_case, semantics, given);
  if (result.ok() && !given.AllUsed()) return absl::UnimplementedError("no public API takes the given tensor");
  return result;
}

// What is wrong with a computed tensor.
std::optional<std::string> WrongIn(const Tensors& tensors, const ExpectedTensor& expected, const FixedCase* fixed) {
  const auto got = tensors.find(expected.name);
  if (got == tensors.end()) return "did not come out";
  std::optional<std::string> wrong = Compare(got->second, expected.value, expected.tolerance);
  if (fixed == nullptr) return wrong;
  const auto listed = fixed->tensors.find(expected.name);
  if (listed == fixed->tensors.end()) return wrong;
  if (!wrong.has_value()) return "is as recorded, but listed as different";
  return Compare(got->second, listed->second, expected.tolerance);
}

// The verdict on one way to the configuration, whose runs are added to `runs`.
CaseResult CheckRuns(const GoldenCase& golden_case, const Semantics& semantics, Runner runner, const FixedCase* fixed,
                     Runs& runs) {
  int failures = 0;
  int64_t signed_zeros = 0;
  std::string first;
  std::optional<std::string> not_supported;
  for (const ExpectedTensor& expected : golden_case.expected) {
    if (expected.tolerance.kind == Tolerance::Kind::kInfo) continue;
    const std::vector<std::string>& given = expected.tolerance.given;
    auto run = runs.find(given);
    if (run == runs.end()) run = runs.emplace(given, RunGiven(golden_case, semantics, runner, given)).first;
    const absl::StatusOr<Tensors>& tensors = run->second;
    if (absl::IsUnimplemented(tensors.status())) {
      not_supported = std::string(tensors.status().message());
      continue;
    }
    const std::string listed_error = fixed == nullptr ? "" : fixed->error;
    if (!tensors.ok() && absl::StatusCodeToString(tensors.status().code()) == listed_error)
      return {Verdict::kPassed, ""};
    if (!tensors.ok()) return {Verdict::kFailed, tensors.status().ToString()};
    if (!listed_error.empty())
      return {Verdict::kFailed, absl::StrCat("is not refused, but listed with ", fixed->error)};
    if (const auto got = tensors->find(expected.name);
        got != tensors->end() && got->second.aval() == expected.value.aval()) {
      signed_zeros += CountSignedZeros(got->second, expected.value);
    }
    const std::optional<std::string> wrong = WrongIn(*tensors, expected, fixed);
    if (wrong.has_value() && ++failures == 1) first = absl::StrCat(expected.name, " ", *wrong);
  }
  if (failures == 0 && not_supported.has_value()) return {Verdict::kNotSupported, *std::move(not_supported)};
  if (failures == 0) return {Verdict::kPassed, "", signed_zeros};
  if (failures > 1) absl::StrAppend(&first, " (and ", failures - 1, " more)");
  return {Verdict::kFailed, std::move(first), signed_zeros};
}

// The first tensor that has other bits in `b`; null if there is none. Both hold the same runs.
std::optional<std::string> FirstDifference(const Runs& a, const Runs& b) {
  for (const auto& [given, tensors] : a) {
    const absl::StatusOr<Tensors>& others = b.at(given);
    if (!tensors.ok() || !others.ok()) {
      if (tensors.status() == others.status()) continue;
      return others.status().ToString();
    }
    for (const auto& [name, value] : *tensors) {
      const auto other = others->find(name);
      if (other == others->end()) return absl::StrCat(name, " did not come out");
      if (!BitEqual(value, other->second)) return absl::StrCat(name, " has other bits than from the structs");
    }
  }
  return std::nullopt;
}

// The tensors of a case that are not as recorded, and the fields of Compat without which they would be; null if there
// are none.
absl::StatusOr<std::optional<FixedCase>> DifferencesFromOriginal(const GoldenCase& golden_case, Semantics semantics) {
  const auto differences = [&](const Compat& compat) -> absl::StatusOr<FixedCase> {
    semantics.compat = compat;
    FixedCase fixed;
    for (const ExpectedTensor& expected : golden_case.expected) {
      if (expected.tolerance.kind == Tolerance::Kind::kInfo) continue;
      const absl::StatusOr<Tensors> got = RunGiven(golden_case, semantics, RunCase, expected.tolerance.given);
      if (absl::IsUnimplemented(got.status())) return got.status();
      if (!got.ok()) {
        fixed.error = absl::StatusCodeToString(got.status().code());
        return fixed;
      }
      const auto value = got->find(expected.name);
      if (value == got->end()) return absl::InternalError(absl::StrCat(expected.name, " did not come out"));
      if (!Compare(value->second, expected.value, expected.tolerance).has_value()) continue;
      fixed.tensors.emplace(expected.name, MakeFixedTensor(value->second, expected.tolerance));
    }
    return fixed;
  };
  const auto differs = [](const FixedCase& fixed) { return !fixed.tensors.empty() || !fixed.error.empty(); };
  AQT_ASSIGN_OR_RETURN(FixedCase fixed, differences(Compat{}));
  if (!differs(fixed)) return std::optional<FixedCase>();
  for (const CompatField& field : CompatFields()) {
    Compat compat = Compat::Original();
    compat.*field.member = false;
    AQT_ASSIGN_OR_RETURN(const FixedCase alone, differences(compat));
    if (differs(alone)) fixed.compat.emplace_back(field.name);
  }
  return fixed;
}

// Counts by verdict.
struct Counts {
  std::array<int64_t, 3> of = {0, 0, 0};
  void Add(Verdict verdict) { ++of[static_cast<int>(verdict)]; }
  int64_t operator[](Verdict verdict) const { return of[static_cast<int>(verdict)]; }
  std::string ToString() const {
    return absl::StrCat("passed ", (*this)[Verdict::kPassed], ", failed ", (*this)[Verdict::kFailed],
                        ", not supported ", (*this)[Verdict::kNotSupported]);
  }
};

// Says how far a long run has come, every few seconds.
class Progress {
 public:
  Progress(size_t total, std::ostream& err) : total_(total), err_(err) {}
  void Next(const std::string& name) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ >= std::chrono::seconds(3)) {
      last_ = now;
      err_ << "golden_check: " << done_ << "/" << total_ << " cases, at " << name << std::endl;
    }
    ++done_;
  }

 private:
  size_t total_, done_ = 0;
  std::ostream& err_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

struct Arguments {
  std::string golden_dir;
  std::vector<std::string> families;
  std::string fixed;
  bool verbose = false, original = true, update_fixed = false, signed_zero = false;
};

constexpr char kUsage[] = R"(usage: golden_check --golden_dir=DIR [--families=NAME,NAME...] [--verbose]
                    [--signed_zero] [--compat=original|default] [--fixed=FILE [--update_fixed]]

Recomputes the recorded cases in DIR (manifest.json and its safetensors files) through the public API, each twice: with
the library's structs, and with what is read from their text. Prints a line per failing case, then per family and in
total `passed N, failed N, not supported N`. Cases without results, which the original refuses, should be refused
here, too; a line says how many are.

  --families      only these
  --verbose       a line per case that is not supported, and per case that is accepted though the original refuses it
  --signed_zero   a line per case in which zeros have the other sign, and their total; -0 equals +0 all the same
  --compat        original (the default): as the original computes, Compat::Original()
                  default: as the library computes on its own
  --fixed         with --compat=default: the file (tests/golden/fixed.json) that lists the cases whose results are other
                  ones then, and these results
  --update_fixed  writes that list anew from the cases in DIR, of this arithmetic

Exit code: 0 when no case failed, 1 when one did, 2 when the arguments or files are bad.
)";

// InvalidArgument with what is wrong.
absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& arguments) {
  Arguments parsed;
  for (const std::string& argument : arguments) {
    absl::string_view value = argument;
    if (absl::ConsumePrefix(&value, "--golden_dir=")) {
      parsed.golden_dir = std::string(value);
    } else if (absl::ConsumePrefix(&value, "--families=")) {
      parsed.families = absl::StrSplit(value, ',');
    } else if (absl::ConsumePrefix(&value, "--fixed=")) {
      parsed.fixed = std::string(value);
    } else if (value == "--compat=original" || value == "--compat=default") {
      parsed.original = value == "--compat=original";
    } else if (value == "--signed_zero") {
      parsed.signed_zero = true;
    } else if (value == "--verbose") {
      parsed.verbose = true;
    } else if (value == "--update_fixed") {
      parsed.update_fixed = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown argument ", argument));
    }
  }
  if (parsed.golden_dir.empty()) return absl::InvalidArgumentError("--golden_dir is missing");
  if (parsed.update_fixed && parsed.fixed.empty())
    return absl::InvalidArgumentError("--update_fixed needs --fixed=FILE");
  if (!parsed.fixed.empty() && parsed.original) return absl::InvalidArgumentError("--fixed needs --compat=default");
  if (parsed.update_fixed && !parsed.families.empty()) {
    return absl::InvalidArgumentError("--update_fixed takes all families, not --families");
  }
  return parsed;
}

absl::Status UpdateFixedList(const io::FileSystem& fs, const GoldenSet& set, const std::string& path) {
  FixedList list;
  for (const GoldenFamily& family : set.families) {
    for (const GoldenCase& golden_case : family.cases) {
      absl::StatusOr<std::optional<FixedCase>> fixed = DifferencesFromOriginal(golden_case, set.semantics);
      if (absl::IsUnimplemented(fixed.status())) continue;
      if (!fixed.ok()) return Annotate(fixed.status(), golden_case.name);
      if (fixed->has_value()) list.emplace(golden_case.name, **std::move(fixed));
    }
  }
  return SaveFixedList(fs, path, set.semantics.arithmetic, list);
}

// The configuration without what no step of the case reads, since the text refuses this where it is illegal: the
// backward passes of a case without gradients, and the s32 accumulator of a convolution.
CaseConfig WithoutWhatHasNoEffect(const GoldenCase& golden_case) {
  CaseConfig config = *golden_case.config;
  const auto drop_backward = [&](DotGeneral& dot) {
    if (!golden_case.inputs.contains("g")) dot.dlhs = dot.drhs = DotGeneralRaw();
  };
  if (auto* dot = std::get_if<DotGeneralConfig>(&config)) drop_backward(dot->config);
  if (auto* einsum = std::get_if<EinsumConfig>(&config)) drop_backward(einsum->config);
  if (auto* conv = std::get_if<ConvGeneralConfig>(&config); conv && conv->config.dg_accumulator_dtype == DType::kS32) {
    conv->config.dg_accumulator_dtype.reset();
  }
  return config;
}

}  // namespace

CaseResult CheckCase(const GoldenCase& golden_case, const Semantics& semantics, const CheckOptions& options) {
  Runs structs, text;
  CaseResult from_structs = CheckRuns(golden_case, semantics, options.runner, options.fixed, structs);
  if (from_structs.verdict == Verdict::kNotSupported || !golden_case.config.ok()) return from_structs;
  GoldenCase read = golden_case;
  read.config = ThroughText(WithoutWhatHasNoEffect(golden_case), options.to_text);
  CaseResult from_text{Verdict::kFailed, ""};
  if (read.config.ok()) {
    from_text = CheckRuns(read, semantics, options.runner, options.fixed, text);
  } else {
    from_text.reason = read.config.status().ToString();
  }
  if (from_structs.verdict == Verdict::kPassed && from_text.verdict == Verdict::kPassed) {
    const std::optional<std::string> difference = FirstDifference(structs, text);
    if (!difference.has_value()) return from_structs;
    return {Verdict::kFailed, absl::StrCat("from the text: ", *difference)};
  }
  if (from_structs.verdict == from_text.verdict && from_structs.reason == from_text.reason) return from_structs;
  std::vector<std::string> reasons;
  if (from_structs.verdict != Verdict::kPassed)
    reasons.push_back(absl::StrCat("from the structs: ", from_structs.reason));
  if (from_text.verdict != Verdict::kPassed) reasons.push_back(absl::StrCat("from the text: ", from_text.reason));
  return {Verdict::kFailed, absl::StrJoin(reasons, "; ")};
}

bool Refuses(const GoldenCase& golden_case, const Semantics& semantics) {
  Given given;
  return !RunCase(golden_case, semantics, given).ok();
}

int GoldenCheckMain(const io::FileSystem& fs, const std::vector<std::string>& arguments, std::ostream& out,
                    std::ostream& err) {
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    out << kUsage;
    return 0;
  }
  const absl::StatusOr<Arguments> parsed = ParseArguments(arguments);
  if (!parsed.ok()) {
    err << "golden_check: " << parsed.status().message() << "\n" << kUsage;
    return 2;
  }
  const auto bad = [&](const absl::Status& status) {
    err << "golden_check: " << status.message() << "\n";
    return 2;
  };
  absl::StatusOr<GoldenSet> set = LoadGolden(fs, parsed->golden_dir, parsed->families);
  if (!set.ok()) return bad(set.status());
  set->semantics.compat = parsed->original ? Compat::Original() : Compat{};
  FixedList fixed;
  if (parsed->update_fixed) {
    const absl::Status updated = UpdateFixedList(fs, *set, parsed->fixed);
    if (!updated.ok()) return bad(updated);
  }
  if (!parsed->fixed.empty()) {
    absl::StatusOr<FixedList> list = LoadFixedList(fs, parsed->fixed, set->semantics.arithmetic);
    if (!list.ok()) return bad(list.status());
    fixed = *std::move(list);
  }
  size_t cases = 0;
  for (const GoldenFamily& family : set->families) cases += family.cases.size();
  Progress progress(cases, err);
  Counts total;
  int64_t signed_zeros = 0, refused = 0, accepted = 0;
  std::string summary;
  for (const GoldenFamily& family : set->families) {
    Counts counts;
    for (const GoldenCase& golden_case : family.cases) {
      progress.Next(golden_case.name);
      const auto listed = fixed.find(golden_case.name);
      const CaseResult result =
          CheckCase(golden_case, set->semantics, {.fixed = listed == fixed.end() ? nullptr : &listed->second});
      counts.Add(result.verdict);
      total.Add(result.verdict);
      if (result.verdict == Verdict::kFailed) out << "FAILED " << golden_case.name << ": " << result.reason << "\n";
      if (result.verdict == Verdict::kNotSupported && parsed->verbose) {
        out << "NOT SUPPORTED " << golden_case.name << ": " << result.reason << "\n";
      }
      signed_zeros += result.signed_zeros;
      if (parsed->signed_zero && result.signed_zeros > 0) {
        out << "SIGNED ZERO " << golden_case.name << ": " << result.signed_zeros << "\n";
      }
    }
    for (const RefusedCase& refused_case : family.refused) {
      const bool refuses = Refuses(refused_case.golden_case, set->semantics);
      ++(refuses ? refused : accepted);
      if (!refuses && parsed->verbose) {
        out << "ACCEPTED " << refused_case.golden_case.name << ": the original says " << refused_case.error << "\n";
      }
    }
    absl::StrAppend(&summary, family.name, ": ", counts.ToString(), "\n");
  }
  out << summary << total.ToString() << "\n";
  if (refused + accepted > 0)
    out << "refused by the original: refused " << refused << ", accepted " << accepted << "\n";
  if (parsed->signed_zero) out << "zeros of the other sign: " << signed_zeros << "\n";
  return total[Verdict::kFailed] > 0 ? 1 : 0;
}

}  // namespace aqt::golden
