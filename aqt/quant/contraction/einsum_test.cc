// Random equations: AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing one.

#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/config/semantics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/thread_pool.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/einsum_equation.h"
#include "aqt/quant/config/runtime.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/testing/allocation_count.h"

namespace aqt {
namespace {

EinsumEquation Parsed(absl::string_view equation, int64_t lhs_rank, int64_t rhs_rank) {
  const absl::StatusOr<EinsumEquation> parsed = ParseEinsum(equation, lhs_rank, rhs_rank);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : EinsumEquation{};
}

TEST(ParseEinsum, Terms) {
  EXPECT_EQ(Parsed("ab,bc->ac", 2, 2), (EinsumEquation{"ab", "bc", "ac"}));
  EXPECT_EQ(Parsed(" a b, bc ->a c ", 2, 2), (EinsumEquation{"ab", "bc", "ac"}));
  EXPECT_EQ(Parsed("a,->a", 1, 0), (EinsumEquation{"a", "", "a"}));
  EXPECT_EQ(Parsed(",->", 0, 0), (EinsumEquation{"", "", ""}));
}

TEST(ParseEinsum, ImplicitResultIsSortedCapitalsFirst) {
  EXPECT_EQ(Parsed("ba,aC", 2, 2), (EinsumEquation{"ba", "aC", "Cb"}));
  EXPECT_EQ(Parsed("aa,b", 2, 1), (EinsumEquation{"aa", "b", "b"}));
  EXPECT_EQ(Parsed("z...,...z", 3, 2), (EinsumEquation{"zbc", "cz", "bc"}));
}

// As jax names them: the first free letters, as many as the largest rank, of which the last ones are taken.
TEST(ParseEinsum, EllipsisIsAlignedFromTheRight) {
  EXPECT_EQ(Parsed("...ij,...jk->...ik", 4, 3), (EinsumEquation{"cdij", "djk", "cdik"}));
  EXPECT_EQ(Parsed("...a,a...->...", 3, 1), (EinsumEquation{"cda", "a", "cd"}));
  EXPECT_EQ(Parsed("a...b,b->ba...", 2, 1), (EinsumEquation{"ab", "b", "ba"}));
  EXPECT_EQ(Parsed("a...,a->", 3, 1), (EinsumEquation{"acd", "a", ""}));
}

TEST(ParseEinsum, ErrorsNameEquationPositionAndLetter) {
  const auto error = [](absl::string_view equation, int64_t lhs_rank = 2, int64_t rhs_rank = 2) {
    const absl::Status status = ParseEinsum(equation, lhs_rank, rhs_rank).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << equation;
    return std::string(status.message());
  };
  EXPECT_EQ(error("ab->a"), "einsum \"ab->a\", position 2: expected two operands, \"lhs,rhs->out\"; found one");
  EXPECT_EQ(error("ab"), "einsum \"ab\", position 2: expected two operands, \"lhs,rhs->out\"; found one");
  EXPECT_EQ(error("ab,bc,cd->ad"), "einsum \"ab,bc,cd->ad\", position 5: a third operand; expected two");
  EXPECT_EQ(error("ab,bc->a,c"), "einsum \"ab,bc->a,c\", position 8: ',' in the result");
  EXPECT_EQ(error("ab,bc->a->c"), "einsum \"ab,bc->a->c\", position 8: '-' is not expected here");
  EXPECT_EQ(error("ab,bc-ac"), "einsum \"ab,bc-ac\", position 5: '-' without '>'");
  EXPECT_EQ(error("ab,b1->a"), "einsum \"ab,b1->a\", position 4: '1' is not a letter (a-z, A-Z)");
  EXPECT_EQ(error("a..,bc->a"), "einsum \"a..,bc->a\", position 1: an ellipsis has three dots, \"...\"");
  EXPECT_EQ(error("...a...,bc->a"), "einsum \"...a...,bc->a\", position 4: a second ellipsis in one term");
  EXPECT_EQ(error("ab,bc->aca"), "einsum \"ab,bc->aca\", position 9: 'a' occurs twice in the result");
  EXPECT_EQ(error("ab,bc->ad"), "einsum \"ab,bc->ad\", position 8: 'd' of the result is not in any operand");
  EXPECT_EQ(error("abc,bc->a"), "einsum \"abc,bc->a\": lhs \"abc\" names 3 axes, but the array has 2");
  EXPECT_EQ(error("ab,...bcd->a"), "einsum \"ab,...bcd->a\": rhs \"bcd\" names at least 3 axes, but the array has 2");
  std::string all;
  for (char c = 'a'; c <= 'z'; ++c) all.push_back(c);
  for (char c = 'A'; c <= 'Z'; ++c) all.push_back(c);
  EXPECT_EQ(error(absl::StrCat(all, "...,a->"), 53, 1), absl::StrCat("einsum \"", all, "...,a->\": more than 52 axes"));
}

TEST(EinsumDType, Table) {
  using enum DType;
  EXPECT_EQ(*EinsumDType(kBF16, kBF16), kBF16);
  EXPECT_EQ(*EinsumDType(kBF16, kF32), kF32);
  EXPECT_EQ(*EinsumDType(kBF16, kF16), kF32);
  EXPECT_EQ(*EinsumDType(kS8, kS8), kF32);
  EXPECT_EQ(*EinsumDType(kS8, kBF16), kBF16);
  EXPECT_EQ(*EinsumDType(kS4, kBF16), kF32);
  EXPECT_EQ(*EinsumDType(kS4, kS8), kF32);
  EXPECT_EQ(*EinsumDType(kE5M2, kE4M3FN), kBF16);
  EXPECT_EQ(*EinsumDType(kE4M3FN, kS8), kBF16);
  EXPECT_EQ(*EinsumDType(kE4M3FN, kF16), kF32);
  EXPECT_EQ(
      EinsumDType(kE4M3FN, kE4M3FN).status(),
      absl::InvalidArgumentError("einsum: both operands are e4m3fn, which is not converted; cast one of them to f32, "
                                 "bf16 or f16"));
  EXPECT_EQ(EinsumDType(kS4, kS4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      EinsumDType(kF32, kF64).status(),
      absl::InvalidArgumentError("einsum: an operand is f64, expected f32, bf16, f16, an 8-bit float or an integer"));
}

TEST(EinsumPlan, ErrorsNameTheLetter) {
  const auto error = [](absl::string_view equation, const Shape& lhs, const Shape& rhs) {
    const absl::Status status =
        EinsumPlan::Make(equation, DefaultUnquantizedConfig(), {DType::kF32, lhs}, {DType::kF32, rhs}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(
      error("ab,bc->ac", {2, 3}, {4, 5}),
      "einsum \"ab,bc->ac\": 'b' is 3 in lhs f32[2,3], but 4 in the other operand, f32[4,5]; expected equal, or 1");
  EXPECT_EQ(error("aa,a->a", {2, 3}, {2}),
            "einsum \"aa,a->a\": 'a' is 2 and 3 in lhs f32[2,3]; a repeated letter needs equal extents");
  DotGeneral config = FullyQuantized();
  config.fwd.lhs.quantizer.calibration = std::nullopt;
  const Aval lhs{DType::kF32, {2, 3}}, rhs{DType::kF32, {5, 2}};
  const absl::Status status = EinsumPlan::Make("bc,ab->ac", config, lhs, rhs).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("einsum \"bc,ab->ac\" (as rhs x lhs: sides and passes are exchanged): fwd.rhs"),
            absl::string_view::npos)
      << status;
}

TEST(EinsumPlan, CallsNameWhatDoesNotFit) {
  const Aval lhs{DType::kS8, {2, 3}}, rhs{DType::kF32, {3, 4}};
  const EinsumPlan plan = *EinsumPlan::Make("ab,bc->ac", DefaultUnquantizedConfig(), lhs, rhs);
  const Array a = Array::Zeros(DType::kS8, {2, 3}), b = Array::Zeros(DType::kF32, {3, 4});
  ArrayBuilder out(plan.out_aval()), dlhs(lhs);
  Residuals residuals;
  ASSERT_EQ(plan.Forward(a, b, {}, out.ref(), &residuals), absl::OkStatus());
  EXPECT_EQ(plan.Forward(b, b, {}, out.ref()),
            absl::InvalidArgumentError("einsum: lhs is f32[3,4], but the plan is for s8[2,3]"));
  EXPECT_EQ(plan.Forward(a, b, {}, dlhs.ref()),
            absl::InvalidArgumentError("einsum: out is s8[2,3], but the plan is for f32[2,4]"));
  EXPECT_EQ(plan.Backward(out.ref(), residuals, {}, dlhs.ref(), std::nullopt),
            absl::InvalidArgumentError("einsum: lhs is s8[2,3]: integers have no gradient; do not request one"));
  EXPECT_EQ(plan.Backward(a, residuals, {}, std::nullopt, std::nullopt),
            absl::InvalidArgumentError("einsum: g is s8[2,3], but the plan is for f32[2,4]"));
  const EinsumPlan sum =
      *EinsumPlan::Make("ab,bc->c", DotGeneralMake(8, 8), {DType::kF32, {2, 3}}, {DType::kF32, {3, 4}});
  EXPECT_EQ(
      sum.Prepare(Side::kLhs, QTensor{}).status(),
      absl::InvalidArgumentError("einsum: the equation takes a diagonal, a sum or a broadcast of lhs f32[2,3], which "
                                 "a quantized tensor cannot replace; prepare the float operand"));
}

TEST(EinsumPlan, SwapsAsJaxDoes) {
  struct Case {
    const char* equation;
    bool swapped;
  };
  for (const Case& c : {Case{"ab,bc->ac", false}, Case{"bc,ab->ac", true}, Case{"bnts,bsnh->btnh", true},
                        Case{"bqhd,bkhd->bhqk", false}, Case{"a,b->ab", false}, Case{"a,b->ba", true}}) {
    const EinsumEquation e = Parsed(
        c.equation, static_cast<int64_t>(absl::string_view(c.equation).find(',')),
        static_cast<int64_t>(absl::string_view(c.equation).find('-') - absl::string_view(c.equation).find(',') - 1));
    const auto aval = [](const std::string& names) {
      Shape shape;
      for (size_t i = 0; i < names.size(); ++i) shape.push_back(2);
      return Aval{DType::kF32, shape};
    };
    EXPECT_EQ(EinsumPlan::Make(c.equation, DefaultUnquantizedConfig(), aval(e.lhs), aval(e.rhs))->swapped(), c.swapped)
        << c.equation;
  }
}

// "lhs" of the configuration is the first operand, mid alphas included; the original leaves those where they are.
TEST(EinsumPlan, ConfigurationFollowsTheOperands) {
  DotGeneral config = DotGeneralMake(8, 4);
  config.fwd.lhs_mid_alpha = 0.25;
  config.dlhs = DotGeneralRawMake(7, 6);
  config.drhs = DotGeneralRawMake(5, 3);
  const Aval lhs{DType::kF32, {2, 3}}, rhs{DType::kF32, {5, 2}};
  config.tiling = *DotTilingFromEinsum("bc,ab->ac", {{'b', 1}, {'c', 3}});
  const EinsumPlan plan = *EinsumPlan::Make("bc,ab->ac", config, lhs, rhs);
  ASSERT_TRUE(plan.swapped());
  EXPECT_EQ(plan.dot_general().config(), SwapOperands(config));
  EXPECT_EQ(plan.dot_general().config().fwd.rhs_mid_alpha, 0.25);
  const EinsumPlan original =
      *EinsumPlan::Make("bc,ab->ac", config, lhs, rhs, {.semantics = {.compat = {.einsum_keeps_mid_alphas = true}}});
  EXPECT_EQ(original.dot_general().config().fwd.lhs_mid_alpha, 0.25);
  EXPECT_EQ(SwapOperands(SwapOperands(config)), config);
}

// ---- random equations

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

struct RandomEquation {
  std::string text, lhs, rhs, out;  // one letter per axis, in the generator's own names
  std::map<char, int64_t> extent;
  Shape lhs_shape, rhs_shape, out_shape;
};

// With `plain`, only what DotGeneral itself can do: no broadcast, diagonal or sum.
RandomEquation MakeRandomEquation(std::mt19937_64& engine, bool plain) {
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine); };
  RandomEquation e;
  for (const char letter : absl::string_view("abcdeXYZ")) {
    e.extent[letter] = below(12) == 0 ? (plain ? 3 : below(2)) : 1 + below(4);
  }
  // X, Y and Z are axes that an ellipsis stands for: an operand has the last few of them.
  const int64_t lhs_dots = below(4) - 1, rhs_dots = below(4) - 1;  // -1: no ellipsis
  const bool implicit = !plain && below(5) == 0;
  const auto term = [&](int64_t dots, std::string letters, std::string* names, std::string* text) {
    std::shuffle(letters.begin(), letters.end(), engine);
    const int64_t at = below(static_cast<int64_t>(letters.size()) + 1);
    const std::string spelt = dots > 0 ? std::string("XYZ").substr(3 - dots) : "";
    *names = letters.substr(0, at) + spelt + letters.substr(at);
    *text = letters.substr(0, at) + (dots >= 0 ? "..." : "") + letters.substr(at);
  };
  std::string lhs_letters, rhs_letters, out_letters;
  for (const char letter : absl::string_view("abcde")) {
    const int64_t where = below(5);  // 0, 1: lhs; 2, 3: rhs; 4: both, and others with a chance
    const bool in_lhs = where <= 1 || where == 4, in_rhs = where >= 2;
    if (below(3) == 0) continue;
    if (in_lhs) lhs_letters.append(!plain && below(6) == 0 ? 2 : 1, letter);
    if (in_rhs) rhs_letters.append(!plain && below(6) == 0 ? 2 : 1, letter);
    if (plain && in_lhs != in_rhs ? true : below(2) == 0) out_letters.push_back(letter);
  }
  std::string lhs_text, rhs_text, out_text;
  term(lhs_dots, lhs_letters, &e.lhs, &lhs_text);
  term(rhs_dots, rhs_letters, &e.rhs, &rhs_text);
  const int64_t dots = std::max(lhs_dots, rhs_dots);
  if (implicit) {
    e.out = dots > 0 ? std::string("XYZ").substr(3 - dots) : "";
    for (const char letter : absl::string_view("abcde")) {
      const std::string all = lhs_letters + rhs_letters;
      if (std::count(all.begin(), all.end(), letter) == 1) e.out.push_back(letter);
    }
    e.text = absl::StrCat(lhs_text, ",", rhs_text);
  } else {
    term(plain || below(4) > 0 ? dots : -1, out_letters, &e.out, &out_text);
    e.text = absl::StrCat(lhs_text, ",", rhs_text, "->", out_text);
  }
  const auto shape = [&](const std::string& names, bool may_broadcast) {
    std::map<char, int64_t> extents = e.extent;
    for (auto& [letter, extent] : extents) extent = may_broadcast && below(8) == 0 ? 1 : extent;
    Shape result;
    for (const char letter : names) result.push_back(extents[letter]);
    return result;
  };
  e.lhs_shape = shape(e.lhs, !plain);
  e.rhs_shape = shape(e.rhs, !plain);
  // A letter is as long as its longest axis (an extent other than 1 wins).
  for (auto& [letter, extent] : e.extent) {
    extent = 1;
    for (const auto& [names, s] : {std::pair(e.lhs, e.lhs_shape), std::pair(e.rhs, e.rhs_shape)}) {
      const size_t at = names.find(letter);
      if (at != std::string::npos && s[static_cast<int64_t>(at)] != 1) extent = s[static_cast<int64_t>(at)];
    }
  }
  for (const char letter : e.out) e.out_shape.push_back(e.extent[letter]);
  return e;
}

struct Loops {
  std::vector<double> out, dlhs, drhs;                 // values
  std::vector<double> out_size, dlhs_size, drhs_size;  // the sums of the absolute values
  double terms = 1;                                    // of the longest sum
};

// Everything by one loop over all letters.
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

// Integer sums are exact: the same bits as DotGeneral on operands that were transposed by hand, on each target and for
// each number of threads.
TEST(EinsumProperty, QuantizedEqualsDotGeneralOnTransposedOperands) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), cases = FromEnvironment("AQT_TEST_CASES", 100);
  kernels::ThreadPool pool(3);
  int64_t swaps = 0;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 engine(static_cast<uint64_t>(first_seed + i));
    const RandomEquation e = MakeRandomEquation(engine, true);
    SCOPED_TRACE(
        absl::StrCat("seed ", first_seed + i, ": ", e.text, " ", e.lhs_shape.ToString(), " ", e.rhs_shape.ToString()));
    std::string batch, contract, a_rest, b_rest;
    const auto has = [](const std::string& names, char letter) { return names.find(letter) != std::string::npos; };
    for (const char letter : e.out) {
      if (has(e.lhs, letter) && has(e.rhs, letter)) batch.push_back(letter);
    }
    for (const char letter : e.lhs) {
      if (!has(e.rhs, letter)) a_rest.push_back(letter);
      if (has(e.rhs, letter) && !has(e.out, letter)) contract.push_back(letter);
    }
    for (const char letter : e.rhs) {
      if (!has(e.lhs, letter)) b_rest.push_back(letter);
    }
    const bool swapped = batch + a_rest + b_rest != e.out;
    swaps += swapped;

