// The list of recorded cases whose default results differ from the original's.

#include "tests/golden_check/fixed_list.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/quant/config/semantics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden_check/golden_check.h"
#include "tests/golden_check/golden_check_testing.h"
#include "tests/golden_check/manifest.h"
#include "tests/golden_check/run_case.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kFixed[] = "tests/golden/fixed.json";

TEST(FixedList, ExactlyTheListedCasesDifferFromTheOriginalByDefault) {
  for (const char* dir : {kStock, kIeee}) {
    const MainResult result =
        Main({absl::StrCat("--golden_dir=", dir), "--compat=default", absl::StrCat("--fixed=", kFixed), "--verbose"});
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    // Without the list the same cases fail.
    const MainResult unlisted = Main({absl::StrCat("--golden_dir=", dir), "--compat=default"});
    EXPECT_EQ(unlisted.code, 1);
    absl::StatusOr<FixedList> list =
        LoadFixedList(io::LocalFileSystem(), kFixed, dir == kStock ? Arithmetic::kXlaCompatible : Arithmetic::kIeee);
    ASSERT_TRUE(list.ok()) << list.status();
    int failed = 0;
    for (const absl::string_view line : absl::StrSplit(unlisted.out, '\n')) {
      if (!absl::StartsWith(line, "FAILED ")) continue;
      ++failed;
      EXPECT_TRUE(list->contains(line.substr(7, line.find(':') - 7))) << line;
    }
    EXPECT_GE(failed, 1) << dir;
  }
}

TEST(FixedList, OtherResultsThanListedFail) {
  absl::StatusOr<GoldenSet> set = LoadGolden(io::LocalFileSystem(), kStock, {"dot_general"});
  ASSERT_TRUE(set.ok()) << set.status();
  const absl::StatusOr<FixedList> list = LoadFixedList(io::LocalFileSystem(), kFixed, Arithmetic::kXlaCompatible);
  ASSERT_TRUE(list.ok()) << list.status();
  int seen = 0;
  for (const GoldenCase& golden_case : set->families[0].cases) {
    const auto listed = list->find(golden_case.name);
    if (listed == list->end()) continue;
    ++seen;
    FixedCase fixed = listed->second;
    EXPECT_THAT(CheckCase(golden_case, set->semantics, {.fixed = &fixed}).reason,
                HasSubstr("is as recorded, but listed as different"))
        << "Compat::Original()";
    set->semantics.compat = {};
    EXPECT_EQ(CheckCase(golden_case, set->semantics, {.fixed = &fixed}).verdict, Verdict::kPassed);
    for (auto& [name, tensor] : fixed.tensors) {
      FixedCase other = fixed;
      if (tensor.value.has_value()) {
        other.tensors[name].value = Array::Zeros(tensor.value->dtype(), tensor.value->shape());
      } else {
        other.tensors[name].sha256 = std::string(64, '0');
      }
      EXPECT_THAT(CheckCase(golden_case, set->semantics, {.ways = {Way::kPlan}, .fixed = &other}).reason,
                  StartsWith(name));
      other.tensors.erase(name);
      EXPECT_THAT(CheckCase(golden_case, set->semantics, {.ways = {Way::kPlan}, .fixed = &other}).reason,
                  StartsWith(name));
    }
    set->semantics.compat = Compat::Original();
  }
  EXPECT_GE(seen, 1);
}

