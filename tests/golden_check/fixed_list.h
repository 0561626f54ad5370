#ifndef AQT_TESTS_GOLDEN_CHECK_FIXED_LIST_H_
#define AQT_TESTS_GOLDEN_CHECK_FIXED_LIST_H_

// The library's default results where they deliberately differ from the original (Compat): tests/golden/fixed.json.
//
//   {"ARITHMETIC_XLA_COMPATIBLE": {
//     "CASE": {"compat": ["FIELD"],
//              "tensors": {"NAME": {"aval": "s8[1,33]", "sha256": "..."},
//                          "NAME": {"aval": "f32[2]", "values": [1.5, "nan"]}}},
//     "CASE": {"compat": ["FIELD"], "error": "FAILED_PRECONDITION"}}}
// A tensor that is recorded as exact has the SHA-256 of its bytes (-0 as 0). Any other tensor has its values, which are
// compared with the tolerance of the recorded ones.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/quant/config/semantics.h"
#include "tests/golden_check/compare.h"

namespace aqt::golden {

struct FixedTensor {
  std::string aval;
  std::string sha256;          // or
  std::optional<Array> value;  // of the dtype and shape of `aval`
};
// The entry for a tensor that is recorded with this tolerance.
FixedTensor MakeFixedTensor(const Array& value, const Tolerance& tolerance);
// Like Compare: null, or the error.
std::optional<std::string> Compare(const Array& got, const FixedTensor& want, const Tolerance& tolerance);

struct FixedCase {
  std::vector<std::string> compat;  // the fields that make the difference
  std::map<std::string, FixedTensor> tensors;
  std::string error = "";  // instead of tensors: the code of the status with which the case is refused
};
using FixedList = std::map<std::string, FixedCase, std::less<>>;  // by case

// The list for this arithmetic, empty if the file has none. InvalidArgument, naming the file and the entry, if the
// format differs from the above, or if it names a field that Compat lacks.
absl::StatusOr<FixedList> LoadFixedList(const io::FileSystem& fs, const std::string& path, Arithmetic arithmetic);
// Replaces the list of this arithmetic in the file, which is created if it is missing. Tensors with values are f32,
// bf16 or f16.
absl::Status SaveFixedList(const io::FileSystem& fs, const std::string& path, Arithmetic arithmetic,
                           const FixedList& list);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_FIXED_LIST_H_
