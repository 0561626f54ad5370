#include "tests/checkpoint_check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/tensors/checkpoint.h"
#include "nlohmann/json.hpp"
#include "serving/convert/convert_job.h"
#include "serving/convert/output.h"
#include "serving/families/module_roles.h"
#include "serving/formats/quantization_config.h"
#include "serving/plan/plan.h"
#include "serving/plan/rules.h"

namespace aqt {
namespace {

using serving::Decision;
using serving::ModelConfig;
using serving::QuantizationConfig;
using serving::RuleSet;

constexpr char kCalibration[] = "calibration.safetensors";
constexpr char kExpected[] = "expected.json";

absl::Status Different(absl::string_view what) { return absl::FailedPreconditionError(what); }

absl::StatusOr<ModelConfig> ReadConfig(const io::FileSystem& fs, const std::string& folder) {
  const std::string path = io::JoinPath(folder, serving::kConfigFile);
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, serving::kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = serving::ParseModelConfig(text);
  if (!config.ok()) return Annotate(config.status(), path);
  return config;
}

// All bytes of a tensor.
absl::StatusOr<std::vector<uint8_t>> ReadBytes(const io::Checkpoint& checkpoint, const io::TensorInfo& tensor) {
  std::vector<uint8_t> bytes(tensor.num_bytes());
  AQT_RETURN_IF_ERROR(checkpoint.Read(tensor, 0, absl::MakeSpan(bytes)));
  return bytes;
}

absl::Status CompareTensors(const io::Checkpoint& expected, const io::Checkpoint& actual) {
  for (const io::TensorInfo& tensor : actual.tensors()) {
    if (expected.Find(tensor.name) == nullptr) return Different(absl::StrCat("unexpected tensor ", tensor.name));
  }
  for (const io::TensorInfo& tensor : expected.tensors()) {
    const std::string& name = tensor.name;
    const io::TensorInfo* other = actual.Find(name);
    if (other == nullptr) return Different(absl::StrCat("tensor ", name, " is missing"));
    if (tensor.dtype != other->dtype || tensor.shape != other->shape) {
      return Different(absl::StrCat(name, " is ", io::ToString(other->dtype), other->shape.ToString(), ", not ",
                                    io::ToString(tensor.dtype), tensor.shape.ToString()));
    }
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> a, ReadBytes(expected, tensor));
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> b, ReadBytes(actual, *other));
    const auto [p, q] = std::mismatch(a.begin(), a.end(), b.begin());
    if (p != a.end()) return Different(absl::StrCat(name, " differs at byte ", p - a.begin(), ": ", *q, ", not ", *p));
  }
  return absl::OkStatus();
}

absl::Status CompareConfigs(const io::Checkpoint& input, const std::string& expected_text,
                            const std::string& actual_text) {
  const nlohmann::json expected = nlohmann::json::parse(expected_text), actual = nlohmann::json::parse(actual_text);
  for (const char* key : {"quant_method", "quantization_status", "format"}) {
    if (expected.value(key, nlohmann::json()) != actual.value(key, nlohmann::json())) {
      return Different(absl::StrCat("quantization_config.", key, " is ", actual.value(key, nlohmann::json()).dump(),
                                    ", not ", expected.value(key, nlohmann::json()).dump()));
    }
  }
  AQT_ASSIGN_OR_RETURN(const QuantizationConfig a, serving::ParseQuantizationConfig(expected_text));
  AQT_ASSIGN_OR_RETURN(const QuantizationConfig b, serving::ParseQuantizationConfig(actual_text));
  const auto is_module = [&input](absl::string_view module) { return serving::HasModule(input, module); };
  const serving::ModuleRoles roles;
  AQT_ASSIGN_OR_RETURN(RuleSet a_rules, RuleSet::FromQuantizationConfig(a, roles, is_module));
  AQT_ASSIGN_OR_RETURN(RuleSet b_rules, RuleSet::FromQuantizationConfig(b, roles, is_module));
  for (const io::TensorInfo& tensor : input.tensors()) {
    AQT_ASSIGN_OR_RETURN(const Decision x, a_rules.Decide(tensor, /*tied=*/false));
    AQT_ASSIGN_OR_RETURN(const Decision y, b_rules.Decide(tensor, /*tied=*/false));
    if (x.scheme != y.scheme) {
      return Different(absl::StrCat("quantization_config: ", tensor.name, " has the scheme ",
                                    y.scheme.has_value() ? Describe(*y.scheme) : "none", ", not ",
                                    x.scheme.has_value() ? Describe(*x.scheme) : "none"));
    }
  }
  return absl::OkStatus();
}

// The bytes of tensors in the largest file.
int64_t LargestShard(const io::Checkpoint& checkpoint) {
  std::vector<int64_t> bytes(checkpoint.shards().size(), 0);
  for (const io::TensorInfo& tensor : checkpoint.tensors()) bytes[tensor.shard] += tensor.num_bytes();
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

// Other folders that a case refers to.
struct CaseFolders {
  std::string input;
  std::string tensors;  // with the recorded tensors
};

absl::StatusOr<CaseFolders> FoldersOf(const io::FileSystem& fs, const std::string& golden_dir,
                                      const std::string& name) {
  std::string input = absl::EndsWith(name, "_bf16") ? "dense_bf16" : "dense", tensors = name;
  const std::string path = io::JoinPath(io::JoinPath(golden_dir, name), kExpected);
  AQT_ASSIGN_OR_RETURN(const bool has_expected, io::Exists(fs, path));
  if (has_expected) {
    AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, serving::kMaxConfigBytes));
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return absl::DataLossError(absl::StrCat(path, " is not a JSON object"));
    input = json.value("input", input);
    tensors = json.value("tensors_are_those_of", tensors);
  }
  return CaseFolders{io::JoinPath(golden_dir, input), io::JoinPath(golden_dir, tensors)};
}

