#ifndef AQT_COLLECTIVE_COLLECTIVE_TESTING_H_
#define AQT_COLLECTIVE_COLLECTIVE_TESTING_H_

#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt::testing {

// What every engine must do: all functions of collective.h on small and large arrays, against values that each process
// computes by itself. Internal, naming the function, for a wrong result.
absl::Status CheckCollective(Collective& collective);

}  // namespace aqt::testing

#endif  // AQT_COLLECTIVE_COLLECTIVE_TESTING_H_
