// GPTQ, checkpoint formats gptq (v1) and gptq_v2. For a module M with a weight [out, in] of b bits, everything
// transposed:
//   M.qweight I32 [ceil(in b / 32), out]: the fields of an output run down its column, least significant bits first
//   M.qzeros I32 [groups, ceil(out b / 32)]: fields along the row; v1 stores the zero points minus 1
//   M.scales F16 [groups, out]; M.g_idx I32 [in]: the group of each input, k / group_size if it does not exist
//   w[n][k] = (q - z) * f32(s)
//
// v1 cannot store the zero point 0: GPTQModel subtracts 1 from each word as a number, so that a field of 0 borrows from
// the next one; others store something else. Only a file that names GPTQModel as its writer is read so.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/kernels/quantize/decode_integers.h"
#include "aqt/quant/weights/stored_values.h"
#include "aqt/stored/stored_format.h"

namespace aqt::stored {
namespace {

using io::FileDType;
using stored_values::WordsFor;

constexpr absl::string_view kSuffixes[] = {".qweight", ".qzeros", ".scales", ".g_idx"};

// How the zero points of a checkpoint are stored.
struct ZeroPoints {
  bool minus_one = true;  // v1
  bool borrows = false;   // written by GPTQModel
};

struct Tensors {
  const io::TensorInfo* q = nullptr;
  const io::TensorInfo* zeros = nullptr;
  const io::TensorInfo* scales = nullptr;
  const io::TensorInfo* group_index = nullptr;  // may be null
  int64_t in = 0, out = 0, groups = 0;
  int bits = 4;
  int64_t group = 0;  // without group_index
};

class Weight final : public StoredWeight {
 public:
  Weight(std::string name, const Tensors& tensors, ZeroPoints zero_points)
      : StoredWeight(std::move(name), {tensors.out, tensors.in}, tensors.q), t_(tensors), zero_points_(zero_points) {}

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    if (n == 0 || t_.in == 0) return absl::OkStatus();
    AQT_ASSIGN_OR_RETURN(const std::vector<float> s, reader.FloatColumns(*t_.scales, first, first + n));
    AQT_ASSIGN_OR_RETURN(const std::vector<float> z, Zeros(reader, first, n));
    std::vector<int32_t> index;
    if (t_.group_index != nullptr) {
      AQT_ASSIGN_OR_RETURN(index, GroupIndex(reader));
    }
    std::vector<float> zeros(static_cast<size_t>(t_.groups)), scales(static_cast<size_t>(t_.groups));
    for (int64_t r = 0; r < n; ++r) {
      AQT_ASSIGN_OR_RETURN(const WordColumn q, reader.Column(*t_.q, first + r));
      for (int64_t g = 0; g < t_.groups; ++g) {
        zeros[g] = z[g * n + r];
        scales[g] = s[g * n + r];
      }
      kernels::DecodeIntegersArgs args;
      args.q = q.words;
      args.layout = kernels::CodeLayout::kFields;
      args.bits = t_.bits;
      args.n = t_.in;
      args.group = std::max<int64_t>(t_.group, 1);
      args.group_of = index.empty() ? nullptr : index.data();
      args.zero = zeros.data();
      args.scale = scales.data();
      args.x = out + r * t_.in;
      kernels::DecodeIntegers(args);
    }
    return absl::OkStatus();
  }

 private:
  // The zero points [groups, n] of the outputs [first, first + n).
  absl::StatusOr<std::vector<float>> Zeros(const PartReader& reader, int64_t first, int64_t n) const {
    const int64_t begin = first / 32 * 32;  // fields of any width begin a word there
    const int64_t word = WordsFor(begin, t_.bits), words = WordsFor(first + n, t_.bits) - word;
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                         reader.Columns(*t_.zeros, t_.zeros->shape[1] * 4, 0, t_.groups, word * 4, (word + words) * 4));
    const uint32_t mask = (1u << t_.bits) - 1;
    std::vector<float> zeros(static_cast<size_t>(t_.groups * n));
    for (int64_t g = 0; g < t_.groups; ++g) {
      std::vector<uint8_t> row(bytes.begin() + g * words * 4, bytes.begin() + (g + 1) * words * 4);
      const stored_values::BitFields fields{row.data(), 4, t_.bits, 0};
      bool add_one = zero_points_.minus_one;
      for (int64_t j = begin; add_one && j < first + n; ++j) {  // a field before these may have borrowed from them
        if (fields[j - begin] != mask) continue;
        if (!zero_points_.borrows || 32 % t_.bits != 0) return AmbiguousError(reader, g, j, mask);
        stored_values::AddToFields(t_.bits, words, row.data());
        add_one = false;
      }
      for (int64_t j = 0; j < n; ++j)
        zeros[g * n + j] = static_cast<float>(fields[first + j - begin] + (add_one ? 1 : 0));
    }
    return zeros;
  }

