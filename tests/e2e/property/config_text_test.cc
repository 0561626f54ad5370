// Configurations and their texts: a random configuration comes back from its text, and a text with random changes is
// either read or refused with a position.
//
// AQT_TEST_SEED and AQT_TEST_CASES (in thousands) in the environment choose other cases.

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/text/config_proto.h"
#include "aqt/testing/calibrations.h"
#include "aqt/testing/random.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "configs/embedded_text.h"
#include "configs/inject_presets.h"
#include "configs/quant.pb.h"
#include "configs/quant_presets.h"
#include "gtest/gtest.h"
#include "serving/plan/convert_config.h"
#include "serving/plan/presets.h"

namespace aqt {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

const int64_t kSeed = FromEnvironment("AQT_TEST_SEED", 1);
const int64_t kThousands = FromEnvironment("AQT_TEST_CASES", 2);

// Configurations that are usually legal, with an occasional value in each field.
class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  DotGeneralConfig Config() {
    DotGeneralConfig config{.fwd = Raw(), .dlhs = Raw(), .drhs = Raw()};
    for (DotGeneralRawConfig* raw : {&config.dlhs, &config.drhs}) {
      raw->rhs.use_fwd_quant = OneIn(4);
      if (OneIn(4)) raw->local_aqt = Local();
    }
    if (OneIn(3)) config.tiling = DotTiling{.lhs = Tiling(), .rhs = Tiling()};
    return config;
  }

 private:
  bool OneIn(int64_t n) { return random_.Below(n) == 0; }
  template <class T>
  T Pick(const std::vector<T>& values) {
    return values[random_.Below(static_cast<int64_t>(values.size()))];
  }
  double Positive() {
    return Pick<double>(
        {0.1, 1.0 / 3, 1, 2.5, 5e-324, 1e308, std::numeric_limits<double>::infinity(), random_.Uniform(0, 9)});
  }
  aqt::Axes SomeAxes() {
    aqt::Axes axes;
    while (!OneIn(3)) axes.push_back(random_.Below(9) - 4);
    return axes;
  }
  std::optional<DType> Float() {
    return Pick<std::optional<DType>>({std::nullopt, DType::kF32, DType::kBF16, DType::kF16});
  }

  Numerics SomeNumerics() {
    switch (random_.Below(6)) {
      case 0: return NoNumerics{};
      case 1:
        return OneIn(2)
                   ? Fp8{.dtype = Pick<DType>({DType::kE4M3FN, DType::kBF16}), .stochastic_rounding = OneIn(2)}
                   : Fp8{.dtype = Pick<DType>({DType::kE5M2, DType::kBF16}), .exponent_bits = 5, .mantissa_bits = 2};
      case 2: {
        const FpFormat format{.nexp = static_cast<int>(random_.Below(8)),
                              .nmant = static_cast<int>(random_.Below(7)),
                              .has_subnormals = OneIn(2),
                              .radix = OneIn(4) ? 4 : 2};
        return Fp{.format = format, .stochastic_rounding = OneIn(2), .clip_gradient = OneIn(2)};
      }
      default: {
        IntSymmetric n{.bits = static_cast<int>(random_.Below(12)) + (OneIn(9) ? 0 : 1),
                       .preserve_zero = !OneIn(4),
                       .preserve_max_val = OneIn(2),
                       .clip = !OneIn(4),
                       .clip_gradient = OneIn(4),
                       .round = !OneIn(4)};
        n.dtype = Pick<std::optional<DType>>(
            {std::nullopt, DType::kS2, DType::kS4, DType::kS8, DType::kS32, DType::kF32, DType::kBF16, DType::kF16});
        if (OneIn(3)) {
          n.noise =
              Noise{Pick<NoiseKind>({NoiseKind::kJaxUniform, NoiseKind::kRandomCenteredUniform, NoiseKind::kFast}),
                    SomeAxes()};
        }
        return n;
      }
    }
  }

