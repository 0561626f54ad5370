#include "serving/compare/verify.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "serving/convert/weight_loss.h"
#include "serving/families/module_roles.h"
#include "serving/formats/quantization_config.h"
#include "serving/formats/weight_codec.h"
#include "serving/plan/global_scales.h"
#include "serving/plan/plan.h"
#include "serving/plan/rules.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/parallel.h"
#include "serving/tools/report_json-inl.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

constexpr double kExact = std::numeric_limits<double>::infinity();  // the SNR of exactly stored values
constexpr int64_t kMemoryBudget = 64 << 20;
constexpr int64_t kCompareBytes = 1 << 20;

// The sums from which the figures of a weight or of a part of it are computed.
struct Sums {
  double ww = 0, dd = 0, wd = 0, ee = 0;
  int64_t values = 0, kept = 0;  // nonzero values, and those whose stored values are also nonzero

  void Add(double x, double y) {
    const double error = x - y;
    ww += x * x;
    dd += y * y;
    wd += x * y;
    ee += error * error;
    values += x != 0;
    kept += y != 0;
  }
  void Add(const Sums& other) {
    ww += other.ww;
    dd += other.dd;
    wd += other.wd;
    ee += other.ee;
    values += other.values;
    kept += other.kept;
  }
  double Snr() const { return ee == 0 ? kExact : 10 * std::log10(ww / ee); }
};

// NaN is worse than any number.
bool IsWorse(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; }

void AddPart(const Sums& sums, double min_snr_db, PartsQuality& parts) {
  const int64_t part = parts.count++;
  const double snr = sums.Snr();
  if (IsWorse(snr, parts.worst_snr_db)) {
    parts.worst_snr_db = snr;
    parts.worst = part;
  }
  parts.below += !(snr >= min_snr_db);
  if (sums.kept == 0 && sums.values > 0 && parts.zeroed++ == 0) parts.first_zeroed = part;
  if (sums.kept == 1 && sums.values > 1 && parts.lone++ == 0) parts.first_lone = part;
}

// Groups and rows are summed separately and added in order: the result does not depend on the number of threads.
WeightQuality Compare(const Array& original, const DecodedWeight& decoded, const Scheme& scheme,
                      const VerifyOptions& options) {
  const Array w_array = Cast(original, DType::kF32), d_array = Cast(decoded.dequantized, DType::kF32);
  const Array s_array = Cast(decoded.scale, DType::kF32);
  const absl::Span<const float> w = w_array.View<float>(), d = d_array.View<float>(), scale = s_array.View<float>();
  const Array q_array = Cast(decoded.q, DType::kF32);
  const absl::Span<const float> q = q_array.View<float>();
  const int64_t rows = original.shape()[0], columns = original.shape()[1];
  const compressed_tensors::Units units = UnitsOf(scheme.weights, original.shape());
  const compressed_tensors::ValueRange range = compressed_tensors::RangeOf(scheme.weights);
  const float smallest = scheme.weights.symmetric ? -range.max : range.min;  // lower values also count as an end
  WeightQuality quality;
  if (scheme.weights.strategy == WeightStrategy::kGroup || scheme.weights.strategy == WeightStrategy::kBlock) {
    quality.groups.emplace();
  }
  Sums all;
  std::vector<Sums> side_by_side(units.per_row);  // units that begin at the same row
  double max_error = 0;
  int64_t clipped = 0;
  for (int64_t row = 0; row < rows; ++row) {
    Sums in_row;
    for (int64_t g = 0; g < units.per_row; ++g) {
      Sums sums;
      const double last_step = scale[units.Of(row, g * units.cols)] * range.last_step;
      const int64_t end = row * columns + std::min(columns, (g + 1) * units.cols);
      for (int64_t i = row * columns + g * units.cols; i < end; ++i) {
        sums.Add(w[i], d[i]);
        const double error = std::abs(static_cast<double>(w[i]) - d[i]);
        max_error = std::max(max_error, error);
        clipped += (q[i] >= range.max || q[i] <= smallest) && error > last_step;
      }
      in_row.Add(sums);
      side_by_side[g].Add(sums);
    }
    all.Add(in_row);
    AddPart(in_row, options.min_row_snr_db, quality.rows);
    if (!quality.groups.has_value() || ((row + 1) % units.rows != 0 && row + 1 < rows)) continue;
    for (Sums& unit : side_by_side) {
      AddPart(unit, options.min_group_snr_db, *quality.groups);
      unit = Sums();
    }
  }
  quality.scheme = scheme;
  quality.shape = original.shape();
  quality.snr_db = all.Snr();
  quality.cosine = all.ww == 0 && all.dd == 0   ? 1
                   : all.ww == 0 || all.dd == 0 ? 0
                                                : all.wd / (std::sqrt(all.ww) * std::sqrt(all.dd));
  quality.max_abs_error = std::isnan(all.ee) ? all.ee : max_error;  // std::max ignores a NaN
  quality.clipped_percent = 100.0 * static_cast<double>(clipped) / static_cast<double>(original.num_elements());
  return quality;
}

