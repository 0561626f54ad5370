#ifndef AQT_SERVING_TOOLS_REPORT_JSON_INL_H_
#define AQT_SERVING_TOOLS_REPORT_JSON_INL_H_

// What all reports of `--json` share: docs/formats/json.md.

#include <string>

#include "nlohmann/json.hpp"

namespace aqt::serving {

// The version of the reports' fields. A new field does not change it; a field with another meaning does.
inline constexpr int kReportSchema = 1;

using ReportJson = nlohmann::ordered_json;

// A report with its version.
ReportJson NewReport();
// JSON has neither NaN nor infinity: null, "inf" and "-inf".
ReportJson JsonNumber(double x);
// The text to print: ASCII, with a newline at the end. Bytes that are not UTF-8 become U+FFFD.
std::string ReportText(const ReportJson& report);

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_REPORT_JSON_INL_H_
