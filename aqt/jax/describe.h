#ifndef AQT_JAX_DESCRIBE_H_
#define AQT_JAX_DESCRIBE_H_

// What Python has to know before it can call a handler, as JSON.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::jax {

// Describes a contraction. `spec` is that of contraction_spec.h; `lhs` and `rhs` are dtypes and shapes, "f32[2,3]".
//
//   {"out": "f32[2,4]",
//    "residuals": [{"side": "lhs", "kind": "qvalue", "aval": "s8[2,3]"}, ...],   kind: value, qvalue, scale, mask
//    "draws": ["", "noise", "bits", ...],     for fwd.lhs, fwd.rhs, dlhs.lhs, dlhs.rhs, drhs.lhs, drhs.rhs
//    "splits": [[0], [1], ...],               for the same six
//    "quantized": [["s8[2,3]", "f32[2,1]"], null],      qvalue and scale of fwd.lhs and fwd.rhs, null if it is float
//    "panels": [null, ["s8 ...", 4096]]}      of fwd.lhs and fwd.rhs packed ahead of time (PackOperand): what the bytes
//                                             depend on, and their number; null if it cannot be
// "noise" can be shared along an axis; "bits" cannot. "splits" lists the axes along which an operand can be split into
// parts that are quantized on their own, with the same values: no scale spans the axis, and random numbers do not vary
// along it. s4 and s2 are passed to handlers as s8. With forward_only the backward passes are not planned: no
// residuals, and only the first two of "draws" and "splits".
absl::StatusOr<std::string> DescribeContraction(absl::string_view spec, absl::string_view lhs, absl::string_view rhs,
                                                bool forward_only);

// Describes a saved program.
//
//   {"digest": "0123456789abcdef",
//    "inputs": [{"kind": "param", "path": "mlp/kernel", "aval": "f32[2,3]"}, ...], "outputs": [...]}
absl::StatusOr<std::string> DescribeProgram(absl::string_view path);

// The fields of Compat that `names` sets (aqt/quant/text/compat_names.h, separated by spaces), as a textproto of
// aqt.config.Compat: "divide_by_scale: true ...".
absl::StatusOr<std::string> CompatText(absl::string_view names);

// The configuration as a complete textproto, without a base. Errors are those of DotGeneralFromText.
absl::StatusOr<std::string> CompleteConfig(absl::string_view textproto);

}  // namespace aqt::jax

#endif  // AQT_JAX_DESCRIBE_H_