// OK if the case passes, Unimplemented if the scheme is not supported.
absl::Status CheckCase(const io::FileSystem& fs, const std::string& golden_dir, const std::string& name,
                       const std::string& output) {
  const std::string folder = io::JoinPath(golden_dir, name);
  AQT_ASSIGN_OR_RETURN(const CaseFolders folders, FoldersOf(fs, golden_dir, name));
  serving::ConvertJob job;
  job.input = folders.input;
  job.output = output;
  job.recipe.scheme_from = io::JoinPath(folder, serving::kConfigFile);
  AQT_ASSIGN_OR_RETURN(const bool calibrated, io::Exists(fs, io::JoinPath(folder, kCalibration)));
  if (calibrated) job.calibration = io::JoinPath(folder, kCalibration);
  // An unsupported scheme needs no comparison, so the recorded files are opened after the conversion, unless they
  // determine the shards.
  AQT_ASSIGN_OR_RETURN(const bool sharded, io::Exists(fs, io::JoinPath(folder, io::kIndexFile)));
  if (sharded) {
    AQT_ASSIGN_OR_RETURN(const io::Checkpoint recorded, io::Checkpoint::Open(fs, folder));
    job.max_shard_bytes = LargestShard(recorded);
  }
  AQT_RETURN_IF_ERROR(serving::RunConvertJob(fs, job).status());

  AQT_ASSIGN_OR_RETURN(const io::Checkpoint expected, io::Checkpoint::Open(fs, folders.tensors));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint actual, io::Checkpoint::Open(fs, output));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint input, io::Checkpoint::Open(fs, job.input));
  if (actual.has_index() != expected.has_index()) {
    return Different(actual.has_index() ? "the output is sharded" : "the output is not sharded");
  }
  AQT_RETURN_IF_ERROR(CompareTensors(expected, actual));
  AQT_ASSIGN_OR_RETURN(const ModelConfig expected_config, ReadConfig(fs, folder));
  AQT_ASSIGN_OR_RETURN(const ModelConfig actual_config, ReadConfig(fs, output));
  if (!actual_config.quantization_config.has_value()) return Different("the output has no quantization_config");
  return CompareConfigs(input, *expected_config.quantization_config, *actual_config.quantization_config);
}

// False if the folder is not a case; an error if its config.json cannot be read.
absl::StatusOr<bool> IsCase(const io::FileSystem& fs, const std::string& folder) {
  AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(folder));
  if (info.kind != io::FileKind::kFolder) return false;
  AQT_ASSIGN_OR_RETURN(const bool has_config, io::Exists(fs, io::JoinPath(folder, serving::kConfigFile)));
  if (!has_config) return false;
  AQT_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfig(fs, folder));
  return config.quantization_config.has_value();
}

}  // namespace

int CheckpointCheck(const io::FileSystem& fs, const std::string& golden_dir, const std::string& temporary_dir,
                    std::ostream& out) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(golden_dir);
  if (!names.ok()) {
    out << "error: " << std::string(names.status().message()) << "\n";
    return 2;
  }
  int passed = 0, failed = 0, unsupported = 0;
  for (const std::string& name : *names) {
    const absl::StatusOr<bool> is_case = IsCase(fs, io::JoinPath(golden_dir, name));
    if (is_case.ok() && !*is_case) continue;
    const absl::StatusOr<CaseFolders> folders = FoldersOf(fs, golden_dir, name);
    if (!folders.ok()) {
      out << "error: " << std::string(folders.status().message()) << "\n";
      return 2;
    }
    if (const absl::StatusOr<bool> has_input = io::Exists(fs, folders->input); !has_input.ok() || !*has_input) {
      out << "error: " << golden_dir << " has the case " << name << ", but not its input " << folders->input << "\n";
      return 2;
    }
    const std::string output = io::JoinPath(temporary_dir, name);
    absl::Status status = is_case.ok() ? CheckCase(fs, golden_dir, name, output) : is_case.status();
    if (const absl::StatusOr<bool> left = io::Exists(fs, output); left.ok() && *left) {
      const absl::Status removed = io::RemoveTree(fs, output);
      if (status.ok()) status = removed;
    }
    if (status.ok()) {
      ++passed;
    } else if (status.code() == absl::StatusCode::kUnimplemented) {
      ++unsupported;
      out << "not supported: " << name << ": " << std::string(status.message()) << "\n";
    } else {
      ++failed;
      out << "FAILED: " << name << ": " << std::string(status.message()) << "\n";
    }
  }
  if (passed + failed + unsupported == 0) {
    out << "error: " << golden_dir << " has no folder with a quantization_config in its " << serving::kConfigFile
        << "\n";
    return 2;
  }
  out << "passed " << passed << ", failed " << failed << ", not supported " << unsupported << "\n";
  return failed > 0 ? 1 : 0;
}

}  // namespace aqt
