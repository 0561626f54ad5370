#include "tests/golden_check/golden_check.h"
#include "aqt/quant/config/semantics.h"

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/text/config_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden_check/fixed_list.h"
#include "tests/golden_check/manifest.h"
#include "tests/golden_check/through_text.h"

namespace aqt::golden {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kStock[] = "tests/golden/aqt", kIeee[] = "tests/golden/aqt/ieee";

struct MainResult {
  int code;
  std::string out, err;
};

MainResult Main(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int code = GoldenCheckMain(io::LocalFileSystem(), arguments, out, err);
  return {code, out.str(), err.str()};
}

// ---- the recorded cases

// Every case of the part that is copied here passes; `minimum` keeps the part from shrinking unseen.
void ExpectAllPass(const std::string& dir, const std::map<std::string, int>& minimum) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", dir), "--verbose"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  std::map<std::string, int> passed;
  for (const absl::string_view line : absl::StrSplit(result.out, '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(absl::EndsWith(line, ", failed 0, not supported 0")) << line;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" ,:"), absl::SkipEmpty());
    if (words.size() > 2 && words[1] == "passed") passed[words[0]] = std::stoi(words[2]);
  }
  for (const auto& [family, count] : minimum) EXPECT_GE(passed[family], count) << family;
}

TEST(GoldenCases, StockXlaAllPass) {
  ExpectAllPass(kStock, {{"int_numerics", 45},
                         {"fp8_numerics", 12},
                         {"fp_numerics", 45},
                         {"calibration", 22},
                         {"dot_general", 35},
                         {"stochastic_rounding", 20},
                         {"local_aqt_tiling", 16},
                         {"einsum_conv_ragged", 25},
                         {"serving", 6},
                         {"training", 4},
                         {"readme", 4}});
}

TEST(GoldenCases, IeeeAllPass) {
  ExpectAllPass(kIeee, {{"int_numerics", 40}, {"calibration", 15}, {"dot_general", 28}, {"serving", 6}, {"readme", 3}});
}

TEST(GoldenCases, OnlyTheFamiliesAskedForAreRead) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", kStock), "--families=readme,calibration"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("calibration: passed "));
  EXPECT_THAT(result.out, HasSubstr("\nreadme: passed "));
  EXPECT_THAT(result.out, Not(HasSubstr("dot_general")));
}

// ---- the checker sees a library that computes something else

class MutationTest : public ::testing::TestWithParam<const char*> {
 protected:
  MutationTest() {
    if (GetParam() != kStock) return;
    for (const char* family : {"local_aqt_tiling", "einsum_conv_ragged", "training"}) families_.push_back(family);
  }

  // Families with configurations whose change shows in exact tensors.
  std::vector<std::string> families_ = {"int_numerics", "dot_general", "serving", "readme"};
  // How many of the cases that `mutate` changes (and returns true for) then fail. The others are named.
  int CountFailures(const std::function<bool(GoldenCase&)>& mutate) {
    absl::StatusOr<GoldenSet> set = LoadGolden(io::LocalFileSystem(), GetParam(), families_);
    EXPECT_TRUE(set.ok()) << set.status();
    int failures = 0;
    for (GoldenFamily& family : set->families) {
      for (GoldenCase& golden_case : family.cases) {
        if (!mutate(golden_case)) continue;
        const bool failed = CheckCase(golden_case, set->semantics).verdict == Verdict::kFailed;
        EXPECT_TRUE(failed) << golden_case.name;
        failures += failed;
      }
    }
    return failures;
  }
};

INSTANTIATE_TEST_SUITE_P(, MutationTest, ::testing::Values(kStock, kIeee),
                         [](const auto& info) { return info.param == kStock ? "stock" : "ieee"; });

