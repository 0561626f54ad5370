// Bandwidth of the range and quantize kernels in bytes of floats, on each target and in the plain version. The data is
// in L2 (256 KiB) or in memory (64 MiB). Args: log2 of the number of elements.

#include <cstdint>
#include <string>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/kernels/absmax.h"
#include "aqt/kernels/absmax_reference.h"
#include "aqt/kernels/e4m3.h"
#include "aqt/kernels/e4m3_reference.h"
#include "aqt/kernels/quantize.h"
#include "aqt/kernels/quantize_reference.h"
#include "aqt/kernels/quantize_testing.h"
#include "aqt/kernels/target.h"
#include "benchmark/benchmark.h"

namespace aqt::kernels {
namespace {

constexpr int64_t kCols = 1024;

template <class T>
struct Data {
  explicit Data(int64_t n)
      : rows(n / kCols), x(TestFloats<T>(n, Values::kUsual, 1)), q(n), absmax(n / 32), scales(n / 32, 0.0625f) {}
  FloatMatrix matrix() const { return {x.data(), kDTypeOf<T>, rows, kCols, kCols, 1}; }

  int64_t rows;
  std::vector<T> x;
  std::vector<int8_t> q;
  std::vector<float> absmax, scales;
};

template <class T>
void Report(benchmark::State& state, int64_t n) {
  state.SetBytesProcessed(state.iterations() * n * static_cast<int64_t>(sizeof(T)));
}

template <class T>
void AbsMax(benchmark::State& state, bool plain, Target target, int64_t group) {
  Data<T> data(int64_t{1} << state.range(0));
  for (auto _ : state) {
    if (plain) reference::AbsMaxGroups(data.matrix(), group, data.absmax.data());
    else AbsMaxGroups(data.matrix(), group, data.absmax.data(), target);
    benchmark::ClobberMemory();
  }
  Report<T>(state, int64_t{1} << state.range(0));
}

template <class T>
void Quantize(benchmark::State& state, bool plain, Target target, QuantizeRule rule, int64_t group) {
  Data<T> data(int64_t{1} << state.range(0));
  QuantizeMatrixArgs args;
  args.x = data.matrix();
  args.rule = rule;
  args.grid = {data.scales.data(), nullptr, kCols / group, 1, 1, group};
  args.flush_subnormals = rule == QuantizeRule::kMultiplyByInverse;
  args.q = data.q.data();
  args.q_row_stride = kCols;
  for (auto _ : state) {
    if (plain) reference::QuantizeMatrix(args);
    else QuantizeMatrix(args, target);
    benchmark::ClobberMemory();
  }
  Report<T>(state, int64_t{1} << state.range(0));
}

template <class T>
void Dequantize(benchmark::State& state, bool plain, Target target) {
  Data<T> data(int64_t{1} << state.range(0));
  DequantizeMatrixArgs args = {data.q.data(), data.rows, kCols, kCols, 1, {data.scales.data(), nullptr, 1, 0}};
  args.x = data.x.data();
  args.dtype = kDTypeOf<T>;
  args.row_stride = kCols;
  for (auto _ : state) {
    if (plain) reference::DequantizeMatrix(args);
    else DequantizeMatrix(args, target);
    benchmark::ClobberMemory();
  }
  Report<T>(state, int64_t{1} << state.range(0));
}

template <class T>
void ToE4M3(benchmark::State& state, bool plain, Target target) {
  Data<T> data(int64_t{1} << state.range(0));
  std::vector<Float8E4M3FN> q(data.q.size());
  const QuantizeE4M3Args args = {data.matrix(), {data.scales.data(), nullptr, 1, 0}, q.data(), kCols};
  for (auto _ : state) {
    if (plain) reference::QuantizeE4M3(args);
    else QuantizeE4M3(args, target);
    benchmark::ClobberMemory();
  }
  Report<T>(state, int64_t{1} << state.range(0));
}

template <class T>
void FromE4M3(benchmark::State& state, bool plain, Target target) {
  Data<T> data(int64_t{1} << state.range(0));
  const std::vector<Float8E4M3FN> q(data.q.size(), {0x38});
  DequantizeE4M3Args args = {q.data(), data.rows, kCols, kCols, 1, {data.scales.data(), nullptr, 1, 0}};
  args.x = data.x.data();
  args.dtype = kDTypeOf<T>;
  args.row_stride = kCols;
  for (auto _ : state) {
    if (plain) reference::DequantizeE4M3(args);
    else DequantizeE4M3(args, target);
    benchmark::ClobberMemory();
  }
  Report<T>(state, int64_t{1} << state.range(0));
}

template <class T>
void Register(bool plain, Target target) {
  const std::string name =
      std::string(ToString(kDTypeOf<T>)) + "/" + (plain ? std::string("reference") : std::string(ToString(target)));
  const auto add = [&](const std::string& what, auto function) {
    auto* b = benchmark::RegisterBenchmark((what + "/" + name).c_str(), function);
    b->Arg(sizeof(T) == 4 ? 16 : 17);
    if (!plain) b->Arg(sizeof(T) == 4 ? 24 : 25);
  };
  add("absmax_row", [=](benchmark::State& s) { AbsMax<T>(s, plain, target, kCols); });
  add("absmax_group32", [=](benchmark::State& s) { AbsMax<T>(s, plain, target, 32); });
  add("quantize_multiply_row",
      [=](benchmark::State& s) { Quantize<T>(s, plain, target, QuantizeRule::kMultiplyByInverse, kCols); });
  add("quantize_divide_row",
      [=](benchmark::State& s) { Quantize<T>(s, plain, target, QuantizeRule::kDivideByScale, kCols); });
  add("quantize_divide_group32",
      [=](benchmark::State& s) { Quantize<T>(s, plain, target, QuantizeRule::kDivideByScale, 32); });
  add("dequantize_row", [=](benchmark::State& s) { Dequantize<T>(s, plain, target); });
  add("quantize_e4m3_row", [=](benchmark::State& s) { ToE4M3<T>(s, plain, target); });
  add("dequantize_e4m3_row", [=](benchmark::State& s) { FromE4M3<T>(s, plain, target); });
}

template <class T>
void RegisterAll() {
  Register<T>(true, Target::kScalar);
  for (Target target : SupportedTargets()) Register<T>(false, target);
}

const bool kRegistered = [] {
  RegisterAll<float>();
  RegisterAll<BFloat16>();
  RegisterAll<Float16>();
  return true;
}();

}  // namespace
}  // namespace aqt::kernels
