#include "serving/compare/inspect.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/report_json-inl.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

constexpr int64_t kBlockElements = 1 << 17;

std::string Std(absl::string_view s) { return std::string(s.data(), s.size()); }

absl::StatusOr<std::optional<TensorStats>> ComputeStats(const io::TensorSource& source, const io::TensorInfo& tensor,
                                                        const std::atomic<bool>* cancelled) {
  const std::optional<DType> dtype = io::ToDType(tensor.dtype);
  const int64_t n = tensor.shape.num_elements();
  if (!dtype.has_value() || n == 0) return std::optional<TensorStats>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  TensorStats stats{kInfinity, -kInfinity, 0};
  std::vector<uint8_t> bytes;
  std::vector<double> values;
  for (int64_t begin = 0; begin < n; begin += kBlockElements) {
    AQT_RETURN_IF_ERROR(CheckCancelled(cancelled));
    const int64_t size = std::min(kBlockElements, n - begin);
    bytes.resize(size * SizeOf(*dtype));
    values.resize(size);
    AQT_RETURN_IF_ERROR(source.Read(tensor, begin * SizeOf(*dtype), absl::MakeSpan(bytes)));
    if (*dtype == DType::kBool) {  // a byte other than 0 and 1 would not be a valid bool in memory
      std::transform(bytes.begin(), bytes.end(), values.begin(), [](uint8_t b) { return b != 0 ? 1.0 : 0.0; });
    } else {
      AQT_RETURN_IF_ERROR(CastArray(ArrayRef(*dtype, {size}, bytes.data()), MutableArrayRef(values.data(), {size})));
    }
    for (const double x : values) {
      if (std::isnan(x)) {
        ++stats.nans;
      } else {
        stats.min = std::min(stats.min, x);
        stats.max = std::max(stats.max, x);
      }
    }
  }
  return std::optional<TensorStats>(stats);
}

std::string JoinNames(const std::vector<std::string>& names) {
  return absl::StrJoin(names, ", ",
                       [](std::string* out, const std::string& s) { absl::StrAppend(out, io::Printable(s)); });
}

std::string DescribeQuantization(const ModelConfig& model) {
  if (!model.quantization_config.has_value()) return "";
  const absl::StatusOr<QuantizationConfig> config = ParseQuantizationConfig(*model.quantization_config);
  if (!config.ok()) return absl::StrCat(kNotUnderstood, config.status().message());
  std::vector<std::string> lines;
  for (const ConfigGroup& group : config->groups) {
    constexpr size_t kShown = 4;
    std::vector<std::string> targets(group.targets.begin(),
                                     group.targets.begin() + std::min(kShown, group.targets.size()));
    if (group.targets.size() > kShown) targets.push_back(absl::StrCat("and ", group.targets.size() - kShown, " more"));
    lines.push_back(absl::StrCat(io::Printable(group.name), ": ", Describe(group.scheme), " for ", JoinNames(targets)));
  }
  lines.push_back(absl::StrCat("ignored: ", config->ignore.empty() ? "none" : JoinNames(config->ignore)));
  return absl::StrJoin(lines, "\n");
}

std::string Number(double x) { return absl::StrFormat("%.6g", x); }

}  // namespace

