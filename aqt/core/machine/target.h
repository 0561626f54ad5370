#ifndef AQT_CORE_MACHINE_TARGET_H_
#define AQT_CORE_MACHINE_TARGET_H_

// Which instruction sets this machine has, and which of them the kernels use.
//
// Every kernel takes a Target, by default BestTarget(), so that one process can run and compare all of them. A kernel
// runs its best version whose capabilities the target has. Bits that docs/bits.md promises do not depend on the target.
//
// Only x86-64 has kernels of its own so far; other machines run the portable ones.

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aqt::kernels {

// What a processor can do.
enum class Capability : uint8_t {
  kSse4,        // SSE up to 4.2: products of s8 only
  kAvx2,        // AVX2, FMA, F16C, BMI1 and 2, LZCNT
  kAvxVnni,     // AVX-VNNI: u8 x s8 dot products of four in 256 bits
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // u8 x s8 dot products of four
  kAvx512Bf16,  // bf16 dot products of two
  kAmxInt8,     // tile products of s8
  kAmxBf16,     // tile products of bf16
};
inline constexpr int kNumCapabilities = 8;

// "sse4", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16".
absl::string_view ToString(Capability capability);

// A set of capabilities: those that kernels may use.
class Target {
 public:
  constexpr Target() = default;  // kScalar
  constexpr Target(std::initializer_list<Capability> capabilities) {
    for (const Capability c : capabilities) bits_ |= Bit(c);
  }

  // The sets with a name, "scalar" to "amx".
  static const Target kScalar;      // what the compiler generates without a run-time check; runs everywhere
  static const Target kSse4;        // SSE4
  static const Target kAvx2;        // and AVX2
  static const Target kAvxVnni;     // and AVX-VNNI
  static const Target kAvx512;      // AVX2 and AVX-512
  static const Target kAvx512Vnni;  // and AVX-512 VNNI
  static const Target kAvx512Bf16;  // and AVX-512 BF16
  static const Target kAmx;         // that of kAvx512Vnni, and AMX for s8 and bf16

  constexpr bool Has(Capability c) const { return (bits_ & Bit(c)) != 0; }
  constexpr bool Includes(Target other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr Target operator&(Target other) const { return Target(bits_ & other.bits_); }
  constexpr Target operator|(Target other) const { return Target(bits_ | other.bits_); }
  // Without a capability, and without those that need it.
  Target Without(Capability c) const;

  bool operator==(const Target&) const = default;
  // An order for containers; no target precedes those that it includes.
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

// The name of a set that has one ("scalar", "sse4", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx");
// else the name of the largest named set in it and the capabilities beyond: "avx512_vnni+amx_int8".
std::string ToString(Target target);
std::ostream& operator<<(std::ostream& os, Target target);

// The sets with a name that this build contains and this machine can run; the first is kScalar, and each comes after
// those that it includes. Only kScalar in a build with AQT_SCALAR_ONLY. Not capped by the environment. The first call
// asks Linux for the permission to use AMX; without it the machine counts as one without AMX.
absl::Span<const Target> SupportedTargets();
// Whether this machine can run all of a target.
bool IsSupported(Target target);

// The fastest set of capabilities that the environment allows (MaxTargetFromEnvironment in target_name.h; all if that
// is an error). Leaves out AVX-512 BF16 on Intel, where its products are slower than those of f32, unless the
// environment names it.
Target BestTarget();

}  // namespace aqt::kernels

#endif  // AQT_CORE_MACHINE_TARGET_H_
