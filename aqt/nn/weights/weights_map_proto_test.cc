#include "aqt/nn/weights/weights_map_proto.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/nn/weights/weights_map.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

const WeightsMap kMap = {.rules = {{.tensor = R"(fc(\d)\.weight)",
                                    .slot = Slot{SlotKind::kParam, R"(mlp/fc\1/kernel)"},
                                    .transpose = {1, 0}},
                                   {.tensor = "qkv",
                                    .slot = Slot{SlotKind::kParam, "q"},
                                    .slice = WeightSlice{1, 0, 2, 4},
                                    .reshape = true,
                                    .cast = true},
                                   {.tensor = "k", .slot = Slot{SlotKind::kParam, "k"}, .slice = WeightSlice{0, 3, 5}},
                                   {.tensor = "mean", .slot = Slot{SlotKind::kStat, "norm/mean"}},
                                   {.tensor = "position_ids"}},
                         .missing = {"head/.*"}};

TEST(WeightsMapProtoTest, Reads) {
  const absl::StatusOr<WeightsMap> map = WeightsMapFromText(R"(
      schema: 1
      rules { tensor: "fc(\\d)\\.weight"  param: "mlp/fc\\1/kernel"  transpose: [1, 0] }
      rules { tensor: "qkv"  param: "q"  slice { axis: 1 begin: 0 end: 2 parts: 4 }  reshape: true  cast: true }
      rules { tensor: "k"  param: "k"  slice { axis: 0 begin: 3 end: 5 } }
      rules { tensor: "mean"  stat: "norm/mean" }
      rules { tensor: "position_ids"  ignore: true }
      missing: "head/.*")");
  ASSERT_THAT(map, IsOk());
  EXPECT_TRUE(*map == kMap);
}

TEST(WeightsMapProtoTest, RoundTrip) {
  const absl::StatusOr<WeightsMap> map = WeightsMapFromText(ToText(kMap));
  ASSERT_THAT(map, IsOk());
  EXPECT_TRUE(*map == kMap);
}

TEST(WeightsMapProtoTest, ErrorsSayWhere) {
  const auto fails = [](const std::string& text, const std::string& message) {
    EXPECT_THAT(WeightsMapFromText("schema: 1\n" + text, "map.textproto"),
                FailsWith(absl::StatusCode::kInvalidArgument, {message}))
        << text;
  };
  fails("rules { param: \"a\" }", "map.textproto:2:1: a rule needs a tensor");
  fails("rules { tensor: \"a\" }", "map.textproto:2:1: a rule needs one of param, stat and ignore: true");
  fails("rules { tensor: \"a\" param: \"b\" stat: \"b\" }", "one of param, stat and ignore");
  fails("rules { tensor: \"a\" param: \"b\" ignore: true }", "one of param, stat and ignore");
  fails("rules { tensor: \"a\" ignore: true cast: true }", "neither sliced, transposed, reshaped nor cast");
  fails("rules { tensor: \"a\" param: \"b\" slice { axis: 0 begin: 1 } }",
        "2:32: a slice needs an axis, begin and end");
  fails("rules { tensor: \"a\" param: \"b\" slice { axis: 0 begin: 0 end: 1 parts: 0 } }",
        "parts is a positive number");
  fails("rules { tensor: \"a\" slot: \"b\" }", "param");
  EXPECT_THAT(WeightsMapFromText(""), FailsWith(absl::StatusCode::kInvalidArgument, {"schema"}));
}

}  // namespace
}  // namespace aqt::nn
