// ToText: the program as text.

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array_ops.h"
#include "aqt/graph/program.h"

namespace aqt {
namespace {

constexpr int64_t kMaxWrittenElements = 8;

uint64_t Fnv1a(const Array& array) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const uint8_t* bytes = static_cast<const uint8_t*>(array.data());
  for (int64_t i = 0; i < array.num_bytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

std::string ContentsText(const Array& array) {
  if (array.num_elements() > kMaxWrittenElements) return absl::StrFormat("hash %016x", Fnv1a(array));
  std::string text;
  if (array.dtype() == DType::kS64) {  // may have more digits than a double
    text = absl::StrJoin(array.View<int64_t>(), ", ");
  } else {
    const Array numbers = Cast(array, DType::kF64);
    // 17 digits distinguish all doubles, 10 all floats and 32-bit integers.
    const int digits = array.dtype() == DType::kF64 ? 17 : 10;
    for (double x : numbers.View<double>()) {
      absl::StrAppend(&text, text.empty() ? "" : ", ");
      absl::StrAppendFormat(&text, "%.*g", digits, x);
    }
  }
  return array.shape().rank() == 0 ? text : absl::StrCat("{", text, "}");
}

std::string ToText(const Program& program, const TextOptions& options) {
  std::string text;
  std::vector<int> number(program.vars.size(), -1);
  int next = 0;
  const auto declare = [&](VarId var) {
    number[var] = next++;
    return absl::StrCat("%", number[var], ": ", program.aval(var).ToString());
  };
  for (const Program::Port& port : program.inputs) {
    absl::StrAppend(&text, "in ", declare(port.var), " ", port.slot.ToString(), "\n");
  }
  for (const auto& [var, array] : program.consts) {
    absl::StrAppend(&text, "const ", declare(var), " = ", ContentsText(array), "\n");
  }
  for (const Equation& eqn : program.eqns) {
    absl::StrAppend(
        &text, absl::StrJoin(eqn.out, ", ", [&](std::string* out, VarId var) { out->append(declare(var)); }), " = ",
        OpName(eqn.op), "(",
        absl::StrJoin(eqn.in, ", ", [&](std::string* out, VarId var) { absl::StrAppend(out, "%", number[var]); }), ")");
    if (const std::string attributes = OpAttributes(eqn.op); !attributes.empty()) {
      absl::StrAppend(&text, " {", attributes, "}");
    }
    if (eqn.scope != 0) absl::StrAppend(&text, " @", program.scope(eqn));
    if (options.source_lines) absl::StrAppend(&text, "  # ", eqn.where.ToString());
    text += "\n";
  }
  for (const Program::Port& port : program.outputs) {
    absl::StrAppend(&text, "out %", number[port.var], " ", port.slot.ToString(), "\n");
  }
  return text;
}

std::ostream& operator<<(std::ostream& os, const Program& program) { return os << ToText(program); }

}  // namespace aqt
