#include "serving/calibration.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/safetensors.h"

namespace aqt::serving {
namespace {

constexpr absl::string_view kMin = ".input_min";
constexpr absl::string_view kMax = ".input_max";

absl::StatusOr<float> ReadOne(const io::SafetensorsReader& reader, const std::string& name) {
  const io::TensorInfo* info = reader.Find(name);
  if (info == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
  if (info->dtype != io::FileDType::kF32 || info->shape.num_elements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", io::ToString(info->dtype), info->shape.ToString(), "; F32[1] is expected"));
  }
  AQT_ASSIGN_OR_RETURN(const Array array, reader.ReadArray(*info));
  const float value = array.View<float>()[0];
  if (!std::isfinite(value)) return absl::InvalidArgumentError(absl::StrCat(name, " is ", value));
  return value;
}

absl::StatusOr<Calibration> ReadAll(const io::SafetensorsReader& reader) {
  Calibration calibration;
  for (const io::TensorInfo& tensor : reader.tensors()) {
    absl::string_view module = tensor.name;
    if (!absl::ConsumeSuffix(&module, kMin) && !absl::ConsumeSuffix(&module, kMax)) {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected tensor ", tensor.name, "; names are <module>", kMin, " and <module>", kMax));
    }
    InputRange range;
    AQT_ASSIGN_OR_RETURN(range.min, ReadOne(reader, absl::StrCat(module, kMin)));
    AQT_ASSIGN_OR_RETURN(range.max, ReadOne(reader, absl::StrCat(module, kMax)));
    if (range.min > range.max) {
      return absl::InvalidArgumentError(
          absl::StrCat(module, kMin, " = ", range.min, " is above ", module, kMax, " = ", range.max));
    }
    calibration[std::string(module)] = range;
  }
  return calibration;
}

}  // namespace

absl::StatusOr<Calibration> ReadCalibration(const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const io::SafetensorsReader reader, io::SafetensorsReader::Open(fs, path));
  absl::StatusOr<Calibration> calibration = ReadAll(reader);
  if (!calibration.ok()) return Annotate(calibration.status(), path);
  return calibration;
}

absl::Status CheckCalibration(const Plan& plan, const Calibration& calibration) {
  std::vector<std::string> missing;
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.quantized() || !tensor.decision.scheme->HasStaticInput()) continue;
    std::string module(*ModuleOf(tensor.name()));
    if (!calibration.contains(module)) missing.push_back(std::move(module));
  }
  if (missing.empty()) return absl::OkStatus();
  constexpr size_t kShown = 5;
  const size_t total = missing.size();
  if (total > kShown) missing.resize(kShown);
  return absl::InvalidArgumentError(
      absl::StrCat("static activations need the range of each input (--calibration FILE with <module>", kMin,
                   " and <module>", kMax, "); missing for ", absl::StrJoin(missing, ", "),
                   total > kShown ? absl::StrCat(" and ", total - kShown, " more") : ""));
}

}  // namespace aqt::serving
