#ifndef TESTS_BENCHMARKS_ONEDNN_PEER_H_
#define TESTS_BENCHMARKS_ONEDNN_PEER_H_

// oneDNN, if Debian's libdnnl-dev (version 2) was installed at build time. All functions return null without it, and if
// it does not have the operation. The arrays must outlive the result. ONEDNN_MAX_CPU_ISA caps its instructions. It runs
// on OpenMP's threads.

#include <cstdint>
#include <functional>
#include <string>

#include "aqt/core/dtype.h"
#include "tests/benchmarks/matmul.h"

namespace aqt::benchmarks {

std::string OneDnnVersion();  // "2.6.3"; empty without it

struct OneDnnMatMul {
  MatMul shape;
  int64_t batch = 1;
  DType a = DType::kF32, b = DType::kF32, c = DType::kF32;  // f32, bf16, s8; c also s32
  bool pack_b = false;                                      // b packed beforehand, in oneDNN's preferred layout
};
std::function<void()> MakeOneDnnMatMul(const OneDnnMatMul& args, const void* a, const void* b, void* c);

// A convolution in f32, channels last, with stride 1 and `padding` on each side; kernel [kh, kw, in, out]. The
// operation computes one of the arrays `x`, `kernel` and `out`, and reads the other two. oneDNN chooses the layout of
// the kernel (and of its gradient); reordering is not timed.
struct OneDnnConv {
  enum class Result { kOut, kX, kKernel };
  int64_t batch = 1, height = 1, width = 1, in = 1, out = 1, kernel = 1, padding = 0;
  Result result = Result::kOut;
};
std::function<void()> MakeOneDnnConv(const OneDnnConv& args, void* x, void* kernel, void* out);

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_ONEDNN_PEER_H_
