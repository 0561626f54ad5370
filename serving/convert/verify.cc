#include "serving/convert/verify.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "nlohmann/json.hpp"
#include "serving/convert/plan.h"
#include "serving/convert/rules.h"
#include "serving/families/module_roles.h"
#include "serving/formats/quantization_config.h"
#include "serving/formats/weight_codec.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/parallel.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

constexpr int64_t kMemoryBudget = 64 << 20;
constexpr int64_t kCompareBytes = 1 << 20;

// Each row is summed separately and the rows are added in order: the result does not depend on the number of threads.
WeightQuality Compare(const Array& original, const DecodedWeight& decoded, const Scheme& scheme) {
  const Array w_array = Cast(original, DType::kF32), d_array = Cast(decoded.dequantized, DType::kF32);
  const Array s_array = Cast(decoded.scale, DType::kF32);
  const absl::Span<const float> w = w_array.View<float>(), d = d_array.View<float>(), scale = s_array.View<float>();
  const Array q_array = Cast(decoded.q, DType::kF32);
  const absl::Span<const float> q = q_array.View<float>();
  const int64_t columns = original.shape()[1];
  const compressed_tensors::Units units = UnitsOf(scheme.weights, original.shape());
  const compressed_tensors::ValueRange range = compressed_tensors::RangeOf(scheme.weights);
  const float smallest = scheme.weights.symmetric ? -range.max : range.min;  // what is below counts as an end, too
  double ww = 0, dd = 0, wd = 0, ee = 0, max_error = 0;
  int64_t clipped = 0;
  for (int64_t row = 0; row < original.shape()[0]; ++row) {
    double row_ww = 0, row_dd = 0, row_wd = 0, row_ee = 0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      const double x = w[i], y = d[i], error = x - y;
      row_ww += x * x;
      row_dd += y * y;
      row_wd += x * y;
      row_ee += error * error;
      max_error = std::max(max_error, std::abs(error));
      clipped += (q[i] >= range.max || q[i] <= smallest) &&
                 std::abs(error) > scale[units.Of(row, i - row * columns)] * range.last_step;
    }
    ww += row_ww;
    dd += row_dd;
    wd += row_wd;
    ee += row_ee;
  }
  WeightQuality quality;
  quality.scheme = scheme;
  quality.num_elements = original.num_elements();
  quality.snr_db = ee == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(ww / ee);
  quality.cosine = ww == 0 && dd == 0 ? 1 : ww == 0 || dd == 0 ? 0 : wd / (std::sqrt(ww) * std::sqrt(dd));
  quality.max_abs_error = std::isnan(ee) ? ee : max_error;  // std::max ignores a NaN
  quality.clipped_percent = 100.0 * static_cast<double>(clipped) / static_cast<double>(quality.num_elements);
  return quality;
}

// What differs; an empty string if the two are equal.
absl::StatusOr<std::string> CompareBytes(const io::TensorSource& input, const io::TensorInfo& a,
                                         const io::TensorSource& output, const io::TensorInfo* b,
                                         const std::atomic<bool>* cancelled) {
  const std::string name = io::Printable(a.name);
  if (b == nullptr) return absl::StrCat(name, " is missing from the output");
  if (a.dtype != b->dtype || a.shape != b->shape) {
    return absl::StrCat(name, " was ", io::ToString(a.dtype), a.shape.ToString(), " and is ", io::ToString(b->dtype),
                        b->shape.ToString(), ", though the quantization_config does not name it");
  }
  std::vector<uint8_t> x, y;
  for (int64_t at = 0; at < a.num_bytes(); at += kCompareBytes) {
    AQT_RETURN_IF_ERROR(CheckCancelled(cancelled));
    x.resize(std::min(kCompareBytes, a.num_bytes() - at));
    y.resize(x.size());
    AQT_RETURN_IF_ERROR(input.Read(a, at, absl::MakeSpan(x)));
    AQT_RETURN_IF_ERROR(output.Read(*b, at, absl::MakeSpan(y)));
    const auto [p, q] = std::mismatch(x.begin(), x.end(), y.begin());
    if (p != x.end()) return absl::StrCat(name, " differs from the input at its byte ", at + (p - x.begin()));
  }
  return std::string();
}

