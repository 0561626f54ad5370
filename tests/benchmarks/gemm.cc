// Products without quantization: s8 x s8 -> s32, bf16 and f32, ours beside Eigen and oneDNN. Class "packed": the
// weights were packed beforehand; "product": plain arrays.
//
//   bazel run //tests/benchmarks:gemm [-- --filter s8 --threads 1,2]

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/contraction.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/product.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/quant/config/builders.h"
#include "tests/benchmarks/products.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

// The matrix kernel itself: packs x in each call.
absl::StatusOr<Call> PackedS8(OperandsPtr data, Executor* executor) {
  const Product p = data->product();
  const kernels::GemmKernel& kernel = kernels::ChooseGemm({}, kernels::BestTarget(), p.m);
  const Array x = data->x(DType::kS8), w = data->w(DType::kS8);
  struct State {
    Array x;
    std::shared_ptr<void> lhs, rhs;  // like arrays, in huge pages if large
    ArrayBuilder out;
    kernels::GemmProblem problem;
  };
  const kernels::ProductBytes bytes = kernels::ProductBytesOf(kernel, p.batch, p.m, p.n, p.k);
  auto state = std::make_shared<State>(
      State{x, AllocateAligned(bytes.lhs), AllocateAligned(bytes.rhs), ArrayBuilder(p.out(DType::kS32)), {}});
  const auto rhs = kernels::Operand::Transposed(w.data(), DType::kS8, p.n, p.k, p.batch);
  kernels::Pack(kernel.target, kernel.rhs, rhs, state->rhs.get(), executor);
  state->problem = kernels::GemmProblem::Dense(p.batch, p.m, p.n, p.k, DType::kS32, state->out.data());
  state->problem.lhs = kernels::Operand::Dense(x.data(), DType::kS8, p.m, p.k, p.batch);
  return [state, executor, &kernel] {
    kernels::PackAndMultiply(kernel, state->problem, {.rhs = state->rhs.get()}, {.lhs = state->lhs.get()}, executor);
  };
}

absl::StatusOr<Call> PlainS8(OperandsPtr data, Executor* executor) {
  const Product p = data->product();
  const Array x = data->x(DType::kS8), w = data->w(DType::kS8);
  const auto out = std::make_shared<ArrayBuilder>(p.out(DType::kS32));
  return [=] { kernels::Contract(p.dims(), x, w, out->ref(), executor); };
}

absl::Status Add(const std::string& shape, std::vector<Row>& rows) {
  AQT_ASSIGN_OR_RETURN(const Product p, Product::Parse(shape));
  const auto data = std::make_shared<Operands>(p);
  AddF32Products(data, rows);
  const auto add = [&](const std::string& cls, const std::string& dtype, Work work, const std::string& who, auto make) {
    work.ops = p.ops();
    work.reads *= p.batch * p.k * p.n;
    rows.push_back({"forward", cls, p.name(), dtype, who, work, make});
  };
  const Work s8 = {.unit = Work::Unit::kS8, .reads = 1}, bf16 = {.unit = Work::Unit::kBf16, .reads = 2};
  const DotGeneralConfig none = DefaultUnquantizedConfig();
  for (const bool packed : {false, true}) {
    const std::string cls = packed ? "packed" : "product";
    add(cls, "s8", s8, "aqt",
        [=](Executor* executor) { return packed ? PackedS8(data, executor) : PlainS8(data, executor); });
    add(cls, "s8", s8, "onednn", [=](Executor*) { return OneDnnProduct(data, DType::kS8, DType::kS32, packed); });
    add(cls, "bf16", bf16, "aqt",
        [=](Executor* executor) { return PlanForward(none, data, packed, executor, DType::kBF16); });
    add(cls, "bf16", bf16, "onednn", [=](Executor*) { return OneDnnProduct(data, DType::kBF16, DType::kF32, packed); });
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) {
  return aqt::benchmarks::SuiteMain(
      argc, argv,
      {"37x129x65", "256x256x256", "512x512x512", "1024x1024x1024", "2048x2048x2048", "512x1024x4096", "512x4096x1024",
       "1x4096x4096", "8x4096x4096", "1x4096x11008", "16x128x64x128"},
      aqt::benchmarks::Add);
}
