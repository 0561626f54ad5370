#include "tests/golden_check/golden_check.h"
#include "aqt/quant/config/semantics.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/text/config_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden_check/golden_check_testing.h"
#include "tests/golden_check/manifest.h"
#include "tests/golden_check/through_text.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAreArray;

// ---- the recorded cases

// Intended refusals of programs, by case: operands that cannot be stored.
using Refusals = std::map<std::string, std::string>;
constexpr char kBias[] =
    "aqt_quantize [contraction]: an operand with a calibration bias cannot be quantized ahead of time";
constexpr char kMidAlphas[] =
    "aqt_dot_general [contraction]: DotGeneral: the tensor for fwd.lhs: with mid alphas a quantized operand depends on "
    "the other one";

// Every case of the subset passes, and programs refuse exactly these. `minimum` detects a smaller subset.
void ExpectAllPass(const std::string& dir, const std::map<std::string, int>& minimum, const Refusals& refusals) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", dir), "--verbose"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  std::vector<std::string> refused, want_refused;
  for (const auto& [name, reason] : refusals) {
    for (const char* way : {"program", "prepared program"}) {
      want_refused.push_back(absl::StrCat("REFUSED ", name, " as a ", way,
                                          ": fwd.lhs.scale, fwd.lhs.qvalue, fwd.rhs.scale, fwd.rhs.qvalue: ", reason));
    }
  }
  std::map<std::string, int> passed;
  for (const absl::string_view line : absl::StrSplit(result.out, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "REFUSED ")) {
      refused.emplace_back(line);
      continue;
    }
    EXPECT_TRUE(absl::EndsWith(line, ", failed 0, not supported 0")) << line;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" ,:"), absl::SkipEmpty());
    if (words.size() > 2 && words[1] == "passed") passed[words[0]] = std::stoi(words[2]);
  }
  EXPECT_THAT(refused, UnorderedElementsAreArray(want_refused));
  for (const auto& [family, count] : minimum) EXPECT_GE(passed[family], count) << family;
}

TEST(GoldenCases, StockXlaAllPass) {
  ExpectAllPass(kStock,
                {{"int_numerics", 45},
                 {"fp8_numerics", 12},
                 {"fp_numerics", 45},
                 {"calibration", 22},
                 {"dot_general", 35},
                 {"stochastic_rounding", 20},
                 {"local_aqt_tiling", 16},
                 {"einsum_conv_ragged", 25},
                 {"serving", 6},
                 {"training", 4},
                 {"readme", 4}},
                {{"dot_general.fake_const_bias.col.f32", kBias},
                 {"dot_general.fake_const_bias.one.f16", kBias},
                 {"dot_general.mid_alpha05.outer.f32", kMidAlphas}});
}

TEST(GoldenCases, IeeeAllPass) {
  ExpectAllPass(kIeee, {{"int_numerics", 40}, {"calibration", 15}, {"dot_general", 28}, {"serving", 6}, {"readme", 3}},
                {{"dot_general.fake_const_bias.col.f32", kBias}, {"dot_general.mid_alpha05.outer.f32", kMidAlphas}});
}

TEST(GoldenCases, OnlyTheWaysAskedForAreRun) {
  const std::string dir = absl::StrCat("--golden_dir=", kStock);
  const MainResult plans = Main({dir, "--families=einsum_conv_ragged,serving", "--ways=plan"});
  EXPECT_EQ(plans.code, 0) << plans.out << plans.err;
  EXPECT_THAT(plans.out, HasSubstr("\nserving: passed 0, failed 0, not supported 0\n"));
  EXPECT_THAT(plans.out, HasSubstr("\nleft out, without these ways: 7\n"));
  EXPECT_THAT(Main({dir, "--families=serving", "--ways=prepared,program"}).out,
              StartsWith("serving: passed 7, failed 0, not supported 0\n"));
}

