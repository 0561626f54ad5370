// Input: a textproto of aqt.config.Inject. An error names a place in the text. An accepted configuration is unchanged
// when written and read again, and gives a valid program or an error.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "tests/fuzz/text_error.h"

namespace {

std::vector<aqt::Value> Model(absl::Span<const aqt::Value> in) {
  aqt::Value hidden;
  {
    const aqt::NamedScope scope("fc1");
    hidden = aqt::ops::MatMul(in[0], in[1]);
  }
  const aqt::NamedScope scope("logits");
  return {aqt::ops::MatMul(hidden, in[2])};
}

aqt::Program Traced() {
  return *aqt::Trace(Model, {{{aqt::SlotKind::kData, "x"}, {aqt::DType::kF32, {2, 4}}},
                             {{aqt::SlotKind::kParam, "w1"}, {aqt::DType::kF32, {4, 6}}},
                             {{aqt::SlotKind::kParam, "w2"}, {aqt::DType::kF32, {6, 3}}}});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<aqt::InjectConfig> config = aqt::InjectConfigFromText(text, "t");
  if (!config.ok()) {
    aqt::fuzz::CheckTextError(config.status(), text);
    return 0;
  }
  const std::string printed = aqt::ToText(*config);
  const absl::StatusOr<aqt::InjectConfig> again = aqt::InjectConfigFromText(printed);
  AQT_CHECK(again.ok());
  AQT_CHECK(aqt::ToText(*again) == printed);
  AQT_CHECK(*again == *config || absl::StrContains(printed, "nan"));  // a NaN differs from itself

  static const aqt::Program* const program = new aqt::Program(Traced());
  const absl::StatusOr<aqt::Program> injected = aqt::Inject(*program, *config);
  if (!injected.ok()) {
    AQT_CHECK(!absl::IsInternal(injected.status()) && !absl::IsUnknown(injected.status()));
    return 0;
  }
  AQT_CHECK(aqt::Check(*injected).ok());
  AQT_CHECK(!aqt::ToText(*injected).empty());
  return 0;
}
