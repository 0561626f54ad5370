#include "aqt/nn/state_file.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/safetensors.h"

namespace aqt::nn {
namespace {

constexpr absl::string_view kDTypeKey = "dtype:";

std::string NameOf(const Slot& slot) { return absl::StrCat(ToString(slot.kind), "/", slot.path); }

// What stands in the file.
Array Stored(const Array& array) {
  return io::ToFileDType(array.dtype()).has_value() ? array : Cast(array, DType::kS8);
}

absl::StatusOr<Slot> SlotOf(absl::string_view path, const std::string& name) {
  const size_t slash = name.find('/');
  const std::optional<SlotKind> kind = SlotKindFromString(absl::string_view(name).substr(0, slash));
  if (slash == std::string::npos || !kind.has_value()) {
    return absl::DataLossError(absl::StrCat(path, ": tensor \"", name, "\" is no state: its name does not begin with param/, stat/, "
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
    if (absl::StartsWith(key, kDTypeKey)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": metadata key \"", key, "\" begins with \"", kDTypeKey, "\""));
    }
    options.metadata.emplace_back(key, value);
  }
  for (const auto& [slot, array] : file.state) {
    const Array stored = Stored(array);
    specs.push_back({NameOf(slot), *io::ToFileDType(stored.dtype()), array.shape()});
    if (stored.dtype() != array.dtype()) {
      options.metadata.emplace_back(absl::StrCat(kDTypeKey, NameOf(slot)), std::string(ToString(array.dtype())));
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
  std::map<std::string, DType> dtypes;
  for (const auto& [key, value] : reader.metadata()) {
    if (!absl::StartsWith(key, kDTypeKey)) {
      file.metadata.emplace(key, value);
      continue;
    }
    const std::optional<DType> dtype = DTypeFromString(value);
    if (!dtype.has_value()) return absl::DataLossError(absl::StrCat(path, ": metadata \"", key, "\": no dtype \"", value, "\""));
    dtypes.emplace(absl::StripPrefix(key, kDTypeKey), *dtype);
  }
  for (const io::TensorInfo& tensor : reader.tensors()) {
    AQT_ASSIGN_OR_RETURN(const Slot slot, SlotOf(path, tensor.name));
    AQT_ASSIGN_OR_RETURN(Array array, reader.ReadArray(tensor));
    if (const auto it = dtypes.find(tensor.name); it != dtypes.end()) {
      const Array narrow = Cast(array, it->second);
      if (!BitEqual(Cast(narrow, array.dtype()), array)) {
        return absl::DataLossError(
            absl::StrCat(path, ": tensor \"", tensor.name, "\" has numbers that ", ToString(it->second), " does not have"));
      }
      array = narrow;
    }
    file.state.emplace(slot, std::move(array));
  }
  return file;
}

}  // namespace aqt::nn