    DotGeneral config = DotGeneralMake(8, 4, {.bwd_bits = 8});
    config.dlhs = DotGeneralRawMake(6, 8);
    config.drhs = DotGeneralRawMake(8, 5);
    config.dlhs.rhs.use_fwd_quant = i % 3 == 0;
    config.drhs.rhs.use_fwd_quant = i % 2 == 0;
    std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).clip_gradient = i % 4 == 0;
    const DType dtype = i % 5 == 0 ? DType::kBF16 : DType::kF32;
    const Array lhs = RandomArray(dtype, e.lhs_shape, engine()), rhs = RandomArray(dtype, e.rhs_shape, engine());
    const Array g = RandomArray(dtype, e.out_shape, engine());

    // By hand: lhs as batch, rest, contract; rhs as contract, batch, rest.
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
    DotGeneral product_config = config;
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
  const DotGeneral config = DotGeneralMake(8, 8, {.bwd_bits = 8, .use_fwd_quant = false});
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

// Sums are taken before quantization: "ab,bc->c" is "b,bc->c" of the sums.
TEST(EinsumPlan, QuantizesAfterSumsAndDiagonals) {
  const DotGeneral config = DotGeneralMake(8, 8, {.bwd_bits = 8});
  const Array rhs = RandomArray(DType::kF32, {4, 5}, 2), g = RandomArray(DType::kF32, {5}, 3);
  const Array lhs = Array::Of<float>({1, 2, 3, 4, 0.5f, -2, 8, 1}, {2, 4});  // the sums are exact
  const Array sums = Array::Of<float>({1.5f, 0, 11, 5}, {4});
  const DotGeneralGradients got = *QuantizedEinsumWithGradients("ab,bc->c", config, lhs, rhs, g);
  const DotGeneralGradients want = *QuantizedEinsumWithGradients("b,bc->c", config, sums, rhs, g);
  EXPECT_TRUE(BitEqual(got.out, want.out));
  EXPECT_TRUE(BitEqual(got.drhs, want.drhs));
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(got.dlhs.View<float>()[i], want.dlhs.View<float>()[i % 4]);

  const Array square = RandomArray(DType::kF32, {4, 4}, 4);
  ArrayRef diagonal(DType::kF32, {4}, {5}, square.data());
  const DotGeneralGradients of_square = *QuantizedEinsumWithGradients("bb,bc->c", config, square, rhs, g);
  const DotGeneralGradients of_diagonal = *QuantizedEinsumWithGradients("b,bc->c", config, diagonal, rhs, g);
  EXPECT_TRUE(BitEqual(of_square.out, of_diagonal.out));
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(of_square.dlhs.View<float>()[i], i % 5 == 0 ? of_diagonal.dlhs.View<float>()[i / 5] : 0.0f);
  }
}

