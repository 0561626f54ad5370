#include "aqt/runtime/packed_product.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/trace.h"
#include "aqt/kernels/contraction.h"
#include "aqt/kernels/gemm/product.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/ops/panel_cache.h"

namespace aqt::internal {
namespace {

using kernels::OperandAxes;

// ---- memory

// Memory for panels that were packed one after the other.
struct PanelBlock {
  static constexpr int64_t kBytes = 16 << 20;
  std::shared_ptr<void> memory = AllocateUninitialized(kBytes);  // in huge pages
  int64_t used = 0;                                              // guarded by the mutex of AllocatePanels
};

// A product of few rows reads each weight once, and with pages of 4 KiB it waits for their addresses. So panels that
// are too small for huge pages of their own share them with those packed before. A block is kept as long as one of its
// panels.
std::shared_ptr<void> AllocatePanels(int64_t bytes) {
  constexpr int64_t kSmall = 64 << 10, kLarge = PanelBlock::kBytes / 4;
  const int64_t size = RoundUp(bytes, 64);
  if (size < kSmall || size >= kLarge) return AllocateUninitialized(bytes);
  static std::mutex& mutex = *new std::mutex;
  static std::weak_ptr<PanelBlock>& latest = *new std::weak_ptr<PanelBlock>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<PanelBlock> block = latest.lock();
  if (block == nullptr || block->used + size > PanelBlock::kBytes) latest = block = std::make_shared<PanelBlock>();
  const int64_t at = block->used;
  block->used += size;
  void* const panels = static_cast<char*>(block->memory.get()) + at;
  return std::shared_ptr<void>(panels, [block = std::move(block), at, size](void*) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (block->used == at + size) block->used = at;
  });
}

// ---- products

// A product of dense arrays, planned.
struct Product {
  DotDims dims;
  Aval lhs, rhs, out;
  OperandAxes a, b;
  const kernels::GemmKernel* kernel = nullptr;
  kernels::GemmProblem problem;  // without data

  // That of dot_general; null if it has none.
  static std::shared_ptr<const Product> Of(const DotDims& dims, const Aval& lhs, const Aval& rhs, const Aval& out) {
    const auto takes = [](DType dtype) {
      return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
    };
    const bool fits = !kernels::HasTooManyAxes(lhs.shape) && !kernels::HasTooManyAxes(rhs.shape);
    if (!takes(lhs.dtype) || !takes(rhs.dtype) || !takes(out.dtype) || !fits) return nullptr;
    if (out.shape.num_elements() == 0 || rhs.shape.num_elements() == 0) return nullptr;
    Product product;
    product.dims = dims;
    product.lhs = lhs;
    product.rhs = rhs;
    product.out = out;
    product.a = kernels::OperandAxesOf(dims, Side::kLhs, lhs.shape.rank());
    product.b = kernels::OperandAxesOf(dims, Side::kRhs, rhs.shape.rank());
    const int64_t m = kernels::Extent(lhs.shape, product.a.rows);
    const kernels::GemmTypes types{.sums = kernels::GemmSums::kF32,
                                   .lhs = kernels::NarrowestElement(lhs.dtype),
                                   .rhs = kernels::NarrowestElement(rhs.dtype),
                                   .rhs_is_packed_ahead = true};
    product.kernel = &kernels::ChooseGemm(types, kernels::BestTarget(), m);
    product.problem = kernels::GemmProblem::Dense(kernels::Extent(lhs.shape, product.a.batch), m,
                                                  kernels::Extent(rhs.shape, product.b.rows),
                                                  kernels::Extent(lhs.shape, product.a.k), out.dtype, nullptr);
    product.problem.lhs = kernels::OperandOf(ArrayRef(lhs.dtype, lhs.shape, nullptr), product.a);
    product.problem.rhs = kernels::OperandOf(ArrayRef(rhs.dtype, rhs.shape, nullptr), product.b);
    return std::make_shared<const Product>(std::move(product));
  }

