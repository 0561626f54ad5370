#include "tests/foreign_check.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/safetensors.h"
#include "nlohmann/json.hpp"
#include "serving/convert/convert_job.h"
#include "serving/convert/model_input.h"
#include "tests/golden_check/sha256.h"

namespace aqt {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxJson = 64 << 20;

absl::Status Different(absl::string_view what) { return absl::FailedPreconditionError(what); }

absl::StatusOr<Json> ReadJson(const io::FileSystem& fs, const std::string& path) {
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxJson));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Different(absl::StrCat(path, " is not a JSON object"));
  return json;
}

struct Case {
  std::string name;
  std::string folder;
  std::string dequantized;  // empty: only the hashes are known
  std::string split;        // the experts as single weights, if it exists
  Json expected;
};

// Every value equal as a number; in another dtype, the f32 value rounded once.
absl::Status CompareValues(const std::string& name, const Array& expected, const Array& actual) {
  if (expected.shape() != actual.shape()) {
    return Different(absl::StrCat(name, " is ", actual.shape().ToString(), ", not ", expected.shape().ToString()));
  }
  const Array want = Cast(Cast(expected, actual.dtype()), DType::kF32), got = Cast(actual, DType::kF32);
  const absl::Span<const float> a = want.View<float>(), b = got.View<float>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i])) return Different(absl::StrCat(name, ": element ", i, " is ", b[i], ", not ", a[i]));
  }
  return absl::OkStatus();
}

absl::Status CompareBytes(const io::TensorSource& input, const io::TensorSource& output, const std::string& name) {
  const io::TensorInfo* const a = input.Find(name);
  const io::TensorInfo* const b = output.Find(name);
  if (a == nullptr || b == nullptr) return Different(absl::StrCat(name, " is missing"));
  if (a->dtype != b->dtype || a->shape != b->shape) return Different(absl::StrCat(name, " has another type"));
  std::vector<uint8_t> x(a->num_bytes()), y(b->num_bytes());
  AQT_RETURN_IF_ERROR(input.Read(*a, 0, absl::MakeSpan(x)));
  AQT_RETURN_IF_ERROR(output.Read(*b, 0, absl::MakeSpan(y)));
  return x == y ? absl::OkStatus() : Different(absl::StrCat(name, " has other bytes"));
}

absl::Status CompareTensors(const io::FileSystem& fs, const Case& c, const io::Checkpoint& output, DType dtype) {
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint input, io::Checkpoint::Open(fs, c.folder));
  std::optional<io::SafetensorsReader> values;
  if (!c.dequantized.empty()) {
    AQT_ASSIGN_OR_RETURN(values, io::SafetensorsReader::Open(fs, c.dequantized));
  }
  std::set<std::string> known;
  for (const auto& [name, weight] : c.expected["weights"].items()) {
    known.insert(name);
    AQT_ASSIGN_OR_RETURN(const Array actual, output.ReadArray(name));
    if (actual.dtype() != dtype) return Different(absl::StrCat(name, " is ", ToString(actual.dtype())));
    if (dtype == DType::kF32 && !values.has_value()) {
      const absl::string_view bytes(static_cast<const char*>(actual.data()), actual.num_bytes());
      if (golden::Sha256Hex(bytes) != weight["sha256_f32"].get<std::string>()) {
        return Different(absl::StrCat(name, " has another SHA-256"));
      }
    }
    if (!values.has_value()) continue;
    AQT_ASSIGN_OR_RETURN(const Array expected, values->ReadArray(name));
    AQT_RETURN_IF_ERROR(CompareValues(name, expected, actual));
  }
  for (const Json& name : c.expected["unchanged"]) {
    if (c.expected["weights"].contains(name.get<std::string>())) continue;
    known.insert(name.get<std::string>());
    AQT_RETURN_IF_ERROR(CompareBytes(input, output, name.get<std::string>()));
  }
  for (const io::TensorInfo& tensor : output.tensors()) {
    if (!known.contains(tensor.name)) return Different(absl::StrCat(tensor.name, " is in the output"));
  }
  return absl::OkStatus();
}

