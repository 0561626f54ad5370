#include "aqt/stored/stored_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/printable.h"

namespace aqt::stored {

void StoredWeights::Add(std::unique_ptr<StoredWeight> weight, const Parts& parts) {
  weights.push_back(std::move(weight));
  consumed.insert(consumed.end(), parts.found().begin(), parts.found().end());
}

void StoredWeights::Drop(const io::TensorSource& source, absl::string_view module,
                         std::initializer_list<const char*> suffixes) {
  for (const char* suffix : suffixes) {
    if (const io::TensorInfo* const tensor = source.Find(absl::StrCat(module, suffix)); tensor != nullptr) {
      consumed.push_back(tensor);
    }
  }
}

void StoredWeights::DropAll(const io::TensorSource& source, std::initializer_list<absl::string_view> suffixes) {
  for (const io::TensorInfo& tensor : source.tensors()) {
    for (const absl::string_view suffix : suffixes) {
      if (absl::EndsWith(tensor.name, suffix)) consumed.push_back(&tensor);
    }
  }
}

absl::Span<const StoredFormat* const> StoredFormats() {
  // Without a configuration, the first that the tensors show is taken.
  static const StoredFormat* const formats[] = {&Native(), &Gptq(), &Awq(),     &BitsAndBytes(), &CompressedTensors(),
                                                &GptOss(), &Fp8(),  &ModelOpt()};
  return formats;
}

absl::StatusOr<const StoredFormat*> FindStoredFormat(const io::TensorSource& source, const StoredConfig& config) {
  for (const StoredFormat* format : StoredFormats()) {
    if (config.method.empty() ? format->IsShownBy(source) : format->IsMethod(config.method)) return format;
  }
  if (config.method.empty()) return nullptr;
  std::string names;
  for (const StoredFormat* format : StoredFormats()) absl::StrAppend(&names, names.empty() ? "" : ", ", format->name());
  return absl::UnimplementedError(absl::StrCat("'", io::PrintableLine(source.path()),
                                               "' is quantized by a method that cannot be read: ", config.where,
                                               " has quant_method ", io::Printable(config.method),
                                               "; these can: ", names, "; start from the floating point original"));
}

absl::string_view StemOf(absl::string_view tensor, absl::string_view suffix) {
  if (tensor.size() <= suffix.size() || !absl::EndsWith(tensor, suffix)) return "";
  return tensor.substr(0, tensor.size() - suffix.size());
}

bool HasTensor(const io::TensorSource& source, absl::string_view suffix) {
  return std::any_of(source.tensors().begin(), source.tensors().end(),
                     [&](const io::TensorInfo& tensor) { return absl::EndsWith(tensor.name, suffix); });
}

bool HasScaled(const io::TensorSource& source, absl::string_view suffix, io::FileDType dtype) {
  return std::any_of(source.tensors().begin(), source.tensors().end(), [&](const io::TensorInfo& tensor) {
    const absl::string_view module = StemOf(tensor.name, ".weight");
    return !module.empty() && tensor.dtype == dtype && source.Find(absl::StrCat(module, suffix)) != nullptr;
  });
}

}  // namespace aqt::stored
