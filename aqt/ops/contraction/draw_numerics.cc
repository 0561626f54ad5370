#include "aqt/ops/contraction/draw_numerics.h"

#include <limits>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/graph/op.h"
#include "aqt/ops/contraction/aqt_dot_fields.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/numerics/numerics.h"

namespace aqt::ops {
namespace {

struct Look {
  int bits = std::numeric_limits<int>::max();
  const char* color = "";
};

Look LookOf(const NoNumerics&) { return {}; }
Look LookOf(const IntSymmetric& n) {
  return {n.bits, n.bits <= 2 ? "#f6b3b0" : n.bits <= 4 ? "#fbd5a0" : n.bits <= 8 ? "#bfe3b8" : "#e3efb8"};
}
Look LookOf(const Fp8&) { return {8, "#bcd9f7"}; }
Look LookOf(const Fp& n) { return {1 + n.format.nexp + n.format.nmant, "#dcc6f2"}; }

// "int8" of "int8:s8+preserve_max_val".
std::string WordOf(const Numerics& numerics) {
  const std::string text = Describe(numerics);
  return text.substr(0, text.find_first_of(":+"));
}

class Painter {
 public:
  std::string Side(const TensorConfig& tensor) {
    const Numerics& numerics = tensor.quantizer.numerics;
    if (const Look look = std::visit([](const auto& n) { return LookOf(n); }, numerics); look.bits < look_.bits) {
      look_ = look;
    }
    return WordOf(numerics);
  }
  std::string Product(const DotGeneralRawConfig& raw) {
    const std::string lhs = Side(raw.lhs), rhs = Side(raw.rhs);
    return lhs == "float" && rhs == "float" ? lhs : absl::StrCat(lhs, " * ", rhs);
  }
  std::string color() const { return look_.color; }

 private:
  Look look_;
};

}  // namespace

Paint PaintNumerics(const Equation& eqn) {
  const std::optional<internal::ContractionFields> contraction = internal::ContractionFieldsOf(eqn.op);
  if (!contraction.has_value() || !contraction->config.has_value()) return {};
  const aqt::DotGeneralConfig& config = *contraction->config;
  Painter painter;
  std::string note;
  if (absl::EndsWith(OpName(eqn.op), "_bwd")) {
    const std::string dlhs = painter.Product(config.dlhs);
    note = absl::StrCat("dlhs ", dlhs, ", drhs ", painter.Product(config.drhs));
  } else {
    note = painter.Product(config.fwd);
  }
  return {.color = painter.color(), .note = note};
}

}  // namespace aqt::ops