// The output's other files say nothing about a quantization.
absl::Status CheckFiles(const io::FileSystem& fs, const std::string& folder, DType dtype) {
  AQT_ASSIGN_OR_RETURN(const std::string config, io::ReadFile(fs, io::JoinPath(folder, "config.json"), kMaxJson));
  if (absl::StrContains(config, "quantization_config")) return Different("config.json has a quantization_config");
  AQT_ASSIGN_OR_RETURN(const Json json, ReadJson(fs, io::JoinPath(folder, "config.json")));
  const char* const name = dtype == DType::kF32 ? "float32" : dtype == DType::kBF16 ? "bfloat16" : "float16";
  if (json.value("torch_dtype", json.value("dtype", "")) != name) return Different("config.json has another dtype");
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> files, fs.List(folder));
  for (const std::string& file : files) {
    if (absl::StrContains(file, "quant")) return Different(absl::StrCat(file, " was copied"));
  }
  return absl::OkStatus();
}

absl::Status RunCase(const io::FileSystem& fs, const Case& c, DType dtype, const std::string& output) {
  serving::ConvertJob job;
  job.input = c.folder;
  job.output = output;
  job.dequantize_to = dtype;
  // Records of this check, not of the model.
  job.exclude = {"expected.json", "dequantized.safetensors", "split.safetensors", "calibration.safetensors"};
  job.jobs = 2;
  const absl::StatusOr<serving::ConvertReport> report = serving::RunConvertJob(fs, job);
  AQT_RETURN_IF_ERROR(report.status());
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, io::Checkpoint::Open(fs, output));
  AQT_RETURN_IF_ERROR(CompareTensors(fs, c, checkpoint, dtype));
  return CheckFiles(fs, output, dtype);
}

// The tensors of split.safetensors, and the unchanged ones that are not experts'.
absl::Status CompareSplit(const io::FileSystem& fs, const Case& c, const io::TensorSource& actual) {
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint input, io::Checkpoint::Open(fs, c.folder));
  std::optional<io::SafetensorsReader> split;
  if (io::Exists(fs, c.split).value_or(false)) {
    AQT_ASSIGN_OR_RETURN(split, io::SafetensorsReader::Open(fs, c.split));
  }
  std::set<std::string> known;
  if (split.has_value()) {
    for (const io::TensorInfo& tensor : split->tensors()) {
      known.insert(tensor.name);
      AQT_RETURN_IF_ERROR(CompareBytes(*split, actual, tensor.name));
    }
  }
  for (const Json& json : c.expected["unchanged"]) {
    const std::string name = json.get<std::string>();
    if (split.has_value() && absl::StrContains(name, ".experts.")) continue;
    known.insert(name);
    AQT_RETURN_IF_ERROR(CompareBytes(input, actual, name));
  }
  for (const io::TensorInfo& tensor : actual.tensors()) {
    if (!known.contains(tensor.name)) return Different(absl::StrCat(tensor.name, " is in the output"));
  }
  return absl::OkStatus();
}

absl::Status RunDequantizedSplit(const io::FileSystem& fs, const Case& c, const std::string& output) {
  serving::ConvertJob job;
  job.input = c.folder;
  job.output = output;
  job.dequantize_to = DType::kBF16;
  job.recipe.experts = serving::Experts::kSplit;
  AQT_RETURN_IF_ERROR(serving::RunConvertJob(fs, job).status());
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, io::Checkpoint::Open(fs, output));
  return CompareSplit(fs, c, checkpoint);
}

absl::Status RunSplitCase(const io::FileSystem& fs, const Case& c) {
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, io::Checkpoint::Open(fs, c.folder));
  AQT_ASSIGN_OR_RETURN(serving::ModelInput input, serving::ModelInput::Open(fs, checkpoint, {}));
  AQT_RETURN_IF_ERROR(input.NeedSplit());
  return CompareSplit(fs, c, input.tensors());
}

// The model of a case without the records beside it, which look like other checkpoints.
absl::Status CopyModel(const io::FileSystem& fs, const std::string& from, const std::string& to) {
  AQT_RETURN_IF_ERROR(fs.CreateFolder(to));
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> files, fs.List(from));
  for (const std::string& file : files) {
    if (file == "expected.json" || file == "dequantized.safetensors" || file == "split.safetensors") continue;
    AQT_RETURN_IF_ERROR(io::CopyFile(fs, io::JoinPath(from, file), io::JoinPath(to, file)));
  }
  return absl::OkStatus();
}