// The product is in the common dtype, each gradient in the dtype of its operand.
TEST(EinsumPlan, ConvertsOperandsOfDifferentDTypes) {
  const DotGeneral config = DotGeneralMake(8, 8, {.bwd_bits = 8});
  const Array lhs = RandomArray(DType::kBF16, {3, 4}, 1), rhs = RandomArray(DType::kF32, {4, 5}, 2);
  const Array g = RandomArray(DType::kF32, {3, 5}, 3);
  const DotGeneralGradients got = *QuantizedEinsumWithGradients("ab,bc->ac", config, lhs, rhs, g);
  const DotGeneralGradients want = *QuantizedEinsumWithGradients("ab,bc->ac", config, Cast(lhs, DType::kF32), rhs, g);
  EXPECT_TRUE(BitEqual(got.out, want.out));
  EXPECT_TRUE(BitEqual(got.dlhs, Cast(want.dlhs, DType::kBF16)));
  EXPECT_TRUE(BitEqual(got.drhs, want.drhs));
  const Array codes = Array::Of<int8_t>({1, -2, 3, 127}, {2, 2});
  const Array product = *QuantizedEinsum("ab,bc->ac", DefaultUnquantizedConfig(), codes, codes);
  EXPECT_TRUE(BitEqual(product, Array::Of<float>({-5, -256, 384, 16123}, {2, 2})));
}

