#include "tests/golden_check/golden_check.h"

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden_check/manifest.h"

namespace aqt::golden {
namespace {

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
                         {"fp8_numerics", 8},
                         {"calibration", 9},
                         {"dot_general", 30},
                         {"stochastic_rounding", 20},
                         {"readme", 4}});
}

TEST(GoldenCases, IeeeAllPass) {
  ExpectAllPass(kIeee, {{"int_numerics", 40}, {"calibration", 6}, {"dot_general", 24}, {"readme", 3}});
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
  // How many cases fail with the change of their configuration that `mutate` makes (and tells). The others are named.
  int CountFailures(const std::function<bool(GoldenCase&)>& mutate) {
    absl::StatusOr<GoldenSet> set =
        LoadGolden(io::LocalFileSystem(), GetParam(), {"int_numerics", "dot_general", "readme"});
    EXPECT_TRUE(set.ok()) << set.status();
    int failures = 0;
    for (GoldenFamily& family : set->families) {
      for (GoldenCase& golden_case : family.cases) {
        if (!mutate(golden_case)) continue;
        const bool failed = CheckCase(golden_case, set->environment).verdict == Verdict::kFailed;
        EXPECT_TRUE(failed) << golden_case.name;
        failures += failed;
      }
    }
    return failures;
  }
};

INSTANTIATE_TEST_SUITE_P(, MutationTest, ::testing::Values(kStock, kIeee),
                         [](const auto& info) { return info.param == kStock ? "stock" : "ieee"; });

// Calls f on each quantizer of the case; whether one returned true.
bool ForEachQuantizer(GoldenCase& golden_case, const std::function<bool(Quantizer&)>& f) {
  const auto of = [&](DotGeneral& config) {
    bool any = false;
    for (DotGeneralRaw* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
      for (Tensor* tensor : {&raw->lhs, &raw->rhs}) any |= f(tensor->quantizer);
    }
    return any;
  };
  if (auto* quantize = std::get_if<QuantizeConfig>(&*golden_case.config)) return f(quantize->quantizer);
  if (auto* dot_general = std::get_if<DotGeneralConfig>(&*golden_case.config)) return of(dot_general->config);
  if (auto* mlp = std::get_if<MlpConfig>(&*golden_case.config)) return mlp->dot_general && of(*mlp->dot_general);
  return false;
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

// Half-integers in place of integers, and the other way round.
TEST_P(MutationTest, AnotherRoundingFails) {
  const int failures = CountFailures([](GoldenCase& golden_case) {
    return ForEachQuantizer(golden_case, [](Quantizer& quantizer) {
      auto* integer = std::get_if<IntSymmetric>(&quantizer.numerics);
      if (integer == nullptr || integer->dtype.has_value() || !integer->round) return false;
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
    const auto forget = [&](const GoldenCase& c, const Environment& env, Given& given) -> absl::StatusOr<Tensors> {
      absl::StatusOr<Tensors> tensors = RunCase(c, env, given);
      if (!tensors.ok()) return tensors;
      const Array unscaled = Cast(tensors->at("fwd.accum"), tensors->at("out").dtype());
      differs = Compare(unscaled, tensors->at("out"), {}).has_value();
      tensors->at("out") = unscaled;
      return tensors;
    };
    const CaseResult result = CheckCase(golden_case, set->environment, forget);
    if (!differs) continue;
    ++seen;
    EXPECT_EQ(result.verdict, Verdict::kFailed) << golden_case.name;
    EXPECT_THAT(result.reason, StartsWith("out ")) << golden_case.name;
  }
  EXPECT_GE(seen, 15);
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
  const auto runner = [&](const GoldenCase&, const Environment&, Given& given) -> absl::StatusOr<Tensors> {
    ++runs;
    const Array scale = Array::Scalar(2.5f);
    return Tensors{{"scale", scale}, {"y", Array::Scalar(given.Or("scale", scale).View<float>()[0] + 1)}};
  };
  GoldenCase golden_case = SmallCase();
  CaseResult result = CheckCase(golden_case, {}, runner);
  EXPECT_EQ(result.verdict, Verdict::kFailed);
  EXPECT_EQ(result.reason, "scale []: got 2.5, want 2") << "y follows from the given scale and is right";
  EXPECT_EQ(runs, 2);

  golden_case.expected[1].tolerance.given.clear();
  result = CheckCase(golden_case, {}, runner);
  EXPECT_EQ(result.reason, "scale []: got 2.5, want 2 (and 1 more)");

  golden_case.expected[0].tolerance = {.kind = Tolerance::Kind::kRtol, .value = 0.25};
  golden_case.expected[1].tolerance.given = {"scale"};
  EXPECT_EQ(CheckCase(golden_case, {}, runner).verdict, Verdict::kPassed);
}

TEST(CheckCase, ErrorsDecideTheVerdict) {
  const auto with = [](absl::StatusOr<Tensors> result) {
    return CheckCase(SmallCase(), {}, [&](const GoldenCase&, const Environment&, Given&) { return result; });
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
  Edit("manifest.json", "\"scale_stop_grad\"", "\"stops\":1,\"scale_stop_grad\"");
  const MainResult result = Main({absl::StrCat("--golden_dir=", dir_), "--families=readme", "--verbose"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("NOT SUPPORTED readme.aqt_matmul_int8: no public API for the feature readme_matmul_2\n"));
  EXPECT_THAT(result.out,
              HasSubstr("NOT SUPPORTED readme.quantizer_linspace: no public API for the quantizer field stops\n"));
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
    EXPECT_THAT(result.err, StartsWith("usage: golden_check"));
  }
}

}  // namespace
}  // namespace aqt::golden
