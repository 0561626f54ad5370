// A training step of one contraction: forward, and both gradients. Class "step"; class "gradients" is the float
// backward pass. dtype says what the three products are computed in:
//   int8          FullyQuantized, rounding to nearest
//   int8_noise    with AQT's noise (stochastic rounding) on both operands of both gradients
//   int8_fast     the same with NOISE_KIND_FAST
//   fp8           e4m3 forward, e5m2 backward
//
//   bazel run //tests/benchmarks:train_step [-- --threads 1,2]

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/executor.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "tests/benchmarks/products.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

absl::StatusOr<Call> Step(const DotGeneralConfig& config, OperandsPtr data, bool forward, Executor* executor) {
  struct State {
    DotGeneralPlan plan;
    Array x, w, g;
    ArrayBuilder out, dx, dw;
    Residuals residuals{Residuals::Operands::kBorrow};
  };
  const Product& p = data->product();
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan, DotGeneralPlan::Make(config, p.x(), p.w(), p.dims()));
  const auto s = std::make_shared<State>(plan, data->x(), data->w(), data->g(), ArrayBuilder(p.out()),
                                         ArrayBuilder(p.x()), ArrayBuilder(p.w()));
  const auto run_forward = [s, executor] {
    return s->plan.Forward(s->x, s->w, {.key = MakeKey(1)}, s->out.ref(), &s->residuals, {.executor = executor});
  };
  AQT_RETURN_IF_ERROR(run_forward());
  return [s, forward, run_forward, executor] {
    if (forward) AQT_CHECK(run_forward().ok());
    AQT_CHECK(
        s->plan.Backward(s->g, s->residuals, {.key = MakeKey(2)}, s->dx.ref(), s->dw.ref(), {.executor = executor})
            .ok());
  };
}

absl::Status Add(const std::string& shape, std::vector<Row>& rows) {
  AQT_ASSIGN_OR_RETURN(const Product p, Product::Parse(shape));
  const auto data = std::make_shared<Operands>(p);
  const auto add = [&](const std::string& cls, const std::string& dtype, Work::Unit unit, const std::string& who,
                       auto make) {
    rows.push_back({cls, cls, p.name(), dtype, who, {.ops = p.ops() * (cls == "step" ? 3 : 2), .unit = unit}, make});
  };
  for (const bool forward : {true, false}) {
    const std::string cls = forward ? "step" : "gradients";
    add(cls, "f32", Work::Unit::kF32, "aqt",
        [=](Executor* executor) { return Step(DefaultUnquantizedConfig(), data, forward, executor); });
    add(cls, "f32", Work::Unit::kF32, "eigen",
        [=](Executor* executor) { return EigenProducts(data, forward, true, executor); });
    add(cls, "f32", Work::Unit::kF32, "onednn", [=](Executor*) { return OneDnnProducts(data, forward, true); });
  }
  const auto quantized = [&](const std::string& dtype, Work::Unit unit, const DotGeneralConfig& config) {
    add("step", dtype, unit, "aqt", [=](Executor* executor) { return Step(config, data, true, executor); });
  };
  quantized("int8", Work::Unit::kS8, *FullyQuantized({.use_stochastic_rounding = false}));
  quantized("int8_noise", Work::Unit::kS8, FullyQuantized());
  DotGeneralConfig fast = FullyQuantized();
  SetStochasticRounding(fast, true, true, NoiseKind::kFast);
  quantized("int8_fast", Work::Unit::kS8, fast);
  quantized("fp8", Work::Unit::kBf16,
            *FullyQuantized({.fwd_bits = Bits::E4M3(), .bwd_bits = Bits::E5M2(), .use_stochastic_rounding = false}));
  return absl::OkStatus();
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) {
  return aqt::benchmarks::SuiteMain(
      argc, argv,
      {"37x129x65", "256x256x256", "512x512x512", "1024x1024x1024", "2048x2048x2048", "512x1024x4096", "512x4096x1024"},
      aqt::benchmarks::Add);
}
