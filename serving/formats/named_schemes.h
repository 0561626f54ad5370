#ifndef AQT_SERVING_FORMATS_NAMED_SCHEMES_H_
#define AQT_SERVING_FORMATS_NAMED_SCHEMES_H_

// The schemes that other tools refer to by name instead of by fields.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/formats/scheme.h"

namespace aqt::serving {

// The preset of that name in compressed-tensors 0.20.0, such as "W8A8", case-insensitive, with the default layout.
// InvalidArgument, with the names, if it does not exist. Unimplemented for "UNQUANTIZED".
absl::StatusOr<Scheme> PresetScheme(absl::string_view name);
// The same for a name in capitals. Null if there is no such preset.
std::optional<Scheme> SchemeNamed(absl::string_view name);
// The names of all of them.
std::vector<std::string> SchemeNames();

// 8-bit floats as in the `quant_method` "fp8": one scale per block of rows and columns, with activations that are
// dynamic in groups of the block's columns; or, without `block`, one per tensor, with activations that are dynamic per
// token or static per tensor.
Scheme Fp8Scheme(const std::optional<std::array<int64_t, 2>>& block, bool dynamic);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_NAMED_SCHEMES_H_
