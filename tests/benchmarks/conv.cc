// Convolutions, channels last, stride 1, padding that keeps the size, ours beside oneDNN in f32. Class "conv" is the
// forward pass with the kernel prepared, "conv_gradients" both gradients. A shape is BATCHxHEIGHTxWIDTHxIN-KERNELxOUT.
//
//   bazel run //tests/benchmarks:conv [-- --shapes 8x28x28x128-3x128]

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/testing/random.h"
#include "tests/benchmarks/onednn_peer.h"
#include "tests/benchmarks/products.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

struct Conv {
  int64_t batch = 0, height = 0, width = 0, in = 0, kernel = 0, out = 0;

  static absl::StatusOr<Conv> Parse(const std::string& text) {
    Conv c;
    int end = 0;
    const int read = std::sscanf(text.c_str(), "%ldx%ldx%ldx%ld-%ldx%ld%n", &c.batch, &c.height, &c.width, &c.in,
                                 &c.kernel, &c.out, &end);
    const bool positive =
        c.batch > 0 && c.height > 0 && c.width > 0 && c.in > 0 && c.kernel % 2 == 1 && c.kernel > 0 && c.out > 0;
    if (read == 6 && end == static_cast<int>(text.size()) && positive) return c;
    return absl::InvalidArgumentError(absl::StrCat(
        text, " is not a shape; expected BATCHxHEIGHTxWIDTHxIN-KERNELxOUT, KERNEL odd, as in 8x28x28x128-3x128"));
  }
  Aval x() const { return {DType::kF32, {batch, height, width, in}}; }
  Aval w() const { return {DType::kF32, {kernel, kernel, in, out}}; }
  Aval y() const { return {DType::kF32, {batch, height, width, out}}; }
  double ops() const {
    return 2.0 * static_cast<double>(batch * height * width) * static_cast<double>(kernel * kernel * in * out);
  }
  OneDnnConv onednn(OneDnnConv::Result result) const {
    return {batch, height, width, in, out, kernel, kernel / 2, result};
  }
};

// The operands and results of a convolution, ours or a peer's.
struct Arrays {
  explicit Arrays(const Conv& c)
      : x(testing::RandomArray(c.x(), 1, -0.5, 0.5)),
        w(testing::RandomArray(c.w(), 2, -0.5, 0.5)),
        g(testing::RandomArray(c.y(), 3, -0.5, 0.5)),
        y(c.y()),
        dx(c.x()),
        dw(c.w()) {}
  Array x, w, g;
  ArrayBuilder y, dx, dw;
};

absl::StatusOr<Call> Ours(const DotGeneralRawConfig& config, const Conv& c, bool gradients, Executor* executor) {
  struct State : Arrays {
    State(const Conv& c, const ConvGeneralPlan& plan_in) : Arrays(c), plan(plan_in) {}
    ConvGeneralPlan plan;
    PreparedOperand kernel;
    Residuals residuals{Residuals::Operands::kBorrow};
  };
  AQT_ASSIGN_OR_RETURN(const ConvGeneralPlan plan,
                       ConvGeneralPlan::Make(config, c.x(), c.w(), {.padding = ConvPadding::kSame}));
  const auto s = std::make_shared<State>(c, plan);
  const Runtime runtime = {.executor = executor};
  if (gradients) {
    AQT_RETURN_IF_ERROR(plan.Forward(s->x, s->w, {}, s->y.ref(), &s->residuals, runtime));
    return [s, runtime] { AQT_CHECK(s->plan.Backward(s->g, s->residuals, s->dx.ref(), s->dw.ref(), runtime).ok()); };
  }
  AQT_ASSIGN_OR_RETURN(s->kernel, plan.Prepare(Side::kRhs, s->w));
  return [s, runtime] { AQT_CHECK(s->plan.Forward(s->x, s->kernel, {}, s->y.ref(), nullptr, runtime).ok()); };
}

absl::StatusOr<Call> OneDnn(const Conv& c, bool gradients) {
  const auto s = std::make_shared<Arrays>(c);
  const auto make = [&](OneDnnConv::Result result, void* x, void* w, void* y) {
    return MakeOneDnnConv(c.onednn(result), x, w, y);
  };
  void *x = const_cast<void*>(s->x.data()), *w = const_cast<void*>(s->w.data()), *g = const_cast<void*>(s->g.data());
  std::vector<Call> calls;
  if (gradients) {
    calls = {make(OneDnnConv::Result::kX, s->dx.data(), w, g), make(OneDnnConv::Result::kKernel, x, s->dw.data(), g)};
  } else {
    calls = {make(OneDnnConv::Result::kOut, x, w, s->y.data())};
  }
  for (const Call& call : calls) {
    if (call == nullptr) return absl::UnavailableError("oneDNN has no such convolution here");
  }
  return [s, calls] {
    for (const Call& call : calls) call();
  };
}

absl::Status Add(const std::string& shape, std::vector<Row>& rows) {
  AQT_ASSIGN_OR_RETURN(const Conv c, Conv::Parse(shape));
  for (const bool gradients : {false, true}) {
    const std::string cls = gradients ? "conv_gradients" : "conv";
    const auto add = [&](const std::string& dtype, Work::Unit unit, const std::string& who, auto make) {
      rows.push_back({cls, cls, shape, dtype, who, {.ops = c.ops() * (gradients ? 2 : 1), .unit = unit}, make});
    };
    add("f32", Work::Unit::kF32, "aqt",
        [=](Executor* executor) { return Ours(DotGeneralRawConfig{}, c, gradients, executor); });
    add("f32", Work::Unit::kF32, "onednn", [=](Executor*) { return OneDnn(c, gradients); });
    // The gradients of an int8 convolution are products of floats.
    add("int8", gradients ? Work::Unit::kF32 : Work::Unit::kS8, "aqt",
        [=](Executor* executor) { return Ours(ConvGeneralDilatedMake(2, 8, 8), c, gradients, executor); });
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) {
  return aqt::benchmarks::SuiteMain(argc, argv, {"8x28x28x128-3x128", "8x56x56x64-3x64", "8x56x56x64-1x256"},
                                    aqt::benchmarks::Add);
}
