#include "aqt/core/machine/target.h"

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#if !defined(AQT_SCALAR_ONLY) && defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "aqt/core/check.h"
#include "aqt/core/machine/target_name.h"

namespace aqt::kernels {
namespace {

struct NamedTarget {
  absl::string_view name;
  Target target;
};
// Each follows those that it includes.
constexpr NamedTarget kNamedTargets[] = {
    {"scalar", Target::kScalar},          {"sse4", Target::kSse4},     {"avx2", Target::kAvx2},
    {"avx_vnni", Target::kAvxVnni},       {"avx512", Target::kAvx512}, {"avx512_vnni", Target::kAvx512Vnni},
    {"avx512_bf16", Target::kAvx512Bf16}, {"amx", Target::kAmx},
};
constexpr Target kEverything = Target::kAvxVnni | Target::kAvx512Bf16 | Target::kAmx;

// The capabilities that a capability depends on.
Target Needs(Capability capability) {
  switch (capability) {
    case Capability::kSse4: return {};
    case Capability::kAvx2: return Target::kSse4;
    case Capability::kAvxVnni:
    case Capability::kAvx512: return Target::kAvx2;
    case Capability::kAvx512Vnni:
    case Capability::kAvx512Bf16: return Target::kAvx512;
    case Capability::kAmxInt8:
    case Capability::kAmxBf16: return Target::kAvx512Vnni;  // for the epilogues and for few rows
  }
  return {};
}

struct Machine {
  Target capabilities;
  bool slow_bf16 = false;  // AVX-512 BF16 runs, but FMA is faster
};

#if !defined(AQT_SCALAR_ONLY) && defined(__x86_64__)

// Whether Linux allows this process to use AMX; asked once. The answer applies to all of its threads.
bool MayUseAmx() {
#ifdef __linux__
  constexpr unsigned kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// What the code of Highway's targets SSE4, AVX2 and AVX3 is compiled for. The builtins also ask whether the operating
// system saves the wide registers. hwy::SupportedTargets() gives the same answer, but Debian has that library only as a
// shared object, which a static program cannot use.
bool HasSse4() {
  return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("aes") != 0 &&
         __builtin_cpu_supports("pclmul") != 0;
}

bool HasAvx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1) != 0;
  const bool lzcnt = __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 5 & 1) != 0;
  return f16c && lzcnt && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
}

bool HasAvx3() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
}

Machine Detect() {
  Machine machine;
  __builtin_cpu_init();
  if (!HasSse4()) return machine;
  machine.capabilities = Target::kSse4;
  if (!HasAvx2()) return machine;
  machine.capabilities = Target::kAvx2;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return machine;
  const bool vnni = (ecx >> 11 & 1) != 0, amx_bf16 = (edx >> 22 & 1) != 0, amx_tile = (edx >> 24 & 1) != 0;
  const bool amx_int8 = (edx >> 25 & 1) != 0;
  unsigned eax1 = 0;
  if (__get_cpuid_count(7, 1, &eax1, &ebx, &ecx, &edx) == 0) eax1 = 0;
  const bool avx_vnni = (eax1 >> 4 & 1) != 0, bf16 = (eax1 >> 5 & 1) != 0;

  const auto add = [&](bool has, Capability c) {
    if (has && machine.capabilities.Includes(Needs(c))) machine.capabilities = machine.capabilities | Target{c};
  };
  add(avx_vnni, Capability::kAvxVnni);
  add(HasAvx3(), Capability::kAvx512);
  add(vnni, Capability::kAvx512Vnni);
  add(bf16, Capability::kAvx512Bf16);
  if (amx_tile && (amx_int8 || amx_bf16) && MayUseAmx()) {
    add(amx_int8, Capability::kAmxInt8);
    add(amx_bf16, Capability::kAmxBf16);
  }
  machine.slow_bf16 = __builtin_cpu_is("intel") != 0;
  return machine;
}

#else

Machine Detect() { return {}; }

#endif

const Machine& ThisMachine() {
  static const Machine machine = Detect();
  return machine;
}

absl::Status UnknownName(absl::string_view what, absl::string_view text, absl::string_view names) {
  return absl::InvalidArgumentError(absl::StrCat("unknown ", what, " \"", text, "\"; expected one of ", names));
}

absl::StatusOr<Target> NamedFromString(absl::string_view text) {
  std::string names;
  for (const NamedTarget& named : kNamedTargets) {
    if (text == named.name) return named.target;
    absl::StrAppend(&names, names.empty() ? "" : ", ", named.name);
  }
  return UnknownName("target", text, names);
}

