#include "serving/convert/convert_job.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/leftovers.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint.h"
#include "serving/convert/carried_files.h"
#include "serving/convert/convert.h"
#include "serving/convert/model_input.h"
#include "serving/convert/output.h"
#include "serving/convert/plan_input.h"
#include "serving/formats/quantization_config.h"
#include "serving/plan/calibration.h"
#include "serving/plan/plan.h"
#include "serving/plan/whole_checkpoint.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {
namespace {

// Checks the place, locks it, and checks it again: another run may have ended in between.
absl::StatusOr<OutputPlace> ClaimOutput(const io::FileSystem& fs, const io::Checkpoint& input, const ConvertJob& job,
                                        std::unique_ptr<io::FileLock>& lock) {
  // Without --scheme-from: its content is also in the output.
  const std::vector<std::string> also_read = {job.recipe.config_file, job.calibration};
  AQT_ASSIGN_OR_RETURN(const OutputPlace place, CheckOutput(fs, input, job.output, job.force, also_read));
  AQT_ASSIGN_OR_RETURN(lock, LockOutput(fs, place));
  return CheckOutput(fs, input, job.output, job.force, also_read);
}

// Describes the leftovers of earlier runs into the same output. They are not removed: another machine may be writing
// them. Call with the lock held, so that no other run on this machine is writing there.
std::vector<std::string> DescribeLeftovers(const io::FileSystem& fs, const std::string& output) {
  std::vector<std::string> result;
  std::string target = output;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  if (const auto link = fs.LStat(target); link.ok() && link->kind == io::FileKind::kLink) {
    if (absl::StatusOr<std::string> real = fs.RealPath(target); real.ok()) target = *std::move(real);
  }
  const absl::StatusOr<std::vector<std::string>> paths = io::FindLeftovers(fs, target);
  if (!paths.ok()) return result;  // the folder is writable but not readable
  for (const std::string& path : *paths) {
    const bool temporary = absl::StrContains(io::BaseName(path), ".tmp-");
    result.push_back(absl::StrCat(io::PrintableLine(path),
                                  temporary ? " was left by a run that was killed; remove it unless OUT is missing"
                                            : " is what an earlier run replaced; remove it if you do not need it"));
  }
  return result;
}

// The files to copy: none for an OUT that is a file; for an IN that is a file, only the config.json beside it.
absl::StatusOr<CarriedFiles> FindFiles(const io::FileSystem& fs, const io::Checkpoint& input, const ConvertJob& job,
                                       const OutputPlace& place) {
  AQT_ASSIGN_OR_RETURN(CarriedFiles files, FilesToCarry(input, job.exclude));
  if (place.is_file) {
    files.copied.clear();
    files.warnings.clear();
    if (!input.other_files().empty()) {
      files.warnings.push_back(
          "only weights were written; to get config.json and the other files, name a folder as the output");
    }
    return files;
  }
  files.config_text = input.shards()[0].config;
  if (!files.config_text.empty()) {
    if (!files.config_file.empty()) {
      files.warnings.push_back(absl::StrCat(kConfigFile, " was not copied: the output's is that of ",
                                            io::PrintableLine(input.shards()[0].name)));
    }
    files.config_file.clear();
    return files;
  }
  if (!input.is_folder()) {
    AQT_ASSIGN_OR_RETURN(const std::string config, ReadConfigFile(fs, ConfigFileOf(input)));
    if (config.empty()) {
      files.index_name = io::kIndexFile;  // see MakePlanOptions
    } else {
      files.config_file = ConfigFileOf(input);
      files.warnings.push_back(absl::StrCat("of the files beside ", io::PrintableLine(input.path()), ", only ",
                                            kConfigFile, " was copied; give the folder to get the others as well"));
    }
  }
  if (files.config_file.empty()) {
    files.warnings.push_back(kNoConfigWarning);
  }
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> pointers, FindPointers(fs, files));
  files.warnings.insert(files.warnings.end(), pointers.begin(), pointers.end());
  return files;
}