TEST(GoldenCases, OnlyTheFamiliesAskedForAreRead) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", kStock), "--families=readme,calibration"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("calibration: passed "));
  EXPECT_THAT(result.out, HasSubstr("\nreadme: passed "));
  EXPECT_THAT(result.out, Not(HasSubstr("dot_general")));
}

// ---- the checker detects a library with other results

bool HasWay(const GoldenCase& golden_case, Way way) {
  const std::vector<Way> ways = WaysOf(golden_case);
  return std::find(ways.begin(), ways.end(), way) != ways.end();
}

struct Recording {
  const char* dir;
  Way way;  // the only way in which cases run
};

class MutationTest : public ::testing::TestWithParam<Recording> {
 protected:
  MutationTest() {
    if (GetParam().dir != kStock) return;
    for (const char* family : {"local_aqt_tiling", "einsum_conv_ragged", "training"}) families_.push_back(family);
  }

  // Families with configurations whose changes are visible in exact tensors.
  std::vector<std::string> families_ = {"int_numerics", "dot_general", "serving", "readme"};
  // The number of failing cases among those that `mutate` changes (and returns true for). The others are named.
  int CountFailures(const std::function<bool(GoldenCase&)>& mutate) {
    const auto& [dir, way] = GetParam();
    absl::StatusOr<GoldenSet> set = LoadGolden(io::LocalFileSystem(), dir, families_);
    EXPECT_TRUE(set.ok()) << set.status();
    int failures = 0;
    for (GoldenFamily& family : set->families) {
      for (GoldenCase& golden_case : family.cases) {
        if (!HasWay(golden_case, way) || !mutate(golden_case)) continue;
        const bool failed = CheckCase(golden_case, set->semantics, {.ways = {way}}).verdict == Verdict::kFailed;
        EXPECT_TRUE(failed) << golden_case.name;
        failures += failed;
      }
    }
    return failures;
  }
};

INSTANTIATE_TEST_SUITE_P(, MutationTest,
                         ::testing::Values(Recording{kStock, Way::kPlan}, Recording{kIeee, Way::kPlan},
                                           Recording{kStock, Way::kProgram}, Recording{kStock, Way::kPrepared}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.dir == kStock ? "stock_" : "ieee_", ToString(info.param.way));
                         });

// Calls f on each quantizer that the case uses; returns whether a call returned true.
bool ForEachQuantizer(GoldenCase& golden_case, const std::function<bool(Quantizer&)>& f) {
  const bool gradients = golden_case.family == "training" || golden_case.inputs.contains("g");
  bool any = false;
  const auto quantizer = [&](Quantizer& part) {
    any |= f(part);
    return absl::OkStatus();
  };
  const auto dot_general = [&](DotGeneralConfig& part) {
    for (DotGeneralRawConfig* raw : {&part.fwd, &part.dlhs, &part.drhs}) {
      if (raw != &part.fwd && !gradients) continue;
      for (TensorConfig* tensor : {&raw->lhs, &raw->rhs}) any |= f(tensor->quantizer);
    }
    return absl::OkStatus();
  };
  const auto numerics = [](Numerics&) { return absl::OkStatus(); };
  EXPECT_TRUE(VisitParts(*golden_case.config, {dot_general, quantizer, numerics}).ok());
  return any;
}

// 127 instead of 127.5.
TEST_P(MutationTest, AnotherQuantBoundFails) {
  const int failures = CountFailures([](GoldenCase& golden_case) {
    for (const auto& [name, input] : golden_case.inputs) {
      if (input.dtype() == DType::kBF16) return false;  // has so few bits that both bounds give the same result
    }
    return ForEachQuantizer(golden_case, [](Quantizer& quantizer) {
      auto* integer = std::get_if<IntSymmetric>(&quantizer.numerics);
      if (integer == nullptr || integer->bits != 8 || !integer->preserve_zero || integer->preserve_max_val)
        return false;
      if (!quantizer.calibration.has_value() || !std::holds_alternative<AbsMax>(*quantizer.calibration)) return false;
      // Rounded up to powers of two, both bounds can give the same result.
      if (std::get<AbsMax>(*quantizer.calibration).po2_scale) return false;
      integer->preserve_max_val = true;
      return true;
    });
  });
  EXPECT_GE(failures, 10);
}

