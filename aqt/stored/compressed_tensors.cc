// compressed-tensors, all layouts. The scheme of a module comes from `config_groups`; names and shapes must agree with
// it. docs/converting.md has the tensors of each layout.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/quant/weights/stored_values.h"
#include "aqt/stored/scaled_matrix.h"
#include "aqt/stored/stored_format.h"
#include "re2/re2.h"

namespace aqt::stored {
namespace {

using io::FileDType;

constexpr absl::string_view kSuffixes[] = {".weight_packed",       ".weight_scale",     ".weight_zero_point",
                                           ".weight_global_scale", ".weight_shape",     ".weight_g_idx",
                                           ".input_scale",         ".input_zero_point", ".input_global_scale",
                                           ".output_scale",        ".output_zero_point"};

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// "0.16.0" is older than {0, 18}; a text that is no version is not.
bool IsOlder(absl::string_view version, int major, int minor) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  int a = 0, b = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &a) || !absl::SimpleAtoi(parts[1], &b)) return false;
  return a < major || (a == major && b < minor);
}

bool LooksLikeEmbedding(absl::string_view module) {
  const absl::string_view last = module.substr(module.rfind('.') + 1);
  return absl::StrContains(last, "emb") || last == "wte" || last == "wpe";
}

// How well a group's targets fit a module: 3 by its name, 2 by a regular expression, 1 by its class, 0 not.
absl::StatusOr<int> Fit(const WeightGroup& group, absl::string_view module) {
  int best = 0;
  for (const std::string& target : group.targets) {
    if (module == target) return 3;
    absl::string_view pattern = target;
    if (absl::ConsumePrefix(&pattern, "re:")) {
      const RE2 regex(re2::StringPiece(pattern.data(), pattern.size()), RE2::Quiet);
      if (!regex.ok()) {
        return absl::UnimplementedError(absl::StrCat("config_groups.", io::Printable(group.name),
                                                     ".targets: ", io::Printable(target),
                                                     " cannot be read as a regular expression: ", regex.error()));
      }
      if (regex.Match(re2::StringPiece(module.data(), module.size()), 0, module.size(), RE2::ANCHOR_START, nullptr,
                      0)) {
        best = std::max(best, 2);
      }
    } else if (!target.empty() && !absl::StrContains(target, '.') && absl::ascii_isupper(target[0])) {
      // A class. Only that of embeddings shows in a name.
      if ((target == "Embedding") == LooksLikeEmbedding(module)) best = std::max(best, 1);
    }
  }
  return best;
}

// The group of a module.
struct FoundGroup {
  const WeightGroup* group = nullptr;
  bool knows_input = true;  // false: groups with the same weights and other inputs fit as well
};

// Finds the group of each module.
class Groups {
 public:
  explicit Groups(const StoredConfig& config) : config_(config) {}

  absl::StatusOr<FoundGroup> Of(absl::string_view module) const {
    const WeightGroup* found = nullptr;
    int best = 0;
    bool one_scheme = true, one_input = true;
    for (const WeightGroup& group : config_.groups) {
      one_scheme = one_scheme && group.SameScheme(config_.groups[0]);
      one_input = one_input && group.input == config_.groups[0].input;
      AQT_ASSIGN_OR_RETURN(const int fit, Fit(group, module));
      if (fit > best) {
        best = fit;
        found = &group;
      }
    }
    if (found != nullptr) return FoundGroup{found};
    if (one_scheme && !config_.groups.empty()) return FoundGroup{&config_.groups[0], one_input};
    return absl::InvalidArgumentError(absl::StrCat(config_.where, ": no group of config_groups has the module ",
                                                   io::Printable(module), " among its targets, though it has scales; ",
                                                   "add it to the group that it belongs to"));
  }

 private:
  const StoredConfig& config_;
};

// The layout of a module.
enum class Layout : uint8_t { kPlain, kPacked, kNvfp4, kMxfp4, kMxfp6, kMxfp8 };