CheckpointPlanOptions MakePlanOptions(const io::Checkpoint& input, const ConvertJob& job, const OutputPlace& place,
                                      const CarriedFiles& files) {
  CheckpointPlanOptions options;
  options.single_file = place.is_file;
  options.max_shard_bytes = job.max_shard_bytes;
  options.keep_shards = input.is_sharded();
  // A single file may have any name; a loader looks for model.safetensors.
  if (!files.config_file.empty() || !files.config_text.empty() || input.is_folder()) options.stem = input.stem();
  return options;
}

void AddWarnings(const io::Checkpoint& input, const CarriedFiles& files, ConvertReport& report) {
  report.warnings.insert(report.warnings.end(), files.warnings.begin(), files.warnings.end());
  for (const std::string& name : input.unused_weight_files()) {
    report.warnings.push_back(absl::StrCat(io::Printable(name), " was not copied: it is not part of this checkpoint"));
  }
}

// "float32" for f32, as torch calls it.
std::string TorchName(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kBF16 ? "bfloat16" : "float16";
}

bool HasRecipe(const ConvertJob& job) {
  const RecipeSource& recipe = job.recipe;
  return !recipe.preset.empty() || !recipe.config_file.empty() || !recipe.config_text.empty() ||
         !recipe.scheme_from.empty();
}

InputOptions MakeInputOptions(const ConvertJob& job, const Recipe& recipe) {
  InputOptions options;
  if (recipe.config.has_value()) options.families = recipe.config->families;
  options.dequantize = job.allow_requantize || job.dequantize_to.has_value();
  options.keep_frozen = !HasRecipe(job);
  options.dtype = job.dequantize_to.value_or(DType::kF32);
  return options;
}

// Reports how the input is read. InvalidArgument if there is nothing to dequantize.
absl::Status AddInput(const ModelInput& input, const ConvertJob& job, CarriedFiles& files, ConvertReport& report) {
  input.LeaveOutFiles(files);
  if (input.num_dequantized() > 0) {
    report.input_format = input.stored_as();
    report.num_dequantized = static_cast<int>(input.num_dequantized());
  } else if (job.dequantize_to.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(io::PrintableLine(job.input), " is not quantized: there is nothing to dequantize"));
  }
  const std::vector<std::string> warnings = job.dequantize_to.has_value() ? input.Notes() : input.RequantizeWarnings();
  report.warnings.insert(report.warnings.end(), warnings.begin(), warnings.end());
  return absl::OkStatus();
}

absl::StatusOr<Plan> PlanFor(ModelInput& input, const ConvertJob& job, const Recipe& recipe,
                             const CheckpointPlanOptions& options) {
  const bool keep_frozen = input.frozen() != nullptr && input.num_dequantized() == 0;
  if (!job.dequantize_to.has_value() && !keep_frozen) return PlanInput(input, recipe, options);
  if (job.recipe.experts == Experts::kSplit) AQT_RETURN_IF_ERROR(input.NeedSplit());
  AQT_ASSIGN_OR_RETURN(Plan plan, MakeCopyPlan(input.tensors(), options));
  plan.experts = input.DescribeExperts();
  if (keep_frozen) {
    plan.quantization_config = input.frozen_config();
    plan.num_quantized = static_cast<int>(input.frozen()->weights.size());
  } else {
    plan.torch_dtype = TorchName(*job.dequantize_to);
  }
  return plan;
}

struct JobInput {
  io::Checkpoint checkpoint;
  Recipe recipe;
};

// Only a serving tree of AQT is converted without a recipe: its values were made by AQT's rules.
absl::StatusOr<JobInput> OpenJob(const io::FileSystem& fs, const ConvertJob& job) {
  absl::StatusOr<Recipe> recipe = Recipe();
  if (!job.dequantize_to.has_value()) recipe = LoadRecipe(fs, job.recipe);
  if (!recipe.ok() && HasRecipe(job)) return recipe.status();
  absl::StatusOr<io::Checkpoint> input =
      io::Checkpoint::Open(fs, job.input,
                           InputFiles(fs, {.raw_dtype = job.raw_dtype,
                                           .leave_out = job.output,
                                           .gguf_names = job.gguf_names,
                                           .dtype = job.dequantize_to.value_or(DType::kF32)}));
  if (!recipe.ok()) {
    if (!input.ok() || !io::IsFrozenTree(*input)) return recipe.status();
    recipe = Recipe();
    recipe->weight_rules = WeightRules::kAqt;
  }
  AQT_RETURN_IF_ERROR(input.status());
  return JobInput{*std::move(input), *std::move(recipe)};
}