// Half-integers instead of integers, and vice versa; in models, truncation.
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

// A library that forgets to multiply the product by one scale, and is otherwise unchanged.
TEST(Mutation, AScaleThatIsNotAppliedFails) {
  absl::StatusOr<GoldenSet> set = LoadGolden(io::LocalFileSystem(), kStock, {"dot_general"});
  ASSERT_TRUE(set.ok()) << set.status();
  int seen = 0;
  for (GoldenCase& golden_case : set->families[0].cases) {
    auto& config = std::get<DotConfig>(*golden_case.config).config;
    const auto scaled = [](const TensorConfig& t) {
      return std::holds_alternative<IntSymmetric>(t.quantizer.numerics) && t.dequant_mode == DequantMode::kOutput;
    };
    if (!scaled(config.fwd.lhs) || !scaled(config.fwd.rhs)) continue;
    bool differs = false;
    const auto forget = [&](const GoldenCase& c, const Semantics& semantics, Given& given,
                            Way way) -> absl::StatusOr<Computed> {
      absl::StatusOr<Computed> computed = RunCase(c, semantics, given, way);
      if (!computed.ok()) return computed;
      Tensors& tensors = computed->tensors;
      const Array unscaled = Cast(tensors.at("fwd.accum"), tensors.at("out").dtype());
      differs = Compare(unscaled, tensors.at("out"), {}).has_value();
      tensors.at("out") = unscaled;
      return computed;
    };
    const CaseResult result = CheckCase(golden_case, set->semantics, {.runner = forget, .ways = {Way::kPlan}});
    if (!differs) continue;
    ++seen;
    EXPECT_EQ(result.verdict, Verdict::kFailed) << golden_case.name;
    EXPECT_THAT(result.reason, StartsWith("out ")) << golden_case.name;
  }
  EXPECT_GE(seen, 15);
}

// `value` with another bit in its last byte.
Array WithFlippedBit(const Array& value) {
  ArrayBuilder builder(value.dtype(), value.shape());
  std::memcpy(builder.data(), value.data(), value.num_bytes());
  static_cast<char*>(builder.data())[value.num_bytes() - 1] ^= 1;
  return std::move(builder).Build();
}

// One bit of one tensor is wrong, in one way.
TEST(Mutation, AWrongBitInOneWayFails) {
  absl::StatusOr<GoldenSet> set =
      LoadGolden(io::LocalFileSystem(), kStock, {"dot_general", "einsum_conv_ragged", "serving", "training"});
  ASSERT_TRUE(set.ok()) << set.status();
  std::map<std::string, int> seen;
  for (const GoldenFamily& family : set->families) {
    for (size_t i = 0; i < family.cases.size(); ++i) {
      const GoldenCase& golden_case = family.cases[i];
      const std::vector<Way> ways = WaysOf(golden_case);
      for (const Way way : ways) {
        const ExpectedTensor& tensor = golden_case.expected[i % golden_case.expected.size()];
        if (!IsShown(golden_case, way, tensor.name) || tensor.value.num_bytes() == 0) continue;
        bool changed = false;
        const auto flip = [&](const GoldenCase& c, const Semantics& semantics, Given& given,
                              Way run_way) -> absl::StatusOr<Computed> {
          absl::StatusOr<Computed> computed = RunCase(c, semantics, given, run_way);
          if (!computed.ok() || run_way != way || !computed->tensors.contains(tensor.name)) return computed;
          Array& value = computed->tensors.at(tensor.name);
          value = WithFlippedBit(value);
          changed = true;
          return computed;
        };
        const CaseResult result = CheckCase(golden_case, set->semantics, {.runner = flip});
        if (!changed) continue;
        SCOPED_TRACE(absl::StrCat(golden_case.name, ", ", tensor.name, " as ", ToString(way)));
        ++seen[absl::StrCat(family.name, " ", ToString(way))];
        EXPECT_EQ(result.verdict, Verdict::kFailed);
        if (way == ways[0]) continue;  // the other runs may differ
        const char* label = way == Way::kProgram ? "as a program: " : "as a prepared program: ";
        EXPECT_THAT(result.reason, StartsWith(absl::StrCat(label, tensor.name, " ")));
      }
    }
  }
  for (const char* run : {"dot_general plan", "dot_general program", "dot_general prepared", "einsum_conv_ragged plan",
                          "einsum_conv_ragged program", "einsum_conv_ragged prepared", "serving program",
                          "serving prepared", "training program", "training prepared"}) {
    EXPECT_GE(seen[run], 2) << run;
  }
}

