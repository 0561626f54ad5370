#include "aqt/quant/tensor/gptq.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using testing::FailsWith;
using testing::RandomArray;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using LongMatrix = Eigen::Matrix<long double, Eigen::Dynamic, Eigen::Dynamic>;
using LongVector = Eigen::Matrix<long double, Eigen::Dynamic, 1>;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

Matrix ToMatrix(const Array& x) {
  const Array doubles = Cast(x, DType::kF64);
  return Eigen::Map<const Matrix>(doubles.View<double>().data(), x.shape()[0], x.shape()[1]);
}

Array ToArray(const Matrix& m) {
  return Array::FromSpan<double>(absl::MakeConstSpan(m.data(), m.size()), {m.rows(), m.cols()});
}

// Symmetric, positive definite, with eigenvalues from 1 down to 1 / condition.
Array RandomHessian(int64_t n, double condition, uint64_t seed) {
  testing::Random random(seed);
  const Matrix x = Matrix::NullaryExpr(n, n, [&] { return random.Uniform(-1, 1); });
  const Matrix q = Eigen::HouseholderQR<Matrix>(x).householderQ();
  Eigen::VectorXd eigenvalues(n);
  for (int64_t i = 0; i < n; ++i) eigenvalues[i] = std::pow(condition, -static_cast<double>(i) / (n - 1));
  const Matrix h = q * eigenvalues.asDiagonal() * q.transpose();
  return ToArray((h + h.transpose()) / 2);
}

Array Eye(int64_t n) { return ToArray(Matrix::Identity(n, n)); }

GptqResult Gptq(const Quantizer& quantizer, const Array& w, const Array& hessian, const GptqOptions& options = {}) {
  absl::StatusOr<GptqResult> result = GptqQuantize(quantizer, w, {1}, hessian, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : GptqResult();
}

QTensor Nearest(const Quantizer& quantizer, const Array& w, const TilingState* tiling = nullptr) {
  return *Quantize(quantizer, w, {1}, {}, {}, tiling);
}

TilingState Groups(const Array& w, int64_t size) {
  return *TilingState::Make(w.shape(), {{.axis = 1, .tile_size = size}});
}

// The diagonal of (w - dequantized) H (w - dequantized)^T: the error of each row.
Eigen::VectorXd RowErrors(const Array& w, const QTensor& q, const Array& hessian) {
  const Matrix e = ToMatrix(w) - ToMatrix(*q.Dequantize());
  return (e * ToMatrix(hessian)).cwiseProduct(e).rowwise().sum();
}

void ExpectSame(const QTensor& a, const QTensor& b) {
  EXPECT_TRUE(BitEqual(*a.qvalue, *b.qvalue));
  ASSERT_EQ(a.scale.size(), b.scale.size());
  for (size_t i = 0; i < a.scale.size(); ++i) EXPECT_TRUE(BitEqual(a.scale[i], b.scale[i]));
  EXPECT_EQ(a.dequant_dtype, b.dequant_dtype);
  EXPECT_EQ(a.tiling_state, b.tiling_state);
}

TEST(GptqQuantize, NoRowIsWorseThanPlainRounding) {
  double log_ratio = 0, pure_log_ratio = 0;
  int64_t kept = 0, rows = 0;
  for (int seed = 0; seed < 20; ++seed) {
    const double condition = std::pow(10.0, 1 + 4.0 * seed / 19);
    const Array w = RandomArray({DType::kF32, {24, 32}}, seed), h = RandomHessian(32, condition, 100 + seed);
    const TilingState groups = Groups(w, 8);
    const Quantizer quantizer = QuantizerMake(std::vector{2, 3, 4, 8}[seed % 4]);
    GptqOptions options{.act_order = seed % 3 == 0, .tiling = seed % 2 == 0 ? &groups : nullptr};
    const GptqResult result = Gptq(quantizer, w, h, options);
    const QTensor nearest = Nearest(quantizer, w, options.tiling);
    const Eigen::VectorXd errors = RowErrors(w, result.weight, h), nearest_errors = RowErrors(w, nearest, h);
    for (int64_t r = 0; r < 24; ++r) EXPECT_LE(errors[r], nearest_errors[r]) << "row " << r << " of " << seed;
    // Sums of 32 * 32 * 24 positive and negative products of f64; the quadratic forms are well away from 0.
    EXPECT_NEAR(result.error, errors.sum(), 1e-9 * nearest_errors.sum());
    EXPECT_NEAR(result.nearest_error, nearest_errors.sum(), 1e-9 * nearest_errors.sum());
    log_ratio += std::log(result.error / result.nearest_error) / 20;
    kept += result.rows_kept_nearest;
    rows += result.rows;

    options.keep_nearest_where_better = false;
    const GptqResult pure = Gptq(quantizer, w, h, options);
    EXPECT_EQ(pure.rows_kept_nearest, 0);
    EXPECT_GE(pure.error, result.error);
    pure_log_ratio += std::log(pure.error / pure.nearest_error) / 20;
  }
  EXPECT_EQ(rows, 20 * 24);
  // GPTQ helps, not the guard.
  EXPECT_LT(std::exp(pure_log_ratio), 0.8);
  EXPECT_LE(log_ratio, pure_log_ratio);
  EXPECT_LT(kept, rows / 4);
}

// Without correlations there is nothing to compensate for.
TEST(GptqQuantize, AnIdentityHessianGivesPlainRounding) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Array w = RandomArray({dtype, {70, 24}}, 3);
    const TilingState groups = Groups(w, 6);
    for (const Bits bits : {Bits(1), Bits(2), Bits(4), Bits(8), Bits(12), Bits::E4M3()}) {
      for (const bool act_order : {false, true}) {
        for (const TilingState* tiling : {static_cast<const TilingState*>(nullptr), &groups}) {
          const GptqResult result =
              Gptq(QuantizerMake(bits), w, Eye(24),
                   {.act_order = act_order, .keep_nearest_where_better = false, .tiling = tiling});
          ExpectSame(result.weight, Nearest(QuantizerMake(bits), w, tiling));
          EXPECT_EQ(result.error, result.nearest_error);
        }
      }
    }
  }
}