// Calls f on each quantizer that the case uses; returns whether a call returned true.
bool ForEachQuantizer(GoldenCase& golden_case, const std::function<bool(Quantizer&)>& f) {
  const bool gradients = golden_case.family == "training" || golden_case.inputs.contains("g");
  bool any = false;
  const auto quantizer = [&](Quantizer& part) {
    any |= f(part);
    return absl::OkStatus();
  };
  const auto dot_general = [&](DotGeneral& part) {
    for (DotGeneralRaw* raw : {&part.fwd, &part.dlhs, &part.drhs}) {
      if (raw != &part.fwd && !gradients) continue;
      for (Tensor* tensor : {&raw->lhs, &raw->rhs}) any |= f(tensor->quantizer);
    }
    return absl::OkStatus();
  };
  const auto numerics = [](Numerics&) { return absl::OkStatus(); };
  EXPECT_TRUE(VisitParts(*golden_case.config, {dot_general, quantizer, numerics}).ok());
  return any;
}

// 127 in place of 127.5.
TEST_P(MutationTest, AnotherQuantBoundFails) {
  const int failures = CountFailures([](GoldenCase& golden_case) {
    for (const auto& [name, input] : golden_case.inputs) {
      if (input.dtype() == DType::kBF16) return false;  // has few enough bits for both bounds to give the same
    }
    return ForEachQuantizer(golden_case, [](Quantizer& quantizer) {
      auto* integer = std::get_if<IntSymmetric>(&quantizer.numerics);
      if (integer == nullptr || integer->bits != 8 || !integer->preserve_zero || integer->preserve_max_val)
        return false;
      if (!quantizer.calibration.has_value() || !std::holds_alternative<AbsMax>(*quantizer.calibration)) return false;
      // Rounded up to powers of two both bounds can give the same.
      if (std::get<AbsMax>(*quantizer.calibration).po2_scale) return false;
      integer->preserve_max_val = true;
      return true;
    });
  });
  EXPECT_GE(failures, 10);
}

// Half-integers in place of integers, and the other way round; in models, truncation.
TEST_P(MutationTest, AnotherRoundingFails) {
  const int failures = CountFailures([](GoldenCase& golden_case) {
    const bool model = golden_case.family == "serving" || golden_case.family == "training";
    return ForEachQuantizer(golden_case, [&](Quantizer& quantizer) {
      auto* integer = std::get_if<IntSymmetric>(&quantizer.numerics);
      if (integer == nullptr || !integer->round) return false;
      if (model && integer->dtype.has_value()) {
        integer->round = false;  // the conversion to the container truncates
        return true;
      }
      if (integer->dtype.has_value()) return false;
      integer->preserve_zero = !integer->preserve_zero;
      return true;
    });
  });
  EXPECT_GE(failures, 10);
}

// A library that forgets to multiply one scale onto the product, and shows everything else as it was.
TEST_P(MutationTest, AScaleThatIsNotAppliedFails) {
  absl::StatusOr<GoldenSet> set = LoadGolden(io::LocalFileSystem(), GetParam(), {"dot_general"});
  ASSERT_TRUE(set.ok()) << set.status();
  int seen = 0;
  for (GoldenCase& golden_case : set->families[0].cases) {
    auto& config = std::get<DotGeneralConfig>(*golden_case.config).config;
    const auto scaled = [](const Tensor& t) {
      return std::holds_alternative<IntSymmetric>(t.quantizer.numerics) && t.dequant_mode == DequantMode::kOutput;
    };
    if (!scaled(config.fwd.lhs) || !scaled(config.fwd.rhs)) continue;
    bool differs = false;
    const auto forget = [&](const GoldenCase& c, const Semantics& semantics, Given& given) -> absl::StatusOr<Tensors> {
      absl::StatusOr<Tensors> tensors = RunCase(c, semantics, given);
      if (!tensors.ok()) return tensors;
      const Array unscaled = Cast(tensors->at("fwd.accum"), tensors->at("out").dtype());
      differs = Compare(unscaled, tensors->at("out"), {}).has_value();
      tensors->at("out") = unscaled;
      return tensors;
    };
    const CaseResult result = CheckCase(golden_case, set->semantics, {.runner = forget});
    if (!differs) continue;
    ++seen;
    EXPECT_EQ(result.verdict, Verdict::kFailed) << golden_case.name;
    EXPECT_THAT(result.reason, StartsWith("out ")) << golden_case.name;
  }
  EXPECT_GE(seen, 15);
}