// One tile for each axis, and one shard: the correct product, with the scales of another one.
TEST(Mutation, ATilingThatIsForgottenFails) {
  absl::StatusOr<GoldenSet> set = LoadGolden(io::LocalFileSystem(), kStock, {"local_aqt_tiling"});
  ASSERT_TRUE(set.ok()) << set.status();
  int tiled = 0, local = 0;
  for (GoldenCase& golden_case : set->families[0].cases) {
    DotGeneralConfig& config = std::get<DotConfig>(*golden_case.config).config;
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

// ---- both sources of the configuration

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
    const auto to_text = [&](const DotGeneralConfig& config) { return Without(ToText(config), field); };
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
  const auto runner = [](const GoldenCase& c, const Semantics&, Given&, Way) -> absl::StatusOr<Computed> {
    const int bits = std::get<IntSymmetric>(std::get<NumericsConfig>(*c.config).numerics).bits;
    return Tensors{{"y", Array::Scalar(static_cast<float>(bits))}};
  };
  const auto reason = [&](int bits_of_text) {
    const auto to_text = [&](const DotGeneralConfig& config) {
      DotGeneralConfig other = config;
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
  const auto runner = [&](const GoldenCase&, const Semantics&, Given& given, Way) -> absl::StatusOr<Computed> {
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
  const auto runner = [](const GoldenCase&, const Semantics&, Given&, Way) -> absl::StatusOr<Computed> {
    return Tensors{{"y", Array::Of<float>({-0.0f, 0.0f, -0.0f, 1.0f}, {4})}};
  };
  const CaseResult result = CheckCase(golden_case, {}, {.runner = runner});
  EXPECT_EQ(result.verdict, Verdict::kPassed);
  EXPECT_EQ(result.signed_zeros, 2);
}

TEST(CheckCase, ErrorsDecideTheVerdict) {
  const auto with = [](absl::StatusOr<Computed> result) {
    const auto runner = [&](const GoldenCase&, const Semantics&, Given&, Way) { return result; };
    return CheckCase(SmallCase(), {}, {.runner = runner});
  };
  CaseResult result = with(absl::UnimplementedError("no such thing"));
  EXPECT_EQ(result.verdict, Verdict::kNotSupported);
  EXPECT_EQ(result.reason, "no such thing");
  result = with(absl::InvalidArgumentError("wrong"));
  EXPECT_EQ(result.verdict, Verdict::kFailed);
  EXPECT_THAT(result.reason, HasSubstr("wrong"));
  // The given tensor is not used: results that depend on it are not supported, but the rest is compared.
  result = with(Tensors{{"scale", Array::Scalar(2.0f)}, {"y", Array::Scalar(3.0f)}});
  EXPECT_EQ(result.verdict, Verdict::kNotSupported);
  EXPECT_THAT(result.reason, HasSubstr("given"));
  EXPECT_EQ(with(Tensors{{"scale", Array::Scalar(1.0f)}}).reason, "scale []: got 1, want 2");
  result = with(Tensors{});
  EXPECT_EQ(result.verdict, Verdict::kFailed);
  EXPECT_EQ(result.reason, "scale did not come out");
}

}  // namespace
}  // namespace aqt::golden