// The slow obvious form: given the rounding of the features before j, the best real values of the others solve a linear
// system, and feature j must have been rounded from its value there. No inverse is updated, no factor taken, and errors
// do not accumulate from one feature to the next.
TEST(GptqQuantize, EachFeatureIsRoundedFromItsBestValue) {
  constexpr int64_t kN = 20, kRows = 6;
  for (int seed = 0; seed < 12; ++seed) {
    const double condition = std::pow(10.0, 1 + 4.0 * seed / 11), percdamp = seed % 2 == 0 ? 0.01 : 0.0;
    const Array w = RandomArray({DType::kF32, {kRows, kN}}, 40 + seed),
                hessian = RandomHessian(kN, condition, 60 + seed);
    const Quantizer quantizer = QuantizerMake(std::vector{3, 4, 8}[seed % 3]);
    const auto& integer = std::get<IntSymmetric>(quantizer.numerics);
    const double largest = std::ldexp(1.0, integer.bits - 1) - 1;
    const GptqResult result = Gptq(quantizer, w, hessian, {.percdamp = percdamp, .keep_nearest_where_better = false});
    LongMatrix d = ToMatrix(hessian).cast<long double>();
    d.diagonal().array() += percdamp * d.diagonal().mean();
    const Matrix q = ToMatrix(*result.weight.qvalue), dequantized = ToMatrix(*result.weight.Dequantize());
    const Matrix weights = ToMatrix(w), scales = ToMatrix(result.weight.scale[0]);
    int64_t moved = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      const LongVector e = (weights.row(r) - dequantized.row(r)).transpose().cast<long double>();
      for (int64_t j = 0; j < kN; ++j) {
        // The minimum over x of the quadratic form at (e[0..j), x): x = -D_FF^-1 D_FS e_S, and feature j is w_j - x_0.
        const int64_t left = kN - j;
        LongVector x = LongVector::Zero(left);
        if (j > 0) x = -d.bottomRightCorner(left, left).ldlt().solve(d.bottomLeftCorner(left, j) * e.head(j));
        const double best = weights(r, j) - static_cast<double>(x[0]), y = best / scales(r, 0);
        const double clipped = std::min(std::max(y, -largest), largest);
        // f32 roundings of the value, of 1 / scale and of their product give 3 * 2^-24 relative, plus second-order
        // terms within 2^-24. In f64 the solution's condition is at most that of D; kN^2 roundings of 2^-53 each, times
        // 8 for the constants of factorization, inversion and substitution.
        const double bound = 4 * 0x1p-24 * std::abs(y) +
                             8 * kN * kN * condition * 0x1p-53 * static_cast<double>(e.norm()) / scales(r, 0);
        EXPECT_LE(std::abs(q(r, j) - clipped), 0.5 + bound) << "seed " << seed << ", row " << r << ", feature " << j;
        EXPECT_LT(bound, 0.01);
        moved += std::nearbyint(clipped) !=
                 std::nearbyint(std::min(std::max(weights(r, j) / scales(r, 0), -largest), largest));
      }
    }
    EXPECT_GT(moved, kRows) << "too few features would tell GPTQ from plain rounding";
  }
}

