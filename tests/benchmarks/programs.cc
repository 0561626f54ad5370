// Complete programs: an Executable, fused and not fused, beside Eval, on one thread. Elementwise programs
// (elementwise_programs.h) on 16 MiB alternate with a copy of 16 MiB, so that neither finds its data in a cache. The
// last column is the rate of reading arguments and writing outputs, each once, as a fraction of the copy's rate. `step`
// is a training step of 64-320-256-10 with 32 rows and momentum. Then the same step in mixed precision and in scaled
// arithmetic, alternating with the plain step. `casts` is the time of a program with only the step's casts; the last
// column is the step's time without them, as a multiple of the plain step's. Then served layers, a product with bias
// and activation, with the operations after the product as a separate step and as its epilogue.
//
//   bazel run //tests/benchmarks:programs [-- ROUNDS [PROGRAM]]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/precision/scalify.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/serve.h"
#include "tests/benchmarks/elementwise_programs.h"
#include "tests/benchmarks/program_case.h"

namespace aqt {
namespace {

using Values = std::vector<Value>;
using In = absl::Span<const Value>;
using Case = benchmarks::ProgramCase;
using Clock = std::chrono::steady_clock;
using Prepared = benchmarks::PreparedCase;

double Micros(const std::function<void()>& run) {
  const Clock::time_point start = Clock::now();
  run();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

Value Model(const Value& x) {
  Value hidden = ops::Relu(nn::Dense(x, "fc1", {.features = 320}));
  hidden = ops::Relu(nn::Dense(hidden, "fc2", {.features = 256}));
  return nn::Dense(hidden, "logits", {.features = 10});
}

enum class Arithmetic { kFloat, kInt8, kAmp, kScalify };

Case Step(const std::string& name, Arithmetic arithmetic) {
  const Input x{{SlotKind::kData, "x"}, {DType::kF32, {32, 64}}};
  const Input labels{{SlotKind::kData, "labels"}, {DType::kF32, {32, 10}}};
  const auto fn = [](In in) { return Values{ops::SoftmaxCrossEntropy(Model(in[0]), in[1])}; };
  Program loss = *Trace(fn, {x, labels}, {{SlotKind::kData, "loss"}});
  if (arithmetic == Arithmetic::kAmp) loss = *Amp(loss, {.compute_dtype = DType::kBF16});
  if (arithmetic == Arithmetic::kInt8) {
    InjectConfig config;
    config.rules.push_back({.scope = ".*", .ops = {"dot_general"}, .dot_general = FullyQuantized()});
    loss = *Inject(loss, config);
  }
  const SlotValues params = *nn::InitParams(fn, {x, labels}, MakeKey(0));
  const nn::Trainer trainer =
      *nn::Trainer::Make(loss, nn::Sgd{.learning_rate = 0.05, .momentum = 0.9}, params, MakeKey(1));
  SlotValues values = trainer.state();
  values[x.slot] = testing::RandomArray(x.aval, 1);
  values[labels.slot] = testing::RandomArray(labels.aval, 2);
  Case result{name, trainer.program(), {}};
  if (arithmetic == Arithmetic::kScalify) {
    ScalifyOptions options{.rules = {.scale_dtype = DType::kF32}};
    for (const Program::Port& port : result.program.inputs) {
      options.scaled_inputs[port.slot] = DType::kF32;
      values[ScaleSlot(port.slot)] = Array::Scalar(1.0f);
    }
    result.program = *Scalify(result.program, options);
  }
  for (const Program::Port& port : result.program.inputs) {
    const bool is_key = port.slot.kind == SlotKind::kKey;
    result.args.push_back(is_key ? Array::Of<uint32_t>({1, 2}, {2}) : values.at(port.slot));
  }
  return result;
}

std::vector<Case> Cases() {
  std::vector<Case> cases = benchmarks::ElementwisePrograms(4096, 1024);
  cases.push_back(Step("step f32", Arithmetic::kFloat));
  cases.push_back(Step("step int8, noise", Arithmetic::kInt8));
  return cases;
}

// The casts of a program, each with its own argument.
Case CastsOf(const Program& program) {
  std::vector<Array> args;
  std::vector<DType> dtypes;
  for (const Equation& eqn : program.eqns) {
    const CastOp* cast = std::get_if<CastOp>(&eqn.op);
    if (cast == nullptr) continue;
    args.push_back(testing::RandomArray(program.aval(eqn.in[0]), args.size()));
    dtypes.push_back(cast->dtype);
  }
  const auto fn = [&](In in) {
    Values out;
    for (size_t i = 0; i < in.size(); ++i) out.push_back(ops::Cast(in[i], dtypes[i]));
    return out;
  };
  return {"casts", *testing::TraceWith(fn, args), std::move(args)};
}

double Micros(Prepared& prepared) {
  return Micros([&] { prepared.Run(); });
}

void PrecisionSteps(int rounds) {
  Prepared plain(Step("step f32", Arithmetic::kFloat));
  std::printf("\n%-18s %10s %10s %10s %10s %8s\n", "step", "equations", "plain us", "us", "casts us", "of plain");
  for (const auto& [name, arithmetic] :
       {std::pair{"amp bf16", Arithmetic::kAmp}, std::pair{"scalify", Arithmetic::kScalify}}) {
    Prepared step(Step(name, arithmetic)), casts(CastsOf(step.source().program));
    double plain_us = 1e30, step_us = 1e30, casts_us = 1e30;
    for (int i = 0; i < rounds; ++i) {
      plain_us = std::min(plain_us, Micros(plain));
      step_us = std::min(step_us, Micros(step));
      casts_us = std::min(casts_us, Micros(casts));
    }
    std::printf("%-18s %10zu %10.0f %10.0f %10.0f %8.2f\n", name, step.source().program.eqns.size(), plain_us, step_us,
                casts_us, (step_us - casts_us) / plain_us);
    std::fflush(stdout);
  }
}

// A layer of x [m, k] with n features, prepared.
Case Layer(bool int8, int64_t m, int64_t k, int64_t n, Value (*activation)(const ValueOrNumber&)) {
  const Input x{{SlotKind::kData, "x"}, {DType::kF32, {m, k}}};
  const auto fn = [&](In in) { return Values{activation(nn::Dense(in[0], "layer", {.features = n}))}; };
  Program program = *Trace(fn, {x}, {{SlotKind::kData, "y"}});
  SlotValues values = *nn::InitParams(fn, {x}, MakeKey(0));
  if (int8) {
    InjectConfig config;
    config.rules.push_back({.scope = ".*", .ops = {"dot_general"}, .dot_general = DotGeneralMake(8, 8)});
    values = *Freeze(program, config, values);
    program = *ServeProgram(program, config, values);
  }
  const PreparedProgram prepared = *PreparedProgram::Make({program}, values);
  return {
      absl::StrCat(int8 ? "int8 " : "f32 ", m, "x", k, "x", n), prepared.program(0), {testing::RandomArray(x.aval, 1)}};
}

void Layers(int rounds) {
  std::printf("\n%-20s %-10s %12s %12s %8s\n", "layer", "activation", "own step us", "epilogue us", "ratio");
  const std::pair<const char*, Value (*)(const ValueOrNumber&)> activations[] = {{"relu", &ops::Relu},
                                                                                 {"gelu", &ops::Gelu}};
  for (const bool int8 : {true, false}) {
    for (const int64_t m : {512, 2048}) {
      for (const auto& [name, activation] : activations) {
        const Case layer = Layer(int8, m, 1024, 4096, activation);
        Prepared steps(layer, {.epilogues = false}), whole(layer);
        double steps_us = 1e30, whole_us = 1e30;
        for (int i = 0; i < rounds; ++i) {
          steps_us = std::min(steps_us, Micros(steps));
          whole_us = std::min(whole_us, Micros(whole));
        }
        std::printf("%-20s %-10s %12.0f %12.0f %8.2f\n", layer.name.c_str(), name, steps_us, whole_us,
                    whole_us / steps_us);
        std::fflush(stdout);
      }
    }
  }
}

// Measures all programs, or the one with this name. Returns false if there is none.
bool Main(int rounds, absl::string_view name) {
  std::vector<Case> cases = Cases();
  if (!name.empty()) std::erase_if(cases, [&](const Case& c) { return c.name != name; });
  if (cases.empty()) return false;
  const Array copied = testing::RandomArray({DType::kF32, {4096, 1024}}, 1);
  ArrayBuilder copy(copied.aval());
  const double copied_bytes = 2.0 * static_cast<double>(copied.num_bytes());
  std::printf("%-18s %10s %10s %10s %10s %8s\n", "program", "equations", "Eval us", "unfused", "fused", "of copy");
  for (const Case& c : cases) {
    Prepared fused(c), unfused(c, {.fuse = false});
    const double bytes = static_cast<double>(c.bytes());
    double eval = 1e30, plain = 1e30, best = 1e30, probe = 1e30;
    for (int i = 0; i < rounds; ++i) {
      if (i < 3 || bytes < 1e7) {
        eval = std::min(eval, Micros([&] { AQT_CHECK(Eval(c.program, c.args).ok()); }));
        plain = std::min(plain, Micros(unfused));
      }
      best = std::min(best, Micros(fused));
      probe = std::min(probe, Micros([&] { std::memcpy(copy.data(), copied.data(), copied.num_bytes()); }));
    }
    std::printf("%-18s %10zu %10.0f %10.0f %10.0f %8.2f\n", c.name.c_str(), c.program.eqns.size(), eval, plain, best,
                bytes / best / (copied_bytes / probe));
    std::fflush(stdout);
  }
  return true;
}

}  // namespace
}  // namespace aqt

int main(int argc, char** argv) {
  int rounds = 100;
  if (argc > 3 || (argc > 1 && (!absl::SimpleAtoi(argv[1], &rounds) || rounds < 1))) {
    std::fprintf(stderr,
                 "usage: programs [ROUNDS [PROGRAM]], with ROUNDS of at least 1, and a name of the first column\n");
    return 2;
  }
  if (!aqt::Main(rounds, argc > 2 ? argv[2] : "")) {
    std::fprintf(stderr, "no program is called \"%s\": without a name, the first column lists them\n", argv[2]);
    return 2;
  }
  if (argc > 2) return 0;
  aqt::PrecisionSteps(10 * rounds);
  aqt::Layers(rounds);
}
