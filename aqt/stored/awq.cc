// AWQ in the layout "gemm". For a module M with a weight [out, in], groups of g inputs, everything transposed:
//   M.qweight I32 [in, out / 8]; M.qzeros I32 [groups, out / 8]; M.scales F16 [groups, out]
// Nibble j of word c is output 8 c + {0, 2, 4, 6, 1, 3, 5, 7}[j].
//   w[n][k] = (q - z) * f32(s)

#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/kernels/quantize/decode_integers.h"
#include "aqt/stored/stored_format.h"

namespace aqt::stored {
namespace {

using io::FileDType;

constexpr absl::string_view kSuffixes[] = {".qweight", ".qzeros", ".scales"};
constexpr int64_t kPerWord = 8;
constexpr int kNibbleOf[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};  // of output 8 c + i

class Weight final : public StoredWeight {
 public:
  Weight(std::string name, const io::TensorInfo* q, const io::TensorInfo* zeros, const io::TensorInfo* scales,
         int64_t group)
      : StoredWeight(std::move(name), {q->shape[1] * kPerWord, q->shape[0]}, q),
        q_(q),
        zeros_(zeros),
        scales_(scales),
        group_(group) {}

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    const int64_t in = cols(), groups = scales_->shape[0];
    if (n == 0 || in == 0) return absl::OkStatus();
    AQT_ASSIGN_OR_RETURN(const std::vector<float> s, reader.FloatColumns(*scales_, first, first + n));
    std::vector<float> zeros(static_cast<size_t>(groups)), scales(static_cast<size_t>(groups));
    const std::vector<float> ones(static_cast<size_t>(groups), 1.0f);
    WordColumn q, z;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t output = first + r;
      if (r == 0 || output % kPerWord == 0) {
        AQT_ASSIGN_OR_RETURN(q, reader.Column(*q_, output / kPerWord));
        AQT_ASSIGN_OR_RETURN(z, reader.Column(*zeros_, output / kPerWord));
      }
      kernels::DecodeIntegersArgs args;
      args.layout = kernels::CodeLayout::kWords;
      args.bits = 4;
      args.shift = kNibbleOf[output % kPerWord] * 4;
      args.q = z.words;
      args.n = groups;
      args.scale = ones.data();
      args.x = zeros.data();
      kernels::DecodeIntegers(args);
      for (int64_t g = 0; g < groups; ++g) scales[g] = s[g * n + r];
      args.q = q.words;
      args.n = in;
      args.group = group_;
      args.zero = zeros.data();
      args.scale = scales.data();
      args.x = out + r * in;
      kernels::DecodeIntegers(args);
    }
    return absl::OkStatus();
  }

 private:
  const io::TensorInfo* q_;
  const io::TensorInfo* zeros_;
  const io::TensorInfo* scales_;
  int64_t group_;
};

absl::Status CheckConfig(const StoredConfig& config) {
  const auto refuse = [&](absl::string_view field, absl::string_view value, absl::string_view expected) {
    return absl::UnimplementedError(absl::StrCat(config.where, ": ", field, " ", io::Printable(value),
                                                 " of AWQ cannot be read; ", expected,
                                                 "; start from the floating point original"));
  };
  if (config.bits.value_or(4) != 4) return refuse("bits", absl::StrCat(*config.bits), "only 4 bits can");
  std::string version = config.layout;
  std::transform(version.begin(), version.end(), version.begin(), [](unsigned char c) { return std::tolower(c); });
  if (!version.empty() && version != "gemm") return refuse("version", config.layout, "only \"gemm\" can");
  return absl::OkStatus();
}

absl::Status AddModule(const io::TensorSource& source, const StoredConfig& config, absl::string_view module,
                       StoredWeights& found) {
  const std::string weight = absl::StrCat(module, ".weight");
  Parts parts(source, weight);
  AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const q, parts.Need(absl::StrCat(module, ".qweight")));
  AQT_RETURN_IF_ERROR(parts.CheckDType(*q, {FileDType::kI32}));
  if (q->shape.rank() != 2) return parts.Wrong(*q, "the shape [in, out / 8]");
  const int64_t in = q->shape[0], words = q->shape[1];
  AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const scales, parts.Need(absl::StrCat(module, ".scales")));
  AQT_RETURN_IF_ERROR(parts.CheckDType(*scales, kFloats));
  if (scales->shape.rank() != 2 || scales->shape[0] < 1 || scales->shape[1] / kPerWord != words ||
      scales->shape[1] % kPerWord != 0) {
    return parts.Wrong(*scales, absl::StrCat("the shape [groups, ", words, " * 8]"));
  }
  const int64_t groups = scales->shape[0];
  int64_t group = config.group_size.value_or(in % groups == 0 ? in / groups : 0);
  if (group == -1) group = in;
  if (group < 1 || in % group != 0 || in / group != groups) {
    return parts.Wrong(*scales, absl::StrCat("a row for each group of ", group, " of the ", in, " inputs of qweight"));
  }
  AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const zeros,
                       parts.Need(absl::StrCat(module, ".qzeros"), {FileDType::kI32}, {Shape{groups, words}}));
  found.Add(std::make_unique<Weight>(weight, q, zeros, scales, group), parts);
  return absl::OkStatus();
}

class Format final : public StoredFormat {
 public:
  absl::string_view name() const override { return "awq"; }
  bool IsMethod(absl::string_view method) const override { return method == "awq"; }
  // GPTQ has the same names, but other shapes.
  bool IsShownBy(const io::TensorSource& source) const override {
    for (const io::TensorInfo& tensor : source.tensors()) {
      const absl::string_view module = StemOf(tensor.name, ".qweight");
      if (module.empty() || tensor.shape.rank() != 2) continue;
      const io::TensorInfo* const scales = source.Find(absl::StrCat(module, ".scales"));
      return scales != nullptr && scales->shape.rank() == 2 && scales->shape[1] == tensor.shape[1] * kPerWord;
    }
    return false;
  }
  absl::Span<const absl::string_view> PartSuffixes() const override { return kSuffixes; }

  absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig& config) const override {
    AQT_RETURN_IF_ERROR(CheckConfig(config));
    StoredWeights found;
    for (const io::TensorInfo& tensor : reader.source().tensors()) {
      const absl::string_view module = StemOf(tensor.name, ".qweight");
      if (!module.empty()) AQT_RETURN_IF_ERROR(AddModule(reader.source(), config, module, found));
    }
    found.details = "gemm, 4 bits";
    return found;
  }
};

}  // namespace

const StoredFormat& Awq() {
  static const auto* const format = new Format();
  return *format;
}

}  // namespace aqt::stored
