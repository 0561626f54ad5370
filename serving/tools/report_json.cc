#include "serving/tools/report_json-inl.h"

#include <cmath>

namespace aqt::serving {

ReportJson NewReport() { return {{"schema", kReportSchema}}; }

ReportJson JsonNumber(double x) {
  if (std::isnan(x)) return ReportJson();
  return std::isfinite(x) ? ReportJson(x) : ReportJson(x > 0 ? "inf" : "-inf");
}

std::string ReportText(const ReportJson& report) {
  return report.dump(2, ' ', /*ensure_ascii=*/true, ReportJson::error_handler_t::replace) + "\n";
}

}  // namespace aqt::serving
