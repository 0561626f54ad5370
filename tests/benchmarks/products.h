#ifndef TESTS_BENCHMARKS_PRODUCTS_H_
#define TESTS_BENCHMARKS_PRODUCTS_H_

// Matrix products for the benchmarks: shapes, operands, and the rows of float products, ours and peers', which are the
// reference of the quantized ones.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {

// x [m, k] times w [k, n], or a batch of them.
struct Product {
  int64_t batch = 1, m = 1, k = 1, n = 1;

  // "512x1024x4096" (m, k, n) or "16x128x64x128" (batch, m, k, n). InvalidArgument for other text.
  static absl::StatusOr<Product> Parse(const std::string& text);
  std::string name() const;
  Aval x(DType dtype = DType::kF32) const;
  Aval w(DType dtype = DType::kF32) const;
  Aval out(DType dtype = DType::kF32) const;
  DotDims dims() const;
  double ops() const { return 2.0 * static_cast<double>(batch * m * k) * static_cast<double>(n); }
};

// The operands of a product, and a gradient of its output. They are made on first use, shared by all rows of a shape,
// and freed with the last row.
class Operands {
 public:
  explicit Operands(const Product& product) : product_(product) {}
  const Product& product() const { return product_; }
  // Between -0.5 and 0.5; for s8 all integers.
  Array x(DType dtype = DType::kF32) { return Get(0, product_.x(dtype)); }
  Array w(DType dtype = DType::kF32) { return Get(1, product_.w(dtype)); }
  Array g(DType dtype = DType::kF32) { return Get(2, product_.out(dtype)); }

 private:
  Array Get(int which, const Aval& aval);
  const Product product_;
  std::map<std::pair<int, DType>, Array> arrays_;
};
using OperandsPtr = std::shared_ptr<Operands>;

// The timed function, and the owner of its data.
using Call = std::function<void()>;

// out = x . w by a DotGeneralPlan of this configuration, with the weights prepared beforehand or not.
absl::StatusOr<Call> PlanForward(const DotGeneralConfig& config, OperandsPtr data, bool prepared, Executor* executor,
                                 DType dtype = DType::kF32);

// Rows of family "forward": class "product" (plain arrays) and class "packed" (weights packed beforehand), in f32 by
// us, Eigen and oneDNN.
void AddF32Products(OperandsPtr data, std::vector<Row>& rows);

// A peer's product of x and w, with or without packing; oneDNN's packs once. Unavailable without oneDNN.
absl::StatusOr<Call> OneDnnProduct(OperandsPtr data, DType dtype, DType out, bool packed);

// The three f32 products of a training step by a peer: out = x w, dx = g w^T, dw = x^T g. Only those asked for.
absl::StatusOr<Call> EigenProducts(OperandsPtr data, bool forward, bool gradients, Executor* executor);
absl::StatusOr<Call> OneDnnProducts(OperandsPtr data, bool forward, bool gradients);

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_PRODUCTS_H_