// The result of comparing one tensor of the input.
struct Finding {
  std::optional<Scheme> scheme;
  std::optional<WeightQuality> quality;
  std::string problem;
};

absl::Status VerifyTensor(const io::TensorSource& input, const io::TensorSource& output, const io::TensorInfo& tensor,
                          const std::atomic<bool>* cancelled, Finding& finding) {
  AQT_RETURN_IF_ERROR(CheckCancelled(cancelled));
  if (!finding.scheme.has_value()) {
    AQT_ASSIGN_OR_RETURN(finding.problem, CompareBytes(input, tensor, output, output.Find(tensor.name), cancelled));
    return absl::OkStatus();
  }
  const absl::string_view module = *ModuleOf(tensor.name);
  const absl::StatusOr<DecodedWeight> decoded = DecodeWeight(output, module, *finding.scheme, tensor.shape);
  if (!decoded.ok()) {
    finding.problem = absl::StrCat(io::Printable(tensor.name), ": ", decoded.status().message());
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(const Array original, input.ReadArray(tensor));
  finding.quality = Compare(original, *decoded, *finding.scheme);
  finding.quality->name = tensor.name;
  return absl::OkStatus();
}

std::string Decibels(double snr) {
  return std::isnan(snr) ? "NaN" : std::isinf(snr) ? (snr > 0 ? "exact" : "-inf") : absl::StrFormat("%.2f", snr);
}

// Why a weight is not good enough, or an empty text.
std::string QualityProblem(const WeightQuality& quality, double min_snr_db) {
  const std::string name = io::Printable(quality.name);
  if (!std::isfinite(quality.max_abs_error)) {
    return absl::StrCat(name, ": the original, or what is stored for it, holds a NaN or an infinity");
  }
  if (quality.snr_db >= min_snr_db) return "";
  return absl::StrCat(name, ": SNR ", Decibels(quality.snr_db), " dB is below ", absl::StrFormat("%g", min_snr_db),
                      " dB");
}

// Over the weights with a finite SNR: those that are stored exactly, or cannot be compared, have none.
struct SnrSummary {
  int finite = 0;
  int exact = 0;
  double min = std::numeric_limits<double>::infinity();
  double sum = 0;
  double mean() const { return sum / finite; }  // NaN if there are none
};
SnrSummary Summarize(const VerifyReport& report) {
  SnrSummary summary;
  for (const WeightQuality& w : report.weights) {
    summary.exact += w.snr_db == std::numeric_limits<double>::infinity();
    if (!std::isfinite(w.snr_db)) continue;
    ++summary.finite;
    summary.min = std::min(summary.min, w.snr_db);
    summary.sum += w.snr_db;
  }
  return summary;
}

}  // namespace

