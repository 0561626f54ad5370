#ifndef AQT_CORE_MACHINE_TARGET_H_
#define AQT_CORE_MACHINE_TARGET_H_

// The instruction sets of this machine, and which of them the kernels use.
//
// Every kernel takes a Target, by default BestTarget(), so that one process can run and compare all of them. A kernel
// runs its best version whose capabilities the target has. The bits that docs/bits.md promises do not depend on the
// target.
//
// Only x86-64 has specialized kernels so far; other machines run the portable ones.

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aqt::kernels {

// A feature of a processor.
enum class Capability : uint8_t {
  kSse4,        // SSE up to 4.2; used only for products of s8
  kAvx2,        // AVX2, FMA, F16C, BMI1 and 2, LZCNT
  kAvxVnni,     // AVX-VNNI: four-element u8 x s8 dot products in 256 bits
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // four-element u8 x s8 dot products
  kAvx512Bf16,  // two-element bf16 dot products
  kAmxInt8,     // s8 tile products
  kAmxBf16,     // bf16 tile products
};
inline constexpr int kNumCapabilities = 8;

// "sse4", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16".
absl::string_view ToString(Capability capability);

// A set of capabilities that kernels may use.
class Target {
 public:
  constexpr Target() = default;  // kScalar
  constexpr Target(std::initializer_list<Capability> capabilities) {
    for (const Capability c : capabilities) bits_ |= Bit(c);
  }

  // The named sets, "scalar" to "amx".
  static const Target kScalar;      // what the compiler generates without run-time checks; runs everywhere
  static const Target kSse4;        // SSE4
  static const Target kAvx2;        // and AVX2
  static const Target kAvxVnni;     // and AVX-VNNI
  static const Target kAvx512;      // AVX2 and AVX-512
  static const Target kAvx512Vnni;  // and AVX-512 VNNI
  static const Target kAvx512Bf16;  // and AVX-512 BF16
  static const Target kAmx;         // kAvx512Vnni, and AMX for s8 and bf16

  constexpr bool Has(Capability c) const { return (bits_ & Bit(c)) != 0; }
  constexpr bool Includes(Target other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr Target operator&(Target other) const { return Target(bits_ & other.bits_); }
  constexpr Target operator|(Target other) const { return Target(bits_ | other.bits_); }
  // This target without a capability and without those that depend on it.
  Target Without(Capability c) const;

  bool operator==(const Target&) const = default;
  // An order for containers; a target never precedes one that it includes.
  bool operator<(const Target& other) const { return bits_ < other.bits_; }

 private:
  constexpr explicit Target(unsigned bits) : bits_(static_cast<uint8_t>(bits)) {}
  static constexpr unsigned Bit(Capability c) { return 1u << static_cast<unsigned>(c); }

  uint8_t bits_ = 0;
};

inline constexpr Target Target::kScalar = {};
inline constexpr Target Target::kSse4 = {Capability::kSse4};
inline constexpr Target Target::kAvx2 = Target::kSse4 | Target{Capability::kAvx2};
inline constexpr Target Target::kAvxVnni = Target::kAvx2 | Target{Capability::kAvxVnni};
inline constexpr Target Target::kAvx512 = Target::kAvx2 | Target{Capability::kAvx512};
inline constexpr Target Target::kAvx512Vnni = Target::kAvx512 | Target{Capability::kAvx512Vnni};
inline constexpr Target Target::kAvx512Bf16 = Target::kAvx512Vnni | Target{Capability::kAvx512Bf16};
inline constexpr Target Target::kAmx = Target::kAvx512Vnni | Target{Capability::kAmxInt8, Capability::kAmxBf16};

// The name of a named set ("scalar", "sse4", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"). Any
// other set is the name of the largest named set in it plus the remaining capabilities: "avx512_vnni+amx_int8".
std::string ToString(Target target);
std::ostream& operator<<(std::ostream& os, Target target);

// The named sets that this build contains and this machine can run. The first is kScalar, and each follows those that
// it includes. With AQT_SCALAR_ONLY it has only kScalar. The environment does not limit it. The first call asks Linux
// for permission to use AMX; without it the machine counts as one without AMX.
absl::Span<const Target> SupportedTargets();
// Whether this machine has all capabilities of a target.
bool IsSupported(Target target);

// The fastest set of capabilities that the environment allows (MaxTargetFromEnvironment in target_name.h; everything if
// that is an error). Excludes AVX-512 BF16 on Intel, where its products are slower than those of f32, unless the
// environment names it.
Target BestTarget();

}  // namespace aqt::kernels

#endif  // AQT_CORE_MACHINE_TARGET_H_
