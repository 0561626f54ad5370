#ifndef AQT_OPS_FP8_FP8_DOT_FIELDS_H_
#define AQT_OPS_FP8_FP8_DOT_FIELDS_H_

// The fields of the operations of fp8_dot.h (graph/composite_fields.h), and the operations. Internal.

#include <array>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/aval.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/ops/fp8/fp8_dot.h"

namespace aqt::internal {

struct Fp8StateAvals {
  Aval scale, amax_history;
  static constexpr const char* kFieldNames[] = {"scale", "amax_history"};
  bool operator==(const Fp8StateAvals&) const = default;
};

// fp8_dot, or fp8_dot_fwd.
struct Fp8ForwardFields {
  Fp8DotOptions options;
  bool with_gradient = false;
  std::array<Fp8StateAvals, 3> state;  // in the order of Fp8Tensor
  static void VisitFields(auto& fields, auto&& visit) {
    auto& [options, with_gradient, state] = fields;
    aqt::VisitFields(options, visit);
    visit("with_gradient", with_gradient);
    visit("input", state[0]);
    visit("kernel", state[1]);
    visit("output_grad", state[2]);
  }
  bool operator==(const Fp8ForwardFields&) const = default;
};

// fp8_dot_bwd
struct Fp8BackwardFields {
  Fp8DotOptions options;
  Fp8StateAvals output_grad;
  static void VisitFields(auto& fields, auto&& visit) {
    auto& [options, output_grad] = fields;
    aqt::VisitFields(options, visit);
    visit("output_grad", output_grad);
  }
  bool operator==(const Fp8BackwardFields&) const = default;
};

// The operation. InvalidArgument for a dtype, scale or history that no fp8 op accepts.
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const Fp8ForwardFields& fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const Fp8BackwardFields& fields);

// The error for a second product of this name.
absl::Status Fp8NameIsTaken(absl::string_view name);

}  // namespace aqt::internal

#endif  // AQT_OPS_FP8_FP8_DOT_FIELDS_H_
