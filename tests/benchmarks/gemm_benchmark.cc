// The forward product with f32 in and out and packed weights: quantized to 8 bits against our own blocked f32, on this
// machine's best target (AQT_MAX_TARGET lowers it), with one and two threads. Times are the best of rounds in which the
// candidates take turns, so that a disturbance meets all of them.
//
//   bazel run //tests/benchmarks:gemm_benchmark [-- MxKxN ...]

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/gemm_table.h"
#include "aqt/kernels/gemm_test_util.h"
#include "aqt/kernels/pack.h"
#include "aqt/kernels/reference.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/thread_pool.h"
#include "tests/benchmarks/machine_roof.h"

namespace aqt::benchmarks {
namespace {

using kernels::AlignedBytes;
using kernels::GemmKernel;
using kernels::Operand;
using kernels::Target;

struct Shape {
  int64_t m, k, n;
};

constexpr double kSecondsPerShape = 1.5;

// Threads that are started later inherit the mask, so the pool is made before the main thread is pinned.
bool PinThisThread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

// Best time of each candidate in seconds.
std::vector<double> BestTimes(const std::vector<std::function<void()>>& candidates) {
  std::vector<double> best(candidates.size(), 1e30);
  const auto seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const double end = seconds() + kSecondsPerShape;
  for (int round = 0; round < 3 || seconds() < end; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      const double start = seconds();
      candidates[i]();
      best[i] = std::min(best[i], seconds() - start);
    }
  }
  return best;
}

// A product with its buffers; the weights are packed by the constructor.
class Forward {
 public:
  Forward(const GemmKernel& kernel, const Shape& s, const float* x, const float* w)
      : kernel_(kernel),
        quantized_(kernel.rhs.element != kernels::PanelFormat::Element::kF32),
        x_(Operand::Dense(x, DType::kF32, s.m, s.k)),
        w_(Operand::Transposed(w, DType::kF32, s.n, s.k)),
        lhs_(kernel.lhs.PackedBytes(s.m, s.k)),
        rhs_(kernel.rhs.PackedBytes(s.n, s.k)),
        lhs_scale_(s.m),
        rhs_scale_(s.n),
        out_(s.m * s.n) {
    PackWeights(nullptr);
    args_.m = s.m;
    args_.n = s.n;
    args_.k = s.k;
    args_.lhs = lhs_.data();
    args_.rhs = rhs_.data();
    args_.out = out_.data();
    args_.out_rows = kernels::AxisGroup::Of(s.m, s.n);
    args_.out_cols = kernels::AxisGroup::Of(s.n, 1);
    if (quantized_) {
      args_.epilogue.lhs_scale = lhs_scale_.data();
      args_.epilogue.rhs_scale = rhs_scale_.data();
    }
  }
  void PackWeights(Executor* executor) { PackSide(kernel_.rhs, w_, rhs_scale_.data(), rhs_.data(), executor); }
  void PackInput(Executor* executor) { PackSide(kernel_.lhs, x_, lhs_scale_.data(), lhs_.data(), executor); }
  void Multiply(Executor* executor) { RunGemm(kernel_, args_, executor); }
  void Run(Executor* executor) {
    PackInput(executor);
    Multiply(executor);
  }

 private:
  void PackSide(const kernels::PanelFormat& format, const Operand& src, float* scale, void* panels,
                Executor* executor) {
    if (!quantized_) return Pack(kernel_.target, format, src, panels, executor);
    kernels::QuantizeArgs args;
    args.src = src;
    args.scale = scale;
    args.panels = panels;
    QuantizePack(kernel_.target, format, args, kernels::AbsMaxScale(), executor);
  }

