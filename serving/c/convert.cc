// The conversion of checkpoints.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/c_api.h"
#include "aqt/io/file.h"
#include "serving/c/array.h"
#include "serving/c/call.h"
#include "serving/cli/checkpoints/convert_summary.h"
#include "serving/convert/convert.h"
#include "serving/convert/convert_job.h"
#include "serving/gguf/gguf_job.h"
#include "serving/plan/recipe.h"
#include "serving/tools/progress.h"

namespace aqt::capi {
namespace {

using serving::ConvertJob;
using serving::ConvertReport;
using serving::Progress;

absl::Status Invalid(absl::string_view message) { return absl::InvalidArgumentError(message); }

// One of `names`, by its place; `missing` for NULL.
absl::StatusOr<int> PlaceOf(const char* given, absl::Span<const char* const> names, const char* option, int missing) {
  if (given == nullptr) return missing;
  for (size_t i = 0; i < names.size(); ++i) {
    if (absl::string_view(given) == names[i]) return static_cast<int>(i);
  }
  return Invalid(absl::StrCat("options.", option, " is \"", given, "\", expected ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<serving::RecipeSource> ToRecipe(const aqt_convert_options& options) {
  serving::RecipeSource source;
  source.preset = std::string(TextOf(options.preset));
  source.config_text = std::string(TextOf(options.config));
  source.scheme_from = std::string(TextOf(options.scheme_from));
  source.strict = options.strict != 0;
  constexpr int kUnset = -1;
  AQT_ASSIGN_OR_RETURN(const int rules, PlaceOf(options.rules, {"compressed_tensors", "aqt"}, "rules", kUnset));
  if (rules != kUnset) {
    source.weight_rules = rules == 0 ? serving::WeightRules::kCompressedTensors : serving::WeightRules::kAqt;
  }
  AQT_ASSIGN_OR_RETURN(const int non_finite, PlaceOf(options.non_finite, {"error", "keep"}, "non_finite", kUnset));
  if (non_finite != kUnset) source.keep_non_finite = non_finite == 1;
  AQT_ASSIGN_OR_RETURN(const int experts, PlaceOf(options.experts, {"auto", "split", "keep"}, "experts", kUnset));
  if (experts != kUnset) source.experts = static_cast<serving::Experts>(experts);
  return source;
}
static_assert(static_cast<int>(serving::Experts::kAuto) == 0 && static_cast<int>(serving::Experts::kSplit) == 1 &&
              static_cast<int>(serving::Experts::kKeep) == 2);

absl::Status CheckPaths(const char* input, const char* output) {
  for (const auto& [path, name] : {std::pair(input, "input"), std::pair(output, "output")}) {
    AQT_RETURN_IF_ERROR(NotNull(path, name));
    if (*path == 0) return Invalid(absl::StrCat(name, " is empty, expected a path"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> JobsOf(const aqt_convert_options& options) {
  if (options.jobs == 0) return 1;
  if (options.jobs >= 1 && options.jobs <= serving::kMaxJobs) return options.jobs;
  return Invalid(absl::StrCat("options.jobs is ", options.jobs, ", expected 1 .. ", serving::kMaxJobs));
}

absl::StatusOr<std::vector<std::string>> ExcludeOf(const aqt_convert_options& options) {
  std::vector<std::string> patterns;
  if (options.num_exclude > 0) AQT_RETURN_IF_ERROR(NotNull(options.exclude, "options.exclude"));
  for (size_t i = 0; i < options.num_exclude; ++i) {
    AQT_RETURN_IF_ERROR(NotNull(options.exclude[i], absl::StrCat("options.exclude[", i, "]").c_str()));
    patterns.emplace_back(options.exclude[i]);
  }
  return patterns;
}

// The caller's function, and whether it has asked to stop.
class Callback {
 public:
  explicit Callback(const aqt_convert_options& options) : report_(options.progress), user_(options.user) {}

  const std::atomic<bool>* cancelled() const { return &cancelled_; }
  std::function<std::unique_ptr<Progress>(int64_t)> MakeProgress() {
    if (report_ == nullptr) return nullptr;
    return [this](int64_t total) {
      return std::make_unique<Progress>([this, total](int64_t done, absl::string_view tensor) {
        if (report_(user_, done, total, std::string(tensor).c_str()) != 0) cancelled_ = true;
      });
    };
  }

 private:
  const aqt_progress report_;
  void* const user_;
  std::atomic<bool> cancelled_ = false;
};

// GGUF to GGUF has rules of its own, as for `aqt convert`.
absl::StatusOr<ConvertReport> RunGguf(const ConvertJob& job) {
  const serving::RecipeSource& recipe = job.recipe;
  if (!job.calibration.empty() || job.max_shard_bytes != 0 || !job.exclude.empty() || recipe.weight_rules.has_value() ||
      recipe.experts.has_value()) {
    return Invalid(
        "calibration, max_shard_bytes, exclude, rules and experts have no meaning for a GGUF file as output; leave "
        "them out");
  }
  serving::GgufJob gguf;
  gguf.input = job.input;
  gguf.output = job.output;
  gguf.recipe = recipe;
  gguf.allow_requantize = job.allow_requantize;
  gguf.force = job.force;
  gguf.jobs = job.jobs;
  gguf.cancelled = job.cancelled;
  gguf.make_progress = job.make_progress;
  AQT_ASSIGN_OR_RETURN(const serving::GgufReport done, serving::RunGgufJob(io::LocalFileSystem(), gguf));
  return serving::ToConvertReport(done);
}

absl::Status RunJob(const char* input, const char* output, const aqt_convert_options& options, ConvertJob job,
                    aqt_string** report) {
  AQT_RETURN_IF_ERROR(CheckPaths(input, output));
  job.input = input;
  job.output = output;
  AQT_ASSIGN_OR_RETURN(job.recipe, ToRecipe(options));
  AQT_ASSIGN_OR_RETURN(job.exclude, ExcludeOf(options));
  AQT_ASSIGN_OR_RETURN(job.jobs, JobsOf(options));
  if (options.max_shard_bytes < 0) {
    return Invalid(absl::StrCat("options.max_shard_bytes is ", options.max_shard_bytes, ", expected 0 or more"));
  }
  job.max_shard_bytes = options.max_shard_bytes;
  job.calibration = std::string(TextOf(options.calibration));
  job.allow_requantize = options.allow_requantize != 0;
  job.force = options.force != 0;
  Callback callback(options);
  job.cancelled = callback.cancelled();
  job.make_progress = callback.MakeProgress();

  const auto start = std::chrono::steady_clock::now();
  const bool gguf = !job.dequantize_to.has_value() && serving::IsGgufName(job.output);
  AQT_ASSIGN_OR_RETURN(const ConvertReport done,
                       gguf ? RunGguf(job) : serving::RunConvertJob(io::LocalFileSystem(), job));
  if (report == nullptr) return absl::OkStatus();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return Return(serving::ConvertSummaryToJson(job, done, seconds), report);
}

// How many of the three sources of a recipe are given.
int NumRecipes(const aqt_convert_options& options) {
  return (options.preset != nullptr) + (options.config != nullptr) + (options.scheme_from != nullptr);
}

}  // namespace
}  // namespace aqt::capi

using aqt::capi::Call;

aqt_code aqt_convert(const char* input, const char* output, const aqt_convert_options* options, aqt_string** report,
                     aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (report != nullptr) *report = nullptr;
    AQT_ASSIGN_OR_RETURN(const aqt_convert_options given, aqt::capi::Read(options, "options"));
    if (const int recipes = aqt::capi::NumRecipes(given); recipes != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("options has ", recipes, " of preset, config and scheme_from, expected exactly one"));
    }
    return aqt::capi::RunJob(input, output, given, {}, report);
  });
}

aqt_code aqt_dequantize(const char* input, const char* output, aqt_dtype dtype, const aqt_convert_options* options,
                        aqt_string** report, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (report != nullptr) *report = nullptr;
    AQT_ASSIGN_OR_RETURN(const aqt_convert_options given, aqt::capi::Read(options, "options"));
    if (aqt::capi::NumRecipes(given) > 0 || given.calibration != nullptr || given.allow_requantize != 0 ||
        given.rules != nullptr || given.non_finite != nullptr || given.strict != 0) {
      return absl::InvalidArgumentError(
          "options has a member that is only for aqt_convert: preset, config, scheme_from, calibration, "
          "allow_requantize, rules, non_finite or strict; leave it out");
    }
    aqt::serving::ConvertJob job;
    AQT_ASSIGN_OR_RETURN(job.dequantize_to, aqt::capi::ToDType(dtype, "dtype"));
    if (dtype != AQT_F32 && dtype != AQT_BF16 && dtype != AQT_F16) {
      return absl::InvalidArgumentError(
          absl::StrCat("dtype is ", aqt::ToString(*job.dequantize_to), ", expected f32, bf16 or f16"));
    }
    return aqt::capi::RunJob(input, output, given, std::move(job), report);
  });
}