absl::StatusOr<ConvertReport> Run(const io::FileSystem& fs, const ConvertJob& job,
                                  std::unique_ptr<io::FileLock>& lock) {
  AQT_ASSIGN_OR_RETURN(const JobInput opened, OpenJob(fs, job));
  const io::Checkpoint& input = opened.checkpoint;
  const Recipe& recipe = opened.recipe;
  const absl::StatusOr<OutputPlace> claimed = ClaimOutput(fs, input, job, lock);
  if (!claimed.ok()) return OutputError(claimed.status());
  const OutputPlace& place = *claimed;
  ConvertReport report;
  AQT_ASSIGN_OR_RETURN(report.warnings, CheckWhole(fs, input));
  AQT_ASSIGN_OR_RETURN(CarriedFiles files, FindFiles(fs, input, job, place));
  AQT_ASSIGN_OR_RETURN(ModelInput model_input, ModelInput::Open(fs, input, MakeInputOptions(job, recipe)));
  AQT_RETURN_IF_ERROR(AddInput(model_input, job, files, report));
  CheckpointPlanOptions plan_options = MakePlanOptions(input, job, place, files);
  AQT_ASSIGN_OR_RETURN(Plan plan, PlanFor(model_input, job, recipe, plan_options));
  report.experts = plan.experts;

  int64_t bytes = plan.new_bytes;
  AQT_ASSIGN_OR_RETURN(report.copied, CopiedFiles(fs, files));
  for (const CopiedFile& file : report.copied) bytes += file.bytes;
  AQT_RETURN_IF_ERROR(OutputError(CheckSpace(fs, place, bytes)));

  Calibration calibration;
  if (!job.calibration.empty()) {
    AQT_ASSIGN_OR_RETURN(calibration, ReadCalibration(fs, job.calibration));
  }
  AQT_RETURN_IF_ERROR(CheckCalibration(model_input.tensors(), plan, calibration, recipe.strict, report.warnings));
  ConvertOptions options;
  options.jobs = job.jobs;
  options.cancelled = job.cancelled;
  if (recipe.keep_non_finite) {
    AQT_ASSIGN_OR_RETURN(plan_options.keep_float, FindNonFinite(model_input.tensors(), plan, options));
    if (!plan_options.keep_float.empty()) {
      AQT_ASSIGN_OR_RETURN(plan, PlanFor(model_input, job, recipe, plan_options));
    }
  }
  const std::vector<std::string> warnings = AllWarnings(plan);
  report.warnings.insert(report.warnings.end(), warnings.begin(), warnings.end());

  const std::unique_ptr<Progress> progress = job.make_progress ? job.make_progress(BytesToRead(plan)) : nullptr;
  options.progress = progress.get();
  options.warnings = &report.warnings;
  AQT_RETURN_IF_ERROR(Convert(fs, model_input.tensors(), files, plan, recipe, calibration, place, options));
  AddWarnings(input, files, report);
  const std::vector<std::string> leftovers = DescribeLeftovers(fs, place.path);
  report.warnings.insert(report.warnings.end(), leftovers.begin(), leftovers.end());
  report.num_tensors = static_cast<int>(plan.tensors.size());
  report.num_quantized = plan.num_quantized;
  const int64_t stored_bytes = input.shards()[0].stored_bytes;
  report.old_bytes = stored_bytes > 0 ? stored_bytes : input.total_bytes();
  report.new_bytes = plan.new_bytes;
  return report;
}

}  // namespace

absl::StatusOr<ConvertReport> RunConvertJob(const io::FileSystem& fs, const ConvertJob& job) {
  std::unique_ptr<io::FileLock> lock;
  absl::StatusOr<ConvertReport> report = Run(fs, job, lock);
  if (lock == nullptr || !absl::IsResourceExhausted(report.status())) return report;
  // The leftovers may be filling the disk.
  const std::vector<std::string> leftovers = DescribeLeftovers(fs, job.output);
  if (leftovers.empty()) return report;
  return absl::ResourceExhaustedError(absl::StrCat(report.status().message(), "; ", absl::StrJoin(leftovers, "; ")));
}

}  // namespace aqt::serving