  const GemmKernel& kernel_;
  const bool quantized_;
  const Operand x_, w_;
  AlignedBytes lhs_, rhs_;
  std::vector<float> lhs_scale_, rhs_scale_, out_;
  kernels::GemmArgs args_;
};

void Main(const std::vector<Shape>& shapes) {
  const Target target = kernels::BestTarget();
  const GemmKernel& s8 = kernels::ChooseGemm({}, target, /*rows=*/1024);
  const GemmKernel& f32 = kernels::ChooseGemm(
      {kernels::GemmSums::kF32, kernels::PanelFormat::Element::kF32, kernels::PanelFormat::Element::kF32}, target,
      1024);
  const int cpus = std::max(1, static_cast<int>(std::min<unsigned>(2, std::thread::hardware_concurrency())));
  kernels::ThreadPool pool(2);
  std::vector<int> pinned(2);
  pool.ParallelFor(2, [&, arrived = std::make_shared<std::atomic<int>>(0)](int64_t i) {
    ++*arrived;
    while (*arrived < 2) std::this_thread::yield();  // one body per thread
    pinned[i] = PinThisThread(static_cast<int>(i) % cpus);
  });
  const Roof f32_roof = F32Roof(f32.target), s8_roof = S8Roof(s8.target);
  std::printf("target %s, s8 kernel %s, f32 kernel %s, threads pinned: %s\n", std::string(ToString(target)).c_str(),
              s8.name, f32.name, pinned[0] && pinned[1] ? "yes" : "no");
  std::printf("roof of one core: f32 %.0f GOP/s (%s), s8 %.0f GOP/s (%s), ratio %.2f\n", f32_roof.gops,
              f32_roof.instruction.c_str(), s8_roof.gops, s8_roof.instruction.c_str(), s8_roof.gops / f32_roof.gops);
  std::printf("us for the whole forward (input packed in the call); GOP/s and share of the roof of all threads\n\n");
  std::printf("%-16s thr | %9s %7s %5s | %9s %7s %5s | ratio | s8 parts, us: %9s %9s | pack weights s8, us\n",
              "M x K x N", "f32", "GOP/s", "roof", "s8", "GOP/s", "roof", "quantize", "multiply");
  for (const Shape& s : shapes) {
    const std::vector<float> x = kernels::RandomF32(s.m * s.k, 1), w = kernels::RandomF32(s.k * s.n, 2);
    Forward f32_forward(f32, s, x.data(), w.data()), s8_forward(s8, s, x.data(), w.data());
    for (int threads : {1, 2}) {
      Executor* executor = threads == 1 ? nullptr : &pool;
      const std::vector<double> t = BestTimes({
          [&] { f32_forward.Run(executor); },
          [&] { s8_forward.Run(executor); },
          [&] { s8_forward.PackInput(executor); },
          [&] { s8_forward.Multiply(executor); },
          [&] { s8_forward.PackWeights(executor); },
      });
      const double gops = 2e-9 * static_cast<double>(s.m) * static_cast<double>(s.k) * static_cast<double>(s.n);
      const auto share = [&](double time, const Roof& roof) { return 100 * gops / time / (roof.gops * threads); };
      const std::string name = std::to_string(s.m) + "x" + std::to_string(s.k) + "x" + std::to_string(s.n);
      std::printf("%-16s %3d | %9.1f %7.1f %4.0f%% | %9.1f %7.1f %4.0f%% | %5.2f | %23.1f %9.1f | %10.1f\n",
                  name.c_str(), threads, t[0] * 1e6, gops / t[0], share(t[0], f32_roof), t[1] * 1e6, gops / t[1],
                  share(t[1], s8_roof), t[0] / t[1], t[2] * 1e6, t[3] * 1e6, t[4] * 1e6);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) {
  std::vector<aqt::benchmarks::Shape> shapes;
  for (int i = 1; i < argc; ++i) {
    aqt::benchmarks::Shape s;
    if (std::sscanf(argv[i], "%ldx%ldx%ld", &s.m, &s.k, &s.n) != 3 || s.m < 1 || s.k < 1 || s.n < 1) {
      std::fprintf(stderr, "gemm_benchmark: %s is not a shape; expected MxKxN, as in 512x512x512\n", argv[i]);
      return 1;
    }
    shapes.push_back(s);
  }
  if (shapes.empty()) shapes = {{512, 512, 512}, {1024, 1024, 1024}, {1, 4096, 4096}, {37, 129, 65}, {512, 1024, 4096}};
  aqt::benchmarks::Main(shapes);
}
