// Random equations. AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing case.

#include "aqt/quant/contraction/einsum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/random_equation.h"

namespace aqt {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

struct Loops {
  std::vector<double> out, dlhs, drhs;                 // values
  std::vector<double> out_size, dlhs_size, drhs_size;  // the sums of the absolute values
  double terms = 1;                                    // number of terms of the longest sum
};

// Computes everything in one loop over all letters.
Loops RunLoops(const RandomEquation& e, const Array& lhs, const Array& rhs, const Array& g) {
  const Array a = Cast(lhs, DType::kF64), b = Cast(rhs, DType::kF64), c = Cast(g, DType::kF64);
  Loops r;
  r.out.resize(g.num_elements());
  r.dlhs.resize(a.num_elements());
  r.drhs.resize(b.num_elements());
  r.out_size = r.out;
  r.dlhs_size = r.dlhs;
  r.drhs_size = r.drhs;
  std::string letters;
  for (const auto& [letter, extent] : e.extent) {
    if ((e.lhs + e.rhs).find(letter) != std::string::npos) letters.push_back(letter);
  }
  int64_t count = 1;
  for (const char letter : letters) count *= e.extent.at(letter);
  r.terms = static_cast<double>(count);
  const auto position = [&](const std::string& names, const Shape& shape, std::map<char, int64_t>& index) {
    int64_t at = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      const int64_t extent = shape[static_cast<int64_t>(i)];
      at = at * extent + (extent == 1 ? 0 : index[names[i]]);
    }
    return at;
  };
  for (int64_t i = 0; i < count; ++i) {
    std::map<char, int64_t> index;
    int64_t rest = i;
    for (const char letter : letters) {
      index[letter] = rest % e.extent.at(letter);
      rest /= e.extent.at(letter);
    }
    const int64_t x = position(e.lhs, e.lhs_shape, index), y = position(e.rhs, e.rhs_shape, index),
                  z = position(e.out, e.out_shape, index);
    const double u = a.View<double>()[x], v = b.View<double>()[y], w = c.View<double>()[z];
    r.out[z] += u * v;
    r.dlhs[x] += w * v;
    r.drhs[y] += w * u;
    r.out_size[z] += std::fabs(u * v);
    r.dlhs_size[x] += std::fabs(w * v);
    r.drhs_size[y] += std::fabs(w * u);
  }
  return r;
}

struct EinsumResults {
  Array out, dlhs, drhs;
};

EinsumResults RunEinsum(const EinsumPlan& plan, const Array& lhs, const Array& rhs, const Array& g,
                        const Context& context, const Runtime& runtime, Residuals residuals = Residuals()) {
  ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
  EXPECT_EQ(plan.Forward(lhs, rhs, context, out.ref(), &residuals, runtime), absl::OkStatus());
  EXPECT_EQ(plan.Backward(g, residuals, context, dlhs.ref(), drhs.ref(), runtime), absl::OkStatus());
  return {std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

TEST(EinsumProperty, UnquantizedEqualsLoops) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), cases = FromEnvironment("AQT_TEST_CASES", 300);
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 engine(static_cast<uint64_t>(first_seed + i));
    const RandomEquation e = MakeRandomEquation(engine, false);
    SCOPED_TRACE(
        absl::StrCat("seed ", first_seed + i, ": ", e.text, " ", e.lhs_shape.ToString(), " ", e.rhs_shape.ToString()));
    const Array lhs = RandomArray(DType::kF32, e.lhs_shape, engine()),
                rhs = RandomArray(DType::kF32, e.rhs_shape, engine());
    const absl::StatusOr<EinsumPlan> plan =
        EinsumPlan::Make(e.text, DefaultUnquantizedConfig(), lhs.aval(), rhs.aval());
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(plan->out_aval().shape, e.out_shape);
    const Array g = RandomArray(DType::kF32, e.out_shape, engine());
    const Loops want = RunLoops(e, lhs, rhs, g);
    const EinsumResults got = RunEinsum(*plan, lhs, rhs, g, {}, {}, Residuals(Residuals::Operands::kBorrow));
    // A sum of n products of sums, each of at most n terms, has at most 2n + 2 roundings of 2^-24 each, relative to the
    // sum of the absolute values; second order terms are below a factor of 2 for n < 2^20.
    const double relative = 2 * (2 * want.terms + 2) * 0x1p-24;
    const auto check = [&](const char* name, const Array& x, const std::vector<double>& y,
                           const std::vector<double>& size) {
      for (size_t j = 0; j < y.size(); ++j) {
        ASSERT_LE(std::fabs(x.View<float>()[j] - y[j]), relative * size[j]) << name << " " << j;
      }
    };
    check("out", got.out, want.out, want.out_size);
    check("dlhs", got.dlhs, want.dlhs, want.dlhs_size);
    check("drhs", got.drhs, want.drhs, want.drhs_size);
  }
}

