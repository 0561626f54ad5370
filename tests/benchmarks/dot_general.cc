// The forward pass of a DotGeneralPlan with f32 in and out, the weights quantized and packed beforehand:
//   dynamic       int8 activations quantized in the call; int8 weights, int4, and int4 in groups of 128
//   weights_only  f32 activations; weights of 8 bits (w8), 4 bits (w4), and 4 bits in groups of 128 (w4_g128)
//   fp8           both sides e4m3
//   (who "aqt:program": the same in a PreparedProgram)
//   prepare       quantizing and packing the weights
// and the f32 products of gemm, the reference of ratio_f32.
//
//   bazel run //tests/benchmarks:dot_general [-- --filter weights_only --shapes 1x4096x4096]

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/runtime/prepared_program.h"
#include "tests/benchmarks/products.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

constexpr int64_t kGroup = 128;

// A scale for each group of 128 along k.
DotGeneralConfig Grouped(DotGeneralConfig config) {
  config.tiling = *DotTilingFromEinsum("mk,kn->mn", {{'k', kGroup}});
  return config;
}

// A program of this single contraction with prepared weights.
absl::StatusOr<Call> Served(const DotGeneralConfig& config, OperandsPtr data, Executor* executor) {
  if (executor != nullptr) return absl::UnavailableError("one thread is enough to see what a program costs");
  const Product& p = data->product();
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan,
                       DotGeneralPlan::Make(config, p.x(), p.w(), p.dims(), {.passes = PlanPasses::kForwardOnly}));
  AQT_ASSIGN_OR_RETURN(const PreparedOperand prepared, plan.Prepare(Side::kRhs, data->w()));
  const QTensor& weight = prepared.qtensor();
  AQT_ASSIGN_OR_RETURN(const AqtDot dot, AqtDot::Make(config, p.x(), p.w(), p.dims()));
  const Slot x{SlotKind::kData, "x"}, y{SlotKind::kData, "y"};
  const Slot value{SlotKind::kFrozen, "value"}, scale{SlotKind::kFrozen, "scale"};
  const auto model = [&](absl::Span<const Value> in) -> std::vector<Value> {
    const AqtDot::Operand stored{InputSlot(value, weight.qvalue->aval()), InputSlot(scale, weight.scale[0].aval())};
    return {dot.Apply({in[0]}, stored, std::nullopt, std::source_location::current())};
  };
  AQT_ASSIGN_OR_RETURN(const Program program, Trace(model, {{x, p.x()}}, {y}));
  AQT_ASSIGN_OR_RETURN(PreparedProgram served,
                       PreparedProgram::Make({program}, {{value, *weight.qvalue}, {scale, weight.scale[0]}}));
  const auto state = std::make_shared<PreparedProgram>(std::move(served));
  const SlotValues inputs = {{x, data->x()}};
  return [=] { AQT_CHECK(state->Eval(inputs).ok()); };
}

absl::StatusOr<Call> Prepare(const DotGeneralConfig& config, OperandsPtr data, Executor* executor) {
  const Product& p = data->product();
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan,
                       DotGeneralPlan::Make(config, p.x(), p.w(), p.dims(), {.passes = PlanPasses::kForwardOnly}));
  const Array w = data->w();
  return [=] { AQT_CHECK(plan.Prepare(Side::kRhs, w, {}, {.executor = executor}).ok()); };
}

absl::Status Add(const std::string& shape, std::vector<Row>& rows) {
  AQT_ASSIGN_OR_RETURN(const Product p, Product::Parse(shape));
  const auto data = std::make_shared<Operands>(p);
  AddF32Products(data, rows);
  const int64_t weights = p.batch * p.k * p.n;
  const auto add = [&](const std::string& cls, const std::string& dtype, const DotGeneralConfig& config, Work work) {
    work.ops = p.ops();
    rows.push_back({"forward", cls, p.name(), dtype, "aqt", work,
                    [=](Executor* executor) { return PlanForward(config, data, true, executor); }});
  };
  // The overhead of a program does not depend on the shape: it shows with few rows.
  const auto add_program = [&](const std::string& cls, const std::string& dtype, const DotGeneralConfig& config) {
    if (p.m > 8 || p.batch > 1) return;
    rows.push_back({"forward", cls, p.name(), dtype, "aqt:program", {.ops = p.ops()}, [=](Executor* executor) {
                      return Served(config, data, executor);
                    }});
  };
  const bool groups = p.batch == 1 && p.k % kGroup == 0;
  const Work s8 = {.unit = Work::Unit::kS8, .reads = weights}, s4 = {.unit = Work::Unit::kS8, .reads = weights / 2};
  // A float has three 8-bit digits, which cost less than one float product. vpmaddwd processes two of them at once.
  const kernels::Target target = kernels::BestTarget();
  const bool has_bytes = target.Has(kernels::Capability::kAvx512Vnni) || target.Has(kernels::Capability::kAmxInt8) ||
                         (target.Has(kernels::Capability::kAvxVnni) && !target.Has(kernels::Capability::kAvx512));
  const double passes = has_bytes ? 3 : 2;
  const Work digits8 = {.unit = Work::Unit::kS8, .passes = passes, .reads = weights};
  const Work digits4 = {.unit = Work::Unit::kS8, .passes = passes, .reads = weights / 2};
  add("dynamic", "int8", DotGeneralMake(8, 8), s8);
  add("dynamic", "int4", DotGeneralMake(8, 4), s4);
  if (groups) add("dynamic", "int4_g128", Grouped(DotGeneralMake(8, 4)), s4);
  add("weights_only", "w8", DotGeneralMake(std::nullopt, 8), digits8);
  add("weights_only", "w4", DotGeneralMake(std::nullopt, 4), digits4);
  if (groups) add("weights_only", "w4_g128", Grouped(DotGeneralMake(std::nullopt, 4)), digits4);
  add("fp8", "e4m3", ConfigFwdFp8(), {.unit = Work::Unit::kBf16, .reads = weights});
  add_program("dynamic", "int8", DotGeneralMake(8, 8));
  add_program("weights_only", "w8", DotGeneralMake(std::nullopt, 8));
  add_program("fp8", "e4m3", ConfigFwdFp8());
  rows.push_back({"prepare", "prepare", p.name(), "int8", "aqt", {.copies = 4 * weights}, [=](Executor* executor) {
                    return Prepare(DotGeneralMake(8, 8), data, executor);
                  }});
  return absl::OkStatus();
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) {
  return aqt::benchmarks::SuiteMain(argc, argv,
                                    {"1x1x1", "37x129x65", "64x64x64", "256x256x256", "512x512x512", "1024x1024x1024",
                                     "2048x2048x2048", "512x1024x4096", "512x4096x1024", "1x4096x4096", "8x4096x4096",
                                     "256x4096x4096", "1x4096x11008", "16x128x64x128"},
                                    aqt::benchmarks::Add);
}
