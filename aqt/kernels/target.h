#ifndef AQT_KERNELS_TARGET_H_
#define AQT_KERNELS_TARGET_H_

// Which instruction sets this machine has, and which of them the kernels use.
//
// Every kernel takes a Target, by default BestTarget(), so that one process can run and compare all of them. A kernel
// without code of its own for a target runs its version for the next lower one. Bits that docs/bits.md promises do not
// depend on the target.

#include <cstdint>
#include <iosfwd>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aqt::kernels {

// In ascending order; each includes all previous ones.
enum class Target : uint8_t {
  kScalar,      // what the compiler generates without a run-time check; runs everywhere
  kAvx2,        // AVX2, FMA, F16C, BMI1 and 2, LZCNT
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // and AVX-512 VNNI (u8 x s8 dot products of four)
};

// "scalar", "avx2", "avx512", "avx512_vnni".
absl::string_view ToString(Target target);
std::ostream& operator<<(std::ostream& os, Target target);

// Targets that this build contains and this machine can run, in ascending order; the first is kScalar, the only one in
// a build with AQT_SCALAR_ONLY. Not capped by the environment.
absl::Span<const Target> SupportedTargets();
bool IsSupported(Target target);

// The highest supported target that the environment allows (MaxTargetFromEnvironment in target_name.h); if that is an
// error, the highest supported one.
Target BestTarget();

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_TARGET_H_