absl::Status RunCaseIn(const io::FileSystem& fs, Case c, const std::string& folder) {
  const std::string model = io::JoinPath(folder, "model");
  AQT_RETURN_IF_ERROR(CopyModel(fs, c.folder, model));
  c.folder = model;
  if (c.expected.value("kind", "") == "split") return RunSplitCase(fs, c);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const absl::Status status = RunCase(fs, c, dtype, io::JoinPath(folder, absl::StrCat("out-", ToString(dtype))));
    // A large value is refused in f16, by name.
    if (dtype == DType::kF16 && absl::StrContains(status.message(), "overflows f16")) continue;
    if (absl::IsUnimplemented(status) && c.expected.contains("pass_rule_edge") &&
        absl::StrContains(status.message(), "zero point")) {
      continue;
    }
    AQT_RETURN_IF_ERROR(Annotate(status, ToString(dtype)));
  }
  if (!io::Exists(fs, c.split).value_or(false)) return absl::OkStatus();
  return Annotate(RunDequantizedSplit(fs, c, io::JoinPath(folder, "out-split")), "split");
}

absl::StatusOr<std::vector<Case>> FindCases(const io::FileSystem& fs, const std::string& golden_dir,
                                            const std::map<std::string, std::string>& sets, int& absent) {
  std::vector<Case> cases;
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(golden_dir));
  for (const std::string& name : names) {
    const std::string folder = io::JoinPath(golden_dir, name);
    const absl::StatusOr<Json> expected = ReadJson(fs, io::JoinPath(folder, "expected.json"));
    const std::string kind = expected.ok() ? expected->value("kind", "") : "";
    if (kind != "dequantize" && kind != "split") continue;
    cases.push_back({name, folder, io::JoinPath(folder, "dequantized.safetensors"),
                     io::JoinPath(folder, "split.safetensors"), *expected});
  }
  const std::string ct = io::JoinPath(golden_dir, "ct");
  const absl::StatusOr<Json> index = ReadJson(fs, io::JoinPath(ct, "index.json"));
  if (!index.ok()) return cases;
  for (const auto& [name, value] : (*index)["cases"].items()) {
    const size_t slash = name.find('/');
    const auto set = sets.find(name.substr(0, slash));
    const std::string folder = set == sets.end() ? "" : io::JoinPath(set->second, name.substr(slash + 1));
    if (folder.empty() || !io::Exists(fs, folder).value_or(false)) {
      ++absent;
      continue;
    }
    const std::string values = value["dequantized"].is_string() ? value["dequantized"].get<std::string>() : "";
    cases.push_back({name, folder, values.empty() ? "" : io::JoinPath(ct, values), "", value});
  }
  return cases;
}

}  // namespace

int ForeignCheck(const io::FileSystem& fs, const std::string& golden_dir,
                 const std::map<std::string, std::string>& sets, const std::string& temporary_dir, std::ostream& out) {
  int passed = 0, failed = 0, absent = 0;
  const absl::StatusOr<std::vector<Case>> cases = FindCases(fs, golden_dir, sets, absent);
  if (!cases.ok() || cases->empty()) {
    out << golden_dir << ": " << (cases.ok() ? "no case" : std::string(cases.status().message())) << "\n";
    return 2;
  }
  for (const Case& c : *cases) {
    const std::string folder = io::JoinPath(temporary_dir, "case");
    absl::Status status = fs.CreateFolder(folder);
    if (status.ok()) status = RunCaseIn(fs, c, folder);
    if (const absl::Status removed = io::RemoveTree(fs, folder); status.ok()) status = removed;
    ++(status.ok() ? passed : failed);
    if (!status.ok()) out << "failed: " << c.name << ": " << std::string(status.message()) << "\n";
  }
  out << "passed " << passed << ", failed " << failed << ", not there " << absent << "\n";
  return failed > 0 ? 1 : 0;
}

}  // namespace aqt
