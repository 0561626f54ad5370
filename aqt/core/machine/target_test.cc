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

// Runs `check` in a process of its own, because the variable is read once per process. Exits with 0 if all expectations
// were met.
template <class F>
void WithMaxTarget(const char* variable, F&& check) {
  setenv("AQT_MAX_TARGET", variable, /*replace=*/1);
  check();
  std::exit(::testing::Test::HasFailure() ? 1 : 0);
}

// Expects BestTarget() to have this capability if the machine has it.
void ExpectBestHas(Capability c) {
  bool supported = false;
  for (const Target target : SupportedTargets()) supported |= target.Has(c);
  EXPECT_EQ(BestTarget().Has(c), supported) << ToString(c);
}

void ExpectNoCap() {
  EXPECT_TRUE(BestTarget().Includes(Target::kScalar));
  for (const Capability c : {Capability::kSse4, Capability::kAvx2, Capability::kAvx512, Capability::kAvx512Vnni,
                             Capability::kAmxInt8, Capability::kAmxBf16}) {
    ExpectBestHas(c);
  }
}

class TargetDeathTest : public ::testing::Test {
 protected:
  TargetDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  const ::testing::ExitedWithCode succeeds_{0};
};

TEST_F(TargetDeathTest, TheEnvironmentCapsTheChoice) {
  for (const Target want : {Target::kScalar, Target::kSse4, Target::kAvx2, Target::kAvxVnni, Target::kAvx512,
                            Target::kAvx512Vnni, Target::kAvx512Bf16, Target::kAmx}) {
    const std::string name = ToString(want);
    const auto check = [&] {
      EXPECT_EQ(*MaxTargetFromEnvironment(), want);
      EXPECT_TRUE(want.Includes(BestTarget()));
      if (IsSupported(want)) {
        EXPECT_EQ(BestTarget(), want);
      }
    };
    EXPECT_EXIT(WithMaxTarget(name.c_str(), check), succeeds_, "") << name;
  }
}

TEST_F(TargetDeathTest, WithoutACapThereIsNone) {
  EXPECT_EXIT(WithMaxTarget("",
                            [] {
                              EXPECT_TRUE(MaxTargetFromEnvironment()->Includes(Target::kAmx | Target::kAvx512Bf16));
                              ExpectNoCap();
                            }),
              succeeds_, "");
}

TEST_F(TargetDeathTest, ACapabilityIsRemoved) {
  EXPECT_EXIT(WithMaxTarget("-amx_int8",
                            [] {
                              EXPECT_FALSE(BestTarget().Has(Capability::kAmxInt8));
                              ExpectBestHas(Capability::kAmxBf16);
                            }),
              succeeds_, "");
}

TEST_F(TargetDeathTest, AWrongCapIsAnErrorAndCapsNothing) {
  EXPECT_EXIT(
      WithMaxTarget("wrong",
                    [] {
                      const absl::Status status = MaxTargetFromEnvironment().status();
                      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
                      const std::string message(status.message());
                      EXPECT_EQ(message.find("environment variable AQT_MAX_TARGET: unknown target \"wrong\""), 0u)
                          << message;
                      ExpectNoCap();
                    }),
      succeeds_, "");
}

}  // namespace
}  // namespace aqt::kernels