// The axes of x in the order `to`, as a dense copy.
Array TransposedCopy(const Array& x, const std::string& from, const std::string& to) {
  ArrayRef view = x;
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t axis = from.find(to[i]);
    view.shape[static_cast<int64_t>(i)] = x.shape()[static_cast<int64_t>(axis)];
    view.strides[i] = x.ref().strides[axis];
  }
  return Array::CopyOf(view);
}

struct Letters {
  std::string batch, contract, lhs_rest, rhs_rest;
};

Letters LettersOf(const RandomEquation& e) {
  Letters letters;
  const auto has = [](const std::string& names, char letter) { return names.find(letter) != std::string::npos; };
  for (const char letter : e.out) {
    if (has(e.lhs, letter) && has(e.rhs, letter)) letters.batch.push_back(letter);
  }
  for (const char letter : e.lhs) {
    if (!has(e.rhs, letter)) letters.lhs_rest.push_back(letter);
    if (has(e.rhs, letter) && !has(e.out, letter)) letters.contract.push_back(letter);
  }
  for (const char letter : e.rhs) {
    if (!has(e.lhs, letter)) letters.rhs_rest.push_back(letter);
  }
  return letters;
}

// Integer sums are exact: they have the bits of DotGeneral on operands transposed by hand, on every target and with any
// number of threads.
TEST(EinsumProperty, QuantizedEqualsDotGeneralOnTransposedOperands) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), cases = FromEnvironment("AQT_TEST_CASES", 100);
  kernels::ThreadPool pool(3);
  int64_t swaps = 0;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 engine(static_cast<uint64_t>(first_seed + i));
    const RandomEquation e = MakeRandomEquation(engine, true);
    SCOPED_TRACE(
        absl::StrCat("seed ", first_seed + i, ": ", e.text, " ", e.lhs_shape.ToString(), " ", e.rhs_shape.ToString()));
    const auto [batch, contract, a_rest, b_rest] = LettersOf(e);
    const bool swapped = batch + a_rest + b_rest != e.out;
    swaps += swapped;

    DotGeneralConfig config = DotGeneralMake(8, 4, {.bwd_bits = 8});
    config.dlhs = DotGeneralRawMake(6, 8);
    config.drhs = DotGeneralRawMake(8, 5);
    config.dlhs.rhs.use_fwd_quant = i % 3 == 0;
    config.drhs.rhs.use_fwd_quant = i % 2 == 0;
    std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).clip_gradient = i % 4 == 0;
    const DType dtype = i % 5 == 0 ? DType::kBF16 : DType::kF32;
    const Array lhs = RandomArray(dtype, e.lhs_shape, engine()), rhs = RandomArray(dtype, e.rhs_shape, engine());
    const Array g = RandomArray(dtype, e.out_shape, engine());

    // Transposed by hand: lhs to batch, rest, contract; rhs to contract, batch, rest.
    const std::string a_names = batch + a_rest + contract, b_names = contract + batch + b_rest;
    const Array a = TransposedCopy(lhs, e.lhs, a_names), b = TransposedCopy(rhs, e.rhs, b_names);
    DotDims dims;
    for (const char letter : contract) {
      dims.lhs_contracting.push_back(static_cast<int64_t>(a_names.find(letter)));
      dims.rhs_contracting.push_back(static_cast<int64_t>(b_names.find(letter)));
    }
    for (const char letter : batch) {
      dims.lhs_batch.push_back(static_cast<int64_t>(a_names.find(letter)));
      dims.rhs_batch.push_back(static_cast<int64_t>(b_names.find(letter)));
    }
    const std::string product = batch + (swapped ? b_rest + a_rest : a_rest + b_rest);
    const Array product_g = TransposedCopy(g, e.out, product);
    DotGeneralConfig product_config = config;
    if (swapped) {
      std::swap(product_config.fwd.lhs, product_config.fwd.rhs);
      std::swap(product_config.dlhs, product_config.drhs);
    }
    absl::StatusOr<DotGeneralGradients> want =
        swapped ? QuantizedDotGeneralWithGradients(product_config, b, a, product_g, dims.Swapped())
                : QuantizedDotGeneralWithGradients(product_config, a, b, product_g, dims);
    ASSERT_TRUE(want.ok()) << want.status();
    if (swapped) std::swap(want->dlhs, want->drhs);

    const absl::StatusOr<EinsumPlan> plan = EinsumPlan::Make(e.text, config, lhs.aval(), rhs.aval());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->swapped(), swapped);
    for (const kernels::Target target : kernels::SupportedTargets()) {
      const EinsumPlan on_target = *EinsumPlan::Make(e.text, config, lhs.aval(), rhs.aval(), {.target = target});
      const Runtime runtime{.executor = i % 2 == 0 ? &pool : nullptr};
      const EinsumResults got = RunEinsum(on_target, lhs, rhs, g, {}, runtime);
      EXPECT_TRUE(BitEqual(TransposedCopy(got.out, e.out, product), want->out)) << target;
      EXPECT_TRUE(BitEqual(TransposedCopy(got.dlhs, e.lhs, a_names), want->dlhs)) << target;
      EXPECT_TRUE(BitEqual(TransposedCopy(got.drhs, e.rhs, b_names), want->drhs)) << target;
      const PreparedOperand weight = *on_target.Prepare(Side::kRhs, rhs, {}, runtime);
      ArrayBuilder served(plan->out_aval());
      ASSERT_EQ(on_target.Forward(lhs, weight, {}, served.ref(), nullptr, runtime), absl::OkStatus());
      EXPECT_TRUE(BitEqual(std::move(served).Build(), got.out));
    }
    if (::testing::Test::HasFailure()) return;
  }
  if (cases >= 100) {
    EXPECT_GE(swaps, cases / 10);
    EXPECT_LE(swaps, cases * 9 / 10);
  }
}

