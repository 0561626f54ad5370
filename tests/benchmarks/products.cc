#include "tests/benchmarks/products.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/testing/random.h"
#include "tests/benchmarks/eigen_peer.h"
#include "tests/benchmarks/machine_roof.h"
#include "tests/benchmarks/matmul.h"
#include "tests/benchmarks/onednn_peer.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

Shape WithBatch(int64_t batch, int64_t rows, int64_t cols) {
  return batch == 1 ? Shape{rows, cols} : Shape{batch, rows, cols};
}

const float* Floats(const Array& array) { return static_cast<const float*>(array.data()); }

// The cap on our instructions also applies to peers.
EigenMatMul Eigen() {
  static const EigenMatMul matmul = FindEigenMatMul(InstructionsOf(kernels::BestTarget()).avx512);
  return matmul;
}

Work ForwardWork(const Product& p, Work::Unit unit, int64_t weight_bytes) {
  return {.ops = p.ops(), .unit = unit, .reads = weight_bytes * p.batch * p.k * p.n};
}

}  // namespace

absl::StatusOr<Product> Product::Parse(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const absl::string_view part : absl::StrSplit(text, 'x')) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(part, &size) || size < 1) sizes.clear();
    else sizes.push_back(size);
    if (sizes.empty()) break;
  }
  if (sizes.size() == 3) return Product{1, sizes[0], sizes[1], sizes[2]};
  if (sizes.size() == 4) return Product{sizes[0], sizes[1], sizes[2], sizes[3]};
  return absl::InvalidArgumentError(
      absl::StrCat(text, " is not a shape; expected MxKxN or BATCHxMxKxN, as in 512x1024x4096"));
}

