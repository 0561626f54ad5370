// A sentence encoder of MiniLM's size (6 layers, width 384, 12 heads, 1536 hidden features, random weights) with its
// attention as one operation and expanded into basic ones, in turns: in floats, with int8 weights and activations, and
// its gradient. The times are the smallest of all rounds; the last column is their ratio.
//
//   bazel run //tests/benchmarks:encoder [-- ROUNDS [THREADS [SHAPE ...]]]     a SHAPE is SENTENCESxLENGTH

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/ops/functions.h"
#include "aqt/runtime/executable.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"

namespace aqt {
namespace {

constexpr int64_t kVocabulary = 30522, kWidth = 384, kLayers = 6, kHeads = 12, kHidden = 1536;
constexpr char kInt8[] = R"pb(
  schema: 1
  rules {
    rhs_origin: OPERAND_ORIGIN_PARAM
    dot_general { base: "int8_fwd" }
  }
  arithmetic: ARITHMETIC_IEEE
)pb";

Value Encode(const Value& ids, const Value& lengths) {
  const int64_t length = ids.dim(1);
  Value x = nn::LayerNorm(nn::Embed(ids, "words", {.entries = kVocabulary, .features = kWidth}), "norm");
  const Value mask = nn::PaddingMask(lengths, length);
  for (int64_t i = 0; i < kLayers; ++i) {
    const NamedScope scope(absl::StrCat("layer", i));
    const Value mixed = nn::LayerNorm(x + nn::MultiHeadAttention(x, x, mask, "attention", {.heads = kHeads}), "norm1");
    const Value hidden = ops::Gelu(nn::Dense(mixed, "fc1", {.features = kHidden}));
    x = nn::LayerNorm(mixed + nn::Dense(hidden, "fc2", {.features = kWidth}), "norm2");
  }
  return ops::Mean(x, {1});
}

const Slot kIds{SlotKind::kData, "ids"}, kLengths{SlotKind::kData, "lengths"};

// With its attentions expanded, and as it is.
using TwoPrograms = std::array<Program, 2>;

struct Model {
  TwoPrograms programs;
  SlotValues params, batch;
};

Model MakeModel(int64_t sentences, int64_t length) {
  const std::vector<Input> inputs = {{kIds, {DType::kS32, {sentences, length}}},
                                     {kLengths, {DType::kS32, {sentences}}}};
  const auto fn = [](absl::Span<const Value> in) { return std::vector<Value>{Encode(in[0], in[1])}; };
  const Program program = *Trace(fn, inputs, std::vector<Slot>{{SlotKind::kData, "embeddings"}});
  ArrayBuilder ids(inputs[0].aval), lengths(inputs[1].aval);
  const RandomBits bits(MakeKey(1), sentences * length);
  for (int64_t i = 0; i < sentences * length; ++i) {
    ids.Mutable<int32_t>()[i] = static_cast<int32_t>(bits.Bits32(i) % kVocabulary);
  }
  for (int64_t i = 0; i < sentences; ++i) lengths.Mutable<int32_t>()[i] = static_cast<int32_t>(length - i % 3);
  return {{*Expand(program, {"attention"}), program},
          *nn::InitParams(fn, inputs, MakeKey(0)),
          {{kIds, std::move(ids).Build()}, {kLengths, std::move(lengths).Build()}}};
}

// On one thread its own time, so that other work on the machine disturbs less.
double Milliseconds(bool by_wall) {
  timespec time;
  clock_gettime(by_wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

struct Options {
  int rounds = 10, threads = 1;
  std::string shape;
};

// Runs both in turns; their first results have equal bits.
void Compare(const std::string& name, const Options& options, const std::function<SlotValues(int)>& run) {
  double best[2] = {1e9, 1e9};
  SlotValues out[2];
  for (int i = 0; i < options.rounds + 1; ++i) {
    for (int p = 0; p < 2; ++p) {
      const double start = Milliseconds(options.threads > 1);
      out[p] = run(p);
      if (i > 0) best[p] = std::min(best[p], Milliseconds(options.threads > 1) - start);
    }
  }
  for (const auto& [slot, array] : out[0]) AQT_CHECK(BitEqual(array, out[1].at(slot)));
  std::printf("%-8s %-8s %9.3f %9.3f ms  %5.3f\n", options.shape.c_str(), name.c_str(), best[0], best[1],
              best[1] / best[0]);
  std::fflush(stdout);
}

void RunServed(const Model& model, const Options& options, bool int8) {
  const InjectConfig config = int8 ? *InjectConfigFromText(kInt8) : InjectConfig();
  std::vector<PreparedProgram> served;
  for (const Program& program : model.programs) {
    served.push_back(*nn::Serve({program}, config, model.params, {.keep_values = false}));
  }
  Compare(int8 ? "int8" : "f32", options, [&](int p) { return *served[p].Eval(model.batch); });
}

// The gradient of the sum of the embeddings, in f32.
void RunGradient(const Model& model, const Options& options) {
  std::vector<Executable> steps;
  for (const Program& program : model.programs) {
    const auto sum = [&](absl::Span<const Value> in) {
      return std::vector<Value>{ops::ReduceSum(Inline(program, in)[0])};
    };
    const Program loss = *Trace(sum, InputsOf(program));
    steps.push_back(*Executable::Make(*Grad(loss, loss.InputsOfKind(SlotKind::kParam))));
  }
  SlotValues values = model.params;
  values.insert(model.batch.begin(), model.batch.end());
  Compare("gradient", options, [&](int p) { return *steps[p].RunSlots(values); });
  std::printf("%-8s %-8s %9.1f %9.1f MiB\n", options.shape.c_str(), "memory",
              static_cast<double>(steps[0].peak_bytes()) / (1 << 20),
              static_cast<double>(steps[1].peak_bytes()) / (1 << 20));
}

int Main(int argc, char** argv) {
  Options options;
  if (argc > 1) options.rounds = std::atoi(argv[1]);
  if (argc > 2) options.threads = std::atoi(argv[2]);
  std::vector<std::string> shapes(argv + std::min(argc, 3), argv + argc);
  if (shapes.empty()) shapes = {"1x16", "1x128", "8x64", "32x32", "32x128"};
  std::optional<kernels::ThreadPool> pool;
  if (options.threads > 1) pool.emplace(options.threads);
  const UseExecutor use(pool.has_value() ? &*pool : nullptr);
  std::printf("                   expanded attention      ratio\n");
  for (const std::string& shape : shapes) {
    long sentences = 0, length = 0;
    if (std::sscanf(shape.c_str(), "%ldx%ld", &sentences, &length) != 2 || sentences < 1 || length < 1) {
      std::fprintf(stderr, "encoder: %s is no shape; expected SENTENCESxLENGTH, as in 8x64\n", shape.c_str());
      return 2;
    }
    options.shape = shape;
    const Model model = MakeModel(sentences, length);
    RunServed(model, options, /*int8=*/true);
    RunServed(model, options, /*int8=*/false);
    RunGradient(model, options);
  }
  return 0;
}

}  // namespace
}  // namespace aqt

int main(int argc, char** argv) { return aqt::Main(argc, argv); }
