#ifndef AQT_TESTS_SYSTEMS_CHECK_SYSTEM_CASE_H_
#define AQT_TESTS_SYSTEMS_CHECK_SYSTEM_CASE_H_

// Cases recorded from systems other than AQT (scalify, jaxamp, fp8layers), format "systems-golden/1".

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
// An input or output of a case: an array, a scaled array, a list or a dict.
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
  bool expects_error = false;       // if true, there is no expected value
  std::vector<std::string> compat;  // the original's defects that affect the case
  // The behaviour with which it is computed; not part of the file.
  SystemsCompat behaviour = SystemsCompat::Original();

  // The first part of the name.
  std::string group() const { return name.substr(0, name.find('/')); }
  // InvalidArgument if there is none, or if it is not an array.
  absl::StatusOr<Array> Input(absl::string_view input) const;
};

// The dtype called `name` in the cases. Unimplemented for dtypes that these systems do not use.
absl::StatusOr<DType> DTypeOf(const std::string& name);

struct SystemArea {
  std::string name;  // "jaxamp"
  std::vector<SystemCase> cases;
};

// Whether the folder has such areas: a file AREA.json of this format for one of scalify, jaxamp and fp8layers.
bool HasSystems(const io::FileSystem& fs, absl::string_view dir);

// The areas of the folder with their tensors, or only the named ones. InvalidArgument for an unknown name, and for a
// file in another format.
absl::StatusOr<std::vector<SystemArea>> LoadSystems(const io::FileSystem& fs, absl::string_view dir,
                                                    const std::vector<std::string>& areas);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_SYSTEM_CASE_H_