TEST(GptqQuantize, ActOrderIsThatOfThePermutedProblem) {
  const Array w = RandomArray({DType::kF32, {5, 12}}, 7);
  Matrix h = ToMatrix(RandomHessian(12, 100, 8));
  Eigen::VectorXd size(12);
  for (int i = 0; i < 12; ++i) size[i] = 1 + (5 * i) % 12;  // all different
  h = (size.asDiagonal() * h * size.asDiagonal()).eval();
  std::vector<int64_t> order(12);
  for (int i = 0; i < 12; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return h(a, a) > h(b, b); });
  Matrix permuted_h(12, 12), permuted_w(5, 12);
  for (int i = 0; i < 12; ++i) {
    permuted_w.col(i) = ToMatrix(w).col(order[i]);
    for (int j = 0; j < 12; ++j) permuted_h(i, j) = h(order[i], order[j]);
  }
  GptqOptions options{.keep_nearest_where_better = false};
  const GptqResult want = Gptq(QuantizerMake(4), Cast(ToArray(permuted_w), DType::kF32), ToArray(permuted_h), options);
  options.act_order = true;
  const GptqResult got = Gptq(QuantizerMake(4), w, ToArray(h), options);
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(ToMatrix(*got.weight.qvalue).col(order[i]), ToMatrix(*want.weight.qvalue).col(i));
}

// Moving the axes of a kernel and moving them back has no effect.
TEST(GptqQuantize, AnyPlaceOfTheFeatures) {
  const Array w = RandomArray({DType::kF32, {10, 24}}, 11), h = RandomHessian(24, 1e3, 12);
  const Quantizer quantizer = QuantizerMake(4);
  const Matrix want = ToMatrix(*Gptq(quantizer, w, h).weight.qvalue), weights = ToMatrix(w);
  const Array transposed = Cast(ToArray(weights.transpose()), DType::kF32);
  const absl::StatusOr<GptqResult> kernel = GptqQuantize(quantizer, transposed, {-2}, h);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_EQ(ToMatrix(*kernel->weight.qvalue), want.transpose());
  EXPECT_EQ(kernel->weight.scale[0].shape(), (Shape{1, 10}));

  // [b, o, p, a] with features (a, b) in this order: 4 x 6, rows (o, p): 5 x 2.
  ArrayBuilder four(DType::kF32, {6, 5, 2, 4});
  for (int b = 0; b < 6; ++b) {
    for (int row = 0; row < 10; ++row) {
      for (int a = 0; a < 4; ++a)
        four.Mutable<float>()[(b * 10 + row) * 4 + a] = static_cast<float>(weights(row, a * 6 + b));
    }
  }
  const absl::StatusOr<GptqResult> result = GptqQuantize(quantizer, four.ref(), {3, 0}, h);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->weight.qvalue->shape(), (Shape{6, 5, 2, 4}));
  EXPECT_EQ(result->weight.scale[0].shape(), (Shape{1, 5, 2, 1}));
  EXPECT_EQ(result->rows, 10);
  const Array q = Cast(*result->weight.qvalue, DType::kF64);
  for (int b = 0; b < 6; ++b) {
    for (int row = 0; row < 10; ++row) {
      for (int a = 0; a < 4; ++a) EXPECT_EQ(q.View<double>()[(b * 10 + row) * 4 + a], want(row, a * 6 + b));
    }
  }
}

TEST(GptqQuantize, ThreadsGiveTheSameBits) {
  const Array w = RandomArray({DType::kF32, {200, 96}}, 21), x = RandomArray({DType::kF32, {300, 96}}, 22);
  const absl::StatusOr<HessianState> one = UpdateHessian(HessianState::Zeros(96), x, {1});
  ASSERT_TRUE(one.ok());
  const GptqResult want = Gptq(QuantizerMake(4), w, *one->Hessian());
  for (const int threads : {2, 7}) {
    kernels::ThreadPool pool(threads);
    const absl::StatusOr<HessianState> many = UpdateHessian(HessianState::Zeros(96), x, {1}, &pool);
    ASSERT_TRUE(many.ok());
    EXPECT_TRUE(BitEqual(many->sum, one->sum));
    const absl::StatusOr<GptqResult> got = GptqQuantize(QuantizerMake(4), w, {1}, *many->Hessian(), {}, {}, &pool);
    ASSERT_TRUE(got.ok());
    ExpectSame(got->weight, want.weight);
    EXPECT_EQ(got->error, want.error);
    EXPECT_EQ(got->rows_kept_nearest, want.rows_kept_nearest);
  }
}