absl::StatusOr<InspectReport> Inspect(const io::TensorSource& source, const ModelConfig& model,
                                      const InspectOptions& options) {
  InspectReport report;
  report.path = source.path();
  report.files = source.shard_names();
  report.bytes = source.total_bytes();
  report.warnings = source.warnings();
  std::map<io::FileDType, InspectReport::DTypeCount> dtypes;
  for (const io::TensorInfo& tensor : source.tensors()) {
    InspectReport::Tensor entry{tensor, report.files[tensor.shard], std::nullopt};
    if (options.stats) {
      AQT_ASSIGN_OR_RETURN(entry.stats, ComputeStats(source, tensor, options.cancelled));
    }
    InspectReport::DTypeCount& count = dtypes[tensor.dtype];
    count.dtype = tensor.dtype;
    ++count.tensors;
    count.bytes += tensor.num_bytes();
    report.tensors.push_back(std::move(entry));
  }
  for (const auto& [dtype, count] : dtypes) report.dtypes.push_back(count);
  std::stable_sort(report.dtypes.begin(), report.dtypes.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (size_t i = 0; i < source.shards().size(); ++i) {
    const std::string prefix = report.files.size() > 1 ? absl::StrCat(report.files[i], ": ") : "";
    for (const auto& [key, value] : source.shards()[i].metadata)
      report.metadata.emplace_back(absl::StrCat(prefix, key), value);
  }
  report.quantization = DescribeQuantization(model);
  return report;
}

void PrintInspect(const InspectReport& report, std::ostream& out) {
  const bool with_stats =
      std::any_of(report.tensors.begin(), report.tensors.end(), [](const auto& t) { return t.stats.has_value(); });
  std::vector<std::string> header = {"tensor", "dtype", "shape", "bytes"};
  if (with_stats) header.insert(header.end(), {"min", "max", "absmax", "NaN"});
  Table table(header);
  for (const InspectReport::Tensor& t : report.tensors) {
    std::vector<std::string> row = {t.info.name, Std(io::ToString(t.info.dtype)), t.info.shape.ToString(),
                                    HumanBytes(t.info.num_bytes())};
    if (with_stats && t.stats.has_value()) {
      const TensorStats& s = *t.stats;
      const bool numbers = s.min <= s.max;
      row.insert(row.end(), {numbers ? Number(s.min) : "-", numbers ? Number(s.max) : "-",
                             numbers ? Number(std::max(std::abs(s.min), std::abs(s.max))) : "-", absl::StrCat(s.nans)});
    } else if (with_stats) {
      row.insert(row.end(), 4, "-");
    }
    table.Add(std::move(row));
  }
  if (!report.tensors.empty()) table.Print(out);
  out << io::PrintableLine(report.path) << ": " << report.tensors.size() << " tensors, " << HumanBytes(report.bytes)
      << " in " << report.files.size() << (report.files.size() == 1 ? " file\n" : " files\n");
  for (const InspectReport::DTypeCount& count : report.dtypes) {
    out << "  " << Std(io::ToString(count.dtype)) << ": " << count.tensors << " tensors, " << HumanBytes(count.bytes)
        << "\n";
  }
  if (!report.metadata.empty()) out << "metadata:\n";
  for (const auto& [key, value] : report.metadata) {
    out << "  " << io::Printable(key) << " = " << io::Printable(value) << "\n";
  }
  if (!report.quantization.empty())
    out << "quantization:\n  "
        << absl::StrJoin(std::vector<std::string>(absl::StrSplit(report.quantization, '\n')), "\n  ") << "\n";
  if (!report.other_files.empty()) out << "other files: " << JoinNames(report.other_files) << "\n";
  for (const std::string& warning : report.warnings) out << "warning: " << io::PrintableLine(warning) << "\n";
}

std::string InspectToJson(const InspectReport& report) {
  ReportJson tensors = ReportJson::array();
  for (const InspectReport::Tensor& t : report.tensors) {
    ReportJson json = {{"name", t.info.name},
                       {"dtype", Std(io::ToString(t.info.dtype))},
                       {"shape", std::vector<int64_t>(t.info.shape.begin(), t.info.shape.end())},
                       {"bytes", t.info.num_bytes()},
                       {"file", t.file}};
    if (t.stats.has_value()) {
      const bool numbers = t.stats->min <= t.stats->max;
      json["min"] = numbers ? JsonNumber(t.stats->min) : ReportJson();
      json["max"] = numbers ? JsonNumber(t.stats->max) : ReportJson();
      json["nans"] = t.stats->nans;
    }
    tensors.push_back(std::move(json));
  }
  ReportJson dtypes = ReportJson::object();
  for (const InspectReport::DTypeCount& count : report.dtypes) {
    dtypes[Std(io::ToString(count.dtype))] = {{"tensors", count.tensors}, {"bytes", count.bytes}};
  }
  ReportJson metadata = ReportJson::object();
  for (const auto& [key, value] : report.metadata) metadata[key] = value;
  ReportJson json = NewReport();
  json["path"] = report.path;
  json["files"] = report.files;
  json["bytes"] = report.bytes;
  json["dtypes"] = std::move(dtypes);
  json["metadata"] = std::move(metadata);
  json["quantization"] = report.quantization.empty() ? ReportJson() : ReportJson(report.quantization);
  json["other_files"] = report.other_files;
  json["warnings"] = report.warnings;
  json["tensors"] = std::move(tensors);
  return ReportText(json);
}

}  // namespace aqt::serving
