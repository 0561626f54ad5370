#include "aqt/kernels/target.h"

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#ifndef AQT_SCALAR_ONLY
#include "hwy/targets.h"
#endif

#include "aqt/core/check.h"
#include "aqt/kernels/target_name.h"

namespace aqt::kernels {
namespace {

constexpr Target kAllTargets[] = {Target::kScalar, Target::kAvx2, Target::kAvx512, Target::kAvx512Vnni};

std::vector<Target> DetectTargets() {
  std::vector<Target> targets = {Target::kScalar};
#if !defined(AQT_SCALAR_ONLY) && defined(__x86_64__)
  // Highway asks the processor, and the operating system whether it saves the wide registers. It knows VNNI only as
  // part of AVX3_DL, which requires more than we use.
  const int64_t supported = hwy::SupportedTargets();
  if ((supported & HWY_AVX2) == 0) return targets;
  targets.push_back(Target::kAvx2);
  if ((supported & HWY_AVX3) == 0) return targets;
  targets.push_back(Target::kAvx512);
  if (__builtin_cpu_supports("avx512vnni")) targets.push_back(Target::kAvx512Vnni);
#endif
  return targets;
}

absl::StatusOr<Target> ReadMaxTarget() {
  const char* text = std::getenv("AQT_MAX_TARGET");
  if (text == nullptr || *text == '\0') return Target::kAvx512Vnni;
  absl::StatusOr<Target> target = TargetFromString(text);
  if (target.ok()) return target;
  return absl::InvalidArgumentError(absl::StrCat("environment variable AQT_MAX_TARGET: ", target.status().message()));
}

const absl::StatusOr<Target>& MaxTarget() {
  static const auto* const target = new absl::StatusOr<Target>(ReadMaxTarget());
  return *target;
}

}  // namespace

absl::string_view ToString(Target target) {
  switch (target) {
    case Target::kScalar: return "scalar";
    case Target::kAvx2: return "avx2";
    case Target::kAvx512: return "avx512";
    case Target::kAvx512Vnni: return "avx512_vnni";
  }
  aqt::internal::CheckFailed(__FILE__, __LINE__, "target is one of the enumerators");
}

std::ostream& operator<<(std::ostream& os, Target target) { return os << ToString(target); }

absl::StatusOr<Target> TargetFromString(absl::string_view text) {
  std::string names;
  for (Target target : kAllTargets) {
    if (text == ToString(target)) return target;
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToString(target));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown target \"", text, "\"; expected one of ", names));
}

absl::Span<const Target> SupportedTargets() {
  static const auto* const targets = new std::vector<Target>(DetectTargets());
  return *targets;
}

bool IsSupported(Target target) {
  for (Target t : SupportedTargets()) {
    if (t == target) return true;
  }
  return false;
}

absl::StatusOr<Target> MaxTargetFromEnvironment() { return MaxTarget(); }

Target BestTarget() {
  static const Target best = [] {
    const Target cap = MaxTarget().value_or(Target::kAvx512Vnni);
    Target result = Target::kScalar;
    for (Target t : SupportedTargets()) {
      if (t <= cap) result = t;
    }
    return result;
  }();
  return best;
}

}  // namespace aqt::kernels
