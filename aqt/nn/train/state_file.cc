#include "aqt/nn/train/state_file.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/tensors/safetensors.h"

namespace aqt::nn {
namespace {

constexpr absl::string_view kPackedKey = "packed:";

std::string NameOf(const Slot& slot) { return absl::StrCat(ToString(slot.kind), "/", slot.path); }

int64_t PackedBytes(const Aval& aval) {
  const int64_t count = aval.shape.num_elements(), per_byte = 8 / BitWidth(aval.dtype);
  return count / per_byte + (count % per_byte != 0);
}

// The bytes of an s2 or s4 array.
Array Pack(const Array& array) {
  const int bits = BitWidth(array.dtype()), per_byte = 8 / bits;
  const int64_t count = array.num_elements();
  const Array numbers = Cast(array, DType::kS8);
  ArrayBuilder packed(DType::kU8, {PackedBytes(array.aval())});  // zeros
  const absl::Span<const int8_t> from = numbers.View<int8_t>();
  const absl::Span<uint8_t> to = packed.Mutable<uint8_t>();
  for (int64_t i = 0; i < count; ++i) {
    const int low = from[i] & ((1 << bits) - 1);
    to[i / per_byte] |= static_cast<uint8_t>(low << (i % per_byte * bits));
  }
  return std::move(packed).Build();
}

// The inverse of Pack. DataLoss if `packed` does not hold the bytes of such an array.
absl::StatusOr<Array> Unpack(const Array& packed, const Aval& aval) {
  const int bits = BitWidth(aval.dtype), per_byte = 8 / bits;
  const int64_t count = aval.shape.num_elements();
  const Aval want{DType::kU8, {PackedBytes(aval)}};
  if (packed.aval() != want) {
    return absl::DataLossError(
        absl::StrCat("is ", packed.aval().ToString(), ", expected ", want.ToString(), " for ", aval.ToString()));
  }
  ArrayBuilder numbers(DType::kS8, aval.shape);
  const absl::Span<const uint8_t> from = packed.View<uint8_t>();
  const absl::Span<int8_t> to = numbers.Mutable<int8_t>();
  for (int64_t i = 0; i < count; ++i) {
    const int low = (from[i / per_byte] >> (i % per_byte * bits)) & ((1 << bits) - 1);
    to[i] = static_cast<int8_t>(low >> (bits - 1) != 0 ? low - (1 << bits) : low);
  }
  Array array = Cast(std::move(numbers).Build(), aval.dtype);
  if (!BitEqual(Pack(array), packed)) return absl::DataLossError("has bits past its last element");
  return array;
}

// Parses text such as "s4[64,320]", for s2 and s4.
std::optional<Aval> ParsePackedAval(absl::string_view text) {
  Aval aval;
  if (absl::ConsumePrefix(&text, "s4[")) {
    aval.dtype = DType::kS4;
  } else if (absl::ConsumePrefix(&text, "s2[")) {
    aval.dtype = DType::kS2;
  } else {
    return std::nullopt;
  }
  if (!absl::ConsumeSuffix(&text, "]")) return std::nullopt;
  std::vector<int64_t> extents;
  if (!text.empty()) {
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      if (!absl::SimpleAtoi(part, &extents.emplace_back())) return std::nullopt;
    }
  }
  aval.shape = Shape(extents);
  if (!CheckShape(aval.shape).ok()) return std::nullopt;
  return aval;
}

// The array as the file stores it.
Array Stored(const Array& array) { return io::ToFileDType(array.dtype()).has_value() ? array : Pack(array); }

absl::StatusOr<Slot> SlotOf(absl::string_view path, const std::string& name) {
  const size_t slash = name.find('/');
  const std::optional<SlotKind> kind = SlotKindFromString(absl::string_view(name).substr(0, slash));
  if (slash == std::string::npos || !kind.has_value()) {
    return absl::DataLossError(absl::StrCat(path, ": tensor \"", name,
                                            "\" is not a state: its name does not begin with param/, stat/, "
                                            "frozen/, key/ or data/"));
  }
  return Slot{*kind, name.substr(slash + 1)};
}

}  // namespace

absl::Status SaveState(const io::FileSystem& fs, absl::string_view path, const StateFile& file) {
  std::vector<io::TensorSpec> specs;
  io::SafetensorsWriterOptions options;
  options.output.overwrite = true;
  for (const auto& [key, value] : file.metadata) {
    if (absl::StartsWith(key, kPackedKey)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": metadata key \"", key, "\" begins with \"", kPackedKey, "\""));
    }
    options.metadata.emplace_back(key, value);
  }
  for (const auto& [slot, array] : file.state) {
    const Array stored = Stored(array);
    specs.push_back({NameOf(slot), *io::ToFileDType(stored.dtype()), stored.shape()});
    if (stored.dtype() != array.dtype()) {
      options.metadata.emplace_back(absl::StrCat(kPackedKey, NameOf(slot)), array.aval().ToString());
    }
  }
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<io::SafetensorsWriter> writer,
                       io::SafetensorsWriter::Create(fs, path, std::move(specs), options));
  for (const auto& [slot, array] : file.state) AQT_RETURN_IF_ERROR(writer->WriteArray(NameOf(slot), Stored(array)));
  return writer->Finish();
}

absl::StatusOr<StateFile> LoadState(const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const io::SafetensorsReader reader, io::SafetensorsReader::Open(fs, path));
  StateFile file;
  std::map<std::string, Aval> packed;
  for (const auto& [key, value] : reader.metadata()) {
    if (!absl::StartsWith(key, kPackedKey)) {
      file.metadata.emplace(key, value);
      continue;
    }
    const std::optional<Aval> aval = ParsePackedAval(value);
    if (!aval.has_value()) {
      return absl::DataLossError(absl::StrCat(path, ": metadata \"", key, "\" is \"", value,
                                              "\", expected a dtype and shape such as s4[64,320]"));
    }
    packed.emplace(absl::StripPrefix(key, kPackedKey), *aval);
  }
  for (const io::TensorInfo& tensor : reader.tensors()) {
    AQT_ASSIGN_OR_RETURN(const Slot slot, SlotOf(path, tensor.name));
    AQT_ASSIGN_OR_RETURN(Array array, reader.ReadArray(tensor));
    if (const auto it = packed.find(tensor.name); it != packed.end()) {
      absl::StatusOr<Array> unpacked = Unpack(array, it->second);
      if (!unpacked.ok()) return Annotate(unpacked.status(), absl::StrCat(path, ": tensor \"", tensor.name, "\""));
      array = *std::move(unpacked);
      packed.erase(it);
    }
    file.state.emplace(slot, std::move(array));
  }
  if (!packed.empty()) {
    const std::string& name = packed.begin()->first;
    return absl::DataLossError(
        absl::StrCat(path, ": metadata \"", kPackedKey, name, "\" is there, but no tensor \"", name, "\""));
  }
  return file;
}

}  // namespace aqt::nn
