// A program outside this repository: an int8 matrix product, forward and backward, on its own float buffers.

#include <cstdio>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/contraction/dot_general.h"

int main() {
  const float x[2 * 3] = {0.5f, -1.0f, 0.25f, 2.0f, 0.0f, -3.0f};  // [2, 3]
  const float w[3 * 2] = {1.0f, 0.5f, -0.75f, 0.1f, 0.3f, -2.0f};  // [3, 2]
  const float g[2 * 2] = {1.0f, 0.0f, -0.5f, 1.0f};                // the gradient of y
  float y[2 * 2], dx[2 * 3], dw[3 * 2];

  const aqt::DotGeneralConfig config = aqt::DotGeneralMake(8, 8, {.bwd_bits = 8});
  const aqt::ArrayRef lhs(x, {2, 3}), rhs(w, {3, 2});
  const auto plan = aqt::DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), aqt::MatMulDims());
  if (!plan.ok()) return std::fprintf(stderr, "%s\n", plan.status().ToString().c_str()), 1;
  aqt::Residuals residuals;
  absl::Status status = plan->Forward(lhs, rhs, /*context=*/{}, aqt::MutableArrayRef(y, {2, 2}), &residuals);
  status.Update(plan->Backward(aqt::ArrayRef(g, {2, 2}), residuals, /*context=*/{}, aqt::MutableArrayRef(dx, {2, 3}),
                               aqt::MutableArrayRef(dw, {3, 2})));
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.ToString().c_str()), 1;

  std::printf("y  = [[%.3f, %.3f], [%.3f, %.3f]]\n", y[0], y[1], y[2], y[3]);
  std::printf("dx = [[%.3f, %.3f, %.3f], [%.3f, %.3f, %.3f]]\n", dx[0], dx[1], dx[2], dx[3], dx[4], dx[5]);
  std::printf("dw = [[%.3f, %.3f], [%.3f, %.3f], [%.3f, %.3f]]\n", dw[0], dw[1], dw[2], dw[3], dw[4], dw[5]);
}
