#include "aqt/kernels/target.h"

#include <cstdlib>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "aqt/kernels/target_name.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

TEST(Target, NamesRoundTrip) {
  for (Target target : {Target::kScalar, Target::kAvx2, Target::kAvx512, Target::kAvx512Vnni}) {
    absl::StatusOr<Target> back = TargetFromString(ToString(target));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, target);
    std::ostringstream os;
    os << target;
    EXPECT_EQ(os.str(), std::string(ToString(target)));
  }
}

TEST(Target, UnknownNameListsTheKnownOnes) {
  for (const char* text : {"", "AVX2", "avx2 ", "sse4"}) {
    const absl::Status status = TargetFromString(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(std::string(status.message()),
              "unknown target \"" + std::string(text) + "\"; expected one of scalar, avx2, avx512, avx512_vnni");
  }
}

TEST(Target, SupportedTargetsAscendFromScalar) {
  const absl::Span<const Target> targets = SupportedTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets[0], Target::kScalar);
  for (size_t i = 0; i < targets.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(targets[i]), i);  // each includes all before it
    EXPECT_TRUE(IsSupported(targets[i]));
  }
  EXPECT_TRUE(IsSupported(BestTarget()));
#ifdef AQT_SCALAR_ONLY
  EXPECT_EQ(targets.size(), 1u);
#elif defined(__x86_64__)
  EXPECT_EQ(IsSupported(Target::kAvx2), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(IsSupported(Target::kAvx512Vnni),
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"));
#endif
}

// The variable is read once per process, and the BUILD file runs this test with it unset, "scalar", "avx2" and a
// wrong name.
TEST(Target, EnvironmentCapsTheChoice) {
  const char* text = std::getenv("AQT_MAX_TARGET");
  const absl::StatusOr<Target> cap = MaxTargetFromEnvironment();
  if (text == nullptr) {
    EXPECT_EQ(*cap, Target::kAvx512Vnni);
    EXPECT_EQ(BestTarget(), SupportedTargets().back());
  } else if (std::string(text) == "wrong") {
    EXPECT_EQ(cap.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(cap.status().message());
    EXPECT_EQ(message.find("environment variable AQT_MAX_TARGET: unknown target \"wrong\""), 0u) << message;
    EXPECT_EQ(BestTarget(), SupportedTargets().back());
  } else {
    ASSERT_TRUE(cap.ok()) << cap.status();
    EXPECT_EQ(ToString(*cap), text);
    EXPECT_EQ(BestTarget(), IsSupported(*cap) ? *cap : SupportedTargets().back());
  }
}

}  // namespace
}  // namespace aqt::kernels
