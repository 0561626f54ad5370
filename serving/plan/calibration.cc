#include "serving/plan/calibration.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/safetensors.h"

namespace aqt::serving {
namespace {

constexpr absl::string_view kMin = ".input_min";
constexpr absl::string_view kMax = ".input_max";

absl::StatusOr<float> ReadOne(const io::TensorSource& source, const std::string& name) {
  const io::TensorInfo* info = source.Find(name);
  if (info == nullptr) return absl::InvalidArgumentError(absl::StrCat(io::Printable(name), " is missing"));
  if (info->dtype != io::FileDType::kF32 || info->shape.num_elements() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(io::Printable(name), " is ", io::ToString(info->dtype),
                                                   info->shape.ToString(), "; F32[1] is expected"));
  }
  AQT_ASSIGN_OR_RETURN(const Array array, source.ReadArray(*info));
  const float value = array.View<float>()[0];
  if (!std::isfinite(value)) return absl::InvalidArgumentError(absl::StrCat(io::Printable(name), " is ", value));
  return value;
}

// The first few names, and the number of the others.
std::string ListSome(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  const auto end = names.begin() + std::min(kShown, names.size());
  const auto append = [](std::string* out, const std::string& name) { absl::StrAppend(out, io::Printable(name)); };
  return absl::StrCat(absl::StrJoin(names.begin(), end, ", ", append),
                      names.size() > kShown ? absl::StrCat(" and ", names.size() - kShown, " more") : "");
}

absl::StatusOr<Calibration> ReadAll(const io::TensorSource& source) {
  Calibration calibration;
  for (const io::TensorInfo& tensor : source.tensors()) {
    absl::string_view module = tensor.name;
    if (!absl::ConsumeSuffix(&module, kMin) && !absl::ConsumeSuffix(&module, kMax)) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected tensor ", io::Printable(tensor.name),
                                                     "; the names must be <module>", kMin, " and <module>", kMax));
    }
    InputRange range;
    AQT_ASSIGN_OR_RETURN(range.min, ReadOne(source, absl::StrCat(module, kMin)));
    AQT_ASSIGN_OR_RETURN(range.max, ReadOne(source, absl::StrCat(module, kMax)));
    if (range.min > range.max) {
      return absl::InvalidArgumentError(
          absl::StrCat(io::Printable(module), ": ", kMin, " = ", range.min, " is above ", kMax, " = ", range.max));
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

absl::Status CheckCalibration(const io::TensorSource& source, const Plan& plan, const Calibration& calibration,
                              bool strict, std::vector<std::string>& warnings) {
  std::set<std::string> wanted;
  for (const TensorPlan& tensor : plan.tensors) {
    if (tensor.quantized() && tensor.decision.scheme->HasStaticInput()) wanted.emplace(*ModuleOf(tensor.name()));
  }
  std::vector<std::string> missing, absent, floating;
  for (const std::string& module : wanted) {
    if (!calibration.contains(module)) missing.push_back(module);
  }
  for (const auto& [module, range] : calibration) {
    if (!wanted.contains(module)) (HasModule(source, module) ? floating : absent).push_back(module);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("static activations need the range of each input (--calibration FILE with <module>", kMin,
                     " and <module>", kMax, "); missing for ", ListSome(missing),
                     absent.empty() ? "" : "; the file has ranges of modules that do not exist: ", ListSome(absent)));
  }
  if (!absent.empty()) {
    const std::string message =
        absl::StrCat("the calibration has ranges of modules that the checkpoint does not have: ", ListSome(absent));
    if (strict) return absl::InvalidArgumentError(absl::StrCat(message, " (--strict)"));
    warnings.push_back(message);
  }
  if (!calibration.empty() && wanted.empty()) {
    warnings.push_back("the calibration has no effect: the scheme has no static activations");
  } else if (!floating.empty()) {
    warnings.push_back(
        absl::StrCat("the calibration has ranges of modules without static activations: ", ListSome(floating)));
  }
  return absl::OkStatus();
}

}  // namespace aqt::serving
