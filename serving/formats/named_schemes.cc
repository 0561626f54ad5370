#include "serving/formats/named_schemes.h"

#include <array>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/io/printable.h"
#include "aqt/quant/weights/microscaled.h"
#include "serving/formats/weight_formats.h"

namespace aqt::serving {
namespace {

constexpr char kIntegers[] =
    "W8A8, INT8, W4A16_ASYM, W2A4, W2A8, W2A16, W3A4, W3A8, W3A16, W4A4, W4A8, W4A16, W5A8, W5A16, W6A8, W6A16, W7A8, "
    "W7A16, W8A16";
constexpr char kFloats[] =
    "FP8, FP8_DYNAMIC, FP8_BLOCK, W4AFP8, NVFP4, NVFP4A16, MXFP4, MXFP4A16, MXFP4XFP8, MXFP6A8, MXFP6A16, MXFP8, "
    "MXFP8A16";
constexpr int64_t kGroupSize = 128;

// Integer weights in groups of 128, by the bits of weights and activations (16: floating point).
struct Grouped {
  absl::string_view name;
  int weight_bits;
  int input_bits;
};
constexpr Grouped kGrouped[] = {
    {"W2A4", 2, 4},   {"W2A8", 2, 8}, {"W2A16", 2, 16}, {"W3A4", 3, 4},   {"W3A8", 3, 8},   {"W3A16", 3, 16},
    {"W4A4", 4, 4},   {"W4A8", 4, 8}, {"W4A16", 4, 16}, {"W5A8", 5, 8},   {"W5A16", 5, 16}, {"W6A8", 6, 8},
    {"W6A16", 6, 16}, {"W7A8", 7, 8}, {"W7A16", 7, 16}, {"W8A16", 8, 16},
};

// Floats in groups with scales of 8 bits, by the bits of weights and activations (16: floating point).
struct Microscaled {
  absl::string_view name;
  ScaleType scale_type;
  int weight_bits;
  int input_bits;
};
constexpr Microscaled kMicroscaled[] = {
    {"NVFP4", ScaleType::kE4M3, 4, 4},     {"NVFP4A16", ScaleType::kE4M3, 4, 16}, {"MXFP4", ScaleType::kE8M0, 4, 4},
    {"MXFP4A16", ScaleType::kE8M0, 4, 16}, {"MXFP6A8", ScaleType::kE8M0, 6, 8},   {"MXFP6A16", ScaleType::kE8M0, 6, 16},
    {"MXFP8", ScaleType::kE8M0, 8, 8},     {"MXFP8A16", ScaleType::kE8M0, 8, 16},
};

Scheme WithDefaultFormat(Scheme scheme) {
  scheme.format = DefaultFormat(scheme.weights, scheme.input.has_value());
  return scheme;
}

Scheme GroupedScheme(int weight_bits, int input_bits) {
  Scheme scheme;
  scheme.weights.num_bits = weight_bits;
  scheme.weights.strategy = WeightStrategy::kGroup;
  scheme.weights.group_size = kGroupSize;
  if (input_bits < 16) {
    scheme.input.emplace();
    scheme.input->num_bits = input_bits;
  }
  return scheme;
}

Scheme MicroscaledScheme(ScaleType scale_type, int weight_bits, int input_bits) {
  Scheme scheme;
  scheme.weights.type = ValueType::kFloat;
  scheme.weights.num_bits = weight_bits;
  scheme.weights.strategy = WeightStrategy::kGroup;
  scheme.weights.group_size = compressed_tensors::GroupSizeOf(scale_type);
  scheme.weights.scale_type = scale_type;
  if (input_bits < 16) {
    scheme.input.emplace();
    scheme.input->type = ValueType::kFloat;
    scheme.input->num_bits = input_bits;
    scheme.input->strategy = InputStrategy::kGroup;
    scheme.input->group_size = scheme.weights.group_size;
    scheme.input->scale_type = scale_type;
  }
  return scheme;
}

Scheme FloatScheme(WeightStrategy strategy, InputStrategy input, bool dynamic) {
  Scheme scheme;
  scheme.weights.type = ValueType::kFloat;
  scheme.weights.strategy = strategy;
  scheme.input.emplace();
  scheme.input->type = ValueType::kFloat;
  scheme.input->strategy = input;
  scheme.input->dynamic = dynamic;
  return scheme;
}

// The preset of that name, in capitals, with the default layout; null if there is none.
std::optional<Scheme> FindPreset(absl::string_view name) {
  for (const Grouped& grouped : kGrouped) {
    if (name == grouped.name) return WithDefaultFormat(GroupedScheme(grouped.weight_bits, grouped.input_bits));
  }
  for (const Microscaled& m : kMicroscaled) {
    if (name == m.name) return WithDefaultFormat(MicroscaledScheme(m.scale_type, m.weight_bits, m.input_bits));
  }
  if (name == "MXFP4XFP8") {
    Scheme scheme = MicroscaledScheme(ScaleType::kE8M0, 4, 8);
    scheme.input->group_size = kGroupSize;
    scheme.input->scale_type = ScaleType::kWeight;
    return WithDefaultFormat(scheme);
  }
  if (name == "W4AFP8") {
    Scheme scheme = GroupedScheme(4, 8);
    scheme.input->type = ValueType::kFloat;
    return WithDefaultFormat(scheme);
  }
  if (name == "W4A16_ASYM") {
    Scheme scheme = GroupedScheme(4, 16);
    scheme.weights.symmetric = false;
    return WithDefaultFormat(scheme);
  }
  if (name == "W8A8" || name == "INT8") {
    Scheme scheme;  // int8 per channel
    scheme.input.emplace();
    return WithDefaultFormat(scheme);
  }
  if (name == "FP8") {
    return WithDefaultFormat(FloatScheme(WeightStrategy::kTensor, InputStrategy::kTensor, /*dynamic=*/false));
  }
  if (name == "FP8_DYNAMIC") {
    return WithDefaultFormat(FloatScheme(WeightStrategy::kChannel, InputStrategy::kToken, /*dynamic=*/true));
  }
  if (name == "FP8_BLOCK") return Fp8Scheme(std::array<int64_t, 2>{128, 128}, /*dynamic=*/true);
  return std::nullopt;
}

}  // namespace

std::optional<Scheme> SchemeNamed(absl::string_view name) {
  if (name != absl::AsciiStrToUpper(name)) return std::nullopt;
  return FindPreset(name);
}

std::vector<std::string> SchemeNames() { return absl::StrSplit(absl::StrCat(kIntegers, ", ", kFloats), ", "); }

absl::StatusOr<Scheme> PresetScheme(absl::string_view given) {
  const std::string name = absl::AsciiStrToUpper(given);
  if (const std::optional<Scheme> scheme = FindPreset(name); scheme.has_value()) return *scheme;
  if (name == "UNQUANTIZED") {
    return absl::UnimplementedError("the preset UNQUANTIZED is not supported; list its targets under \"ignore\"");
  }
  return absl::InvalidArgumentError(absl::StrCat("a list of targets needs the name of a preset, and \"",
                                                 io::Printable(given), "\" is not one; supported are ", kIntegers, ", ",
                                                 kFloats));
}

Scheme Fp8Scheme(const std::optional<std::array<int64_t, 2>>& block, bool dynamic) {
  if (!block.has_value()) {
    return WithDefaultFormat(
        FloatScheme(WeightStrategy::kTensor, dynamic ? InputStrategy::kToken : InputStrategy::kTensor, dynamic));
  }
  Scheme scheme = FloatScheme(WeightStrategy::kBlock, InputStrategy::kGroup, /*dynamic=*/true);
  scheme.weights.block = *block;
  scheme.input->group_size = (*block)[1];
  return WithDefaultFormat(scheme);
}

}  // namespace aqt::serving