absl::StatusOr<VerifyReport> Verify(const io::FileSystem& fs, const io::TensorSource& input, const CarriedFiles& files,
                                    const io::Checkpoint& output, const VerifyOptions& options) {
  AQT_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(fs, output));
  if (!model.quantization_config.has_value()) {
    return absl::DataLossError(absl::StrCat(output.path(), " has no quantization_config, in ",
                                            output.is_folder() ? "config.json" : "its metadata",
                                            ": it is not a quantized checkpoint"));
  }
  absl::StatusOr<QuantizationConfig> config = ParseQuantizationConfig(*model.quantization_config);
  if (!config.ok()) return Annotate(config.status(), output.path());
  const ModuleRoles roles(input, model.facts);
  AQT_ASSIGN_OR_RETURN(RuleSet rules,
                       RuleSet::FromQuantizationConfig(
                           *config, roles, [&input](absl::string_view module) { return HasModule(input, module); }));

  VerifyReport report;
  const std::vector<io::TensorInfo>& tensors = input.tensors();
  std::vector<Finding> findings(tensors.size());
  std::set<std::string> expected;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const io::TensorInfo& info = tensors[i];
    const absl::StatusOr<Decision> decision = rules.Decide(info, /*tied=*/false);
    if (!decision.ok()) {
      findings[i].problem = absl::StrCat(decision.status().message());
      continue;
    }
    findings[i].scheme = decision->scheme;
    if (!decision->scheme.has_value()) {
      expected.insert(info.name);
      continue;
    }
    for (const io::TensorSpec& spec : OutputTensors(*decision->scheme, *ModuleOf(info.name), info.dtype, info.shape)) {
      expected.insert(spec.name);
    }
  }
  AQT_RETURN_IF_ERROR(ParallelRun(
      static_cast<int64_t>(tensors.size()), {.threads = options.jobs, .memory_budget = kMemoryBudget},
      // A weight is held as the original and dequantized, each also as f32, and as stored, unpacked and in f32.
      [&](int64_t i) {
        return findings[i].scheme.has_value() ? 22 * tensors[i].shape.num_elements() : 2 * kCompareBytes;
      },
      [&](int64_t i) {
        return findings[i].problem.empty() ? VerifyTensor(input, output, tensors[i], options.cancelled, findings[i])
                                           : absl::OkStatus();
      }));

  for (Finding& finding : findings) {
    if (!finding.problem.empty()) {
      report.problems.push_back(std::move(finding.problem));
    } else if (finding.quality.has_value()) {
      std::string problem = QualityProblem(*finding.quality, options.min_snr_db);
      if (!problem.empty()) report.problems.push_back(std::move(problem));
      report.weights.push_back(std::move(*finding.quality));
    } else {
      ++report.num_carried;
    }
  }
  for (const io::TensorInfo& tensor : output.tensors()) {
    if (!expected.contains(tensor.name)) {
      report.problems.push_back(absl::StrCat(
          io::Printable(tensor.name), " is in the output, but neither in the input nor part of a quantized weight"));
    }
  }
  if (output.is_folder()) {
    AQT_ASSIGN_OR_RETURN(std::vector<std::string> problems,
                         CompareCarriedFiles(fs, files, output.path(), options.cancelled));
    std::move(problems.begin(), problems.end(), std::back_inserter(report.problems));
  }
  if (report.weights.empty())
    report.problems.push_back("no weight is quantized, though there is a quantization_config");
  const auto rank = [](const WeightQuality& w) {  // NaN is not less than anything, and goes first
    return std::isnan(w.snr_db) ? std::pair(0, 0.0) : std::pair(1, w.snr_db);
  };
  std::stable_sort(report.weights.begin(), report.weights.end(),
                   [&](const WeightQuality& a, const WeightQuality& b) { return rank(a) < rank(b); });
  return report;
}

void PrintVerify(const VerifyReport& report, std::ostream& out) {
  Table table({"weight", "scheme", "SNR dB", "cosine", "max abs error", "clipped %"});
  for (const WeightQuality& w : report.weights) {
    table.Add({w.name, Describe(w.scheme), Decibels(w.snr_db), absl::StrFormat("%.6f", w.cosine),
               absl::StrFormat("%.4g", w.max_abs_error), absl::StrFormat("%.4f", w.clipped_percent)});
  }
  table.Print(out);
  const SnrSummary snr = Summarize(report);
  const int total = static_cast<int>(report.weights.size());
  out << total << " weights quantized";
  if (snr.finite > 0) out << ", SNR from " << Decibels(snr.min) << " dB, mean " << Decibels(snr.mean()) << " dB";
  if (snr.finite < total) {
    out << " (" << total - snr.finite << " without a finite SNR: " << snr.exact << " exact, "
        << total - snr.finite - snr.exact << " NaN or -inf)";
  }
  out << "; " << report.num_carried << " tensors carried over, equal byte for byte\n";
}

std::string VerifyToJson(const VerifyReport& report) {
  using Json = nlohmann::ordered_json;
  const auto number = [](double x) {
    return std::isnan(x) ? Json() : std::isfinite(x) ? Json(x) : Json(x > 0 ? "inf" : "-inf");
  };
  Json weights = Json::array();
  for (const WeightQuality& w : report.weights) {
    weights.push_back({{"name", w.name},
                       {"scheme", Describe(w.scheme)},
                       {"elements", w.num_elements},
                       {"snr_db", number(w.snr_db)},
                       {"cosine", number(w.cosine)},
                       {"max_abs_error", number(w.max_abs_error)},
                       {"clipped_percent", w.clipped_percent}});
  }
  const SnrSummary snr = Summarize(report);
  const Json json = {{"weights", std::move(weights)},
                     {"mean_snr_db", number(snr.mean())},
                     {"num_finite_snr", snr.finite},
                     {"carried", report.num_carried},
                     {"problems", report.problems}};
  return json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

}  // namespace aqt::serving
