#include "serving/c/c_api_testdata.h"

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"

const char* TestProgramBytes(size_t* size) {
  using aqt::DType;
  using aqt::SlotKind;
  static const std::string* const bytes = [] {
    aqt::Program program = *aqt::Trace(
        [](absl::Span<const aqt::Value> in) { return std::vector<aqt::Value>{aqt::ops::MatMul(in[0], in[1])}; },
        {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {3, 2}}}},
        {{SlotKind::kData, "y"}});
    return new std::string(*aqt::SaveProgram(program));
  }();
  *size = bytes->size();
  return bytes->data();
}