// A weight's stored tensor keeps the layout of the weight whichever side of the product it becomes.
TEST(EinsumPlan, TakesStoredTensorsInTheLayoutOfTheOperand) {
  const DotGeneral config = DotGeneralMake(8, 4);
  const Array lhs = RandomArray(DType::kF32, {5, 6}, 1), rhs = RandomArray(DType::kF32, {4, 5}, 2);
  const EinsumPlan plan = *EinsumPlan::Make("bc,ab->ac", config, lhs.aval(), rhs.aval());
  const QTensor stored = *Quantize(config.fwd.lhs.quantizer, lhs, {0});
  EXPECT_EQ(stored.scale[0].shape(), (Shape{1, 6}));
  const PreparedOperand prepared = *plan.Prepare(Side::kLhs, stored);
  QTensor scales_only = stored;
  scales_only.qvalue = std::nullopt;
  const PreparedOperand range = *plan.Prepare(Side::kLhs, scales_only);
  const Array want = *QuantizedEinsum("bc,ab->ac", config, lhs, rhs);
  ArrayBuilder out(plan.out_aval()), calibrated(plan.out_aval());
  ASSERT_EQ(plan.Forward(prepared, rhs, {}, out.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(out).Build(), want));
  ASSERT_EQ(plan.Forward(DotOperand(lhs, range), rhs, {}, calibrated.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(calibrated).Build(), want));
}