// One tile for each axis, and one shard: the right product, with the scales of another one.
TEST(Mutation, ATilingThatIsForgottenFails) {
  absl::StatusOr<GoldenSet> set = LoadGolden(io::LocalFileSystem(), kStock, {"local_aqt_tiling"});
  ASSERT_TRUE(set.ok()) << set.status();
  int tiled = 0, local = 0;
  for (GoldenCase& golden_case : set->families[0].cases) {
    DotGeneral& config = std::get<DotGeneralConfig>(*golden_case.config).config;
    const bool quantized =
        IsQuantized(config.fwd.lhs.quantizer.numerics) || IsQuantized(config.fwd.rhs.quantizer.numerics);
    if (config.tiling.has_value() && quantized && !config.tiling->lhs.contraction_axes.empty()) {
      config.tiling.reset();
      EXPECT_EQ(CheckCase(golden_case, set->semantics).verdict, Verdict::kFailed) << golden_case.name;
      ++tiled;
    } else if (config.dlhs.local_aqt.has_value() && IsQuantized(config.dlhs.lhs.quantizer.numerics)) {
      config.dlhs.local_aqt.reset();
      EXPECT_EQ(CheckCase(golden_case, set->semantics).verdict, Verdict::kFailed) << golden_case.name;
      ++local;
    }
  }
  EXPECT_GE(tiled, 3);
  EXPECT_GE(local, 3);
}

// ---- both ways to the configuration

// `text` without the lines of one field.
std::string Without(const std::string& text, const std::string& field) {
  std::string kept;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), field)) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

TEST(BothWays, AFieldThatTheTextDropsFails) {
  const absl::StatusOr<GoldenSet> set =
      LoadGolden(io::LocalFileSystem(), kStock, {"int_numerics", "fp8_numerics", "calibration", "dot_general"});
  ASSERT_TRUE(set.ok()) << set.status();
  for (const char* field :
       {"bits:", "preserve_max_val:", "clip:", "round:", "clip_gradient:", "exponent_bits:", "po2_scale:",
        "per_tensor:", "dequant_mode:", "calibration_mode:", "use_fwd_quant:", "lhs_mid_alpha:"}) {
    const auto to_text = [&](const DotGeneral& config) { return Without(ToText(config), field); };
    int failures = 0;
    for (const GoldenFamily& family : set->families) {
      for (const GoldenCase& golden_case : family.cases) {
        const CaseResult result = CheckCase(golden_case, set->semantics, {.to_text = to_text});
        if (result.verdict == Verdict::kPassed) continue;
        ++failures;
        EXPECT_EQ(result.verdict, Verdict::kFailed) << golden_case.name;
        EXPECT_THAT(result.reason, StartsWith("from the text: ")) << golden_case.name;
      }
    }
    EXPECT_GE(failures, 1) << field;
  }
}

TEST(BothWays, TheReasonTellsWhichOne) {
  const GoldenCase golden_case{
      .name = "one",
      .family = "f",
      .feature = "numerics_direct",
      .config = NumericsConfig{IntSymmetric{.bits = 4}},
      .inputs = {},
      .expected = {{"y", Array::Scalar(4.0f), {.kind = Tolerance::Kind::kRtol, .value = 0.5}}}};
  // A library that returns the bits of the numerics, and a text with other bits.
  const auto runner = [](const GoldenCase& c, const Semantics&, Given&) -> absl::StatusOr<Tensors> {
    const int bits = std::get<IntSymmetric>(std::get<NumericsConfig>(*c.config).numerics).bits;
    return Tensors{{"y", Array::Scalar(static_cast<float>(bits))}};
  };
  const auto reason = [&](int bits_of_text) {
    const auto to_text = [&](const DotGeneral& config) {
      DotGeneral other = config;
      std::get<IntSymmetric>(other.fwd.lhs.quantizer.numerics).bits = bits_of_text;
      return ToText(other);
    };
    return CheckCase(golden_case, {}, {.runner = runner, .to_text = to_text}).reason;
  };
  EXPECT_EQ(reason(4), "");
  EXPECT_EQ(reason(5), "from the text: y has other bits than from the structs") << "within the tolerance";
  EXPECT_EQ(reason(8), "from the text: y []: got 8, want 4");
  EXPECT_THAT(reason(50), AllOf(StartsWith("from the text: INVALID_ARGUMENT: "), HasSubstr("bits = 50")));
}