  absl::Status AmbiguousError(const PartReader& reader, int64_t group, int64_t output, uint32_t mask) const {
    return absl::UnimplementedError(
        absl::StrCat(Describe(reader.source(), *t_.zeros), ": the zero point of output ", output, " in group ", group,
                     " is stored as ", mask, ". GPTQ v1 stores zero points minus 1, so it is 0 or ", mask + 1,
                     ", and programs differ on which", zero_points_.borrows ? "" : " unless GPTQModel wrote the file",
                     ". Save the model in the format gptq_v2, or start ", "from the floating point original"));
  }

  absl::StatusOr<std::vector<int32_t>> GroupIndex(const PartReader& reader) const {
    AQT_ASSIGN_OR_RETURN(std::vector<int32_t> index, reader.Ints(*t_.group_index, 0, t_.in));
    for (size_t k = 0; k < index.size(); ++k) {
      if (index[k] >= 0 && index[k] < t_.groups) continue;
      return absl::DataLossError(absl::StrCat(Describe(reader.source(), *t_.group_index), ": element ", k, " is ",
                                              index[k], "; expected a group from 0 to ", t_.groups - 1,
                                              "; download the checkpoint again"));
    }
    return index;
  }

  Tensors t_;
  ZeroPoints zero_points_;
};

// The bits of a value: those of the configuration, or others for which the shapes fit (mixed bits); 0 if none fit.
int FindBits(const StoredConfig& config, const Tensors& t) {
  const int64_t rows = t.q->shape[0];
  const auto fits = [&](int bits) {
    if (t.zeros->shape != Shape{t.groups, WordsFor(t.out, bits)}) return false;
    return t.group_index != nullptr ? WordsFor(t.group_index->shape[0], bits) == rows : rows * 32 % bits == 0;
  };
  if (config.bits.has_value() && *config.bits >= 2 && *config.bits <= 8 && fits(static_cast<int>(*config.bits))) {
    return static_cast<int>(*config.bits);
  }
  for (const int bits : {4, 8, 3, 2}) {
    if (fits(bits)) return bits;
  }
  return 0;
}

absl::StatusOr<Tensors> FindTensors(const StoredConfig& config, absl::string_view module, Parts& parts) {
  Tensors t;
  AQT_ASSIGN_OR_RETURN(t.q, parts.Need(absl::StrCat(module, ".qweight")));
  AQT_RETURN_IF_ERROR(parts.CheckDType(*t.q, {FileDType::kI32}));
  if (t.q->shape.rank() != 2) return parts.Wrong(*t.q, "the shape [in * bits / 32, out]");
  t.out = t.q->shape[1];
  AQT_ASSIGN_OR_RETURN(t.scales, parts.Need(absl::StrCat(module, ".scales")));
  AQT_RETURN_IF_ERROR(parts.CheckDType(*t.scales, kFloats));
  if (t.scales->shape.rank() != 2 || t.scales->shape[0] < 1 || t.scales->shape[1] != t.out) {
    return parts.Wrong(*t.scales, absl::StrCat("the shape [groups, ", t.out, "]"));
  }
  t.groups = t.scales->shape[0];
  AQT_ASSIGN_OR_RETURN(t.zeros, parts.Need(absl::StrCat(module, ".qzeros")));
  AQT_RETURN_IF_ERROR(parts.CheckDType(*t.zeros, {FileDType::kI32}));
  t.group_index = parts.Optional(absl::StrCat(module, ".g_idx"));
  if (t.group_index != nullptr) {
    AQT_RETURN_IF_ERROR(parts.CheckDType(*t.group_index, {FileDType::kI32}));
    if (t.group_index->shape.rank() != 1) return parts.Wrong(*t.group_index, "the shape [in]");
  } else if (config.act_order && t.groups > 1) {
    return parts.Need(absl::StrCat(module, ".g_idx")).status();
  }
  t.bits = FindBits(config, t);
  if (t.bits == 0) {
    return parts.Wrong(*t.zeros, absl::StrCat("[groups, out * bits / 32] with bits = ",
                                              config.bits.has_value() ? absl::StrCat(*config.bits, " or ") : "",
                                              "2, 3, 4 or 8, for qweight ", t.q->shape.ToString(), ", scales ",
                                              t.scales->shape.ToString(), t.group_index == nullptr ? "" : " and g_idx ",
                                              t.group_index == nullptr ? "" : t.group_index->shape.ToString()));
  }
  t.in = t.group_index != nullptr ? t.group_index->shape[0] : t.q->shape[0] * 32 / t.bits;
  if (t.group_index != nullptr) return t;
  t.group = config.group_size.value_or(t.in % t.groups == 0 ? t.in / t.groups : 0);
  if (t.group == -1) t.group = std::max<int64_t>(t.in, 1);
  if (t.group >= 1 && (t.in + t.group - 1) / t.group == t.groups) return t;
  return parts.Wrong(*t.scales, absl::StrCat("a row for each group of ", t.group, " of the ", t.in,
                                             " inputs, as the configuration says"));
}