TEST(GptqQuantize, AFeatureWithoutInputsIsRoundedToNearest) {
  const Array w = RandomArray({DType::kF32, {9, 16}}, 31);
  Matrix h = ToMatrix(RandomHessian(16, 100, 32));
  h.row(5).setZero();
  h.col(5).setZero();
  const GptqResult result = Gptq(QuantizerMake(4), w, ToArray(h), {.keep_nearest_where_better = false});
  const QTensor nearest = Nearest(QuantizerMake(4), w);
  EXPECT_EQ(ToMatrix(*result.weight.qvalue).col(5), ToMatrix(*nearest.qvalue).col(5));
  EXPECT_NE(ToMatrix(*result.weight.qvalue), ToMatrix(*nearest.qvalue));
}

TEST(GptqQuantize, NoElements) {
  const GptqResult no_rows = Gptq(QuantizerMake(8), Array::Zeros(DType::kF32, {0, 4}), Eye(4));
  EXPECT_EQ(no_rows.weight.qvalue->shape(), (Shape{0, 4}));
  const GptqResult no_features =
      Gptq(QuantizerMake(8), Array::Zeros(DType::kF32, {3, 0}), Array::Zeros(DType::kF64, {0, 0}));
  EXPECT_EQ(no_features.weight.qvalue->shape(), (Shape{3, 0}));
  EXPECT_EQ(no_features.error, 0);
  const GptqResult one = Gptq(QuantizerMake(8), Array::Of<float>({0.3f}, {1, 1}), Eye(1));
  ExpectSame(one.weight, Nearest(QuantizerMake(8), Array::Of<float>({0.3f}, {1, 1})));
}