  ConstantValue Value() {
    if (OneIn(2)) return Positive();
    const DType dtype = Pick<DType>({DType::kF32, DType::kBF16, DType::kF16});
    Shape shape;
    while (!OneIn(2)) shape.push_back(random_.Below(4));
    return ConstantArray{testing::RandomArray({dtype, shape}, random_.Next())};
  }

  // Draws a field by its type.
  void Draw(double& field) { field = OneIn(8) ? random_.Uniform(-1, 1) : Positive(); }
  void Draw(bool& field) { field = OneIn(2); }
  void Draw(int& field) { field = static_cast<int>(random_.Below(33)); }
  void Draw(int64_t& field) { field = random_.Below(2000); }
  void Draw(ConstantValue& field) { field = Value(); }
  void Draw(std::vector<double>& field) {
    while (!OneIn(3)) field.push_back(Positive());
  }
  template <class T>
  void Draw(std::optional<T>& field) {
    Draw(field.emplace());
  }

  Calibration SomeCalibration() {
    Calibration calibration = Pick(testing::AllCalibrations());
    testing::VisitFields(calibration, [this](absl::string_view, auto& field) {
      if (OneIn(2)) Draw(field);
    });
    return calibration;
  }

  aqt::TensorConfig SomeTensor() {
    aqt::TensorConfig tensor;
    Quantizer& q = tensor.quantizer;
    q.numerics = SomeNumerics();
    if (OneIn(6)) q.calib_shared_axes.per_tensor = true;
    else if (OneIn(4)) q.calib_shared_axes.axes = SomeAxes();
    q.scale_stop_grad = !OneIn(4);
    q.scale_dtype = Float();
    if (!std::holds_alternative<NoNumerics>(q.numerics) || OneIn(2)) q.calibration = SomeCalibration();
    switch (random_.Below(4)) {
      case 0: tensor.dequant_mode = DequantMode::kThisInput; break;
      case 1:
        tensor.dequant_mode = DequantMode::kOtherInput;
        tensor.calibration_mode = CalibrationMode::kRemainingAxis;
        break;
      default: break;
    }
    const auto* constant = q.calibration.has_value() ? std::get_if<Constant>(&*q.calibration) : nullptr;
    if (constant != nullptr && constant->bias.has_value() && !OneIn(9)) tensor.dequant_mode = DequantMode::kThisInput;
    return tensor;
  }

  std::vector<AxisTiling> Tilings() {
    std::vector<AxisTiling> tilings;
    while (!OneIn(2)) {
      AxisTiling& tiling = tilings.emplace_back(AxisTiling{.axis = random_.Below(9) - 4});
      if (OneIn(2)) tiling.tile_count = random_.Below(9) + 1;
      if (!tiling.tile_count.has_value() || OneIn(3)) tiling.tile_size = random_.Below(1000) + 1;
    }
    return tilings;
  }
  TensorTiling Tiling() { return {.contraction_axes = Tilings(), .remaining_axes = Tilings()}; }

  LocalAqt Local() {
    if (OneIn(2)) return {.contraction_axis_shard_count = random_.Below(1000) + 1};
    return {.contraction_axis_shard_size = int64_t{1} << random_.Below(60), .tile_largest_shape = true};
  }

  DotGeneralRawConfig Raw() {
    DotGeneralRawConfig raw{.lhs = SomeTensor(), .rhs = SomeTensor()};
    raw.dg_accumulator_dtype = OneIn(9) ? DType::kS32 : Float();
    if (OneIn(9)) {
      raw.hadamard = Hadamard{.block = int64_t{2} << random_.Below(12)};
      if (!IsQuantized(raw.lhs.quantizer.numerics) && !IsQuantized(raw.rhs.quantizer.numerics)) raw.hadamard.reset();
      raw.allow_dummy_gradient_into_qtensor = OneIn(4);
      return raw;
    }
    if (OneIn(9)) raw.lhs_mid_alpha = random_.Uniform(-1, 1);
    if (OneIn(9)) raw.rhs_mid_alpha = 0.0;
    raw.allow_dummy_gradient_into_qtensor = OneIn(4);
    return raw;
  }