// ---- what the library computes by default

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
      EXPECT_THAT(CheckCase(golden_case, set->semantics, {.fixed = &other}).reason, StartsWith(name));
      other.tensors.erase(name);
      EXPECT_THAT(CheckCase(golden_case, set->semantics, {.fixed = &other}).reason, StartsWith(name));
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
  const auto check = [&](const absl::StatusOr<Tensors>& result) {
    const auto runner = [&](const GoldenCase&, const Semantics&, Given&) { return result; };
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

// ---- verdicts

GoldenCase SmallCase() {
  return {.name = "small",
          .family = "f",
          .feature = "quantize",
          .config = CeilToPo2Config{},
          .inputs = {},
          .expected = {{"scale", Array::Scalar(2.0f), {}},
                       {"y", Array::Scalar(3.0f), {.given = {"scale"}}},
                       {"printed", Array::Scalar(4.0f), {.kind = Tolerance::Kind::kInfo}}}};
}

TEST(CheckCase, GivenTensorsTakeThePlaceOfComputedOnes) {
  int runs = 0;
  const auto runner = [&](const GoldenCase&, const Semantics&, Given& given) -> absl::StatusOr<Tensors> {
    ++runs;
    const Array scale = Array::Scalar(2.5f);
    return Tensors{{"scale", scale}, {"y", Array::Scalar(given.Or("scale", scale).View<float>()[0] + 1)}};
  };
  GoldenCase golden_case = SmallCase();
  CaseResult result = CheckCase(golden_case, {}, {.runner = runner});
  EXPECT_EQ(result.verdict, Verdict::kFailed);
  EXPECT_EQ(result.reason, "scale []: got 2.5, want 2") << "y follows from the given scale and is right";
  EXPECT_EQ(runs, 4) << "with and without the given tensor, from the structs and from their text";

  golden_case.expected[1].tolerance.given.clear();
  result = CheckCase(golden_case, {}, {.runner = runner});
  EXPECT_EQ(result.reason, "scale []: got 2.5, want 2 (and 1 more)");

  golden_case.expected[0].tolerance = {.kind = Tolerance::Kind::kRtol, .value = 0.25};
  golden_case.expected[1].tolerance.given = {"scale"};
  EXPECT_EQ(CheckCase(golden_case, {}, {.runner = runner}).verdict, Verdict::kPassed);
}

TEST(CheckCase, ZerosOfTheOtherSignAreCountedAndPass) {
  GoldenCase golden_case = SmallCase();
  golden_case.expected = {{"y", Array::Of<float>({0.0f, -0.0f, -0.0f, 1.0f}, {4}), {}}};
  const auto runner = [](const GoldenCase&, const Semantics&, Given&) -> absl::StatusOr<Tensors> {
    return Tensors{{"y", Array::Of<float>({-0.0f, 0.0f, -0.0f, 1.0f}, {4})}};
  };
  const CaseResult result = CheckCase(golden_case, {}, {.runner = runner});
  EXPECT_EQ(result.verdict, Verdict::kPassed);
  EXPECT_EQ(result.signed_zeros, 2);
}

TEST(CheckCase, ErrorsDecideTheVerdict) {
  const auto with = [](absl::StatusOr<Tensors> result) {
    const auto runner = [&](const GoldenCase&, const Semantics&, Given&) { return result; };
    return CheckCase(SmallCase(), {}, {.runner = runner});
  };
  CaseResult result = with(absl::UnimplementedError("no such thing"));
  EXPECT_EQ(result.verdict, Verdict::kNotSupported);
  EXPECT_EQ(result.reason, "no such thing");
  result = with(absl::InvalidArgumentError("wrong"));
  EXPECT_EQ(result.verdict, Verdict::kFailed);
  EXPECT_THAT(result.reason, HasSubstr("wrong"));
  // The given tensor is not taken: what follows from it is not supported, but the rest is still compared.
  result = with(Tensors{{"scale", Array::Scalar(2.0f)}, {"y", Array::Scalar(3.0f)}});
  EXPECT_EQ(result.verdict, Verdict::kNotSupported);
  EXPECT_THAT(result.reason, HasSubstr("given"));
  EXPECT_EQ(with(Tensors{{"scale", Array::Scalar(1.0f)}}).reason, "scale []: got 1, want 2");
  result = with(Tensors{});
  EXPECT_EQ(result.verdict, Verdict::kFailed);
  EXPECT_EQ(result.reason, "scale did not come out");
}

// ---- bad arguments and directories

class DirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = io::JoinPath(::testing::TempDir(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(fs_.CreateFolder(dir_).ok());
    for (const char* file : {"manifest.json", "readme.safetensors"}) {
      ASSERT_TRUE(io::CopyFile(fs_, io::JoinPath(kStock, file), io::JoinPath(dir_, file)).ok());
    }
  }
  void TearDown() override {
    const std::vector<std::string> names = *fs_.List(dir_);
    for (const std::string& name : names) EXPECT_TRUE(fs_.Remove(io::JoinPath(dir_, name)).ok());
    EXPECT_TRUE(fs_.Remove(dir_).ok());
  }
  void Edit(const std::string& file, const std::string& from, const std::string& to) {
    const std::string path = io::JoinPath(dir_, file);
    const std::string text = *io::ReadFile(fs_, path, 1 << 24);
    const std::string edited = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(text, edited);
    ASSERT_TRUE(io::WriteFile(fs_, path, edited, {.overwrite = true}).ok());
  }
  MainResult Check(const std::string& families = "readme") {
    return Main({absl::StrCat("--golden_dir=", dir_), absl::StrCat("--families=", families)});
  }
  void ExpectBad(const std::string& message, const std::string& families = "readme") {
    const MainResult result = Check(families);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(message));
  }

  const io::FileSystem& fs_ = io::LocalFileSystem();
  std::string dir_;
};

