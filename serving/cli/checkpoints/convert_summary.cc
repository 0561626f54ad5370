#include "serving/cli/checkpoints/convert_summary.h"

#include <sys/resource.h>

#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "aqt/io/printable.h"
#include "serving/convert/carried_files.h"
#include "serving/tools/report_json-inl.h"
#include "serving/tools/text.h"

namespace aqt::serving {

// getrusage's ru_maxrss starts with that of the parent process.
int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view kib = line;
    int64_t number;
    if (absl::ConsumePrefix(&kib, "VmHWM:") && absl::ConsumeSuffix(&kib, "kB") && absl::SimpleAtoi(kib, &number)) {
      return number * 1024;
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void PrintConvertSummary(const ConvertJob& job, const ConvertReport& report, double seconds, std::ostream& out) {
  out << io::PrintableLine(job.output) << ": ";
  if (job.dequantize_to.has_value()) {
    out << report.num_dequantized << " of " << report.num_tensors << " tensors dequantized ("
        << io::PrintableLine(report.input_format) << "), ";
  } else {
    out << report.num_quantized << " of " << report.num_tensors << " tensors quantized, ";
  }
  out << HumanBytes(report.old_bytes) << " -> " << HumanBytes(report.new_bytes) << ", "
      << absl::StrFormat("%.2f s, %.0f MB/s, peak memory ", seconds,
                         static_cast<double>(report.old_bytes) / seconds / 1e6)
      << HumanBytes(PeakResidentBytes()) << "\n";
  if (!report.experts.empty()) out << "experts: " << io::PrintableLine(report.experts) << "\n";
  if (const std::string copied = DescribeCarried(report.copied); !copied.empty()) {
    out << "copied: " << copied << (job.exclude.empty() ? "; --exclude GLOB leaves files out" : "") << "\n";
  }
}

std::string ConvertSummaryToJson(const ConvertJob& job, const ConvertReport& report, double seconds) {
  ReportJson copied = ReportJson::array();
  for (const CopiedFile& file : report.copied) copied.push_back({{"name", file.name}, {"bytes", file.bytes}});
  ReportJson json = NewReport();
  json["output"] = job.output;
  json["num_tensors"] = report.num_tensors;
  json["num_quantized"] = report.num_quantized;
  json["num_dequantized"] = report.num_dequantized;
  json["input_format"] = report.input_format.empty() ? ReportJson() : ReportJson(report.input_format);
  json["old_bytes"] = report.old_bytes;
  json["new_bytes"] = report.new_bytes;
  json["copied"] = std::move(copied);
  json["experts"] = report.experts.empty() ? ReportJson() : ReportJson(report.experts);
  json["warnings"] = report.warnings;
  json["seconds"] = seconds;
  json["peak_memory_bytes"] = PeakResidentBytes();
  return ReportText(json);
}

}  // namespace aqt::serving
