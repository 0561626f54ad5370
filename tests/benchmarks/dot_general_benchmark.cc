// What a DotGeneralPlan costs: int8 forward and both gradients, one row and 64 with a weight of every kind, prepared or
// packed anew in each call, and the overhead of the smallest product. On one thread; each number is the best of many
// rounds in which the cases take turns.
//
//   bazel run //tests/benchmarks:dot_general_benchmark [-- SECONDS]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/aqt_dot_general.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/random.h"

namespace aqt::benchmarks {
namespace {

const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "y"};

// One contraction [m,k] x [k,n] with its data.
struct Problem {
  Problem(const DotGeneral& config, int64_t m, int64_t k, int64_t n)
      : lhs(testing::RandomArray({DType::kF32, {m, k}}, 1, -0.5, 0.5)),
        rhs(testing::RandomArray({DType::kF32, {k, n}}, 2, -0.5, 0.5)),
        g(testing::RandomArray({DType::kF32, {m, n}}, 3, -0.5, 0.5)),
        plan(*DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims())),
        out(plan.out_aval()),
        dlhs(lhs.aval()),
        drhs(rhs.aval()) {}

  Array lhs, rhs, g;
  DotGeneralPlan plan;
  ArrayBuilder out, dlhs, drhs;
  Residuals residuals;
};

struct Case {
  std::string name;
  std::function<void()> run;
  double best = 1e30;
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void AddTraining(const DotGeneral& config, int64_t m, int64_t k, int64_t n, std::vector<Case>& cases) {
  auto p = std::make_shared<Problem>(config, m, k, n);
  const std::string shape = std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n);
  cases.push_back({shape + " forward", [p] { AQT_CHECK(p->plan.Forward(p->lhs, p->rhs, {}, p->out.ref()).ok()); }});
  cases.push_back({shape + " forward and gradients", [p] {
                     AQT_CHECK(p->plan.Forward(p->lhs, p->rhs, {}, p->out.ref(), &p->residuals).ok());
                     AQT_CHECK(p->plan.Backward(p->g, p->residuals, {}, p->dlhs.ref(), p->drhs.ref()).ok());
                   }});
}

// A program that serves this contraction.
absl::StatusOr<PreparedProgram> Served(const DotGeneral& config, const Aval& lhs, const Aval& rhs,
                                       const QTensor& weight) {
  const Slot value{SlotKind::kFrozen, "value"}, scale{SlotKind::kFrozen, "scale"};
  AQT_ASSIGN_OR_RETURN(const AqtDot dot, AqtDot::Make(config, lhs, rhs, MatMulDims()));
  const auto model = [&](absl::Span<const Value> in) -> std::vector<Value> {
    const AqtDot::Operand stored{InputSlot(value, weight.qvalue->aval()), InputSlot(scale, weight.scale[0].aval())};
    return {dot.Apply({in[0]}, stored, std::nullopt, std::source_location::current())};
  };
  AQT_ASSIGN_OR_RETURN(const Program program, Trace(model, {{kX, lhs}}, {kY}));
  return PreparedProgram::Make({program}, {{value, *weight.qvalue}, {scale, weight.scale[0]}});
}

// The weight packed once, by the plan and in a program, and packed from its qvalues in each call.
void AddServing(const std::string& kind, const DotGeneral& config, int64_t m, int64_t k, int64_t n,
                std::vector<Case>& cases) {
  auto p = std::make_shared<Problem>(config, m, k, n);
  auto weight = std::make_shared<PreparedOperand>(*p->plan.Prepare(Side::kRhs, p->rhs));
  const std::string name = std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) + " " + kind;
  cases.push_back(
      {name + " prepared", [p, weight] { AQT_CHECK(p->plan.Forward(p->lhs, *weight, {}, p->out.ref()).ok()); }});
  auto served = std::make_shared<PreparedProgram>(*Served(config, p->lhs.aval(), p->rhs.aval(), weight->qtensor()));
  const SlotValues data = {{kX, p->lhs}};
  cases.push_back({name + " prepared program", [served, data] { AQT_CHECK(served->Eval(data).ok()); }});
  cases.push_back({name + " packed", [p, weight] {
                     const PreparedOperand packed = *p->plan.Prepare(Side::kRhs, weight->qtensor());
                     AQT_CHECK(p->plan.Forward(p->lhs, packed, {}, p->out.ref()).ok());
                   }});
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const DotGeneral config = *FullyQuantized({.use_stochastic_rounding = false});
  std::vector<Case> cases;
  AddTraining(config, 1, 1, 1, cases);
  AddTraining(config, 64, 64, 64, cases);
  AddTraining(config, 512, 512, 512, cases);
  for (const int64_t m : {1, 64}) {
    AddServing("int8", config, m, 4096, 4096, cases);
    AddServing("int8 weights", DotGeneralMake(std::nullopt, 8), m, 4096, 4096, cases);
    AddServing("int4 weights", DotGeneralMake(std::nullopt, 4), m, 4096, 4096, cases);
    AddServing("fp8", DotGeneralMake(Bits::E4M3(), Bits::E4M3()), m, 4096, 4096, cases);
    AddServing("fp8 weights", DotGeneralMake(std::nullopt, Bits::E4M3()), m, 4096, 4096, cases);
  }
  const double end = Now() + seconds;
  for (int round = 0; round < 3 || Now() < end; ++round) {
    for (Case& c : cases) {
      const int repeats = c.best < 1e-4 ? 50 : 1;
      const double begin = Now();
      for (int i = 0; i < repeats; ++i) c.run();
      c.best = std::min(c.best, (Now() - begin) / repeats);
    }
  }
  for (const Case& c : cases) std::printf("%-44s %10.2f us\n", c.name.c_str(), c.best * 1e6);
  return 0;
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) { return aqt::benchmarks::Main(argc, argv); }
