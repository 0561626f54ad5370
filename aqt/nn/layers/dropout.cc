#include "aqt/nn/layers/dropout.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/functions.h"

namespace aqt::nn {

Value Dropout(const Value& x, absl::string_view name, const DropoutOptions& options,
              const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  const auto refuse = [&](const absl::Status& status) { return Refuse(status, "dropout", {x}, where); };
  if (!(options.rate >= 0 && options.rate < 1)) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("rate = ", options.rate, ", expected a number in [0, 1)")));
  }
  if (!options.train || options.rate == 0) return x;
  const std::string path = absl::StrCat(CurrentScope(), "/dropout");
  if (!TakeName(path)) {
    return refuse(absl::AlreadyExistsError("the scope has a dropout of this name; give each its own"));
  }
  const Value key = InputSlot({SlotKind::kKey, path}, {DType::kU32, {2}}, where);
  const Value kept = ops::Less(ops::RandomUniform(key, x.shape()), 1 - options.rate);
  return ops::Select(kept, x / (1 - options.rate), 0.0);
}

}  // namespace aqt::nn
