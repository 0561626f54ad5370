#ifndef AQT_SERVING_CONVERT_JOB_TEST_UTIL_H_
#define AQT_SERVING_CONVERT_JOB_TEST_UTIL_H_

// Conversions for tests.

#include <string>

#include "serving/convert/convert_job.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {

class JobTest : public FolderTest {
 protected:
  // From "in" to "out" with the text of a configuration, which is written beside them.
  ConvertJob Job(const std::string& config) {
    WriteText(At("config.textproto"), config);
    ConvertJob job;
    job.input = At("in");
    job.output = At("out");
    job.recipe.config_file = At("config.textproto");
    return job;
  }
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_JOB_TEST_UTIL_H_
