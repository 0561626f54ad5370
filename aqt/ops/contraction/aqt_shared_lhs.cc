// Products that quantize one array in the same way read it from one equation, aqt_quantize_pack.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/trace.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/ops/contraction/aqt_dot_ops.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/ops/output_places.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/tensor/quantize_spec.h"

namespace aqt::internal {
namespace {

using Impl = AqtDot::Impl;

// Whether a call of the plan quantizes lhs into panels by nothing but lhs.
bool PacksLhsAlone(const Impl& dot) {
  const ProductPlan& plan = dot.engine().forward();
  const Contraction& contraction = plan.contraction;
  const bool fuses = plan.fuses && plan.packs_as_quantized && !plan.tiled.has_value() && !plan.sums_tiles() &&
                     plan.geometry.groups == Groups::kNone && !contraction.windows.has_value();
  if (!fuses || contraction.on_digits() || contraction.exchanges_operands || !plan.lhs_panels.has_value()) return false;
  const SidePlan& lhs = plan.lhs;
  return contraction.gemm->lhs == contraction.gemm_of_packed_rhs->lhs && lhs.is_quantized() && lhs.PacksDirectly() &&
         lhs.scales_output() && !lhs.draws() && !lhs.has_state();
}

// Whether two such plans give one lhs the same panels and scales.
bool QuantizeLhsAlike(const Impl& a, const Impl& b) {
  const ProductPlan &plan = a.engine().forward(), &other = b.engine().forward();
  return plan.lhs.config == other.lhs.config && plan.lhs_panels == other.lhs_panels &&
         plan.lhs.row_scales == other.lhs.row_scales && plan.lhs.spec->scale_dtype == other.lhs.spec->scale_dtype &&
         plan.lhs.spec->scale_shape == other.lhs.spec->scale_shape && plan.target == other.target &&
         a.semantics() == b.semantics();
}

// aqt_quantize_pack: (x) -> the panels of lhs, its scale. The contraction PacksLhsAlone.
class QuantizePackOp : public DotOp {
 public:
  explicit QuantizePackOp(std::shared_ptr<const Impl> dot) : dot_(std::move(dot)) {}

  std::string Name() const override { return "aqt_quantize_pack"; }
  std::string Attributes() const override { return absl::StrCat("lhs of ", dot_->name, ", ", dot_->attributes); }
  const Impl& dot() const override { return *dot_; }
  int num_outputs() const override { return 2; }
  bool has_expansion() const override { return false; }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 1) return absl::InvalidArgumentError(absl::StrCat("takes 1 operand, got ", in.size()));
    AQT_RETURN_IF_ERROR(ExpectAval("the operand", in[0], dot_->aval(Side::kLhs)));
    const QuantizeSpec& spec = *own().spec;
    return std::vector<Aval>{{DType::kU8, {*dot_->engine().PanelBytesOf(Side::kLhs)}},
                             {spec.scale_dtype, spec.scale_shape}};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    AQT_ASSIGN_OR_RETURN(const std::vector<Aval> outputs, Infer(AvalsOf(in)));
    const int64_t rows =
        kernels::Extent(own().x.shape, own().axes.batch) * kernels::Extent(own().x.shape, own().axes.rows);
    const OutputPlaces places(outputs, needed, RotatedBytes() + rows * static_cast<int64_t>(sizeof(float)));
    OpKernel kernel;
    kernel.scratch_bytes = places.scratch_bytes();
    kernel.run = [op = QuantizePackOp(dot_), places](const KernelCall& call) {
      op.Run(places, call);
      return absl::OkStatus();
    };
    return kernel;
  }

 private:
  const SidePlan& own() const { return dot_->engine().forward().lhs; }
  int64_t RotatedBytes() const { return own().hadamard_block == 0 ? 0 : RoundUp(own().x.num_bytes(), 64); }

  // Scratch: the rotated rows, if there are any, and the scales by row.
  void Run(const OutputPlaces& places, const KernelCall& call) const {
    const QuantizeSpec& spec = *own().spec;
    const kernels::GemmKernel& gemm = *dot_->engine().forward().contraction.gemm;
    float* const scales = reinterpret_cast<float*>(static_cast<char*>(call.scratch) + RotatedBytes());
    kernels::QuantizeArgs args;
    args.src = kernels::OperandOf(ArrayRef(own().x.dtype, own().x.shape, call.in[0]), own().axes);
    args.step = *own().step;
    args.step.scale_dtype = spec.scale_dtype;
    args.step.product_dtype = Promote(own().x.dtype, spec.scale_dtype);
    args.hadamard_block = own().hadamard_block;
    if (own().hadamard_block != 0) args.rotated = call.scratch;
    args.scales = own().row_scales == FusedScales::kSingle ? kernels::QuantizeArgs::Scales::kSingle
                                                           : kernels::QuantizeArgs::Scales::kPerRow;
    args.scale = scales;
    args.panels = places.memory(0, call);
    CountPack(Side::kLhs, CurrentRuntime());
    kernels::QuantizePack(
        gemm.target, gemm.lhs, args,
        [&](float* absmax, int64_t n) { ScalesFromAbsMax(spec, dot_->semantics(), absmax, n); }, call.executor);
    ScatterScales(scales, own().axes, places.At(1, call));
  }

  std::shared_ptr<const Impl> dot_;
};

// Products that quantize one array alike.
struct SharedLhs {
  std::shared_ptr<const Impl> dot;  // of the first one
  int products = 0;
  std::vector<Value> packed;  // panels and scale, once they are bound
};

}  // namespace
}  // namespace aqt::internal

namespace aqt {

absl::StatusOr<Program> WithSharedOperands(const Program& program) {
  std::vector<internal::SharedLhs> groups;
  absl::flat_hash_map<VarId, std::vector<size_t>> of_lhs;  // positions in `groups`
  absl::flat_hash_map<VarId, size_t> of_product;           // by the variable of the product
  for (const Equation& eqn : program.eqns) {
    std::shared_ptr<const AqtDot::Impl> dot = internal::DotOfFloatLhs(eqn.op);
    if (dot == nullptr || !internal::PacksLhsAlone(*dot)) continue;
    std::vector<size_t>& known = of_lhs[eqn.in[0]];
    const auto same = std::find_if(known.begin(), known.end(),
                                   [&](size_t group) { return internal::QuantizeLhsAlike(*groups[group].dot, *dot); });
    const size_t group = same == known.end() ? groups.size() : *same;
    if (same == known.end()) {
      known.push_back(group);
      groups.push_back({std::move(dot), 0, {}});
    }
    ++groups[group].products;
    of_product.emplace(eqn.out[0], group);
  }
  return Rewrite(program,
                 [&](const Equation& eqn, absl::Span<const Value> operands) -> absl::StatusOr<std::vector<Value>> {
                   const auto it = of_product.find(eqn.out[0]);
                   if (it == of_product.end() || groups[it->second].products < 2) return BindAgain(eqn, operands);
                   std::vector<Value>& packed = groups[it->second].packed;
                   if (packed.empty()) {
                     const CompositeOp pack{std::make_shared<internal::QuantizePackOp>(groups[it->second].dot)};
                     packed = Bind(pack, operands.first(1), eqn.where);
                   }
                   return internal::BindWithLhs(eqn.op, packed, operands.subspan(1), eqn.where);
                 });
}

}  // namespace aqt