// Whether all zero points of the first group are stored as `value`.
absl::StatusOr<bool> AllAre(const PartReader& reader, const Tensors& t, uint32_t value) {
  AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> row, reader.Bytes(*t.zeros, 0, t.zeros->shape[1] * 4));
  const stored_values::BitFields fields{row.data(), 4, t.bits, 0};
  for (int64_t n = 0; n < t.out; ++n) {
    if (fields[n] != value) return false;
  }
  return t.out > 0;
}

// Tells v1 from v2: from the configuration, and for symmetric weights, whose zero points are all 2^(b - 1), from those
// of the first weight.
absl::StatusOr<ZeroPoints> FindZeroPoints(const PartReader& reader, const StoredConfig& config, const Tensors& t,
                                          std::vector<std::string>& notes) {
  ZeroPoints zero_points;
  if (!config.layout.empty() && config.layout != "gptq" && config.layout != "gptq_v2") {
    return absl::UnimplementedError(absl::StrCat(
        config.where, ": checkpoint_format ", io::Printable(config.layout),
        " of GPTQ cannot be read; \"gptq\" and \"gptq_v2\" can; start from the ", "floating point original"));
  }
  zero_points.minus_one = config.layout != "gptq_v2";
  zero_points.borrows = absl::StartsWithIgnoreCase(config.writer, "gptqmodel");
  if (!config.symmetric.value_or(config.layout.empty())) return zero_points;
  const uint32_t half = 1u << (t.bits - 1);
  for (const bool minus_one : {true, false}) {
    AQT_ASSIGN_OR_RETURN(const bool all, AllAre(reader, t, minus_one ? half - 1 : half));
    if (!all || zero_points.minus_one == minus_one) continue;
    zero_points.minus_one = minus_one;
    notes.push_back(absl::StrCat(
        "GPTQ: the zero points of ", io::Printable(t.zeros->name), " are stored as ", minus_one ? half - 1 : half,
        ", as in the format ", minus_one ? "gptq" : "gptq_v2", " for symmetric weights, though ",
        config.layout.empty() ? "no checkpoint_format is given, which means gptq"
                              : absl::StrCat("the checkpoint_format is ", config.layout),
        "; all weights are read as ", minus_one ? "gptq (zero point = stored + 1)" : "gptq_v2 (zero point = stored)"));
    break;
  }
  return zero_points;
}

class Format final : public StoredFormat {
 public:
  absl::string_view name() const override { return "gptq"; }
  bool IsMethod(absl::string_view method) const override { return method == "gptq"; }
  // AWQ has the same names, but other shapes.
  bool IsShownBy(const io::TensorSource& source) const override {
    for (const io::TensorInfo& tensor : source.tensors()) {
      const absl::string_view module = StemOf(tensor.name, ".qweight");
      if (module.empty() || tensor.shape.rank() != 2) continue;
      const io::TensorInfo* const scales = source.Find(absl::StrCat(module, ".scales"));
      return scales == nullptr || scales->shape.rank() != 2 || scales->shape[1] == tensor.shape[1];
    }
    return false;
  }
  absl::Span<const absl::string_view> PartSuffixes() const override { return kSuffixes; }

  absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig& config) const override {
    StoredWeights found;
    std::optional<ZeroPoints> zero_points;
    for (const io::TensorInfo& tensor : reader.source().tensors()) {
      const absl::string_view module = StemOf(tensor.name, ".qweight");
      if (module.empty()) continue;
      const std::string weight = absl::StrCat(module, ".weight");
      Parts parts(reader.source(), weight);
      AQT_ASSIGN_OR_RETURN(const Tensors tensors, FindTensors(config, module, parts));
      if (!zero_points.has_value()) {
        AQT_ASSIGN_OR_RETURN(zero_points, FindZeroPoints(reader, config, tensors, found.notes));
        found.details = absl::StrCat(zero_points->minus_one ? "v1 (zero points stored minus 1), " : "v2, ",
                                     tensors.bits, " bits", config.act_order ? ", act-order" : "");
      }
      found.Add(std::make_unique<Weight>(weight, tensors, *zero_points), parts);
    }
    return found;
  }
};

}  // namespace

const StoredFormat& Gptq() {
  static const auto* const format = new Format();
  return *format;
}

}  // namespace aqt::stored
