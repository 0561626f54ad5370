#ifndef AQT_COLLECTIVE_COLLECTIVE_TESTING_H_
#define AQT_COLLECTIVE_COLLECTIVE_TESTING_H_

#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt::testing {

// Checks an engine: calls all functions of collective.h on small and large arrays and compares the results with values
// that each process computes itself. Internal, naming the function, for a wrong result.
absl::Status CheckCollective(Collective& collective);

}  // namespace aqt::testing

#endif  // AQT_COLLECTIVE_COLLECTIVE_TESTING_H_