TEST(EinsumPlan, NothingIsAllocatedAfterTheFirstCall) {
  // Plain; swapped and transposed; with a diagonal, a sum and a broadcast axis.
  const struct {
    const char* equation;
    Shape lhs, rhs, out;
  } cases[] = {{"ab,bc->ac", {4, 6}, {6, 5}, {4, 5}},
               {"bnts,bsnh->btnh", {2, 3, 4, 5}, {2, 5, 3, 6}, {2, 4, 3, 6}},
               {"aabx,bc->ac", {4, 4, 6, 3}, {1, 5}, {4, 5}}};
  for (const auto& c : cases) {
    const Array lhs = RandomArray(DType::kF32, c.lhs, 1), rhs = RandomArray(DType::kBF16, c.rhs, 2);
    const Array g = RandomArray(DType::kF32, c.out, 3);
    const EinsumPlan plan = *EinsumPlan::Make(c.equation, DotGeneralMake(8, 8), lhs.aval(), rhs.aval());
    ArrayBuilder out(plan.out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
    Residuals residuals;
    for (int call = 0; call < 3; ++call) {
      const int64_t before = testing::AllocationCount();
      const bool ok = plan.Forward(lhs, rhs, {}, out.ref(), &residuals).ok() &&
                      plan.Backward(g, residuals, {}, dlhs.ref(), drhs.ref()).ok();
      const int64_t during = testing::AllocationCount() - before;
      ASSERT_TRUE(ok) << c.equation;
      EXPECT_EQ(during > 0, call == 0) << c.equation << " " << during;
    }
  }
}

}  // namespace
}  // namespace aqt