std::string Product::name() const {
  return batch == 1 ? absl::StrCat(m, "x", k, "x", n) : absl::StrCat(batch, "x", m, "x", k, "x", n);
}
Aval Product::x(DType dtype) const { return {dtype, WithBatch(batch, m, k)}; }
Aval Product::w(DType dtype) const { return {dtype, WithBatch(batch, k, n)}; }
Aval Product::out(DType dtype) const { return {dtype, WithBatch(batch, m, n)}; }
DotDims Product::dims() const {
  if (batch == 1) return MatMulDims();
  return {.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
}

Array Operands::Get(int which, const Aval& aval) {
  Array& array = arrays_[{which, aval.dtype}];
  if (array.num_elements() == 0) {
    const double bound = aval.dtype == DType::kS8 ? 127 : 0.5;
    array = testing::RandomArray(aval, which + 1, -bound, bound);
  }
  return array;
}

absl::StatusOr<Call> PlanForward(const DotGeneralConfig& config, OperandsPtr data, bool prepared, Executor* executor,
                                 DType dtype) {
  struct State {
    DotGeneralPlan plan;
    Array x, w;
    PreparedOperand weight;
    ArrayBuilder out;
  };
  const Product& p = data->product();
  AQT_ASSIGN_OR_RETURN(DotGeneralPlan plan, DotGeneralPlan::Make(config, p.x(dtype), p.w(dtype), p.dims(),
                                                                 {.passes = PlanPasses::kForwardOnly}));
  PreparedOperand weight;
  if (prepared) {
    AQT_ASSIGN_OR_RETURN(weight, plan.Prepare(Side::kRhs, data->w(dtype)));
  }
  auto state = std::make_shared<State>(
      State{plan, data->x(dtype), data->w(dtype), std::move(weight), ArrayBuilder(plan.out_aval())});
  const DotOperand rhs = prepared ? DotOperand(state->weight) : DotOperand(state->w);
  const Call call = [state, rhs, data, executor] {
    AQT_CHECK(state->plan.Forward(state->x, rhs, {}, state->out.ref(), nullptr, {.executor = executor}).ok());
  };
  AQT_RETURN_IF_ERROR(state->plan.Forward(state->x, rhs, {}, state->out.ref(), nullptr, {.executor = executor}));
  return call;
}

absl::StatusOr<Call> OneDnnProduct(OperandsPtr data, DType dtype, DType out, bool packed) {
  const Product& p = data->product();
  const OneDnnMatMul args = {{p.m, p.n, p.k}, p.batch, dtype, dtype, out, packed};
  const Array x = data->x(dtype), w = data->w(dtype);
  const auto result = std::make_shared<ArrayBuilder>(p.out(out));
  Call call = MakeOneDnnMatMul(args, x.data(), w.data(), result->data());
  if (call == nullptr) return absl::UnavailableError("oneDNN has no such product here");
  return [call, x, w, result] { call(); };
}

absl::StatusOr<Call> EigenProducts(OperandsPtr data, bool forward, bool gradients, Executor* executor) {
  const EigenMatMul matmul = Eigen();
  if (matmul == nullptr) return absl::UnavailableError("Eigen was not compiled for this machine");
  const Product p = data->product();
  const int threads = executor == nullptr ? 1 : executor->NumThreads();
  const Array x = data->x(), w = data->w(), g = gradients ? data->g() : Array();
  const auto out = std::make_shared<ArrayBuilder>(p.out()), dx = std::make_shared<ArrayBuilder>(p.x()),
             dw = std::make_shared<ArrayBuilder>(p.w());
  return [=] {
    for (int64_t b = 0; b < p.batch; ++b) {
      const float *xb = Floats(x) + b * p.m * p.k, *wb = Floats(w) + b * p.k * p.n;
      if (forward) {
        matmul({p.m, p.n, p.k}, xb, wb, static_cast<float*>(out->data()) + b * p.m * p.n, threads);
      }
      if (!gradients) continue;
      const float* gb = Floats(g) + b * p.m * p.n;
      matmul({p.m, p.k, p.n, false, true}, gb, wb, static_cast<float*>(dx->data()) + b * p.m * p.k, threads);
      matmul({p.k, p.n, p.m, true, false}, xb, gb, static_cast<float*>(dw->data()) + b * p.k * p.n, threads);
    }
  };
}

absl::StatusOr<Call> OneDnnProducts(OperandsPtr data, bool forward, bool gradients) {
  const Product p = data->product();
  const Array x = data->x(), w = data->w(), g = gradients ? data->g() : Array();
  const auto out = std::make_shared<ArrayBuilder>(p.out()), dx = std::make_shared<ArrayBuilder>(p.x()),
             dw = std::make_shared<ArrayBuilder>(p.w());
  std::vector<Call> calls;
  if (forward) calls.push_back(MakeOneDnnMatMul({{p.m, p.n, p.k}, p.batch}, x.data(), w.data(), out->data()));
  if (gradients) {
    calls.push_back(MakeOneDnnMatMul({{p.m, p.k, p.n, false, true}, p.batch}, g.data(), w.data(), dx->data()));
    calls.push_back(MakeOneDnnMatMul({{p.k, p.n, p.m, true, false}, p.batch}, x.data(), g.data(), dw->data()));
  }
  for (const Call& call : calls) {
    if (call == nullptr) return absl::UnavailableError("oneDNN has no such product here");
  }
  return [calls, x, w, g, out, dx, dw] {
    for (const Call& call : calls) call();
  };
}

void AddF32Products(OperandsPtr data, std::vector<Row>& rows) {
  const Work work = ForwardWork(data->product(), Work::Unit::kF32, 4);
  const auto add = [&](const std::string& cls, const std::string& who, auto make) {
    rows.push_back({"forward", cls, data->product().name(), "f32", who, work, make});
  };
  const DotGeneralConfig none = DefaultUnquantizedConfig();
  add("product", "aqt", [=](Executor* executor) { return PlanForward(none, data, false, executor); });
  add("product", "eigen", [=](Executor* executor) { return EigenProducts(data, true, false, executor); });
  add("product", "onednn", [=](Executor*) { return OneDnnProduct(data, DType::kF32, DType::kF32, false); });
  add("packed", "aqt", [=](Executor* executor) { return PlanForward(none, data, true, executor); });
  add("packed", "onednn", [=](Executor*) { return OneDnnProduct(data, DType::kF32, DType::kF32, true); });
}

}  // namespace aqt::benchmarks