  int64_t LhsBytes() const { return problem.batch * kernel->lhs.PackedBytes(problem.m, problem.k); }
  int64_t PanelBytes() const { return problem.batch * kernel->rhs.PackedBytes(problem.n, problem.k); }
  Aval panels() const { return {DType::kU8, {PanelBytes()}}; }
  // Everything that the panels depend on besides rhs.
  std::string Form() const {
    const kernels::PanelFormat& format = kernel->rhs;
    const auto axes = [](const Axes& list) { return absl::StrJoin(list, ","); };
    return absl::StrCat("product, layout ", static_cast<int>(format.layout), ", element ",
                        static_cast<int>(format.element), ", width ", format.width, ", group ", format.k_group,
                        ", axes [", axes(b.batch), "][", axes(b.rows), "][", axes(b.k), "]");
  }
};

absl::Status Expect(absl::Span<const Aval> got, absl::Span<const Aval> want) {
  if (got == want) return absl::OkStatus();
  const auto text = [](std::string* to, const Aval& aval) { to->append(aval.ToString()); };
  return absl::InvalidArgumentError(absl::StrCat("the operands are ", absl::StrJoin(got, ", ", text), ", expected ",
                                                 absl::StrJoin(want, ", ", text)));
}

class PackRhsOp : public CompositeBase {
 public:
  explicit PackRhsOp(std::shared_ptr<const Product> product) : product_(std::move(product)) {}
  std::string Name() const override { return "pack_rhs"; }
  std::string Attributes() const override { return product_->Form(); }
  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (absl::Status status = Expect(in, {product_->rhs}); !status.ok()) return status;
    return std::vector<Aval>{product_->panels()};
  }
  // All programs of the process share one packed form of an array.
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    absl::StatusOr<Array> panels = PanelCache::OfProcess().Get(in, product_->Form(), [&]() -> absl::StatusOr<Array> {
      std::shared_ptr<void> memory = AllocatePanels(product_->PanelBytes());
      kernels::Operand rhs = product_->problem.rhs;
      rhs.data = in[0].data();
      kernels::Pack(product_->kernel->target, product_->kernel->rhs, rhs, memory.get(), CurrentExecutor());
      return Array(product_->panels(), std::move(memory));
    });
    if (!panels.ok()) return panels.status();
    return std::vector<Array>{*std::move(panels)};
  }

 private:
  const std::shared_ptr<const Product> product_;
};

class PackedProductOp : public CompositeBase {
 public:
  explicit PackedProductOp(std::shared_ptr<const Product> product) : product_(std::move(product)) {}
  std::string Name() const override { return "packed_dot_general"; }
  std::string Attributes() const override { return product_->dims.ToString(); }
  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (absl::Status status = Expect(in, {product_->lhs, product_->panels()}); !status.ok()) return status;
    return std::vector<Aval>{product_->out};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput>, absl::Span<const bool>) const override {
    return OpKernel{.run =
                        [product = product_](const KernelCall& call) {
                          kernels::GemmProblem problem = product->problem;
                          problem.lhs.data = call.in[0];
                          problem.out.data = call.out[0];
                          problem.epilogue.block = call.block;
                          kernels::PackAndMultiply(*product->kernel, problem, {.rhs = call.in[1]},
                                                   {.lhs = call.scratch}, call.executor);
                          return absl::OkStatus();
                        },
                    .scratch_bytes = product_->LhsBytes(),
                    .has_blocks = true};
  }

 private:
  const std::shared_ptr<const Product> product_;
};

}  // namespace

std::optional<std::vector<Value>> BindPackedProduct(const Op& op, absl::Span<const Value> operands,
                                                    absl::Span<const bool> is_fixed, const SourceLine& where) {
  const auto* const dot = std::get_if<DotGeneralOp>(&op);
  if (dot == nullptr || is_fixed[0] || !is_fixed[1]) return std::nullopt;
  const Aval out{dot->out, DotOutputShape(dot->dims, operands[0].shape(), operands[1].shape())};
  const std::shared_ptr<const Product> product = Product::Of(dot->dims, operands[0].aval(), operands[1].aval(), out);
  if (product == nullptr) return std::nullopt;
  const std::vector<Value> panels = Bind(CompositeOp{std::make_shared<PackRhsOp>(product)}, {operands[1]}, where);
  return Bind(CompositeOp{std::make_shared<PackedProductOp>(product)}, {operands[0], panels[0]}, where);
}

}  // namespace aqt::internal
