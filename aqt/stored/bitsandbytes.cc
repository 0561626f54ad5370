// bitsandbytes. For a module M
//   int8:    M.weight I8 [o, i]; M.SCB F32 [o]; M.weight_format U8 [] = 0 (row-major), if it exists
//            w = (f32(q) * SCB[row]) * f32(1 / 127)
//   4 bits:  W = M.weight: two codes per byte, high nibble first, over the flat weight; W.quant_map F32 [16]; W.absmax,
//            one per `blocksize` values of the flat weight; W.quant_state.bitsandbytes__nf4 (or __fp4): JSON with
//            shape and blocksize
//            w = quant_map[code] * absmax; nested, absmax is U8:
//            absmax = nested_quant_map[absmax] * nested_absmax[j / nested_blocksize] + nested_offset

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "aqt/kernels/quantize/decode_integers.h"
#include "aqt/quant/weights/stored_values.h"
#include "aqt/stored/stored_format.h"
#include "nlohmann/json.hpp"

namespace aqt::stored {
namespace {

using io::FileDType;

constexpr absl::string_view kSuffixes[] = {".SCB",
                                           ".weight_format",
                                           ".weight.absmax",
                                           ".weight.quant_map",
                                           ".weight.nested_absmax",
                                           ".weight.nested_quant_map",
                                           ".quant_state.bitsandbytes__nf4",
                                           ".quant_state.bitsandbytes__fp4"};
constexpr int64_t kMaxStateBytes = 1 << 16;

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

class Int8 final : public StoredWeight {
 public:
  Int8(std::string name, const io::TensorInfo* codes, const io::TensorInfo* scales)
      : StoredWeight(std::move(name), codes->shape, codes), scales_(scales) {}

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> q, reader.Bytes(main(), first * cols(), n * cols()));
    AQT_ASSIGN_OR_RETURN(const std::vector<float> scales, reader.Floats(*scales_, first, n));
    if (cols() == 0) return absl::OkStatus();
    kernels::DecodeIntegersArgs args;
    args.q = q.data();
    args.n = n * cols();
    args.group = cols();
    args.scale = scales.data();
    args.factor = 1.0f / 127.0f;
    args.x = out;
    kernels::DecodeIntegers(args);
    return absl::OkStatus();
  }

 private:
  const io::TensorInfo* scales_;
};

// The quant_state.
struct State {
  Shape shape;
  int64_t block = 0;
  int64_t nested_block = 0;  // 0: absmax is not quantized
  float nested_offset = 0;
};

class FourBits final : public StoredWeight {
 public:
  struct Tensors {
    const io::TensorInfo* codes = nullptr;
    const io::TensorInfo* map = nullptr;
    const io::TensorInfo* absmax = nullptr;
    const io::TensorInfo* nested_map = nullptr;
    const io::TensorInfo* nested_absmax = nullptr;
  };
  FourBits(std::string name, State state, const Tensors& tensors)
      : StoredWeight(std::move(name), state.shape, tensors.codes), state_(std::move(state)), t_(tensors) {}

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    const int64_t begin = first * cols(), count = n * cols();
    if (count == 0) return absl::OkStatus();
    const int64_t byte = begin / 2;
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                         reader.Bytes(*t_.codes, byte, CeilDiv(begin + count, 2) - byte));
    AQT_ASSIGN_OR_RETURN(const std::vector<float> map, reader.Floats(*t_.map, 0, 16));
    const int64_t unit = begin / state_.block, units = (begin + count - 1) / state_.block - unit + 1;
    AQT_ASSIGN_OR_RETURN(const std::vector<float> scales, Scales(reader, unit, units));
    kernels::DecodeByMap({.q = bytes.data(),
                          .map = map.data(),
                          .first = begin,
                          .n = count,
                          .group = state_.block,
                          .scale = scales.data(),
                          .x = out});
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::vector<float>> Scales(const PartReader& reader, int64_t first, int64_t n) const {
    if (state_.nested_block == 0) return reader.Floats(*t_.absmax, first, n);
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> codes, reader.Bytes(*t_.absmax, first, n));
    AQT_ASSIGN_OR_RETURN(const std::vector<float> map, reader.Floats(*t_.nested_map, 0, 256));
    const int64_t unit = first / state_.nested_block, units = (first + n - 1) / state_.nested_block - unit + 1;
    AQT_ASSIGN_OR_RETURN(const std::vector<float> absmax, reader.Floats(*t_.nested_absmax, unit, units));
    std::vector<float> scales(static_cast<size_t>(n));
    stored_values::NestedScales(codes.data(), map.data(), absmax.data(), state_.nested_offset, n, first,
                                state_.nested_block, scales.data());
    return scales;
  }

  State state_;
  Tensors t_;
};

