#include "tests/benchmarks/elementwise_programs.h"

#include <string>
#include <utility>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"

namespace aqt::benchmarks {
namespace {

using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Values Chain(In in) { return {ops::Relu(in[0] * 1.5 + 0.25 - 1.0) * 0.5 + 3.0}; }

Values Softmax(In in) {
  const Value powers = ops::Exp(in[0] - ops::ReduceMax(in[0], {-1}, true));
  return {powers / ops::ReduceSum(powers, {-1}, true)};
}

Values Adam(In in) {
  const Value m = in[1] * 0.9 + in[3] * 0.1, v = in[2] * 0.999 + in[3] * in[3] * 0.001;
  return {in[0] - m / (v + 1e-8) * 0.001, m, v};
}

std::vector<Array> Arguments(int count, const Shape& shape, DType dtype = DType::kF32) {
  std::vector<Array> args;
  for (int i = 0; i < count; ++i) args.push_back(testing::RandomArray({dtype, shape}, i, 0.1, 2));
  return args;
}

ProgramCase Of(const std::string& name, TracedFunction fn, std::vector<Array> args) {
  return {name, *testing::TraceWith(fn, args), std::move(args)};
}

}  // namespace

std::vector<ProgramCase> ElementwisePrograms(int64_t rows, int64_t columns) {
  const Shape shape{rows, columns};
  const double count = static_cast<double>(columns);
  const auto norm = [count](In in) {
    const Value centered = in[0] - ops::ReduceSum(in[0], {-1}, true) / count;
    const Value variance = ops::ReduceSum(centered * centered, {-1}, true) / count;
    return Values{centered / (variance + 1e-5) * in[1] + in[2]};
  };
  const std::vector<Array> norm_args = {testing::RandomArray({DType::kF32, shape}, 1),
                                        testing::RandomArray({DType::kF32, {columns}}, 2),
                                        testing::RandomArray({DType::kF32, {columns}}, 3)};
  std::vector<ProgramCase> programs;
  programs.push_back(Of("chain", Chain, Arguments(1, shape)));
  programs.push_back(Of("chain_bf16", Chain, Arguments(1, {2 * rows, columns}, DType::kBF16)));
  programs.push_back(Of("softmax", Softmax, Arguments(1, shape)));
  programs.push_back(Of("norm", norm, norm_args));
  programs.push_back(Of("adam", Adam, Arguments(4, shape)));
  programs.back().updated = 3;
  return programs;
}

}  // namespace aqt::benchmarks
