#include "aqt/core/machine/target.h"

#include <cstdlib>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "aqt/core/machine/target_name.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

TEST(Target, NamesRoundTrip) {
  for (const Target target : {Target::kScalar, Target::kSse4, Target::kAvx2, Target::kAvxVnni, Target::kAvx512,
                              Target::kAvx512Vnni, Target::kAvx512Bf16, Target::kAmx}) {
    const absl::StatusOr<Target> back = TargetFromString(ToString(target));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, target);
    std::ostringstream os;
    os << target;
    EXPECT_EQ(os.str(), ToString(target));
  }
}

TEST(Target, CapabilitiesAreRemovedWithWhatNeedsThem) {
  const auto parsed = [](const char* text) { return *TargetFromString(text); };
  EXPECT_EQ(parsed("amx,-amx_bf16"), Target::kAvx512Vnni | Target{Capability::kAmxInt8});
  EXPECT_EQ(parsed("amx,-amx_bf16,-amx_int8"), Target::kAvx512Vnni);
  EXPECT_EQ(parsed("amx,-avx512_vnni"), Target::kAvx512);
  EXPECT_EQ(parsed("amx,-avx512"), Target::kAvx2);
  EXPECT_EQ(parsed("avx512_bf16,-avx512_vnni"), Target::kAvx512 | Target{Capability::kAvx512Bf16});
  EXPECT_EQ(parsed("avx_vnni,-avx2"), Target::kSse4);
  EXPECT_EQ(parsed("amx,-sse4"), Target::kScalar);
  EXPECT_EQ(ToString(parsed("amx,-amx_bf16")), "avx512_vnni+amx_int8");
}

TEST(Target, UnknownNameListsTheKnownOnes) {
  for (const char* text : {"", "AVX2", "avx2 ", "sse3", "-avx2"}) {
    const absl::Status status = TargetFromString(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(std::string(status.message()),
              "unknown target \"" + std::string(text) +
                  "\"; expected one of scalar, sse4, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx");
  }
  EXPECT_EQ(TargetFromString("amx,-amx").status().message(),
            "unknown capability \"amx\"; expected one of sse4, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, "
            "amx_int8, amx_bf16");
  EXPECT_EQ(TargetFromString("amx,avx2").status().message(),
            "unexpected \"avx2\" in \"amx,avx2\"; expected the name of a target, then capabilities to remove: "
            "amx,-amx_bf16");
}

TEST(Target, SupportedTargetsAscendFromScalar) {
  const absl::Span<const Target> targets = SupportedTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets[0], Target::kScalar);
  for (size_t i = 0; i < targets.size(); ++i) {
    EXPECT_TRUE(IsSupported(targets[i]));
    for (size_t j = i + 1; j < targets.size(); ++j) {
      EXPECT_FALSE(targets[i].Includes(targets[j])) << targets[i] << " " << targets[j];
      EXPECT_LT(targets[i], targets[j]);
    }
  }
  EXPECT_TRUE(IsSupported(BestTarget()));
#ifdef AQT_SCALAR_ONLY
  EXPECT_EQ(targets.size(), 1u);
#elif defined(__x86_64__)
  EXPECT_EQ(IsSupported(Target::kSse4), __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("aes"));
  EXPECT_EQ(IsSupported(Target::kAvx2), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(IsSupported(Target::kAvx512Vnni),
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"));
  EXPECT_EQ(IsSupported(Target::kAvx512Bf16),
            __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"));
#endif
}

// The variable is read once per process, so the BUILD file runs this test with several values.
TEST(Target, EnvironmentCapsTheChoice) {
  const char* variable = std::getenv("AQT_MAX_TARGET");
  const std::string text = variable == nullptr ? "" : variable;
  const absl::StatusOr<Target> cap = MaxTargetFromEnvironment();
  if (text == "wrong") {
    EXPECT_EQ(cap.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(cap.status().message());
    EXPECT_EQ(message.find("environment variable AQT_MAX_TARGET: unknown target \"wrong\""), 0u) << message;
  } else {
    ASSERT_TRUE(cap.ok()) << cap.status();
    EXPECT_TRUE(cap->Includes(BestTarget()));
  }
  if (text.empty() || text == "wrong") {
    EXPECT_TRUE(BestTarget().Includes(Target::kScalar));
    for (const Capability c : {Capability::kSse4, Capability::kAvx2, Capability::kAvx512, Capability::kAvx512Vnni,
                               Capability::kAmxInt8, Capability::kAmxBf16}) {
      bool supported = false;
      for (const Target target : SupportedTargets()) supported |= target.Has(c);
      EXPECT_EQ(BestTarget().Has(c), supported) << ToString(c);
    }
  } else if (text[0] == '-') {
    EXPECT_EQ(text, "-amx_int8");
    EXPECT_FALSE(BestTarget().Has(Capability::kAmxInt8));
    EXPECT_EQ(BestTarget().Has(Capability::kAmxBf16), IsSupported(Target::kAmx));
  } else if (IsSupported(*cap)) {
    EXPECT_EQ(ToString(BestTarget()), text);
  }
}

}  // namespace
}  // namespace aqt::kernels
