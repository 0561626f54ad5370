#include "aqt/ops/fp8/fp8_packed_dot.h"

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/fp8/fp8_arrays.h"
#include "aqt/ops/fp8/fp8_dot_fields.h"
#include "aqt/ops/fp8/fp8_scaling.h"
#include "aqt/ops/output_places.h"
#include "aqt/ops/panel_cache.h"

namespace aqt {
namespace {

using internal::PanelCache;

constexpr DType kCodes = DType::kE4M3FN;

// (kernel, its scale) -> codes, panels, for an x and a kernel of these avals.
class PackOp : public CompositeBase {
 public:
  PackOp(Aval x, Aval kernel, std::optional<DType> compute_dtype)
      : kernel_(std::move(kernel)),
        compute_dtype_(compute_dtype),
        panels_(internal::Fp8PanelsOf(x.shape, kernel_.shape)) {}

  std::string Name() const override { return "fp8_pack"; }
  std::string Attributes() const override { return panels_.format; }
  int num_outputs() const override { return 2; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 2 || in[0] != kernel_) {
      return absl::InvalidArgumentError(absl::StrCat("packs a kernel ", kernel_.ToString(), " and its scale"));
    }
    AQT_RETURN_IF_ERROR(internal::CheckFp8Scale("the scale", in[1]));
    return std::vector<Aval>{{kCodes, kernel_.shape}, {DType::kU8, {panels_.bytes}}};
  }
  // All programs of the process share one packed form of an array.
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    const auto quantize = [&]() -> absl::StatusOr<Array> {
      ArrayBuilder codes = ArrayBuilder::ForOverwrite({kCodes, kernel_.shape});
      AQT_RETURN_IF_ERROR(internal::QuantizeToFp8(in[0], in[1].View<float>()[0], kCodes, compute_dtype_,
                                                  /*with_amax=*/false, codes.data(), CurrentExecutor())
                              .status());
      return std::move(codes).Build();
    };
    const DType computes = compute_dtype_.value_or(in[0].dtype());
    const std::string form = absl::StrCat("fp8 codes of ", ToString(in[0].dtype()), " by ", ToString(computes));
    AQT_ASSIGN_OR_RETURN(Array codes, PanelCache::OfProcess().Get(in, form, quantize));
    const auto pack = [&]() -> absl::StatusOr<Array> { return internal::PackFp8(codes, panels_); };
    AQT_ASSIGN_OR_RETURN(Array panels, PanelCache::OfProcess().Get({codes}, panels_.format, pack));
    return std::vector<Array>{std::move(codes), std::move(panels)};
  }
  bool has_expansion() const override { return false; }

 private:
  const Aval kernel_;
  const std::optional<DType> compute_dtype_;
  const internal::Fp8Panels panels_;
};

// (x, codes, panels, the scales of x and of the kernel) -> y
class PackedDotOp : public CompositeBase {
 public:
  enum Operand { kX, kK, kPanels, kXScale, kKScale, kCount };

  PackedDotOp(std::string name, Aval y, std::optional<DType> compute_dtype)
      : name_(std::move(name)), y_(std::move(y)), compute_dtype_(compute_dtype) {}

  std::string Name() const override { return "fp8_packed_dot"; }
  std::string Attributes() const override {
    return compute_dtype_.has_value() ? absl::StrCat("compute=", ToString(*compute_dtype_)) : "";
  }
  std::optional<std::string> instance_name() const override { return name_; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != kCount || in[kX].dtype != y_.dtype || in[kK].dtype != kCodes || in[kPanels].dtype != DType::kU8) {
      return absl::InvalidArgumentError("takes x, codes, panels and two scales");
    }
    for (const Operand scale : {kXScale, kKScale}) {
      AQT_RETURN_IF_ERROR(internal::CheckFp8Scale("the scale of an operand", in[scale]));
    }
    return std::vector<Aval>{y_};
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    return {internal::MultiplyFp8(ops::Fp8Quantize(in[kX], in[kXScale], kCodes, compute_dtype_), in[kXScale], in[kK],
                                  in[kKScale], internal::Fp8ForwardDims(), y_.dtype)};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    const Aval x = in[kX].aval, codes{kCodes, x.shape};
    const internal::Fp8Product product(codes, in[kK].aval, internal::Fp8ForwardDims(), y_.dtype);
    const internal::OutputPlaces places({y_, codes}, {needed[0], false}, product.scratch_bytes());
    const auto run = [=, compute_dtype = compute_dtype_](const KernelCall& call) -> absl::Status {
      const auto number = [&](Operand operand) { return *static_cast<const float*>(call.in[operand]); };
      void* const x_codes = places.memory(1, call);
      AQT_RETURN_IF_ERROR(internal::QuantizeToFp8(ArrayRef(x.dtype, x.shape, call.in[kX]), number(kXScale), kCodes,
                                                  compute_dtype, /*with_amax=*/false, x_codes, call.executor)
                              .status());
      return product.Run({x_codes, number(kXScale)}, {call.in[kK], number(kKScale)}, places.memory(0, call),
                         call.scratch, call.executor, call.in[kPanels]);
    };
    return OpKernel{.run = run, .scratch_bytes = places.scratch_bytes()};
  }
  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> in) const override {
    const absl::Status status =
        absl::UnimplementedError("is packed for serving and has no gradient; differentiate before it is prepared");
    return {.outputs = {Refuse(status, Name(), in, std::source_location::current())}, .residuals = {}};
  }

 private:
  const std::string name_;
  const Aval y_;
  const std::optional<DType> compute_dtype_;
};

}  // namespace

std::optional<std::vector<Value>> BindPackedFp8Dot(const Op& op, absl::Span<const Value> operands,
                                                   absl::Span<const bool> is_fixed, const SourceLine& where) {
  const auto forward = FieldsOf<internal::Fp8ForwardFields>(op);
  if (!forward.has_value() || forward->with_gradient) return std::nullopt;
  // x, kernel, then scale and history of x, of the kernel and of the gradient.
  constexpr int kX = 0, kKernel = 1, kXScale = 2, kKernelScale = 4;
  const Value &x = operands[kX], &kernel = operands[kKernel];
  const bool is_empty = x.aval().shape.num_elements() == 0 || kernel.aval().shape.num_elements() == 0;
  if (!is_fixed[kKernel] || !is_fixed[kKernelScale] || is_fixed[kX] || is_empty) return std::nullopt;
  const std::optional<DType> compute_dtype = forward->options.compute_dtype;
  const std::vector<Value> packed = Bind(CompositeOp{std::make_shared<PackOp>(x.aval(), kernel.aval(), compute_dtype)},
                                         {kernel, operands[kKernelScale]}, where);
  const Aval y{x.dtype(), {x.dim(0), kernel.dim(1)}};
  return Bind(CompositeOp{std::make_shared<PackedDotOp>(forward->options.name, y, compute_dtype)},
              {x, packed[0], packed[1], operands[kXScale], operands[kKernelScale]}, where);
}

}  // namespace aqt
