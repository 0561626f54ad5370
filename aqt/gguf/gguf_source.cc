#include "aqt/gguf/gguf_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/gguf/tensor_values.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "aqt/kernels/quantize/finite.h"
#include "aqt/quant/weights/ggml_blocks.h"
#include "aqt/quant/weights/stored_values.h"

namespace aqt::gguf {
namespace {

using ggml::Type;
using io::FileDType;

// Elements that are decoded at a time.
constexpr int64_t kElementsAtOnce = 1 << 16;

// The dtype of a plain type; nullopt for blocks.
std::optional<FileDType> PlainDType(Type type) {
  switch (type) {
    case Type::kF32: return FileDType::kF32;
    case Type::kF16: return FileDType::kF16;
    case Type::kBF16: return FileDType::kBF16;
    case Type::kF64: return FileDType::kF64;
    case Type::kI8: return FileDType::kI8;
    case Type::kI16: return FileDType::kI16;
    case Type::kI32: return FileDType::kI32;
    case Type::kI64: return FileDType::kI64;
    default: return std::nullopt;
  }
}

// Single values as text, for people.
absl::StatusOr<io::Metadata> MetadataText(const GgufFile& file) {
  io::Metadata result;
  for (const MetadataEntry& entry : file.metadata()) {
    std::string text;
    if (entry.type == ValueType::kArray) {
      text = absl::StrCat(entry.count, " values");
    } else if (entry.type == ValueType::kString) {
      // A chat template is long.
      if (entry.end - entry.begin > 1 << 16) text = absl::StrCat(entry.end - entry.begin - 8, " bytes");
      AQT_ASSIGN_OR_RETURN(const auto value, text.empty() ? file.String(entry.key) : std::optional<std::string>());
      if (text.empty()) text = io::Printable(value.value_or(""));
    } else if (entry.type == ValueType::kBool) {
      AQT_ASSIGN_OR_RETURN(const auto value, file.Bool(entry.key));
      text = value.value_or(false) ? "true" : "false";
    } else if (entry.type == ValueType::kF32 || entry.type == ValueType::kF64) {
      AQT_ASSIGN_OR_RETURN(const auto value, file.Number(entry.key));
      text = absl::StrCat(value.value_or(0));
    } else {
      AQT_ASSIGN_OR_RETURN(const auto value, file.Integer(entry.key));
      text = absl::StrCat(value.value_or(0));
    }
    result.emplace_back(entry.key, std::move(text));
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufSource>> GgufSource::Open(const io::FileSystem& fs, absl::string_view path,
                                                             const GgufSourceOptions& options) {
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16 && options.dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights cannot be dequantized to ", ToString(options.dtype), "; expected f32, bf16 or f16"));
  }
  AQT_ASSIGN_OR_RETURN(GgufModel model, GgufModel::Open(fs, path));
  std::unique_ptr<GgufSource> source(new GgufSource(std::move(model), options.dtype));
  if (options.names == Names::kFile) {
    AQT_RETURN_IF_ERROR(source->SetViews(ViewAsFile(source->model_), {}, /*metadata=*/true));
    return source;
  }
  AQT_ASSIGN_OR_RETURN(ModelView view, ViewAsModel(source->model_));
  source->config_ = std::move(view.config);
  AQT_RETURN_IF_ERROR(source->SetViews(std::move(view.tensors), std::move(view.warnings), /*metadata=*/false));
  return source;
}

absl::Status GgufSource::SetViews(std::vector<TensorView> views, std::vector<std::string> warnings, bool metadata) {
  std::vector<io::TensorInfo> tensors;
  std::vector<const std::string*> names;
  for (const TensorView& view : views) {
    const GgufTensor& tensor = TensorOf(view);
    const std::optional<FileDType> plain = PlainDType(tensor.type);
    const std::string what = absl::StrCat("'", io::PrintableLine(model_.files()[view.file].path()), "', tensor ",
                                          io::QuoteForMessage(tensor.name));
    if (!plain.has_value() && !ggml::CanDecode(tensor.type)) {
      return absl::UnimplementedError(absl::StrCat(what, " has the type ", ggml::InfoOf(tensor.type).name,
                                                   ", which cannot be decoded; make the file again with another type"));
    }
    if (view.minus_one && plain.has_value() && !HasFloats(tensor.type)) {
      return absl::UnimplementedError(
          absl::StrCat(what, " is a norm of the type ", ggml::InfoOf(tensor.type).name, "; expected a float type"));
    }
    io::TensorInfo info;
    info.name = view.name;
    info.dtype = IsDecoded(view) ? *io::ToFileDType(view.minus_one ? DType::kF32 : dtype_) : *plain;
    info.shape = view.shape;
    info.shard = view.file;
    info.begin = static_cast<int64_t>(tensors.size());
    const absl::StatusOr<int64_t> bytes = io::TensorBytes(info.dtype, info.shape);
    if (!bytes.ok()) return Annotate(bytes.status(), what);
    info.end = info.begin + *bytes;
    tensors.push_back(std::move(info));
    names.push_back(&view.name);
    if (!plain.has_value()) ++num_decoded_;
  }
  if (const std::string* twice = io::FindDuplicate(std::move(names)); twice != nullptr) {
    return absl::DataLossError(absl::StrCat("'", io::PrintableLine(model_.path()), "' has the tensor ",
                                            io::QuoteForMessage(*twice), " twice"));
  }
  int64_t stored_bytes = 0;
  for (const GgufFile& file : model_.files()) {
    for (const GgufTensor& tensor : file.tensors()) stored_bytes += tensor.end - tensor.begin;
  }
  std::vector<Shard> shards;
  for (const GgufFile& file : model_.files()) {
    io::Metadata text = {{"format", "pt"}};
    if (metadata) {
      AQT_ASSIGN_OR_RETURN(text, MetadataText(file));
    }
    shards.push_back({.name = std::string(io::BaseName(file.path())),
                      .path = file.path(),
                      .metadata = std::move(text),
                      .stored_as = num_decoded_ > 0 ? Description() : "",
                      .num_decoded = num_decoded_,
                      .stored_bytes = stored_bytes,
                      .config = config_});
  }
  views_ = std::move(views);
  SetContents(model_.path(), std::move(shards), std::move(tensors), std::move(warnings));
  return absl::OkStatus();
}

// Whether the values are computed: from blocks, or by subtracting 1.
bool GgufSource::IsDecoded(const TensorView& view) const {
  return view.minus_one || !PlainDType(TensorOf(view).type).has_value();
}

std::string GgufSource::Description() const {
  std::map<Type, int> counts;
  for (const GgufFile& file : model_.files()) {
    for (const GgufTensor& tensor : file.tensors()) ++counts[tensor.type];
  }
  std::vector<std::string> parts;
  for (const auto& [type, count] : counts) parts.push_back(absl::StrCat(count, " x ", ggml::InfoOf(type).name));
  return absl::StrCat("gguf: ", absl::StrJoin(parts, ", "));
}

Type GgufSource::TypeOf(const io::TensorInfo& tensor) const {
  const io::TensorInfo* const own = Find(tensor.name);
  return own == nullptr ? Type::kF32 : TensorOf(views_[own - tensors().data()]).type;
}

absl::Status GgufSource::ReadRun(const TensorView& view, int64_t begin, int64_t end, uint8_t* dst) const {
  const GgufTensor& tensor = TensorOf(view);
  const GgufFile& file = model_.files()[view.file];
  if (!IsDecoded(view)) {
    const int64_t size = ggml::InfoOf(tensor.type).block_bytes;  // a block is a value
    return file.file().Read(tensor.begin + begin * size,
                            absl::MakeSpan(dst, static_cast<size_t>((end - begin) * size)));
  }
  std::vector<float> values(static_cast<size_t>(end - begin));
  AQT_RETURN_IF_ERROR(ReadFloats(file, tensor, begin, absl::MakeSpan(values)));
  const DType dtype = view.minus_one ? DType::kF32 : dtype_;
  const auto count = static_cast<int64_t>(values.size());
  if (view.minus_one) {
    for (float& value : values) value -= 1;
  }
  if (const int64_t i = kernels::FirstNotFiniteIn(dtype, values.data(), count); i >= 0) {
    return absl::DataLossError(absl::StrCat(
        "'", io::PrintableLine(file.path()), "', tensor ", io::QuoteForMessage(tensor.name), ": element ", begin + i,
        std::isfinite(values[i])
            ? absl::StrCat(" is ", values[i], ", which overflows ", ToString(dtype), "; use bf16 or f32")
            : std::string(" is a NaN or an infinity; the file is damaged")));
  }
  stored_values::Round(values.data(), count, dtype, dst);
  return absl::OkStatus();
}

absl::Status GgufSource::ReadBytes(const io::TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  const io::TensorInfo* const own = Find(tensor.name);
  if (own == nullptr) return absl::NotFoundError(absl::StrCat("no tensor ", io::QuoteForMessage(tensor.name)));
  const TensorView& view = views_[own - tensors().data()];
  const GgufTensor& stored = TensorOf(view);
  const int64_t size = io::BitWidth(own->dtype) / 8, bytes = static_cast<int64_t>(dst.size());
  const int64_t first = view.first_row * stored.cols();
  if (!IsDecoded(view) && view.head_rows == 0) {
    return model_.files()[view.file].file().Read(stored.begin + first * size + offset, dst);
  }
  // A bias has rows of one value.
  const int64_t cols = view.shape.rank() < 2 ? 1 : view.shape[view.shape.rank() - 1];
  const int64_t begin = offset / size, end = (offset + bytes + size - 1) / size;
  std::vector<uint8_t> values;
  for (int64_t e = begin, next = 0; e < end; e = next) {
    int64_t from = first + e;
    next = std::min(end, e + kElementsAtOnce);
    if (view.head_rows != 0) {
      const int64_t row = e / cols, half = view.head_rows / 2, in_head = row % view.head_rows;
      from = (row - in_head + in_head % half * 2 + in_head / half) * cols + e % cols;
      next = std::min(next, (row + 1) * cols);
    }
    values.resize(static_cast<size_t>((next - e) * size));
    AQT_RETURN_IF_ERROR(ReadRun(view, from, from + (next - e), values.data()));
    const int64_t low = std::max(e * size, offset), high = std::min(next * size, offset + bytes);
    std::memcpy(dst.data() + (low - offset), values.data() + (low - e * size), static_cast<size_t>(high - low));
  }
  return absl::OkStatus();
}

}  // namespace aqt::gguf