absl::StatusOr<State> ReadState(const PartReader& reader, const io::TensorInfo& tensor, const Parts& parts) {
  const auto wrong = [&](absl::string_view what) { return parts.Wrong(tensor, what); };
  if (tensor.dtype != FileDType::kU8 || tensor.num_bytes() > kMaxStateBytes) return wrong("JSON, of at most 64 KiB");
  AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, reader.Bytes(tensor, 0, tensor.num_bytes()));
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const absl::StatusOr<io::JsonObjectText> object = io::ScanJsonObject(text, 8);
  if (!object.ok()) return wrong(absl::StrCat("a JSON object (", object.status().message(), ")"));
  const nlohmann::ordered_json json = nlohmann::ordered_json::parse(object->standard, nullptr, false);
  const auto positive = [&](const char* key) -> int64_t {
    const auto it = json.find(key);
    return it != json.end() && it->is_number_unsigned() && *it <= uint64_t{1} << 40 ? it->get<int64_t>() : 0;
  };
  State state;
  const auto shape = json.find("shape");
  if (shape == json.end() || !shape->is_array() || shape->empty()) return wrong("a list `shape`");
  for (const auto& extent : *shape) {
    if (!extent.is_number_unsigned() || extent > uint64_t{1} << 40) return wrong("a list `shape` of sizes");
    state.shape.push_back(extent.get<int64_t>());
  }
  if (const absl::Status status = CheckShape(state.shape); !status.ok()) return wrong("a `shape` that can exist");
  state.block = positive("blocksize");
  if (state.block == 0) return wrong("a positive `blocksize`");
  if (json.contains("nested_blocksize")) {
    state.nested_block = positive("nested_blocksize");
    const auto offset = json.find("nested_offset");
    if (state.nested_block == 0 || offset == json.end() || !offset->is_number()) {
      return wrong("a positive `nested_blocksize` and a number `nested_offset`");
    }
    state.nested_offset = static_cast<float>(offset->get<double>());
  }
  return state;
}

absl::Status AddInt8(const PartReader& reader, absl::string_view module, StoredWeights& found) {
  const std::string weight = absl::StrCat(module, ".weight");
  Parts parts(reader.source(), weight);
  AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const codes, parts.Need(weight));
  AQT_RETURN_IF_ERROR(parts.CheckDType(*codes, {FileDType::kI8}));
  if (codes->shape.rank() != 2) return parts.Wrong(*codes, "two dimensions");
  AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const scales,
                       parts.Need(absl::StrCat(module, ".SCB"), {FileDType::kF32}, {Shape{codes->shape[0]}}));
  if (const io::TensorInfo* const format = parts.Optional(absl::StrCat(weight, "_format")); format != nullptr) {
    if (format->dtype != FileDType::kU8 || format->num_bytes() != 1) return parts.Wrong(*format, "one byte");
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> value, reader.Bytes(*format, 0, 1));
    if (value[0] != 0) {
      return absl::UnimplementedError(absl::StrCat(Describe(reader.source(), *format), " is ", int{value[0]},
                                                   ", an arrangement for one kind of GPU; only 0 (row-major) can be ",
                                                   "read: save the model again with a newer bitsandbytes"));
    }
  }
  found.Add(std::make_unique<Int8>(weight, codes, scales), parts);
  return absl::OkStatus();
}

absl::Status AddFourBits(const PartReader& reader, const io::TensorInfo& state_tensor, const std::string& weight,
                         StoredWeights& found) {
  Parts parts(reader.source(), weight);
  AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const state_info, parts.Need(state_tensor.name));
  AQT_ASSIGN_OR_RETURN(State state, ReadState(reader, *state_info, parts));
  const int64_t n = state.shape.num_elements(), units = CeilDiv(n, state.block);
  FourBits::Tensors t;
  AQT_ASSIGN_OR_RETURN(t.codes, parts.Need(weight));
  const int64_t storage = std::max(io::BitWidth(t.codes->dtype) / 8, 1);  // the bytes may be called U8, BF16, ...
  if (const int64_t bytes = CeilDiv(n, 2); t.codes->num_bytes() != CeilDiv(bytes, storage) * storage) {
    return parts.Wrong(*t.codes, absl::StrCat(bytes, " bytes, two values each, for ", state.shape.ToString()));
  }
  AQT_ASSIGN_OR_RETURN(t.map, parts.Need(weight + ".quant_map", {FileDType::kF32}, {Shape{16}}));
  const bool nested = state.nested_block > 0;
  AQT_ASSIGN_OR_RETURN(t.absmax,
                       parts.Need(weight + ".absmax", {nested ? FileDType::kU8 : FileDType::kF32}, {Shape{units}}));
  if (nested) {
    AQT_ASSIGN_OR_RETURN(t.nested_map, parts.Need(weight + ".nested_quant_map", {FileDType::kF32}, {Shape{256}}));
    AQT_ASSIGN_OR_RETURN(t.nested_absmax, parts.Need(weight + ".nested_absmax", {FileDType::kF32},
                                                     {Shape{CeilDiv(units, state.nested_block)}}));
  }
  found.Add(std::make_unique<FourBits>(weight, std::move(state), t), parts);
  return absl::OkStatus();
}

class Format final : public StoredFormat {
 public:
  absl::string_view name() const override { return "bitsandbytes"; }
  bool IsMethod(absl::string_view method) const override { return method == "bitsandbytes"; }
  bool IsShownBy(const io::TensorSource& source) const override {
    return HasTensor(source, ".SCB") || HasTensor(source, ".quant_state.bitsandbytes__nf4") ||
           HasTensor(source, ".quant_state.bitsandbytes__fp4");
  }
  absl::Span<const absl::string_view> PartSuffixes() const override { return kSuffixes; }

  absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig&) const override {
    StoredWeights found;
    for (const io::TensorInfo& tensor : reader.source().tensors()) {
      if (const absl::string_view module = StemOf(tensor.name, ".SCB"); !module.empty()) {
        AQT_RETURN_IF_ERROR(AddInt8(reader, module, found));
      }
      for (const absl::string_view suffix : {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"}) {
        const std::string weight(StemOf(tensor.name, suffix));
        if (!weight.empty()) AQT_RETURN_IF_ERROR(AddFourBits(reader, tensor, weight, found));
      }
    }
    return found;
  }
};

}  // namespace

const StoredFormat& BitsAndBytes() {
  static const auto* const format = new Format();
  return *format;
}

}  // namespace aqt::stored