// The difference; an empty string if the two are equal.
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
    if (p != x.end()) return absl::StrCat(name, " differs from the input at byte ", at + (p - x.begin()));
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
                          const VerifyOptions& options, Finding& finding) {
  AQT_RETURN_IF_ERROR(CheckCancelled(options.cancelled));
  if (!finding.scheme.has_value()) {
    AQT_ASSIGN_OR_RETURN(finding.problem,
                         CompareBytes(input, tensor, output, output.Find(tensor.name), options.cancelled));
    return absl::OkStatus();
  }
  const absl::string_view module = *ModuleOf(tensor.name);
  const absl::StatusOr<DecodedWeight> decoded = DecodeWeight(output, module, *finding.scheme, tensor.shape);
  if (!decoded.ok()) {
    finding.problem = absl::StrCat(io::Printable(tensor.name), ": ", decoded.status().message());
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(const Array original, input.ReadArray(tensor));
  finding.quality = Compare(original, *decoded, *finding.scheme, options);
  finding.quality->name = tensor.name;
  return absl::OkStatus();
}

// Warns of weights that servers compute as one product although their global scales differ.
absl::Status CompareGlobalScales(const ModuleRoles& roles, const io::TensorSource& output,
                                 const std::vector<io::TensorInfo>& tensors, const std::vector<Finding>& findings,
                                 std::vector<std::string>& warnings) {
  std::vector<TensorPlan> plans(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    plans[i].input = &tensors[i];
    plans[i].decision.scheme = findings[i].quality.has_value() ? findings[i].scheme : std::nullopt;
  }
  FindScaleSets(roles, plans);
  std::map<std::string, std::pair<float, std::string>> first_of;  // a set -> its first scale, and the weight
  for (const TensorPlan& tensor : plans) {
    if (tensor.scale_set.empty()) continue;
    AQT_ASSIGN_OR_RETURN(const Array array,
                         output.ReadArray(*output.Find(absl::StrCat(tensor.module(), kWeightGlobalScale))));
    const float scale = array.View<float>()[0];
    const auto [it, inserted] = first_of.try_emplace(tensor.scale_set, scale, tensor.name());
    if (inserted || it->second.first == scale) continue;
    warnings.push_back(absl::StrCat(io::Printable(tensor.name()), ": its global scale is ", scale, ", that of ",
                                    io::Printable(it->second.second), " is ", it->second.first,
                                    "; servers compute both with one"));
  }
  return absl::OkStatus();
}

std::string Decibels(double snr) {
  return std::isnan(snr) ? "NaN" : std::isinf(snr) ? (snr > 0 ? "exact" : "-inf") : absl::StrFormat("%.2f", snr);
}

// "group [5,32:64]".
std::string GroupName(const WeightQuality& quality, int64_t group) {
  return absl::StrCat(quality.scheme.weights.strategy == WeightStrategy::kGroup ? "group " : "block ",
                      UnitName(quality.scheme.weights, quality.shape, group));
}

// Adds the reasons why a weight fails.
void AddProblems(const WeightQuality& quality, const VerifyOptions& options, std::vector<std::string>& problems) {
  const std::string name = io::Printable(quality.name);
  if (!std::isfinite(quality.max_abs_error)) {
    problems.push_back(absl::StrCat(name, ": the original or its stored form holds a NaN or an infinity"));
    return;
  }
  const auto below = [](double snr_db, double min_snr_db) {
    return absl::StrCat("SNR ", Decibels(snr_db), " dB is below ", absl::StrFormat("%g", min_snr_db), " dB");
  };
  if (!(quality.snr_db >= options.min_snr_db)) {
    problems.push_back(absl::StrCat(name, ": ", below(quality.snr_db, options.min_snr_db)));
  }
  if (const PartsQuality& rows = quality.rows; rows.below > 0) {
    problems.push_back(absl::StrCat(name, ": row ", rows.worst, ": ", below(rows.worst_snr_db, options.min_row_snr_db),
                                    " (", rows.below, " of ", rows.count, " rows are)"));
  }
  if (quality.groups.has_value() && quality.groups->below > 0) {
    const PartsQuality& groups = *quality.groups;
    problems.push_back(absl::StrCat(name, ": ", GroupName(quality, groups.worst), ": ",
                                    below(groups.worst_snr_db, options.min_group_snr_db), " (", groups.below, " of ",
                                    groups.count, " ", UnitsName(quality.scheme.weights.strategy), " are)"));
  }
}

// Warns of parts that became zero, which no threshold may have caught.
void AddWarnings(const WeightQuality& quality, std::vector<std::string>& warnings) {
  const auto add = [&](const PartsQuality& parts, absl::string_view what, const auto& name_of) {
    const std::string of = absl::StrCat(" of ", parts.count, " ", what);
    if (parts.zeroed > 0) {
      warnings.push_back(absl::StrCat(io::Printable(quality.name), ": all values of ", parts.zeroed, of,
                                      " became 0; the first is ", name_of(parts.first_zeroed)));
    }
    if (parts.lone > 0) {
      warnings.push_back(absl::StrCat(io::Printable(quality.name), ": all values but one of ", parts.lone, of,
                                      " became 0; the first is ", name_of(parts.first_lone)));
    }
  };
  add(quality.rows, "rows", [](int64_t row) { return absl::StrCat("row ", row); });
  if (quality.groups.has_value()) {
    add(*quality.groups, UnitsName(quality.scheme.weights.strategy),
        [&](int64_t group) { return UnitName(quality.scheme.weights, quality.shape, group); });
  }
}

// Over the weights with a finite SNR. Weights that are stored exactly, or cannot be compared, have none.
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

// "0.00, row 5", with `unit` after the number. If all rows are exact, there is no worst row.
std::string WorstRow(const WeightQuality& w, absl::string_view unit = "") {
  const std::string snr = Decibels(w.rows.worst_snr_db);
  return snr == "exact" ? snr : absl::StrCat(snr, unit, ", row ", w.rows.worst);
}
std::string WorstGroup(const WeightQuality& w, absl::string_view unit = "") {
  const std::string snr = Decibels(w.groups->worst_snr_db);
  return snr == "exact" ? snr : absl::StrCat(snr, unit, ", ", UnitName(w.scheme.weights, w.shape, w.groups->worst));
}

}  // namespace