TEST_F(DirectoryTest, ACopyPasses) { EXPECT_EQ(Check().code, 0); }

TEST_F(DirectoryTest, AChangedConfigurationFailsWithALine) {
  Edit("manifest.json", "\"preserve_max_val\":true", "\"preserve_max_val\":false");
  const MainResult result = Check();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("FAILED readme.quantizer_linspace: "));
  EXPECT_THAT(result.out, HasSubstr("passed 3, failed 1, not supported 0\n"));
}

TEST_F(DirectoryTest, AnUnknownFeatureOrFieldIsNotSupported) {
  Edit("manifest.json", "\"readme_matmul\"", "\"readme_matmul_2\"");
  Edit("manifest.json", "\"calibration_axes\":[-1]", "\"stops\":1,\"calibration_axes\":[-1]");
  Edit("manifest.json", "\"layers\":\"Dense(16) relu Dense(4)\"", "\"layers\":\"Dense(16) gelu Dense(4)\"");
  const MainResult result = Main({absl::StrCat("--golden_dir=", dir_), "--families=readme", "--verbose"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("NOT SUPPORTED readme.aqt_matmul_int8: no public API for the feature readme_matmul_2\n"));
  EXPECT_THAT(result.out,
              HasSubstr("NOT SUPPORTED readme.quantizer_linspace: no public API for the quantizer field stops\n"));
  EXPECT_THAT(result.out, HasSubstr("NOT SUPPORTED readme.mlp_fp_old_prng: no public API for the layer gelu\n"));
}

TEST_F(DirectoryTest, MissingFiles) {
  ExpectBad("dot_general.safetensors", "dot_general");
  ASSERT_TRUE(fs_.Remove(io::JoinPath(dir_, "manifest.json")).ok());
  ExpectBad("manifest.json");
}

TEST_F(DirectoryTest, AnotherFileThanRecorded) {
  Edit("readme.safetensors", "readme.aqt", "readme.aqu");
  ExpectBad("readme.safetensors: its SHA-256 is ");
}

TEST_F(DirectoryTest, UnknownFamily) { ExpectBad("there is no family readmee", "readme,readmee"); }

TEST_F(DirectoryTest, AManifestThatIsNoJson) {
  Edit("manifest.json", "{\"format_version\"", "\"format_version\"");
  ExpectBad("parse error");
}

TEST_F(DirectoryTest, AManifestWithoutAField) {
  Edit("manifest.json", "\"arithmetic\"", "\"arithmetics\"");
  ExpectBad("arithmetic");
}

TEST_F(DirectoryTest, UnknownArithmeticAndVersion) {
  Edit("manifest.json", "\"xla\"", "\"xlb\"");
  ExpectBad("arithmetic is xlb, expected xla or ieee");
  Edit("manifest.json", "\"format_version\": 1", "\"format_version\": 2");
  ExpectBad("format_version is 2");
}

TEST_F(DirectoryTest, ToleranceThatIsNotUnderstood) {
  Edit("manifest.json", "\"kind\":\"exact\"", "\"kind\":\"close\"");
  ExpectBad("unknown tolerance kind close");
  Edit("manifest.json", "\"kind\":\"close\"", "\"kind\":\"exact\",\"ulps\":2");
  ExpectBad("unknown tolerance field ulps");
}

TEST_F(DirectoryTest, ATensorThatTheFileLacksOrHasOtherwise) {
  Edit("manifest.json", "readme.aqt_matmul_int8/a\"", "readme.aqt_matmul_int8/b\"");
  ExpectBad("tensor readme.aqt_matmul_int8/b is not in ");
  Edit("manifest.json", "readme.aqt_matmul_int8/b\"", "readme.aqt_matmul_int8/w\"");
  ExpectBad("tensor readme.aqt_matmul_int8/w is F32[4,5] in ");
}

TEST_F(DirectoryTest, AConfigurationWithoutAField) {
  Edit("manifest.json", "\"preserve_zero\":true,\"preserve_max_val\"", "\"preserve_max_val\"");
  ExpectBad("preserve_zero");
}

TEST_F(DirectoryTest, AnotherNumberOfCases) {
  Edit("manifest.json", "\"family\":\"readme\",\"feature\":\"quantize\"",
       "\"family\":\"calibration\",\"feature\":\"quantize\"");
  ExpectBad("family readme has 3 cases and ");
}

TEST(Arguments, BadOnesPrintTheUsage) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{},
                                                    {"--golden_dir="},
                                                    {absl::StrCat("--golden_dir=", kStock), "--famlies=readme"},
                                                    {kStock}}) {
    const MainResult result = Main(arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("\nusage: golden_check"));
  }
}

TEST(Arguments, BadOnesAreNamed) {
  const std::string dir = absl::StrCat("--golden_dir=", kStock);
  EXPECT_THAT(Main({dir, "--famlies=readme"}).err, StartsWith("golden_check: unknown argument --famlies=readme\n"));
  EXPECT_THAT(Main({dir, "--compat=both"}).err, StartsWith("golden_check: unknown argument --compat=both\n"));
  EXPECT_THAT(Main({"--verbose"}).err, StartsWith("golden_check: --golden_dir is missing\n"));
  EXPECT_THAT(Main({dir, "--fixed=f"}).err, StartsWith("golden_check: --fixed needs --compat=default\n"));
  EXPECT_THAT(Main({dir, "--compat=default", "--update_fixed"}).err,
              StartsWith("golden_check: --update_fixed needs --fixed=FILE\n"));
  EXPECT_THAT(Main({dir, "--compat=default", "--update_fixed", "--fixed=f", "--families=readme"}).err,
              StartsWith("golden_check: --update_fixed takes all families, not --families\n"));
}

TEST(Arguments, HelpIsNoError) {
  const MainResult result = Main({"--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, StartsWith("usage: golden_check --golden_dir=DIR"));
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace aqt::golden
