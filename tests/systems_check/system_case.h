#ifndef AQT_TESTS_SYSTEMS_CHECK_SYSTEM_CASE_H_
#define AQT_TESTS_SYSTEMS_CHECK_SYSTEM_CASE_H_

// Cases recorded from the systems besides AQT (scalify, jaxamp, fp8layers), format "systems-golden/1".

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "nlohmann/json.hpp"
#include "tests/systems_check/systems_compat.h"

namespace aqt::systems {

using Json = nlohmann::ordered_json;

struct ScaledArrays {
  Array data, scale;
};
// A value that a case takes or gives: an array, a scaled one, a list or a dict.
struct SystemValue {
  using List = std::vector<SystemValue>;
  using Dict = std::map<std::string, SystemValue>;
  std::variant<Array, ScaledArrays, List, Dict> of;

  SystemValue() = default;
  SystemValue(Array array) : of(std::move(array)) {}           // NOLINT
  SystemValue(ScaledArrays scaled) : of(std::move(scaled)) {}  // NOLINT
  SystemValue(List list) : of(std::move(list)) {}              // NOLINT
  SystemValue(Dict dict) : of(std::move(dict)) {}              // NOLINT
};

struct SystemCase {
  std::string name;
  Json config, tolerance;
  SystemValue::Dict inputs, expected;
  bool expects_error = false;       // then there is no expected value
  std::vector<std::string> compat;  // the defects of the original that the case shows
  // How it is computed; not part of the file.
  SystemsCompat behaviour = SystemsCompat::Original();

  // The first part of the name.
  std::string group() const { return name.substr(0, name.find('/')); }
  // InvalidArgument if there is none, or if it is no array.
  absl::StatusOr<Array> Input(absl::string_view input) const;
};

// The dtype that the cases call `name`. Unimplemented for those that these systems do not compute in.
absl::StatusOr<DType> DTypeOf(const std::string& name);

struct SystemArea {
  std::string name;  // "jaxamp"
  std::vector<SystemCase> cases;
};

// Whether the folder holds such areas: a file AREA.json of this format for one of scalify, jaxamp and fp8layers.
bool HasSystems(const io::FileSystem& fs, absl::string_view dir);

// The areas of the folder with their tensors; only those named, if any are. InvalidArgument for a name that there is
// not, and for a file that is not of the format.
absl::StatusOr<std::vector<SystemArea>> LoadSystems(const io::FileSystem& fs, absl::string_view dir,
                                                    const std::vector<std::string>& areas);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_SYSTEM_CASE_H_
