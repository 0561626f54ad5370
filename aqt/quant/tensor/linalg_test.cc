#include "aqt/quant/tensor/linalg.h"

#include <Eigen/Dense>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "aqt/core/machine/thread_pool.h"
#include "aqt/testing/random.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A symmetric matrix with eigenvalues of at least `shift`.
Matrix PositiveDefinite(int64_t n, double shift, uint64_t seed) {
  testing::Random random(seed);
  const Matrix x = Matrix::NullaryExpr(n, n, [&] { return random.Uniform(-1, 1); });
  Matrix a = x * x.transpose();
  a = (a + a.transpose()).eval() / 2;
  a.diagonal().array() += shift;
  return a;
}

TEST(DotTest, OrderIsAsDocumented) {
  testing::Random random(1);
  for (int64_t n = 0; n <= 37; ++n) {
    std::vector<double> a(n), b(n), s(8);
    for (int64_t i = 0; i < n; ++i) {
      a[i] = random.Uniform(-1, 1);
      b[i] = random.Uniform(-1, 1);
      volatile const double product = a[i] * b[i];  // rounded, whatever the compiler flags of this file
      s[i % 8] += product;
    }
    for (const int step : {4, 2, 1}) {
      for (int j = 0; j < step; ++j) s[j] += s[j + step];
    }
    EXPECT_EQ(Dot(a.data(), b.data(), n), s[0]) << n;
  }
}

// |L L^T - A| <= (n + 1) u |L| |L^T| / (1 - (n + 1) u) for Cholesky with any order of summation (Higham, Accuracy and
// Stability of Numerical Algorithms, theorem 10.3), and |L X - I| <= n u |L| |X| / (1 - n u) column by column for
// substitution (theorem 8.5); u = 2^-53. The products computed here also round, by at most the same amount.
TEST(CholeskyLowerTest, IsWithinTheBackwardErrorBound) {
  constexpr double kU = 0x1p-53;
  for (const int64_t n : {1, 2, 3, 7, 8, 63, 64, 65, 130}) {
    const Matrix a = PositiveDefinite(n, 0.1, n);
    Matrix l = a;
    l.triangularView<Eigen::StrictlyUpper>().setConstant(7);
    ASSERT_EQ(CholeskyLower(n, l.data(), nullptr), -1);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i + 1; j < n; ++j) ASSERT_EQ(l(i, j), 7) << "nothing above the diagonal is written";
    }
    Matrix inverse = Matrix::Constant(n, n, 7);
    InvertLower(n, l.data(), inverse.data(), nullptr);
    l = Matrix(l.triangularView<Eigen::Lower>());
    EXPECT_TRUE(inverse.isLowerTriangular(0));
    const Matrix abs_l = l.cwiseAbs();
    const double bound = 2.02 * (n + 1) * kU;
    EXPECT_TRUE(((l * l.transpose() - a).cwiseAbs().array() <= bound * (abs_l * abs_l.transpose()).array()).all()) << n;
    EXPECT_TRUE(
        ((l * inverse - Matrix::Identity(n, n)).cwiseAbs().array() <= bound * (abs_l * inverse.cwiseAbs()).array())
            .all())
        << n;
  }
}

TEST(CholeskyLowerTest, ThreadsGiveTheSameBits) {
  const int64_t n = 200;
  const Matrix a = PositiveDefinite(n, 0.1, 5);
  Matrix one = a, one_inverse(n, n);
  ASSERT_EQ(CholeskyLower(n, one.data(), nullptr), -1);
  InvertLower(n, one.data(), one_inverse.data(), nullptr);
  for (const int threads : {2, 7}) {
    ThreadPool pool(threads);
    Matrix many = a, many_inverse(n, n);
    ASSERT_EQ(CholeskyLower(n, many.data(), &pool), -1);
    InvertLower(n, many.data(), many_inverse.data(), &pool);
    EXPECT_EQ(many, one);
    EXPECT_EQ(many_inverse, one_inverse);
  }
}

TEST(CholeskyLowerTest, NamesTheRowThatIsNotPositiveDefinite) {
  Matrix a = PositiveDefinite(100, 0.1, 6);
  EXPECT_EQ(CholeskyLower(0, nullptr, nullptr), -1);
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    Matrix copy = a;
    copy(70, 70) = bad;
    EXPECT_EQ(CholeskyLower(100, copy.data(), nullptr), 70) << bad;
  }
}

}  // namespace
}  // namespace aqt::kernels
