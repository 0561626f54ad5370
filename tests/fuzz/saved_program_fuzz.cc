// Input: a saved program. Its checksums are corrected first, so that the code after them is reached. An accepted
// program is unchanged when written and read again, with all composites of aqt/ops. If it is small, both give the same
// results or errors, and expansion gives a program or an error.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/graph/interpret/call.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/testing/same_bits.h"
#include "aqt/transforms/expand.h"

namespace {

uint32_t Crc32(absl::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
  }
  return ~crc;
}

// The records, each with a correct checksum.
std::string Repaired(std::string bytes) {
  for (size_t at = 12; at + 8 <= bytes.size();) {
    size_t size = 0;
    for (int i = 3; i >= 0; --i) size = size << 8 | static_cast<uint8_t>(bytes[at + i]);
    if (size > bytes.size() - at - 8) break;
    const uint32_t crc = Crc32(absl::string_view(bytes).substr(at + 8, size));
    for (int i = 0; i < 4; ++i) bytes[at + 4 + i] = static_cast<char>(crc >> (8 * i));
    at += 8 + size;
  }
  return bytes;
}

constexpr aqt::LoadOptions kOptions{.max_statistics_bytes = 1 << 20};

// Whether every variable has few elements, including those of calls.
bool IsSmall(const aqt::Program& program) {
  int64_t elements = 0;
  for (const aqt::Aval& aval : program.vars) {
    if (aval.shape.num_elements() > 4096) return false;
    elements += aval.shape.num_elements();
  }
  if (elements > 4096) return false;
  for (const aqt::Equation& eqn : program.eqns) {
    if (const aqt::Program* body = aqt::CallBody(eqn.op); body != nullptr && !IsSmall(*body)) return false;
  }
  return true;
}

void CheckEvaluatesAlike(const aqt::Program& a, const aqt::Program& b) {
  std::vector<aqt::Array> args;
  for (const aqt::Aval& aval : a.InputAvals()) args.push_back(aqt::Array::Zeros(aval.dtype, aval.shape));
  const absl::StatusOr<std::vector<aqt::Array>> first = aqt::Eval(a, args), second = aqt::Eval(b, args);
  AQT_CHECK(first.status() == second.status());
  if (!first.ok()) return;
  for (size_t i = 0; i < first->size(); ++i) AQT_CHECK(aqt::SameBits((*first)[i], (*second)[i]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const std::string& file : {bytes, Repaired(bytes)}) {
    const absl::StatusOr<aqt::Program> program = aqt::LoadProgram(file, aqt::ops::ProgramCodecs(), kOptions);
    if (!program.ok()) {
      AQT_CHECK(program.status().code() == absl::StatusCode::kDataLoss ||
                program.status().code() == absl::StatusCode::kUnimplemented ||
                program.status().code() == absl::StatusCode::kResourceExhausted);
      continue;
    }
    const absl::StatusOr<std::string> saved = aqt::SaveProgram(*program, aqt::ops::ProgramCodecs());
    AQT_CHECK(saved.ok());
    const absl::StatusOr<aqt::Program> again = aqt::LoadProgram(*saved, aqt::ops::ProgramCodecs(), kOptions);
    AQT_CHECK(again.ok());
    AQT_CHECK(ToText(*again, {.source_lines = true}) == ToText(*program, {.source_lines = true}));
    if (!IsSmall(*program)) continue;
    CheckEvaluatesAlike(*program, *again);
    aqt::Expand(*program).status().IgnoreError();
  }
  return 0;
}