TEST(GptqQuantize, Errors) {
  const Array w = RandomArray({DType::kF32, {3, 4}}, 1);
  const auto with = [](Array array, int64_t at, double value) {
    Matrix m = ToMatrix(array);
    m.data()[at] = value;
    return Cast(ToArray(m), array.dtype());
  };
  const auto quantize = [&](const Quantizer& quantizer, const Array& weight, const Array& h, GptqOptions options = {}) {
    return GptqQuantize(quantizer, weight, {1}, h, options);
  };
  const Quantizer int4 = QuantizerMake(4);
  EXPECT_THAT(quantize({}, w, Eye(4)), FailsWith(kInvalid, {"GptqQuantize: the quantizer has no numerics"}));
  Quantizer bad = int4;
  std::get<IntSymmetric>(bad.numerics).noise = Noise{};
  EXPECT_THAT(quantize(bad, w, Eye(4)), FailsWith(kInvalid, {"int4", "rounds stochastically"}));
  bad = int4;
  bad.calibration = Constant{.bound = 1.0, .bias = 0.5};
  EXPECT_THAT(quantize(bad, w, Eye(4)), FailsWith(kInvalid, {"has a bias"}));
  bad.calibration.reset();
  EXPECT_THAT(quantize(bad, w, Eye(4)), FailsWith(kInvalid, {"needs a calibration"}));
  EXPECT_THAT(quantize(int4, Array::Zeros(DType::kS8, {3, 4}), Eye(4)),
              FailsWith(kInvalid, {"the weight has dtype s8, expected f32, bf16 or f16"}));
  EXPECT_THAT(GptqQuantize(int4, w, {}, Eye(4)), FailsWith(kInvalid, {"no contracting axes"}));
  EXPECT_THAT(GptqQuantize(int4, w, {2}, Eye(4)), FailsWith(kInvalid, {"axis 2 is out of range for rank 2"}));
  EXPECT_THAT(quantize(int4, w, Eye(5)), FailsWith(kInvalid, {"the Hessian is f64[5,5], expected f64 or f32 [4,4]"}));
  EXPECT_THAT(quantize(int4, w, Array::Zeros(DType::kF64, {4})), FailsWith(kInvalid, {"the Hessian is f64[4]"}));
  EXPECT_THAT(quantize(int4, w, Cast(Eye(4), DType::kBF16)), FailsWith(kInvalid, {"the Hessian is bf16[4,4]"}));
  EXPECT_THAT(quantize(int4, w, with(Eye(4), 6, std::nan(""))),
              FailsWith(kInvalid, {"the Hessian holds nan (row 1, feature 2)"}));
  EXPECT_THAT(quantize(int4, w, with(Eye(4), 6, 0.5)), FailsWith(kInvalid, {"not symmetric: [2,1] = 0, [1,2] = 0.5"}));
  EXPECT_THAT(quantize(int4, with(w, 7, std::numeric_limits<double>::infinity()), Eye(4)),
              FailsWith(kInvalid, {"the weight holds inf (row 1, feature 3)"}));
  EXPECT_THAT(quantize(int4, w, Array::Zeros(DType::kF64, {4, 4})),
              FailsWith(kInvalid,
                        {"percdamp = 0.01 (0 added", "not positive definite at feature 3", "more calibration inputs"}));
  EXPECT_THAT(quantize(int4, w, with(Eye(4), 5, -3)),
              FailsWith(kInvalid, {"not positive definite at feature 1", "is -3"}));
  for (const double percdamp : {-0.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(quantize(int4, w, Eye(4), {.percdamp = percdamp}),
                FailsWith(kInvalid, {"percdamp", "expected a number >= 0"}));
  }
  // With fewer inputs than features, damping decides.
  const absl::StatusOr<HessianState> thin =
      UpdateHessian(HessianState::Zeros(4), Array::Of<float>({1, 2, 3, 4}, {1, 4}), {1});
  ASSERT_TRUE(thin.ok());
  EXPECT_THAT(quantize(int4, w, *thin->Hessian(), {.percdamp = 0}),
              FailsWith(kInvalid, {"not positive definite", "larger percdamp"}));
  EXPECT_TRUE(quantize(int4, w, *thin->Hessian()).ok());
}

TEST(UpdateHessian, ByHandAndInAnySplit) {
  const Array x = Array::Of<float>({1, 2, 3, -4, 0.5f, 0}, {3, 2});
  absl::StatusOr<HessianState> state = UpdateHessian(HessianState::Zeros(2), x, {1});
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->count, 3);
  EXPECT_EQ(ToMatrix(state->sum), (Matrix{{10.25, -10}, {-10, 20}}));
  EXPECT_EQ(ToMatrix(*state->Hessian()), (Matrix{{2 * 10.25 / 3, 2 * -10.0 / 3}, {2 * -10.0 / 3, 2 * 20.0 / 3}}));

  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Array all = RandomArray({dtype, {40, 3, 5}}, 3);  // axes (5, 3) are the features
    const absl::StatusOr<HessianState> whole = UpdateHessian(HessianState::Zeros(15), all, {-1, 1});
    ASSERT_TRUE(whole.ok());
    HessianState parts = HessianState::Zeros(15);
    for (const auto& [first, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 7}, {7, 0}, {7, 32}, {39, 1}}) {
      const ArrayRef part(dtype, {n, 3, 5}, static_cast<const char*>(all.data()) + first * 15 * SizeOf(dtype));
      parts = *UpdateHessian(parts, part, {-1, 1});
    }
    EXPECT_TRUE(BitEqual(parts.sum, whole->sum));
    EXPECT_EQ(parts.count, 40);
    EXPECT_EQ(ToMatrix(whole->sum), ToMatrix(whole->sum).transpose());
    // The order of the features: the first of the axes is the slowest.
    const Array doubles = Cast(all, DType::kF64);
    double want = 0;
    for (int i = 0; i < 40; ++i)
      want += doubles.View<double>()[i * 15 + 2 * 5 + 4] * doubles.View<double>()[i * 15 + 1];
    EXPECT_EQ(ToMatrix(whole->sum)(4 * 3 + 2, 1 * 3 + 0), want);
  }
}

TEST(UpdateHessian, Errors) {
  const HessianState state = HessianState::Zeros(4);
  EXPECT_THAT(state.Hessian(), FailsWith(absl::StatusCode::kFailedPrecondition, {"no inputs were seen"}));
  const auto update = [&](const Array& x) { return UpdateHessian(state, x, {-1}); };
  EXPECT_THAT(update(Array::Zeros(DType::kF32, {2, 5})),
              FailsWith(kInvalid, {"x f32[2,5] has 5 features", "f64[4,4]"}));
  EXPECT_THAT(update(Array::Zeros(DType::kS8, {2, 4})), FailsWith(kInvalid, {"x has dtype s8"}));
  EXPECT_THAT(update(Array::Of<float>({0, 0, 0, 0, 0, std::nanf(""), 0, 0}, {2, 4})),
              FailsWith(kInvalid, {"x holds nan (row 1, feature 1)"}));
  EXPECT_THAT(UpdateHessian(state, Array::Zeros(DType::kF32, {4, 4}), {0, 0}),
              FailsWith(kInvalid, {"UpdateHessian: contracting axes: axis 0 is named twice"}));
  EXPECT_THAT(UpdateHessian({.sum = Array::Zeros(DType::kF32, {4, 4})}, Array::Zeros(DType::kF32, {1, 4}), {1}),
              FailsWith(kInvalid, {"the state is f32[4,4]"}));
}

}  // namespace
}  // namespace aqt