TEST(FixedList, WhatIsWrittenIsRead) {
  const io::FileSystem& fs = io::LocalFileSystem();
  const std::string path = io::JoinPath(::testing::TempDir(), "fixed.json");
  const Tolerance exact, rtol{.kind = Tolerance::Kind::kRtol, .value = 1e-6};
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Array codes = Array::Of<int8_t>({1, -2}, {2}), floats = Array::Of<float>({0.1f, nan, -inf}, {3, 1});
  const FixedList list{
      {"case",
       {.compat = {"mid_scales_on_original_operands"},
        .tensors = {{"codes", MakeFixedTensor(codes, exact)}, {"floats", MakeFixedTensor(floats, rtol)}}}},
      {"refused", {.compat = {"read_unseen_calibration"}, .tensors = {}, .error = "FAILED_PRECONDITION"}}};
  ASSERT_TRUE(SaveFixedList(fs, path, Arithmetic::kXlaCompatible, list).ok());
  ASSERT_TRUE(SaveFixedList(fs, path, Arithmetic::kIeee, {}).ok());
  EXPECT_TRUE(LoadFixedList(fs, path, Arithmetic::kIeee)->empty());
  const absl::StatusOr<FixedList> read = LoadFixedList(fs, path, Arithmetic::kXlaCompatible);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->at("refused").error, "FAILED_PRECONDITION");
  EXPECT_EQ(read->at("refused").compat, (std::vector<std::string>{"read_unseen_calibration"}));
  const FixedCase& fixed = read->at("case");
  EXPECT_EQ(fixed.compat, (std::vector<std::string>{"mid_scales_on_original_operands"}));
  EXPECT_EQ(Compare(codes, fixed.tensors.at("codes"), exact), std::nullopt);
  EXPECT_THAT(*Compare(Array::Of<int8_t>({1, 2}, {2}), fixed.tensors.at("codes"), exact),
              StartsWith("has the SHA-256 "));
  EXPECT_EQ(Compare(Array::Of<int8_t>({1}, {1}), fixed.tensors.at("codes"), exact), "is s8[1], want s8[2]");
  EXPECT_EQ(Compare(floats, fixed.tensors.at("floats"), exact), std::nullopt);
  EXPECT_EQ(Compare(Array::Of<float>({0.25f, nan, -inf}, {3, 1}), fixed.tensors.at("floats"), rtol),
            "[0,0]: got 0.25, want 0.1000000015");
  EXPECT_TRUE(fs.Remove(path).ok());
}

TEST(FixedList, ARefusalIsOneWithThisCode) {
  const FixedCase refused{.compat = {"read_unseen_calibration"}, .tensors = {}, .error = "FAILED_PRECONDITION"};
  const auto check = [&](const absl::StatusOr<Computed>& result) {
    const auto runner = [&](const GoldenCase&, const Semantics&, Given&, Way) { return result; };
    GoldenCase golden_case{.name = "small",
                           .family = "f",
                           .feature = "quantize",
                           .config = CeilToPo2Config{},
                           .inputs = {},
                           .expected = {{"y", Array::Scalar(3.0f), {}}}};
    return CheckCase(golden_case, {}, {.runner = runner, .fixed = &refused});
  };
  EXPECT_EQ(check(absl::FailedPreconditionError("no batch")).verdict, Verdict::kPassed);
  EXPECT_THAT(check(absl::InvalidArgumentError("no batch")).reason, HasSubstr("no batch"));
  EXPECT_THAT(check(Tensors{{"y", Array::Scalar(3.0f)}}).reason, HasSubstr("is not refused, but listed with"));
}

TEST(FixedList, BadFiles) {
  const io::FileSystem& fs = io::LocalFileSystem();
  const std::string path = io::JoinPath(::testing::TempDir(), "bad_fixed.json");
  const auto message = [&](const std::string& text) {
    EXPECT_TRUE(io::WriteFile(fs, path, text, {.overwrite = true}).ok());
    return std::string(LoadFixedList(fs, path, Arithmetic::kIeee).status().message());
  };
  EXPECT_THAT(message("[]"), HasSubstr("bad_fixed.json: is not a JSON object"));
  const auto with_case = [&](const std::string& entry) {
    return message(absl::StrCat("{\"ARITHMETIC_IEEE\": {\"one\": ", entry, "}}"));
  };
  EXPECT_THAT(with_case("{}"), HasSubstr("one: "));
  EXPECT_THAT(with_case("{\"compat\": [\"no_such\"], \"tensors\": {}}"), HasSubstr("one: Compat has no field no_such"));
  EXPECT_THAT(with_case("{\"compat\": [], \"tensors\": {}}"),
              HasSubstr("needs a field of Compat and a tensor or an error"));
  EXPECT_THAT(with_case("{\"compat\": [], \"tensors\": {\"y\": {\"aval\": \"f32[2]\", \"values\": [1]}}}"),
              HasSubstr("f32[2] has 1 values"));
  EXPECT_TRUE(fs.Remove(path).ok());
}

}  // namespace
}  // namespace aqt::golden
