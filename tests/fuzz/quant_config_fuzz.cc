// Input: a textproto of aqt.config.DotGeneral. An error names a place in the text. An accepted configuration is
// unchanged when written and read again, and a contraction with it gives a result or an error.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/text/config_proto.h"
#include "tests/fuzz/text_error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<aqt::DotGeneralConfig> config = aqt::DotGeneralFromText(text, "t");
  if (!config.ok()) {
    aqt::fuzz::CheckTextError(config.status(), text);
    return 0;
  }
  const std::string printed = aqt::ToText(*config);
  const absl::StatusOr<aqt::DotGeneralConfig> again = aqt::DotGeneralFromText(printed);
  AQT_CHECK(again.ok());
  AQT_CHECK(aqt::ToText(*again) == printed);
  AQT_CHECK(*again == *config || absl::StrContains(printed, "nan"));  // a NaN differs from itself

  static const aqt::Array lhs = aqt::Array::Of<float>({1, -2, 3, 0, 5, 6, 7, 1e-30f}, {2, 4});
  static const aqt::Array rhs = aqt::Array::Of<float>({1, 2, -3, 4, 5, 1e30f, 7, 8}, {4, 2});
  static const aqt::Array g = aqt::Array::Of<float>({1, 2, 3, -4}, {2, 2});
  const absl::Status status =
      aqt::QuantizedDotGeneralWithGradients(*config, lhs, rhs, g, aqt::MatMulDims(), {.key = aqt::MakeKey(0)}).status();
  AQT_CHECK(!absl::IsInternal(status) && !absl::IsUnknown(status));
  return 0;
}
