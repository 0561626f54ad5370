#include "aqt/native/native_file.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/native/bit_string.h"

namespace aqt::native {
namespace {

constexpr char kVersionKey[] = "aqt_native";
constexpr char kVersion[] = "1";
constexpr absl::string_view kWeightKey = "aqt_weight/";
constexpr int kMaxProgramBytes = 1 << 30;

std::string QValueName(absl::string_view weight) { return absl::StrCat(weight, ".qvalue"); }

absl::Status OfWeight(const absl::Status& status, absl::string_view weight) {
  return absl::Status(status.code(), absl::StrCat("weight ", io::QuoteForMessage(weight), ": ", status.message()));
}

// One of the parts beside the qvalue.
enum class PartKind : uint8_t { kScale, kBias, kMask };
struct PartName {
  std::string name;
  PartKind kind;
};

std::vector<PartName> PartNames(absl::string_view weight, const WeightHeader& header) {
  std::vector<PartName> parts;
  for (int i = 0; i < header.num_scales; ++i) parts.push_back({absl::StrCat(weight, ".scale.", i), PartKind::kScale});
  for (int i = 0; i < header.num_biases; ++i) parts.push_back({absl::StrCat(weight, ".bias.", i), PartKind::kBias});
  if (header.has_mask) parts.push_back({absl::StrCat(weight, ".mask"), PartKind::kMask});
  return parts;
}

// Whether a part beside the qvalue fits to it.
absl::Status CheckPart(const PartName& part, DType dtype, const Shape& shape, const WeightHeader& header) {
  const Shape qvalue = header.StoredShape();
  bool fits = shape.rank() == qvalue.rank();
  for (int64_t axis = 0; fits && axis < shape.rank(); ++axis) {
    fits = shape[axis] == 1 || shape[axis] == qvalue[axis];
  }
  const bool is_scale_dtype = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  if (fits && (part.kind == PartKind::kMask || is_scale_dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(io::QuoteForMessage(part.name), " is ", ToString(dtype), shape.ToString(), ", expected ",
                   part.kind == PartKind::kMask ? "" : "f32, bf16 or f16, ", "the extents of the qvalue ",
                   qvalue.ToString(), ", or 1 along an axis"));
}

// What the file has for the qvalue.
io::TensorSpec QValueSpec(absl::string_view weight, const WeightHeader& header) {
  const Shape shape = header.StoredShape();
  if (header.bits == 0) return {QValueName(weight), *io::ToFileDType(header.dtype), shape};
  return {QValueName(weight), io::FileDType::kU8, {PackedBytes(shape.num_elements(), header.bits)}};
}

absl::StatusOr<WeightHeader> HeaderOf(const NativeWeight& weight) {
  const QTensor& tensor = weight.tensor;
  if (!tensor.IsFull()) return absl::InvalidArgumentError("has no qvalue");
  WeightHeader header;
  header.dtype = tensor.qvalue->dtype();
  const bool sub_byte = header.dtype == DType::kS2 || header.dtype == DType::kS4;
  header.bits = weight.bits == 0 && sub_byte ? BitWidth(header.dtype) : weight.bits;
  header.half = weight.half;
  const Shape& stored = tensor.qvalue->shape();
  if (tensor.tiling_state.has_value()) {
    for (const Axes& places : tensor.tiling_state->tile_map) {
      Axes& extents = header.axes.emplace_back();
      for (const int64_t place : places) {
        if (place < 0 || place >= stored.rank()) return absl::InvalidArgumentError("its tiling is not of its qvalue");
        extents.push_back(stored[place]);
      }
    }
  } else {
    for (const int64_t extent : stored) header.axes.push_back({extent});
  }
  header.contracting = weight.contracting;
  header.remaining = weight.remaining;
  header.num_scales = static_cast<int>(tensor.scale.size());
  header.num_biases = static_cast<int>(tensor.bias.size());
  header.has_mask = tensor.sparsity_mask.has_value();
  header.dequant_dtype = tensor.dequant_dtype;
  header.config_digest = weight.config_digest;
  AQT_RETURN_IF_ERROR(CheckHeader(header));
  const std::optional<TilingState> tiling = header.Tiling();
  if (header.StoredShape() != stored || (tiling.has_value() && tiling != tensor.tiling_state)) {
    return absl::InvalidArgumentError("its tiling is not one of TilingState::Make, or not of its qvalue");
  }
  return header;
}

// Whether the name is one of a part: "fc/kernel.scale.12" of "fc/kernel".
bool IsPartOf(absl::string_view name, absl::string_view weight) {
  if (!absl::ConsumePrefix(&name, weight)) return false;
  return name == ".qvalue" || name == ".mask" || absl::StartsWith(name, ".scale.") || absl::StartsWith(name, ".bias.");
}

// The weights whose name begins a tensor's name, up to a period.
template <class Map>
const std::string* OwnerOf(const Map& weights, absl::string_view tensor) {
  for (size_t end = tensor.find('.'); end != absl::string_view::npos; end = tensor.find('.', end + 1)) {
    const auto it = weights.find(std::string(tensor.substr(0, end)));
    if (it != weights.end() && IsPartOf(tensor, it->first)) return &it->first;
  }
  return nullptr;
}

// The parts of a weight beside the qvalue, with their names.
std::vector<std::pair<PartName, const Array*>> PartsOf(absl::string_view name, const WeightHeader& header,
                                                       const QTensor& tensor) {
  std::vector<std::pair<PartName, const Array*>> parts;
  size_t scale = 0, bias = 0;
  for (PartName& part : PartNames(name, header)) {
    const Array* array = part.kind == PartKind::kScale  ? &tensor.scale[scale++]
                         : part.kind == PartKind::kBias ? &tensor.bias[bias++]
                                                        : &*tensor.sparsity_mask;
    parts.emplace_back(std::move(part), array);
  }
  return parts;
}

// Adds a weight's tensors and its line of metadata.
absl::StatusOr<WeightHeader> AddWeight(const std::string& name, const NativeWeight& weight,
                                       std::vector<io::TensorSpec>& specs, io::Metadata& metadata) {
  AQT_ASSIGN_OR_RETURN(WeightHeader header, HeaderOf(weight));
  if (header.bits == 0 && !io::ToFileDType(header.dtype).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("files have no ", ToString(header.dtype)));
  }
  specs.push_back(QValueSpec(name, header));
  for (const auto& [part, array] : PartsOf(name, header, weight.tensor)) {
    AQT_RETURN_IF_ERROR(CheckPart(part, array->dtype(), array->shape(), header));
    const std::optional<io::FileDType> dtype = io::ToFileDType(array->dtype());
    if (!dtype.has_value()) return absl::InvalidArgumentError(absl::StrCat("files have no ", ToString(array->dtype())));
    specs.push_back({part.name, *dtype, array->shape()});
  }
  metadata.emplace_back(absl::StrCat(kWeightKey, name), ToText(header));
  return header;
}

absl::Status CheckOthers(const NativeFile& file) {
  for (const auto& [key, value] : file.metadata) {
    if (IsNativeKey(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the metadata key ", io::QuoteForMessage(key), " belongs to the format"));
    }
  }
  for (const auto& [name, array] : file.tensors) {
    if (name == kProgramTensor || OwnerOf(file.weights, name) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tensor name ", io::QuoteForMessage(name), " belongs to the format"));
    }
    if (!io::ToFileDType(array.dtype()).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", io::QuoteForMessage(name), ": files have no ",
                                                     ToString(array.dtype()), "; cast it to s8"));
    }
  }
  return absl::OkStatus();
}

absl::Span<const uint8_t> BytesOf(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

std::string ConfigDigest(absl::string_view config_text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : config_text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return absl::StrFormat("%016x", hash);
}

absl::Status WriteNative(const io::FileSystem& fs, absl::string_view path, const NativeFile& file, bool overwrite) {
  AQT_RETURN_IF_ERROR(CheckOthers(file));
  io::SafetensorsWriterOptions options;
  options.output.overwrite = overwrite;
  options.metadata.emplace_back(kVersionKey, kVersion);
  std::vector<io::TensorSpec> specs;
  std::map<std::string, WeightHeader> headers;
  for (const auto& [name, weight] : file.weights) {
    absl::StatusOr<WeightHeader> header = AddWeight(name, weight, specs, options.metadata);
    if (!header.ok()) return OfWeight(header.status(), name);
    headers.emplace(name, *std::move(header));
  }
  for (const auto& [key, value] : file.metadata) options.metadata.emplace_back(key, value);
  for (const auto& [name, array] : file.tensors) {
    specs.push_back({name, *io::ToFileDType(array.dtype()), array.shape()});
  }
  if (!file.program.empty()) {
    specs.push_back({kProgramTensor, io::FileDType::kU8, {static_cast<int64_t>(file.program.size())}});
  }
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<io::SafetensorsWriter> writer,
                       io::SafetensorsWriter::Create(fs, path, std::move(specs), options));
  for (const auto& [name, weight] : file.weights) {
    const WeightHeader& header = headers.at(name);
    if (header.bits == 0) {
      AQT_RETURN_IF_ERROR(writer->WriteArray(QValueName(name), *weight.tensor.qvalue));
    } else {
      const absl::StatusOr<std::vector<uint8_t>> packed = Pack(*weight.tensor.qvalue, {header.bits, header.half});
      if (!packed.ok()) return OfWeight(packed.status(), name);
      AQT_RETURN_IF_ERROR(writer->Write(QValueName(name), 0, *packed));
    }
    for (const auto& [part, array] : PartsOf(name, header, weight.tensor)) {
      AQT_RETURN_IF_ERROR(writer->WriteArray(part.name, *array));
    }
  }
  for (const auto& [name, array] : file.tensors) AQT_RETURN_IF_ERROR(writer->WriteArray(name, array));
  if (!file.program.empty()) AQT_RETURN_IF_ERROR(writer->Write(kProgramTensor, 0, BytesOf(file.program)));
  return writer->Finish();
}

bool IsNativeKey(absl::string_view key) { return key == kVersionKey || absl::StartsWith(key, kWeightKey); }

std::vector<std::string> TensorNamesOf(absl::string_view weight, const WeightHeader& header) {
  std::vector<std::string> names = {QValueName(weight)};
  for (PartName& part : PartNames(weight, header)) names.push_back(std::move(part.name));
  return names;
}

bool IsNative(const io::TensorSource& source) {
  for (const io::TensorSource::Shard& shard : source.shards()) {
    for (const auto& [key, value] : shard.metadata) {
      if (key == kVersionKey) return true;
    }
  }
  return false;
}

absl::Status NativeReader::ReadMetadata() {
  for (const io::TensorSource::Shard& shard : source_->shards()) {
    for (const auto& [key, value] : shard.metadata) {
      absl::string_view name = key;
      if (key == kVersionKey) {
        if (value != kVersion) {
          return absl::UnimplementedError(absl::StrCat("the version of the format is ", io::QuoteForMessage(value),
                                                       ", and this program reads version ", kVersion));
        }
      } else if (absl::ConsumePrefix(&name, kWeightKey)) {
        absl::StatusOr<WeightHeader> header = WeightHeaderFromText(value);
        if (!header.ok()) return OfWeight(header.status(), name);
        if (!weights_.emplace(name, *std::move(header)).second) {
          return OfWeight(absl::DataLossError("is described in two files"), name);
        }
      } else {
        metadata_.emplace(key, value);  // of several files, the first
      }
    }
  }
  return absl::OkStatus();
}

// Finds the parts of each weight, and the tensors that belong to none.
absl::Status NativeReader::SortTensors() {
  std::set<std::string> parts;
  for (const auto& [name, header] : weights_) {
    if (header.bits == 0 && !io::ToFileDType(header.dtype).has_value()) {
      return OfWeight(absl::DataLossError(absl::StrCat("files have no ", ToString(header.dtype))), name);
    }
    const io::TensorSpec want = QValueSpec(name, header);
    const io::TensorInfo* qvalue = source_->Find(want.name);
    if (qvalue == nullptr || qvalue->dtype != want.dtype || qvalue->shape != want.shape) {
      return OfWeight(
          absl::DataLossError(absl::StrCat(
              "the tensor ", io::QuoteForMessage(want.name), " is ",
              qvalue == nullptr ? "missing" : absl::StrCat(io::ToString(qvalue->dtype), qvalue->shape.ToString()),
              ", expected ", io::ToString(want.dtype), want.shape.ToString())),
          name);
    }
    parts.insert(want.name);
    for (const PartName& part : PartNames(name, header)) {
      const io::TensorInfo* tensor = source_->Find(part.name);
      if (tensor == nullptr) {
        return OfWeight(absl::DataLossError(absl::StrCat("the tensor ", io::QuoteForMessage(part.name), " is missing")),
                        name);
      }
      const std::optional<DType> dtype = io::ToDType(tensor->dtype);
      const absl::Status status =
          dtype.has_value() ? CheckPart(part, *dtype, tensor->shape, header)
                            : absl::DataLossError(absl::StrCat(io::ToString(tensor->dtype), " has no values"));
      if (!status.ok()) return OfWeight(absl::DataLossError(status.message()), name);
      parts.insert(part.name);
    }
  }
  for (const io::TensorInfo& tensor : source_->tensors()) {
    if (parts.contains(tensor.name) || tensor.name == kProgramTensor) continue;
    if (const std::string* owner = OwnerOf(weights_, tensor.name); owner != nullptr) {
      return OfWeight(absl::DataLossError(absl::StrCat("the tensor ", io::QuoteForMessage(tensor.name),
                                                       " is not one of those that its header counts")),
                      *owner);
    }
    tensors_.push_back(tensor.name);
  }
  std::sort(tensors_.begin(), tensors_.end());
  return absl::OkStatus();
}

absl::StatusOr<NativeReader> NativeReader::Open(const io::TensorSource& source) {
  if (!IsNative(source)) {
    return absl::FailedPreconditionError(
        absl::StrCat(source.path(), ": the metadata have no \"", kVersionKey, "\": it is not in the native format"));
  }
  NativeReader reader(source);
  absl::Status status = reader.ReadMetadata();
  if (status.ok()) status = reader.SortTensors();
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(source.path(), ": ", status.message()));
  return reader;
}