absl::StatusOr<Layout> LayoutOf(const WeightGroup& group, const Parts& parts, const io::TensorInfo& codes,
                                bool packed) {
  struct Row {
    absl::string_view name;
    Layout layout;
  };
  constexpr Row kRows[] = {{"int-quantized", Layout::kPlain},        {"float-quantized", Layout::kPlain},
                           {"naive-quantized", Layout::kPlain},      {"pack-quantized", Layout::kPacked},
                           {"nvfp4-pack-quantized", Layout::kNvfp4}, {"mxfp4-pack-quantized", Layout::kMxfp4},
                           {"mxfp6-pack-quantized", Layout::kMxfp6}, {"mxfp8-quantized", Layout::kMxfp8}};
  for (const Row& row : kRows) {
    if (row.name == group.format) return row.layout;
  }
  if (!group.format.empty()) {
    return absl::UnimplementedError(absl::StrCat("config_groups.", io::Printable(group.name), ".format is ",
                                                 io::Printable(group.format), ", which cannot be read; start from the ",
                                                 "floating point original"));
  }
  // The one that the package infers.
  if (group.is_float && group.num_bits == 4) return group.group_size == 32 ? Layout::kMxfp4 : Layout::kNvfp4;
  if (group.is_float && group.num_bits == 6) return Layout::kMxfp6;
  if (group.is_float && group.num_bits == 8 && group.strategy == "group" && group.group_size == 32)
    return Layout::kMxfp8;
  if (packed && codes.dtype == FileDType::kI32) return Layout::kPacked;
  if (!packed) return Layout::kPlain;
  return parts.Wrong(codes, "I32 (packed integers), because the configuration names no format");
}

// Sets where the scales of [o, i] are, and returns their shape.
absl::StatusOr<Shape> PlaceScales(const WeightGroup& group, int64_t o, int64_t i, ScaledMatrix& m) {
  m.batch_rows = 0;
  if (group.strategy == "tensor") {
    m.unit_rows = std::max<int64_t>(o, 1);
    m.unit_cols = std::max<int64_t>(i, 1);
    return Shape{1};
  }
  m.unit_rows = 1;
  if (group.strategy == "channel") {
    m.unit_cols = std::max<int64_t>(i, 1);
    m.scale_cols = 1;
    return Shape{o, 1};
  }
  if (group.strategy == "block") {
    if (group.block[0] < 1 || group.block[1] < 1) {
      return absl::InvalidArgumentError(absl::StrCat("config_groups.", io::Printable(group.name),
                                                     ".weights has strategy block without a ",
                                                     "block_structure; expected [rows, columns]"));
    }
    m.unit_rows = group.block[0];
    m.unit_cols = group.block[1];
    m.scale_cols = CeilDiv(i, m.unit_cols);
    return Shape{CeilDiv(o, m.unit_rows), m.scale_cols};
  }
  if (group.strategy != "group" && group.strategy != "tensor_group") {
    return absl::InvalidArgumentError(absl::StrCat("config_groups.", io::Printable(group.name), ".weights.strategy is ",
                                                   io::Printable(group.strategy),
                                                   "; expected tensor, channel, group, tensor_group or block"));
  }
  if (group.group_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("config_groups.", io::Printable(group.name),
                                                   ".weights has strategy ", group.strategy, " without a group_size"));
  }
  m.unit_cols = group.group_size;
  m.scale_cols = CeilDiv(i, m.unit_cols);
  return Shape{o, m.scale_cols};
}

// One module.
class Module {
 public:
  Module(const PartReader& reader, const StoredConfig& config, const FoundGroup& found, std::string name)
      : reader_(reader),
        config_(config),
        group_(*found.group),
        knows_input_(found.knows_input),
        name_(std::move(name)),
        parts_(reader.source(), name_ + ".weight") {}