  testing::Random random_;
};

TEST(ConfigText, RandomConfigurationsComeBack) {
  int64_t legal = 0;
  for (int64_t i = 0; i < 1000 * kThousands; ++i) {
    const DotGeneralConfig config = Generator(static_cast<uint64_t>(kSeed * 1000003 + i)).Config();
    const absl::StatusOr<DotGeneralConfig> from_proto = FromProto(ToProto(config));
    const std::string text = ToText(config);
    const absl::StatusOr<DotGeneralConfig> from_text = DotGeneralFromText(text);
    ASSERT_EQ(from_proto.ok(), from_text.ok()) << i << from_proto.status() << from_text.status();
    if (!from_proto.ok()) {
      // The same message, after the position.
      ASSERT_TRUE(absl::EndsWith(from_text.status().message(), absl::StrCat(": ", from_proto.status().message())))
          << from_text.status() << from_proto.status();
      continue;
    }
    ++legal;
    ASSERT_TRUE(*from_proto == config) << i << "\n" << text << "became\n" << ToText(*from_proto);
    ASSERT_TRUE(*from_text == config) << i << "\n" << text << "became\n" << ToText(*from_text);
    ASSERT_EQ(ToText(*from_text), text) << i;
  }
  EXPECT_GT(legal, 100 * kThousands);  // otherwise the generator needs attention
}

// ---- changed texts

using Reader = std::function<absl::Status(absl::string_view text)>;

// Changes of one text, of a byte up to a block, with words from any of the texts.
class Mutator {
 public:
  Mutator(uint64_t seed, const std::vector<std::string>& texts) : random_(seed), texts_(texts) {}

  std::string Mutated() {
    std::string text = Pick(texts_);
    for (int64_t n = 1 + random_.Below(4); n > 0; --n) Change(text);
    return text;
  }

 private:
  template <class T>
  const T& Pick(const std::vector<T>& values) {
    return values[random_.Below(static_cast<int64_t>(values.size()))];
  }

  // First and end of a random piece of up to `longest` bytes.
  std::pair<size_t, size_t> Piece(const std::string& text, int64_t longest) {
    const size_t first = random_.Below(static_cast<int64_t>(text.size()) + 1);
    return {first, std::min(text.size(), first + random_.Below(longest + 1))};
  }
  // A word, number or sign, and its possible neighbours.
  std::string Word() {
    static const auto* const kOdd = new std::vector<std::string>{
        "nan",      "-inf",      "1e999",     "-1",        "0x7fffffff",  "18446744073709551616",
        "true",     "\"",        "'\\xff'",   "\"\\",      "{",           "}",
        "<",        ">",         "[",         "]",         "[]",          "{}",
        ":",        ",",         ";",         "#",         "\n",          std::string(1, '\0'),
        "\xff\xfe", "[a.b.c/d]", "schema: 2", "base: 'x'", "clear: 'fwd'"};
    if (random_.Below(3) == 0) return Pick(*kOdd);
    const std::string& text = Pick(texts_);
    size_t first = random_.Below(static_cast<int64_t>(text.size()));
    const auto is_word = [&](size_t i) {
      return std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_';
    };
    while (first > 0 && is_word(first - 1)) --first;
    size_t end = first;
    while (end < text.size() && is_word(end)) ++end;
    return text.substr(first, std::max<size_t>(end - first, 1));
  }

  void Change(std::string& text) {
    const auto [first, end] = Piece(text, random_.Below(3) == 0 ? 60 : 4);
    switch (random_.Below(6)) {
      case 0: text.erase(first, end - first); break;
      case 1: text.insert(first, text.substr(first, end - first)); break;
      case 2: text.insert(first, Word()); break;
      case 3: text.replace(first, end - first, Word()); break;
      case 4: text.replace(first, end - first, Pick(texts_).substr(0, random_.Below(200))); break;
      default:
        if (first < text.size()) text[first] = static_cast<char>(random_.Next());
    }
  }