absl::StatusOr<VerifyReport> Verify(const io::FileSystem& fs, const io::TensorSource& input, const CarriedFiles& files,
                                    const io::Checkpoint& output, const VerifyOptions& options) {
  AQT_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(fs, output));
  if (!model.quantization_config.has_value()) {
    return absl::DataLossError(absl::StrCat(output.path(), " has no quantization_config in ",
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
      // The memory of a weight: the original and the dequantized one, each also as f32, and the stored one, unpacked
      // and in f32.
      [&](int64_t i) {
        return findings[i].scheme.has_value() ? 22 * tensors[i].shape.num_elements() : 2 * kCompareBytes;
      },
      [&](int64_t i) {
        return findings[i].problem.empty() ? VerifyTensor(input, output, tensors[i], options, findings[i])
                                           : absl::OkStatus();
      }));

  AQT_RETURN_IF_ERROR(CompareGlobalScales(roles, output, tensors, findings, report.warnings));
  for (Finding& finding : findings) {
    if (!finding.problem.empty()) {
      report.problems.push_back(std::move(finding.problem));
    } else if (finding.quality.has_value()) {
      AddProblems(*finding.quality, options, report.problems);
      AddWarnings(*finding.quality, report.warnings);
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
  const auto rank = [](const WeightQuality& w) {  // NaN is not less than any number, and goes first
    return std::isnan(w.snr_db) ? std::pair(0, 0.0) : std::pair(1, w.snr_db);
  };
  std::stable_sort(report.weights.begin(), report.weights.end(),
                   [&](const WeightQuality& a, const WeightQuality& b) { return rank(a) < rank(b); });
  return report;
}

void PrintVerify(const VerifyReport& report, std::ostream& out) {
  const bool groups = std::any_of(report.weights.begin(), report.weights.end(),
                                  [](const WeightQuality& w) { return w.groups.has_value(); });
  std::vector<std::string> header = {"weight", "scheme", "SNR dB", "worst row", "cosine", "max abs error", "clipped %"};
  if (groups) header.insert(header.begin() + 4, "worst group or block");
  Table table(header);
  // The weights that the summary names.
  const WeightQuality* worst_row = nullptr;
  const WeightQuality* worst_group = nullptr;
  for (const WeightQuality& w : report.weights) {
    std::vector<std::string> cells = {w.name, Describe(w.scheme), Decibels(w.snr_db), WorstRow(w)};
    if (groups) cells.push_back(w.groups.has_value() ? WorstGroup(w) : "-");
    cells.insert(cells.end(), {absl::StrFormat("%.6f", w.cosine), absl::StrFormat("%.4g", w.max_abs_error),
                               absl::StrFormat("%.4f", w.clipped_percent)});
    table.Add(std::move(cells));
    if (IsWorse(w.rows.worst_snr_db, worst_row == nullptr ? kExact : worst_row->rows.worst_snr_db)) worst_row = &w;
    if (w.groups.has_value() &&
        IsWorse(w.groups->worst_snr_db, worst_group == nullptr ? kExact : worst_group->groups->worst_snr_db)) {
      worst_group = &w;
    }
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
  if (worst_row != nullptr)
    out << "worst row: " << WorstRow(*worst_row, " dB") << " of " << io::Printable(worst_row->name) << "\n";
  if (worst_group != nullptr) {
    out << "worst group or block: " << WorstGroup(*worst_group, " dB") << " of " << io::Printable(worst_group->name)
        << "\n";
  }
}

std::string VerifyToJson(const VerifyReport& report) {
  ReportJson weights = ReportJson::array();
  for (const WeightQuality& w : report.weights) {
    ReportJson groups;
    if (w.groups.has_value()) {
      groups = {{"snr_db", JsonNumber(w.groups->worst_snr_db)},
                {"at", UnitName(w.scheme.weights, w.shape, w.groups->worst)},
                {"of", w.groups->count},
                {"below", w.groups->below},
                {"zeroed", w.groups->zeroed}};
    }
    weights.push_back({{"name", w.name},
                       {"scheme", Describe(w.scheme)},
                       {"elements", w.shape.num_elements()},
                       {"snr_db", JsonNumber(w.snr_db)},
                       {"worst_row",
                        {{"snr_db", JsonNumber(w.rows.worst_snr_db)},
                         {"row", w.rows.worst},
                         {"of", w.rows.count},
                         {"below", w.rows.below},
                         {"zeroed", w.rows.zeroed}}},
                       {"worst_group", std::move(groups)},
                       {"cosine", JsonNumber(w.cosine)},
                       {"max_abs_error", JsonNumber(w.max_abs_error)},
                       {"clipped_percent", w.clipped_percent}});
  }
  const SnrSummary snr = Summarize(report);
  ReportJson json = NewReport();
  json["weights"] = std::move(weights);
  json["mean_snr_db"] = JsonNumber(snr.mean());
  json["num_finite_snr"] = snr.finite;
  json["carried"] = report.num_carried;
  json["warnings"] = report.warnings;
  json["problems"] = report.problems;
  return ReportText(json);
}

}  // namespace aqt::serving