  absl::Status AddTo(StoredWeights& found) {
    const bool packed = reader_.source().Find(name_ + ".weight_packed") != nullptr;
    AQT_ASSIGN_OR_RETURN(m_.codes, parts_.Need(name_ + (packed ? ".weight_packed" : ".weight")));
    AQT_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(group_, parts_, *m_.codes, packed));
    AQT_ASSIGN_OR_RETURN(const Shape shape, ReadShape(layout));
    AQT_ASSIGN_OR_RETURN(const Shape scale_shape, PlaceScales(group_, shape[0], shape[1], m_));
    AQT_RETURN_IF_ERROR(CheckGroups(layout, shape[1]));
    AQT_RETURN_IF_ERROR(FindScales(layout, shape, scale_shape));
    AQT_ASSIGN_OR_RETURN(const Product product, FindProduct());
    found.Add(MakeScaledMatrix(name_ + ".weight", shape, m_, product), parts_);
    found.Drop(reader_.source(), name_,
               {".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".output_zero_point"});
    return absl::OkStatus();
  }

 private:
  // How inputs are quantized, with the scale of static ones.
  absl::StatusOr<Product> FindProduct() {
    Product product = {.input = group_.input};
    if (!knows_input_) product.unknown = "several groups of config_groups fit them, with other inputs";
    if (group_.quantizes_output) product.unknown = "their outputs are quantized, too";
    if (!product.unknown.empty() || !group_.input.has_value()) return product;
    const InputArgs& input = *group_.input;
    if (!input.symmetric) product.unknown = "their inputs have zero points";
    if (input.dynamic != "false" || !product.unknown.empty()) return product;
    const std::string name = name_ + ".input_scale";
    if (reader_.source().Find(name) == nullptr) {
      product.unknown = "their inputs have static scales, which are missing";
      return product;
    }
    AQT_ASSIGN_OR_RETURN(product.input_scale, parts_.Need(name));
    AQT_RETURN_IF_ERROR(parts_.CheckDType(*product.input_scale, kFloats));
    if (product.input_scale->shape.num_elements() != 1) product.unknown = "their inputs have several static scales";
    return product;
  }

  // The shape of the weight, after a check of the codes.
  absl::StatusOr<Shape> ReadShape(Layout layout) {
    const io::TensorInfo& codes = *m_.codes;
    if (codes.shape.rank() != 2) return parts_.Wrong(codes, "two dimensions");
    m_.bits = static_cast<int>(group_.num_bits);
    const int64_t o = codes.shape[0], stored = codes.shape[1];
    switch (layout) {
      case Layout::kPlain:
      case Layout::kMxfp8:
        m_.kind = CodeKind::kBytes;
        AQT_RETURN_IF_ERROR(
            parts_.Check(codes, {group_.is_float ? FileDType::kF8E4M3 : FileDType::kI8}, {codes.shape}));
        return codes.shape;
      case Layout::kNvfp4:
      case Layout::kMxfp4:
        m_.kind = CodeKind::kE2M1;
        AQT_RETURN_IF_ERROR(parts_.CheckDType(codes, {FileDType::kU8}));
        return Shape{o, 2 * stored};
      case Layout::kMxfp6:
        m_.kind = CodeKind::kE2M3;
        AQT_RETURN_IF_ERROR(parts_.CheckDType(codes, {FileDType::kU8}));
        if (stored % 3 != 0) return parts_.Wrong(codes, "rows of a multiple of 3 bytes, four values in three bytes");
        return Shape{o, stored / 3 * 4};
      case Layout::kPacked: return ReadPackedShape();
    }
    return absl::InternalError("layout");
  }

  // The package only writes whole groups, except that old versions write integers of fewer columns than a group has.
  absl::Status CheckGroups(Layout layout, int64_t cols) const {
    const bool grouped = group_.strategy == "group" || group_.strategy == "tensor_group";
    const bool integers = layout == Layout::kPacked || (layout == Layout::kPlain && !group_.is_float);
    if (!grouped || cols % m_.unit_cols == 0 || (integers && cols < m_.unit_cols)) return absl::OkStatus();
    return parts_.Wrong(*m_.codes,
                        absl::StrCat("rows of whole groups of ", m_.unit_cols, " values, but they have ", cols));
  }

  absl::StatusOr<Shape> ReadPackedShape() {
    const io::TensorInfo& codes = *m_.codes;
    m_.kind = CodeKind::kBits;
    AQT_RETURN_IF_ERROR(parts_.CheckDType(codes, {FileDType::kI32}));
    AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const info,
                         parts_.Need(name_ + ".weight_shape", {FileDType::kI64, FileDType::kI32}, {Shape{2}}));
    AQT_ASSIGN_OR_RETURN(const Array array, reader_.source().ReadArray(*info));
    const Array extents = Cast(array, DType::kS64);
    const Shape shape(extents.View<int64_t>());
    const int64_t o = codes.shape[0], words = codes.shape[1];
    // Versions before 0.18 begin each word with a new value.
    const int64_t padded = 32 % m_.bits == 0 ? 0 : 32 / m_.bits;
    const auto fits = [&](int64_t per_word) {
      return shape[0] == o && shape[1] >= 0 && shape[1] <= words * 32 &&
             stored_values::WordsFor(shape[1], m_.bits, per_word) == words;
    };
    m_.per_word = padded != 0 && IsOlder(config_.version, 0, 18) ? padded : 0;
    if (!fits(m_.per_word)) m_.per_word = padded - m_.per_word;
    if (fits(m_.per_word)) return shape;
    return parts_.Wrong(codes, absl::StrCat("[", io::Printable(absl::StrCat(shape[0])), ", words of ", m_.bits,
                                            " bits for ", shape[1], " values] as weight_shape says"));
  }