absl::StatusOr<Capability> CapabilityFromString(absl::string_view text) {
  std::string names;
  for (int i = 0; i < kNumCapabilities; ++i) {
    const Capability c = static_cast<Capability>(i);
    if (text == ToString(c)) return c;
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToString(c));
  }
  return UnknownName("capability", text, names);
}

// Parses a target. The text must start with a name unless `unnamed` is given, which then is the default.
absl::StatusOr<Target> Parse(absl::string_view text, const Target* unnamed) {
  Target target = unnamed == nullptr ? Target() : *unnamed;
  bool first = true;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (part.empty() || part[0] != '-') {
      if (!first) {
        return absl::InvalidArgumentError(
            absl::StrCat("unexpected \"", part, "\" in \"", text,
                         "\"; expected the name of a target, then capabilities to remove: amx,-amx_bf16"));
      }
      absl::StatusOr<Target> named = NamedFromString(part);
      if (!named.ok()) return named;
      target = *named;
    } else {
      if (first && unnamed == nullptr) return NamedFromString(part);  // the error
      const absl::StatusOr<Capability> removed = CapabilityFromString(part.substr(1));
      if (!removed.ok()) return removed.status();
      target = target.Without(*removed);
    }
    first = false;
  }
  return target;
}

const char* MaxTargetText() {
  const char* text = std::getenv("AQT_MAX_TARGET");
  return text == nullptr ? "" : text;
}

absl::StatusOr<Target> ReadMaxTarget() {
  const absl::string_view text = MaxTargetText();
  if (text.empty()) return kEverything;
  absl::StatusOr<Target> target = Parse(text, &kEverything);
  if (target.ok()) return target;
  return absl::InvalidArgumentError(absl::StrCat("environment variable AQT_MAX_TARGET: ", target.status().message()));
}

const absl::StatusOr<Target>& MaxTarget() {
  static const auto* const target = new absl::StatusOr<Target>(ReadMaxTarget());
  return *target;
}

Target FindBestTarget() {
  const Target cap = MaxTarget().value_or(kEverything);
  Target best = ThisMachine().capabilities & cap;
  const bool names_bf16 = absl::StartsWith(MaxTargetText(), ToString(Capability::kAvx512Bf16));
  if (ThisMachine().slow_bf16 && !names_bf16) best = best.Without(Capability::kAvx512Bf16);
  // Its kernels are never used together with those of AVX-512.
  if (best.Has(Capability::kAvx512)) best = best.Without(Capability::kAvxVnni);
  return best;
}

}  // namespace

absl::string_view ToString(Capability capability) {
  switch (capability) {
    case Capability::kSse4: return "sse4";
    case Capability::kAvx2: return "avx2";
    case Capability::kAvxVnni: return "avx_vnni";
    case Capability::kAvx512: return "avx512";
    case Capability::kAvx512Vnni: return "avx512_vnni";
    case Capability::kAvx512Bf16: return "avx512_bf16";
    case Capability::kAmxInt8: return "amx_int8";
    case Capability::kAmxBf16: return "amx_bf16";
  }
  aqt::internal::CheckFailed(__FILE__, __LINE__, "capability is one of the enumerators");
}

Target Target::Without(Capability removed) const {
  Target result(bits_ & ~Bit(removed));
  for (int i = 0; i < kNumCapabilities; ++i) {
    const Capability c = static_cast<Capability>(i);
    if (result.Has(c) && Needs(c).Has(removed)) result = result.Without(c);
  }
  return result;
}

std::string ToString(Target target) {
  const NamedTarget* base = &kNamedTargets[0];
  for (const NamedTarget& named : kNamedTargets) {
    if (target.Includes(named.target)) base = &named;
  }
  std::string text(base->name);
  for (int i = 0; i < kNumCapabilities; ++i) {
    const Capability c = static_cast<Capability>(i);
    if (target.Has(c) && !base->target.Has(c)) absl::StrAppend(&text, "+", ToString(c));
  }
  return text;
}

std::ostream& operator<<(std::ostream& os, Target target) { return os << ToString(target); }

absl::StatusOr<Target> TargetFromString(absl::string_view text) { return Parse(text, nullptr); }

absl::Span<const Target> SupportedTargets() {
  static const auto* const targets = [] {
    auto* supported = new std::vector<Target>;
    for (const NamedTarget& named : kNamedTargets) {
      if (IsSupported(named.target)) supported->push_back(named.target);
    }
    return supported;
  }();
  return *targets;
}

bool IsSupported(Target target) { return ThisMachine().capabilities.Includes(target); }

absl::StatusOr<Target> MaxTargetFromEnvironment() { return MaxTarget(); }

Target BestTarget() {
  static const Target best = FindBestTarget();
  return best;
}

}  // namespace aqt::kernels