absl::StatusOr<NativeWeight> NativeReader::ReadWeight(const std::string& name) const {
  const auto it = weights_.find(name);
  if (it == weights_.end()) {
    return absl::NotFoundError(absl::StrCat(source_->path(), " has no weight ", io::QuoteForMessage(name)));
  }
  const WeightHeader& header = it->second;
  NativeWeight weight;
  weight.bits = header.bits;
  weight.half = header.half;
  weight.contracting = header.contracting;
  weight.remaining = header.remaining;
  weight.config_digest = header.config_digest;
  QTensor& tensor = weight.tensor;
  tensor.dequant_dtype = header.dequant_dtype;
  tensor.tiling_state = header.Tiling();
  if (header.bits == 0) {
    AQT_ASSIGN_OR_RETURN(tensor.qvalue, source_->ReadArray(QValueName(name)));
  } else {
    const io::TensorInfo& info = *source_->Find(QValueName(name));
    std::vector<uint8_t> bytes(info.num_bytes());
    AQT_RETURN_IF_ERROR(source_->Read(info, 0, absl::MakeSpan(bytes)));
    absl::StatusOr<Array> qvalue = Unpack(bytes, {header.bits, header.half}, Aval{header.dtype, header.StoredShape()});
    if (!qvalue.ok()) {
      return absl::Status(
          qvalue.status().code(),
          absl::StrCat(source_->path(), ": tensor ", io::QuoteForMessage(info.name), " ", qvalue.status().message()));
    }
    tensor.qvalue = *std::move(qvalue);
  }
  for (const PartName& part : PartNames(name, header)) {
    AQT_ASSIGN_OR_RETURN(Array array, source_->ReadArray(part.name));
    if (part.kind == PartKind::kMask) {
      tensor.sparsity_mask = std::move(array);
    } else {
      (part.kind == PartKind::kScale ? tensor.scale : tensor.bias).push_back(std::move(array));
    }
  }
  return weight;
}

