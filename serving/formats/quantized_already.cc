#include "serving/formats/quantized_already.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/io/printable.h"
#include "aqt/native/native_file.h"
#include "serving/formats/scheme.h"

namespace aqt::serving {
namespace {

// Integers, and floating point types of 8 bits or fewer: types for storage only.
bool IsStorageType(io::FileDType dtype) {
  switch (dtype) {
    case io::FileDType::kBool: return false;
    case io::FileDType::kI16:
    case io::FileDType::kU16:
    case io::FileDType::kI32:
    case io::FileDType::kU32: return true;
    default: return io::BitWidth(dtype) <= 8;
  }
}

// How a method names its tensors. The first matching entry decides. A single name is weak evidence: some models in
// floating point have such names.
struct TensorNaming {
  absl::string_view suffix;
  const char* method;
  bool storage = false;           // only tensors of a storage type
  absl::string_view beside = "";  // only next to a tensor of a storage type with this suffix instead
};
constexpr TensorNaming kNamings[] = {
    {".g_idx", "GPTQ", true, ".qweight"},
    {".qweight", "GPTQ or AWQ", true},
    {".qzeros", "GPTQ or AWQ", true},
    {".weight.absmax", "bitsandbytes", false, kWeight},
    {".weight.quant_map", "bitsandbytes", false, kWeight},
    {".weight.nested_absmax", "bitsandbytes", false, kWeight},
    {".weight.quant_state.bitsandbytes__nf4", "bitsandbytes", true},
    {".weight.quant_state.bitsandbytes__fp4", "bitsandbytes", true},
    {".SCB", "bitsandbytes", false, kWeight},
    {".weight_scale_inv", "FP8 in blocks", false, kWeight},
    {".weight_scale_2", "ModelOpt", false, kWeight},
    {".weight_packed", "compressed-tensors", true},
    {".weight_global_scale", "compressed-tensors", false, kWeight},
    {".weight_zero_point", "compressed-tensors", false, kWeight},
    {".weight_scale", "compressed-tensors or FP8", false, kWeight},
    {".weight._data", "Quanto", true},
    {".W_q", "HQQ", true},
    {"_blocks", "MXFP4", true, "_scales"},
};

bool ShowsQuantization(const io::TensorSource& source, const io::TensorInfo& info, const TensorNaming& naming) {
  absl::string_view stem = info.name;
  if (!absl::ConsumeSuffix(&stem, naming.suffix)) return false;
  if (naming.storage && !IsStorageType(info.dtype)) return false;
  if (naming.beside.empty()) return true;
  const io::TensorInfo* const other = source.Find(absl::StrCat(stem, naming.beside));
  return other != nullptr && IsStorageType(other->dtype);
}

}  // namespace

std::string FindQuantizationFile(const std::vector<std::string>& files) {
  for (const char* name : {"quantize_config.json", "quant_config.json", "hf_quant_config.json"}) {
    if (std::find(files.begin(), files.end(), name) != files.end()) return name;
  }
  return "";
}

std::string QuantizationEvidence(const io::TensorSource& source, const ModelConfig& model) {
  if (model.quantization_config.has_value()) {
    return absl::StrCat("it has a quantization_config",
                        model.quant_method.empty() ? "" : absl::StrCat(" of ", io::Printable(model.quant_method)));
  }
  if (!model.quantization_file.empty()) return absl::StrCat("there is a ", model.quantization_file);
  if (native::IsNative(source)) return "its metadata describe weights in AQT's native layout";
  for (const TensorNaming& naming : kNamings) {
    for (const io::TensorInfo& tensor : source.tensors()) {
      if (ShowsQuantization(source, tensor, naming)) {
        return absl::StrCat("the tensor ", io::Printable(tensor.name), " is of ", naming.method);
      }
    }
  }
  for (const io::TensorInfo& info : source.tensors()) {
    if (info.shape.rank() == 2 && ModuleOf(info.name).has_value() && IsStorageType(info.dtype)) {
      return absl::StrCat("the weight ", io::Printable(info.name), " is ", io::ToString(info.dtype),
                          info.shape.ToString());
    }
  }
  return "";
}

absl::Status CheckNotQuantized(const io::TensorSource& source, const ModelConfig& model) {
  const std::string evidence = QuantizationEvidence(source, model);
  if (evidence.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(source.path(), " is quantized already: ", evidence,
                   "; start from the floating point original, or `aqt dequantize` it first, or quantize it again with "
                   "--allow-requantize"));
}

}  // namespace aqt::serving
