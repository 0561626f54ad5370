#include "serving/engine/roof.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/runtime/executable.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/transforms/expand.h"

namespace aqt::serving {
namespace {

constexpr double kSeconds = 0.2;

// Products per second of x w with square matrices of ones, of this number of rows. w is packed beforehand where
// programs do this.
absl::StatusOr<double> Rate(DType dtype, int64_t rows, Executor* executor) {
  const Aval aval = {dtype, {rows, rows}};
  const Slot x{SlotKind::kData, "x"}, w{SlotKind::kParam, "w"};
  const auto product = [&](absl::Span<const Value> in) {
    return std::vector<Value>{
        ops::DotGeneral(in[0], in[1], {{1}, {0}, {}, {}}, dtype == DType::kS8 ? DType::kS32 : dtype)};
  };
  AQT_ASSIGN_OR_RETURN(const Program program, Trace(product, std::vector<Input>{{x, aval}, {w, aval}}));
  ArrayBuilder builder(aval);
  if (dtype == DType::kS8) {
    std::ranges::fill(builder.Mutable<int8_t>(), int8_t{1});
  } else {
    std::ranges::fill(builder.Mutable<float>(), 1.0f);
  }
  const Array ones = std::move(builder).Build();
  AQT_ASSIGN_OR_RETURN(const PreparedProgram prepared, PreparedProgram::Make({program}, {{w, ones}}));
  const UseExecutor use(executor);
  double best = 0, all = 0;
  for (int i = 0; all < kSeconds || i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    AQT_RETURN_IF_ERROR(prepared.executable(0).Run({ones}).status());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    all += seconds;
    if (i > 0) best = std::max(best, static_cast<double>(rows * rows * rows) / std::max(seconds, 1e-9));
  }
  return best;
}

}  // namespace

absl::StatusOr<Products> ProductsOf(const Program& program) {
  AQT_ASSIGN_OR_RETURN(const Program expanded, Expand(program));
  Products products;
  for (const Equation& eqn : expanded.eqns) {
    const auto* dot = std::get_if<DotGeneralOp>(&eqn.op);
    if (dot == nullptr) continue;
    const Aval& lhs = expanded.aval(eqn.in[0]);
    double count = static_cast<double>(expanded.aval(eqn.out[0]).shape.num_elements());
    for (const int64_t axis : dot->dims.lhs_contracting) count *= static_cast<double>(lhs.shape[axis]);
    (IsFloat(lhs.dtype) ? products.floating : products.integer) += count;
  }
  return products;
}

absl::StatusOr<Products> MeasureRoof(Executor* executor) {
  Products roof;
  AQT_ASSIGN_OR_RETURN(roof.integer, Rate(DType::kS8, 1024, executor));
  AQT_ASSIGN_OR_RETURN(roof.floating, Rate(DType::kF32, 512, executor));
  return roof;
}

double ShareOfRoof(const Products& products, const Products& roof, double seconds) {
  if (seconds <= 0 || roof.integer <= 0 || roof.floating <= 0) return 0;
  return (products.integer / roof.integer + products.floating / roof.floating) / seconds;
}

}  // namespace aqt::serving