absl::StatusOr<std::string> NativeReader::ReadProgram() const {
  const io::TensorInfo* info = source_->Find(kProgramTensor);
  if (info == nullptr) return std::string();
  if (info->dtype != io::FileDType::kU8 || info->shape.rank() != 1 || info->num_bytes() > kMaxProgramBytes) {
    return absl::DataLossError(absl::StrCat(source_->path(), ": tensor \"", kProgramTensor, "\" is ",
                                            io::ToString(info->dtype), info->shape.ToString(),
                                            ", expected U8[n] with n of at most ", kMaxProgramBytes));
  }
  std::string bytes(info->num_bytes(), '\0');
  AQT_RETURN_IF_ERROR(source_->Read(*info, 0, absl::MakeSpan(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size())));
  return bytes;
}

absl::StatusOr<NativeFile> NativeReader::ReadAll() const {
  NativeFile file;
  file.metadata = metadata_;
  for (const auto& [name, header] : weights_) {
    AQT_ASSIGN_OR_RETURN(file.weights[name], ReadWeight(name));
  }
  for (const std::string& name : tensors_) {
    AQT_ASSIGN_OR_RETURN(file.tensors[name], source_->ReadArray(name));
  }
  AQT_ASSIGN_OR_RETURN(file.program, ReadProgram());
  return file;
}

}  // namespace aqt::native
