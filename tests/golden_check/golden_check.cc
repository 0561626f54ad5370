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
#include "aqt/testing/same_bits.h"
#include "tests/golden_check/compare.h"
#include "tests/golden_check/manifest.h"
#include "tests/golden_check/way.h"
#include "tests/systems_check/system_case.h"
#include "tests/systems_check/systems_check.h"

namespace aqt::golden {
namespace {

// The runs of a case, by the names of the given tensors.
using Runs = std::map<std::vector<std::string>, absl::StatusOr<Computed>>;

// The results computed from these given tensors.
absl::StatusOr<Computed> RunGiven(const GoldenCase& golden_case, const Semantics& semantics, Runner runner, Way way,
                                  const std::vector<std::string>& names) {
  Tensors tensors;
  for (const ExpectedTensor& expected : golden_case.expected) {
    if (std::find(names.begin(), names.end(), expected.name) != names.end()) {
      tensors.emplace(expected.name, expected.value);
    }
  }
  if (tensors.size() != names.size()) return absl::InvalidArgumentError("a given tensor is not recorded");
  Given given(std::move(tensors));
  absl::StatusOr<Computed> result = runner(golden_case, semantics, given, way);
  if (result.ok() && !given.AllUsed()) return absl::UnimplementedError("no public API takes the given tensor");
  return result;
}

// The error of a computed tensor.
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

// The verdict on one way. Adds its runs to `runs`.
CaseResult CheckRuns(const GoldenCase& golden_case, const Semantics& semantics, Runner runner, Way way,
                     const FixedCase* fixed, Runs& runs) {
  int failures = 0;
  CaseResult result{Verdict::kPassed, ""};
  std::string first;
  std::optional<std::string> not_supported;
  std::map<std::string, std::vector<std::string>> refused_names;  // by reason
  for (const ExpectedTensor& expected : golden_case.expected) {
    if (expected.tolerance.kind == Tolerance::Kind::kInfo || !IsShown(golden_case, way, expected.name)) continue;
    const std::vector<std::string>& given = expected.tolerance.given;
    auto run = runs.find(given);
    if (run == runs.end()) run = runs.emplace(given, RunGiven(golden_case, semantics, runner, way, given)).first;
    const absl::StatusOr<Computed>& computed = run->second;
    if (absl::IsUnimplemented(computed.status())) {
      not_supported = std::string(computed.status().message());
      continue;
    }
    const std::string listed_error = fixed == nullptr ? "" : fixed->error;
    if (!computed.ok() && absl::StatusCodeToString(computed.status().code()) == listed_error)
      return {Verdict::kPassed, ""};
    if (!computed.ok()) return {Verdict::kFailed, computed.status().ToString()};
    if (!listed_error.empty())
      return {Verdict::kFailed, absl::StrCat("is not refused, but listed with ", fixed->error)};
    if (const auto refused = computed->refused.find(expected.name); refused != computed->refused.end()) {
      refused_names[refused->second].push_back(expected.name);
      continue;
    }
    const Tensors& tensors = computed->tensors;
    if (const auto got = tensors.find(expected.name);
        got != tensors.end() && got->second.aval() == expected.value.aval()) {
      result.signed_zeros += CountSignedZeros(got->second, expected.value);
    }
    const std::optional<std::string> wrong = WrongIn(tensors, expected, fixed);
    if (wrong.has_value() && ++failures == 1) first = absl::StrCat(expected.name, " ", *wrong);
  }
  for (const auto& [reason, names] : refused_names) {
    result.refused.push_back(absl::StrCat(absl::StrJoin(names, ", "), ": ", reason));
  }
  if (failures > 1) absl::StrAppend(&first, " (and ", failures - 1, " more)");
  if (failures > 0) {
    result.verdict = Verdict::kFailed;
    result.reason = std::move(first);
  } else if (not_supported.has_value()) {
    result = {Verdict::kNotSupported, *std::move(not_supported)};
  }
  return result;
}

// The first tensor whose bits differ in `a` and `b`, or that is only in `a` (unless the ways differ, which return
// different tensors); null if there is none.
std::optional<std::string> FirstDifference(const Runs& a, const Runs& b, bool other_way) {
  for (const auto& [given, computed] : a) {
    const auto run = b.find(given);
    if (run == b.end()) continue;  // no result of this way depends on these tensors
    const absl::StatusOr<Computed>& others = run->second;
    if (!computed.ok() || !others.ok()) {
      if (computed.status() == others.status() || other_way) continue;
      return others.status().ToString();
    }
    for (const auto& [name, value] : computed->tensors) {
      const auto other = others->tensors.find(name);
      if (other == others->tensors.end()) {
        if (other_way) continue;
        return absl::StrCat(name, " did not come out");
      }
      if (SameBits(value, other->second)) continue;
      return absl::StrCat(name, " has other bits than ", other_way ? "in the first way" : "from the structs");
    }
  }
  return std::nullopt;
}

std::string LabelOf(Way way) {
  switch (way) {
    case Way::kPlan: return "as a plan";
    case Way::kProgram: return "as a program";
    case Way::kPrepared: return "as a prepared program";
  }
  return "?";
}

// The ways of the case among `ways`.
std::vector<Way> WaysAmong(const GoldenCase& golden_case, const std::vector<Way>& ways) {
  std::vector<Way> own = WaysOf(golden_case);
  const auto is_left_out = [&](Way way) { return std::find(ways.begin(), ways.end(), way) == ways.end(); };
  own.erase(std::remove_if(own.begin(), own.end(), is_left_out), own.end());
  return own;
}

// The tensors of a case that differ from the recorded ones, and the fields of Compat that would make them equal; null
// if there are none.
absl::StatusOr<std::optional<FixedCase>> DifferencesFromOriginal(const GoldenCase& golden_case, Semantics semantics) {
  const auto differences = [&](const Compat& compat) -> absl::StatusOr<FixedCase> {
    semantics.compat = compat;
    FixedCase fixed;
    for (const ExpectedTensor& expected : golden_case.expected) {
      if (expected.tolerance.kind == Tolerance::Kind::kInfo) continue;
      const absl::StatusOr<Computed> got =
          RunGiven(golden_case, semantics, RunCase, WaysOf(golden_case)[0], expected.tolerance.given);
      if (absl::IsUnimplemented(got.status())) return got.status();
      if (!got.ok()) {
        fixed.error = absl::StatusCodeToString(got.status().code());
        return fixed;
      }
      const auto value = got->tensors.find(expected.name);
      if (value == got->tensors.end()) return absl::InternalError(absl::StrCat(expected.name, " did not come out"));
      if (!Compare(value->second, expected.value, expected.tolerance).has_value()) continue;
      fixed.tensors.emplace(expected.name, MakeFixedTensor(value->second, expected.tolerance));
    }
    return fixed;
  };
  const auto differs = [](const FixedCase& fixed) { return !fixed.tensors.empty() || !fixed.error.empty(); };
  AQT_ASSIGN_OR_RETURN(FixedCase fixed, differences(Compat{}));
  if (!differs(fixed)) return std::optional<FixedCase>();
  for (const CompatField& field : CompatFields()) {
    if (field.is_of_qwix) continue;
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

// Reports the progress of a long run every few seconds.
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
  std::vector<Way> ways = AllWays();
  bool verbose = false, original = true, update_fixed = false, signed_zero = false;
};

constexpr char kUsage[] = R"(usage: golden_check --golden_dir=DIR [--families=NAME,NAME...] [--ways=WAY,WAY...]
                    [--verbose] [--signed_zero] [--compat=original|default] [--fixed=FILE [--update_fixed]]

Recomputes the recorded cases in DIR (manifest.json and its safetensors files) through the public API. Each case runs
with the library's structs and with those read from their text, and in each of its ways, which must have the same bits:
  plan       with functions and plans of the library: everything except models
  program    traced, quantized by rules and evaluated; contractions are also converted and served: contractions, models
  prepared   the same programs, prepared with their weights: contractions and models
Prints a line per failing case, then `passed N, failed N, not supported N` per family and in total. A line REFUSED names
tensors that a plan computes and programs refuse on purpose. Cases without results, which the original refuses, should
be refused here in each way; a line has the number of refusals.

  --families      only these families
  --ways          only these ways; cases without any of them are left out
  --verbose       a line per unsupported case, and per case that is accepted although the original refuses it
  --signed_zero   a line per case in which zeros have the other sign, and their total; -0 still equals +0
  --compat        original (the default): with the original's behaviour, Compat::Original()
                  default: with the library's defaults
  --fixed         with --compat=default: the file (tests/golden/fixed.json) that lists the cases whose default results
                  differ, and these results
  --update_fixed  rewrites that list from the cases in DIR, for this arithmetic

A DIR with scalify.json, jaxamp.json or fp8layers.json has cases of other systems: --families takes these names, and
--ways and --signed_zero are ignored. Their list of different results is tests/golden/systems/fixed.json.

Exit code: 0 if no case failed, 1 if one did, 2 if the arguments or files are invalid.
)";

// InvalidArgument with the error.
absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& arguments) {
  Arguments parsed;
  for (const std::string& argument : arguments) {
    absl::string_view value = argument;
    if (absl::ConsumePrefix(&value, "--golden_dir=")) {
      parsed.golden_dir = std::string(value);
    } else if (absl::ConsumePrefix(&value, "--families=")) {
      parsed.families = absl::StrSplit(value, ',');
    } else if (absl::ConsumePrefix(&value, "--ways=")) {
      AQT_ASSIGN_OR_RETURN(parsed.ways, ParseWays(value));
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

// The configuration without the fields that no step of the case reads, since the text refuses them if they are illegal:
// the backward passes of a case without gradients, and the s32 accumulator of a convolution.
CaseConfig WithoutWhatHasNoEffect(const GoldenCase& golden_case) {
  CaseConfig config = *golden_case.config;
  const auto drop_backward = [&](DotGeneralConfig& dot) {
    if (!golden_case.inputs.contains("g")) dot.dlhs = dot.drhs = DotGeneralRawConfig();
  };
  if (auto* dot = std::get_if<DotConfig>(&config)) drop_backward(dot->config);
  if (auto* einsum = std::get_if<EinsumConfig>(&config)) drop_backward(einsum->config);
  if (auto* conv = std::get_if<ConvGeneralConfig>(&config); conv && conv->config.dg_accumulator_dtype == DType::kS32) {
    conv->config.dg_accumulator_dtype.reset();
  }
  return config;
}

// The verdict on a case from the verdicts on its runs, by label.
CaseResult Joined(const std::vector<std::pair<std::string, CaseResult>>& results) {
  CaseResult joined{Verdict::kPassed, "", results[0].second.signed_zeros};
  std::vector<std::pair<std::string, std::vector<std::string>>> labels;  // by reason to fail
  for (const auto& [label, result] : results) {
    for (const std::string& refused : result.refused) joined.refused.push_back(absl::StrCat(label, ": ", refused));
    // The first run is supported, so anything missing here is a refusal.
    if (result.verdict == Verdict::kNotSupported) joined.refused.push_back(absl::StrCat(label, ": ", result.reason));
    if (result.verdict != Verdict::kFailed) continue;
    joined.verdict = Verdict::kFailed;
    const std::string& reason = result.reason;
    auto it = std::find_if(labels.begin(), labels.end(), [&](const auto& known) { return known.first == reason; });
    if (it == labels.end()) it = labels.insert(it, {reason, {}});
    it->second.push_back(label);
  }
  if (labels.size() == 1 && labels[0].second.size() == results.size()) {
    joined.reason = labels[0].first;
    return joined;
  }
  joined.reason = absl::StrJoin(labels, "; ", [](std::string* text, const auto& failed) {
    absl::StrAppend(text, absl::StrJoin(failed.second, ", "), ": ", failed.first);
  });
  return joined;
}

}  // namespace

CaseResult CheckCase(const GoldenCase& golden_case, const Semantics& semantics, const CheckOptions& options) {
  const std::vector<Way> ways = WaysAmong(golden_case, options.ways);
  if (ways.empty()) return {Verdict::kNotSupported, "the case has none of these ways"};
  std::vector<std::pair<std::string, CaseResult>> results;
  // An illegal rule is refused, even if no step of this case reads the illegal field.
  GoldenCase lean = golden_case;
  if (golden_case.config.ok()) lean.config = WithoutWhatHasNoEffect(golden_case);
  Runs structs, text;
  const CaseResult first =
      CheckRuns(ways[0] == Way::kPlan ? golden_case : lean, semantics, options.runner, ways[0], options.fixed, structs);
  if (first.verdict == Verdict::kNotSupported || !golden_case.config.ok()) return first;
  results.emplace_back(LabelOf(ways[0]), first);

  // Runs that must have the bits of the first one.
  const auto check = [&](const std::string& label, const GoldenCase& run_case, Way way, Runs& runs) {
    CaseResult result = CheckRuns(run_case, semantics, options.runner, way, options.fixed, runs);
    if (result.verdict == Verdict::kPassed && first.verdict == Verdict::kPassed) {
      if (const std::optional<std::string> difference = FirstDifference(structs, runs, way != ways[0])) {
        result = {Verdict::kFailed, *difference};
      }
    }
    results.emplace_back(label, std::move(result));
  };
  GoldenCase read = golden_case;
  read.config = ThroughText(*lean.config, options.to_text);
  if (read.config.ok()) {
    check("from the text", read, ways[0], text);
  } else {
    results.push_back({"from the text", {Verdict::kFailed, read.config.status().ToString()}});
  }
  for (size_t i = 1; i < ways.size(); ++i) {
    Runs runs;
    check(LabelOf(ways[i]), lean, ways[i], runs);
  }
  return Joined(results);
}

std::optional<Way> AcceptedIn(const GoldenCase& golden_case, const Semantics& semantics, const std::vector<Way>& ways) {
  GoldenCase lean = golden_case;
  if (golden_case.config.ok()) lean.config = WithoutWhatHasNoEffect(golden_case);
  for (const Way way : WaysAmong(golden_case, ways)) {
    Given given;
    if (RunCase(way == Way::kPlan ? golden_case : lean, semantics, given, way).ok()) return way;
  }
  return std::nullopt;
}

namespace {

// Checks sets of cases, one family after the other, and reports.
class Report {
 public:
  Report(const GoldenSet& set, const Arguments& arguments, const FixedList& fixed, std::ostream& out)
      : semantics_(set.semantics), arguments_(arguments), fixed_(fixed), out_(out) {}

  void Check(const GoldenFamily& family, Progress& progress) {
    Counts counts;
    for (const GoldenCase& golden_case : family.cases) {
      progress.Next(golden_case.name);
      if (WaysAmong(golden_case, arguments_.ways).empty()) {
        ++left_out_;
      } else {
        Check(golden_case, counts);
      }
    }
    for (const RefusedCase& refused_case : family.refused) Check(refused_case);
    absl::StrAppend(&summary_, family.name, ": ", counts.ToString(), "\n");
  }

  // Whether no case failed.
  bool Finish() {
    out_ << summary_ << total_.ToString() << "\n";
    if (refused_ + accepted_ > 0)
      out_ << "refused by the original: refused " << refused_ << ", accepted " << accepted_ << "\n";
    if (left_out_ > 0) out_ << "left out, without these ways: " << left_out_ << "\n";
    if (arguments_.signed_zero) out_ << "zeros of the other sign: " << signed_zeros_ << "\n";
    return total_[Verdict::kFailed] == 0;
  }

 private:
  void Check(const GoldenCase& golden_case, Counts& counts) {
    const auto listed = fixed_.find(golden_case.name);
    const CaseResult result =
        CheckCase(golden_case, semantics_,
                  {.ways = arguments_.ways, .fixed = listed == fixed_.end() ? nullptr : &listed->second});
    for (const std::string& refusal : result.refused) out_ << "REFUSED " << golden_case.name << " " << refusal << "\n";
    counts.Add(result.verdict);
    total_.Add(result.verdict);
    if (result.verdict == Verdict::kFailed) out_ << "FAILED " << golden_case.name << ": " << result.reason << "\n";
    if (result.verdict == Verdict::kNotSupported && arguments_.verbose) {
      out_ << "NOT SUPPORTED " << golden_case.name << ": " << result.reason << "\n";
    }
    signed_zeros_ += result.signed_zeros;
    if (arguments_.signed_zero && result.signed_zeros > 0) {
      out_ << "SIGNED ZERO " << golden_case.name << ": " << result.signed_zeros << "\n";
    }
  }

  void Check(const RefusedCase& refused_case) {
    if (WaysAmong(refused_case.golden_case, arguments_.ways).empty()) return;
    const std::optional<Way> accepts = AcceptedIn(refused_case.golden_case, semantics_, arguments_.ways);
    ++(accepts.has_value() ? accepted_ : refused_);
    if (accepts.has_value() && arguments_.verbose) {
      out_ << "ACCEPTED " << refused_case.golden_case.name << ": " << LabelOf(*accepts) << "; the original says "
           << refused_case.error << "\n";
    }
  }

  const Semantics& semantics_;
  const Arguments& arguments_;
  const FixedList& fixed_;
  std::ostream& out_;
  Counts total_;
  int64_t signed_zeros_ = 0, refused_ = 0, accepted_ = 0, left_out_ = 0;
  std::string summary_;
};

}  // namespace

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
  if (systems::HasSystems(fs, parsed->golden_dir)) {
    return systems::CheckSystems(fs, parsed->golden_dir,
                                 {.areas = parsed->families,
                                  .verbose = parsed->verbose,
                                  .original = parsed->original,
                                  .fixed = parsed->fixed,
                                  .update_fixed = parsed->update_fixed},
                                 out, err);
  }
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
  Report report(*set, *parsed, fixed, out);
  for (const GoldenFamily& family : set->families) report.Check(family, progress);
  return report.Finish() ? 0 : 1;
}

}  // namespace aqt::golden
