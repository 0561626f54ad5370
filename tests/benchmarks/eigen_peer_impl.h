// Compiled once for each instruction set. The flags rename the namespace Eigen (-DEigen=...), so that the linker keeps
// their templates apart. For the same reason no other header is included.
#include <Eigen/Core>

#include "tests/benchmarks/matmul.h"

namespace aqt::benchmarks {

void AQT_EIGEN_MATMUL(const MatMul& s, const float* a, const float* b, float* c, int threads) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Map = Eigen::Map<const Matrix>;
  Eigen::setNbThreads(threads);
  Eigen::Map<Matrix> out(c, s.m, s.n);
  const Map lhs(a, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k);
  const Map rhs(b, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n);
  if (s.transpose_a && s.transpose_b) {
    out.noalias() = lhs.transpose() * rhs.transpose();
  } else if (s.transpose_a) {
    out.noalias() = lhs.transpose() * rhs;
  } else if (s.transpose_b) {
    out.noalias() = lhs * rhs.transpose();
  } else {
    out.noalias() = lhs * rhs;
  }
}

}  // namespace aqt::benchmarks