  testing::Random random_;
  const std::vector<std::string>& texts_;
};

// Empty if `message` begins with "t:LINE:COLUMN: " of a place in `text`, or just after it.
std::string ProblemOfPosition(absl::string_view message, absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(message, absl::MaxSplits(':', 3));
  int64_t line = 0, column = 0;
  if (parts.size() < 4 || parts[0] != "t" || !absl::SimpleAtoi(parts[1], &line) ||
      !absl::SimpleAtoi(parts[2], &column) || !absl::StartsWith(parts[3], " ") || parts[3].size() < 4) {
    return "no position, or no message";
  }
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (line < 1 || line > static_cast<int64_t>(lines.size())) return "no such line";
  // A tab advances to the next multiple of 8.
  if (column < 1 || column > 8 * static_cast<int64_t>(lines[line - 1].size()) + 1) return "no such column";
  return "";
}

void ExpectReadOrRefused(const std::vector<std::string>& texts, const Reader& reader) {
  for (const std::string& text : texts) EXPECT_TRUE(reader(text).ok()) << text;
  int64_t refused = 0;
  for (int64_t i = 0; i < 1000 * kThousands; ++i) {
    const std::string text = Mutator(static_cast<uint64_t>(kSeed * 1000003 + i), texts).Mutated();
    const absl::Status status = reader(text);
    if (status.ok()) continue;
    ++refused;
    ASSERT_TRUE(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status)) << i << status << "\n" << text;
    ASSERT_EQ(ProblemOfPosition(status.message(), text), "") << i << status << "\n" << text;
  }
  EXPECT_GT(refused, 200 * kThousands);
  EXPECT_LT(refused, 1000 * kThousands);  // some changes make a text valid
}

std::vector<std::string> TextsOf(const std::vector<config::EmbeddedText>& presets) {
  std::vector<std::string> texts;
  for (const config::EmbeddedText& preset : presets) texts.push_back(preset.text);
  return texts;
}

TEST(ConfigText, ChangedContractionsAreReadOrRefusedWithAPosition) {
  std::vector<std::string> texts = TextsOf(config::QuantPresets());
  for (uint64_t seed = 0; texts.size() < 40; ++seed) {
    const std::string text = ToText(Generator(seed).Config());
    if (DotGeneralFromText(text).ok()) texts.push_back(text);
  }
  ExpectReadOrRefused(texts, [](absl::string_view text) {
    const absl::StatusOr<DotGeneralConfig> config = DotGeneralFromText(text, "t");
    if (!config.ok()) return config.status();
    EXPECT_TRUE(*DotGeneralFromText(ToText(*config)) == *config) << text;
    return absl::OkStatus();
  });
}

TEST(ConfigText, ChangedRulesAreReadOrRefusedWithAPosition) {
  ExpectReadOrRefused(TextsOf(config::InjectPresets()), [](absl::string_view text) {
    const absl::StatusOr<InjectConfig> config = InjectConfigFromText(text, "t");
    if (!config.ok()) return config.status();
    EXPECT_TRUE(*InjectConfigFromText(ToText(*config)) == *config) << text;
    return absl::OkStatus();
  });
}

TEST(ConfigText, ChangedConversionsAreReadOrRefusedWithAPosition) {
  ExpectReadOrRefused(TextsOf(serving::ConvertPresets()),
                      [](absl::string_view text) { return serving::ParseConvertConfig(text, "t").status(); });
}

TEST(ConfigText, LongAndDeepTexts) {
  for (const char* piece : {"{", "fwd {", "fwd { lhs {", "schema: 1 ", "# ", "\"", "clear: 'fwd' ", "\n", "<", "["}) {
    std::string text;
    while (text.size() < 200000) text += piece;
    const absl::Status status = DotGeneralFromText(text, "t").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << piece;
    EXPECT_EQ(ProblemOfPosition(status.message(), text), "") << status;
  }
}

}  // namespace
}  // namespace aqt
