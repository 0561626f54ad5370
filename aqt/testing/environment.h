#ifndef AQT_TESTING_ENVIRONMENT_H_
#define AQT_TESTING_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>

namespace aqt::testing {

// The number in an environment variable, such as the AQT_TEST_SEED and AQT_TEST_CASES of a property test.
inline int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

}  // namespace aqt::testing

#endif  // AQT_TESTING_ENVIRONMENT_H_
