#ifndef AQT_TESTS_SYSTEMS_CHECK_FIXED_SYSTEMS_H_
#define AQT_TESTS_SYSTEMS_CHECK_FIXED_SYSTEMS_H_

// The library's default results where they deliberately differ from the recorded systems:
// tests/golden/systems/fixed.json.
//
//   {"scalify": {
//     "CASE": {"compat": ["plain_arrays_do_not_mix"], "reason": "a plain array has the scale 1",
//              "expected": {"y": {"kind": "scaled", "data": {"aval": "f32[2]", "values": [1.5, "nan"]},
//                                 "scale": {"aval": "f32[]", "values": [2]}}}},
//     "CASE": {"compat": [...], "reason": ..., "error": true}}}
// Values are compared with the tolerance of the recorded ones. `compat` names the switches that make the difference
// (systems_compat.h), `reason` gives the reason for each.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "tests/systems_check/system_case.h"

namespace aqt::systems {

struct FixedSystemCase {
  std::vector<std::string> compat;
  SystemValue::Dict expected = {};
  bool error = false;  // the case is refused; no expected value
};
// By area, then by case.
using FixedSystems = std::map<std::string, std::map<std::string, FixedSystemCase>>;

// InvalidArgument, naming the file and the entry, for a file in another format.
absl::StatusOr<FixedSystems> LoadFixedSystems(const io::FileSystem& fs, const std::string& path);
absl::Status SaveFixedSystems(const io::FileSystem& fs, const std::string& path, const FixedSystems& list);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_FIXED_SYSTEMS_H_