  absl::Status FindScales(Layout layout, const Shape& shape, const Shape& scale_shape) {
    const bool powers = layout == Layout::kMxfp4 || layout == Layout::kMxfp6 || layout == Layout::kMxfp8;
    constexpr FileDType kPowers[] = {FileDType::kU8, FileDType::kF8E8M0};
    constexpr FileDType kE4M3[] = {FileDType::kF8E4M3};
    const absl::Span<const FileDType> dtypes = powers                     ? absl::MakeConstSpan(kPowers)
                                               : layout == Layout::kNvfp4 ? absl::MakeConstSpan(kE4M3)
                                                                          : absl::MakeConstSpan(kFloats);
    m_.powers = powers;
    // Scalars, and scales per row, occur without the last dimension, too.
    const Shape other = group_.strategy == "tensor"    ? Shape{}
                        : group_.strategy == "channel" ? Shape{shape[0]}
                                                       : scale_shape;
    AQT_ASSIGN_OR_RETURN(m_.scales, parts_.Need(name_ + ".weight_scale"));
    AQT_RETURN_IF_ERROR(parts_.Check(*m_.scales, dtypes, {scale_shape, other}));
    if (layout == Layout::kNvfp4) {
      AQT_ASSIGN_OR_RETURN(m_.divisor,
                           parts_.Need(name_ + ".weight_global_scale", {FileDType::kF32}, {Shape{1}, Shape{}}));
    }
    // Old versions of the package also wrote the zero points of symmetric weights.
    const bool has_zeros = reader_.source().Find(name_ + ".weight_zero_point") != nullptr;
    if (!group_.symmetric || (has_zeros && !group_.is_float)) {
      AQT_RETURN_IF_ERROR(FindZeros(layout, shape, scale_shape, other));
    } else if (has_zeros) {
      parts_.Optional(name_ + ".weight_zero_point");
    }
    const io::TensorInfo* const index = parts_.Optional(name_ + ".weight_g_idx");
    if (index != nullptr) {
      AQT_RETURN_IF_ERROR(parts_.Check(*index, {FileDType::kI32}, {Shape{shape[1]}}));
      if (group_.strategy == "group") m_.group_index = index;
    }
    return absl::OkStatus();
  }

  absl::Status FindZeros(Layout layout, const Shape& shape, const Shape& scale_shape, const Shape& other) {
    AQT_ASSIGN_OR_RETURN(m_.zeros, parts_.Need(name_ + ".weight_zero_point"));
    if (layout == Layout::kPacked && m_.zeros->dtype == FileDType::kI32) {
      m_.packed_zeros = true;
      const int64_t words = stored_values::WordsFor(shape[0], m_.bits, m_.per_word);
      return parts_.Check(*m_.zeros, {FileDType::kI32}, {Shape{words, m_.scale_cols}});
    }
    return parts_.Check(*m_.zeros, {group_.is_float ? FileDType::kF8E4M3 : FileDType::kI8}, {scale_shape, other});
  }

  const PartReader& reader_;
  const StoredConfig& config_;
  const WeightGroup& group_;
  const bool knows_input_;
  const std::string name_;
  Parts parts_;
  ScaledMatrix m_;
};

class Format final : public StoredFormat {
 public:
  absl::string_view name() const override { return "compressed-tensors"; }
  bool IsMethod(absl::string_view method) const override { return method == "compressed-tensors"; }
  bool IsShownBy(const io::TensorSource& source) const override {
    return HasTensor(source, ".weight_packed") || HasScaled(source, ".weight_scale", FileDType::kI8);
  }
  absl::Span<const absl::string_view> PartSuffixes() const override { return kSuffixes; }

  absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig& config) const override {
    const io::TensorSource& source = reader.source();
    if (config.groups.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", io::PrintableLine(source.path()), "' has weights of compressed-tensors, but ",
                       config.where.empty() ? "there is no config.json with a quantization_config"
                                            : config.where + " has no config_groups",
                       ", which says how they are quantized; put the model's config.json beside its weights"));
    }
    if (!config.unreadable.empty()) {
      return absl::UnimplementedError(absl::StrCat(config.where, ": ", config.unreadable,
                                                   " cannot be read; start from the floating point original"));
    }
    StoredWeights found;
    const Groups groups(config);
    for (const io::TensorInfo& tensor : source.tensors()) {
      absl::string_view module = StemOf(tensor.name, ".weight_packed");
      if (module.empty()) {
        module = StemOf(tensor.name, ".weight");
        if (module.empty() || source.Find(absl::StrCat(module, ".weight_scale")) == nullptr) continue;
      }
      AQT_ASSIGN_OR_RETURN(const FoundGroup group, groups.Of(module));
      AQT_RETURN_IF_ERROR(Module(reader, config, group, std::string(module)).AddTo(found));
    }
    found.DropAll(source, {".k_scale", ".v_scale", ".q_scale", ".k_zero_point", ".v_zero_point"});
    return found;
  }
};

}  // namespace

const StoredFormat& CompressedTensors() {
  static const auto* const format = new Format();
  return *format;
}

}  // namespace aqt::stored