// Exchanged operands, transposed results and a batch axis: the same bits for any number of threads on any target, and
// for a single entry of the batch (it has its own scales).
TEST(EinsumPlan, ThreadsTargetsAndBatchesGiveTheSameBits) {
  const DotGeneralConfig config = DotGeneralMake(8, 8, {.bwd_bits = 8, .use_fwd_quant = false});
  const Array lhs = RandomArray(DType::kF32, {4, 70, 3, 64}, 1), rhs = RandomArray(DType::kF32, {4, 60, 3, 64}, 2);
  const Array g = RandomArray(DType::kF32, {4, 60, 70, 3}, 3);
  const PlanOptions options{.semantics = {.arithmetic = Arithmetic::kIeee}, .target = kernels::Target::kScalar};
  const EinsumPlan plan = *EinsumPlan::Make("btnh,bsnh->bstn", config, lhs.aval(), rhs.aval(), options);
  EXPECT_TRUE(plan.swapped());
  const EinsumResults want = RunEinsum(plan, lhs, rhs, g, {}, {});
  const auto same = [](const EinsumResults& a, const EinsumResults& b) {
    return BitEqual(a.out, b.out) && BitEqual(a.dlhs, b.dlhs) && BitEqual(a.drhs, b.drhs);
  };
  for (const kernels::Target target : kernels::SupportedTargets()) {
    PlanOptions on_target = options;
    on_target.target = target;
    const EinsumPlan other = *EinsumPlan::Make("btnh,bsnh->bstn", config, lhs.aval(), rhs.aval(), on_target);
    for (const int threads : {1, 2, 7}) {
      kernels::ThreadPool pool(threads);
      EXPECT_TRUE(same(RunEinsum(other, lhs, rhs, g, {}, {.executor = &pool}), want))
          << threads << " threads, " << target;
    }
  }
  const auto entry = [](const Array& x, int64_t b) {
    Shape shape = x.shape();
    shape[0] = 1;
    const int64_t n = shape.num_elements();
    return Array::FromSpan<float>(x.View<float>().subspan(b * n, n), shape);
  };
  for (int64_t b = 0; b < 4; ++b) {
    const Array one_lhs = entry(lhs, b), one_rhs = entry(rhs, b);
    const EinsumPlan one = *EinsumPlan::Make("btnh,bsnh->bstn", config, one_lhs.aval(), one_rhs.aval(), options);
    EXPECT_TRUE(same(RunEinsum(one, one_lhs, one_rhs, entry(g, b), {}, {}),
                     {entry(want.out, b), entry(want.dlhs, b), entry(want.drhs, b)}))
        << b;
  }
}

}  // namespace
}  // namespace aqt
