#ifndef AQT_SERVING_CLI_CHECKPOINTS_CONVERT_SUMMARY_H_
#define AQT_SERVING_CLI_CHECKPOINTS_CONVERT_SUMMARY_H_

// What `convert` and `dequantize` say when they are done.

#include <cstdint>
#include <ostream>
#include <string>

#include "serving/convert/convert_job.h"

namespace aqt::serving {

// The peak since this program began.
int64_t PeakResidentBytes();

// One line, and one for the files that were copied. Warnings are left to the caller.
void PrintConvertSummary(const ConvertJob& job, const ConvertReport& report, double seconds, std::ostream& out);
std::string ConvertSummaryToJson(const ConvertJob& job, const ConvertReport& report, double seconds);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_CHECKPOINTS_CONVERT_SUMMARY_H_
