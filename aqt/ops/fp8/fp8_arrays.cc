#include "aqt/ops/fp8/fp8_arrays.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/panel_format.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/small_floats/quantize_fp8.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/contraction/engine/contract.h"
#include "aqt/quant/contraction/engine/workspace.h"

namespace aqt::internal {
namespace {

// Elements per part of a tensor: in f32 a part fits a core's cache for the second read.
constexpr int64_t kPart = int64_t{1} << 15;

// A longer history is a mistake, or someone else's file.
constexpr int64_t kMaxHistory = int64_t{1} << 20;

bool Computes(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

// max, or NaN if either is NaN.
float MaxOrNan(float a, float b) { return std::isnan(a) || a > b ? a : b; }

float Rounded(float v, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return ToFloat(RoundToBFloat16(v));
    case DType::kF16: return ToFloat(RoundToFloat16(v));
    default: return v;
  }
}

// Whether dividing by `scale` equals multiplying by its inverse.
bool IsPowerOfTwo(float scale) {
  int exponent;
  return scale >= 0x1p-126f && scale <= 0x1p126f && std::frexp(scale, &exponent) == 0.5f;
}

// Elements [start, start + count) as one row.
kernels::FloatMatrix RowOf(const ArrayRef& x, int64_t start, int64_t count) {
  const char* const data = static_cast<const char*>(x.data) + start * SizeOf(x.dtype);
  return {.data = data, .dtype = x.dtype, .rows = 1, .cols = count, .row_stride = count, .col_stride = 1};
}

// Calls body(part, first element, count) for each part and returns the largest result.
template <class F>
float MaxOverParts(int64_t elements, Executor* executor, const F& body) {
  const int64_t parts = CeilDiv(elements, kPart);
  std::vector<float> largest(static_cast<size_t>(parts), 0.0f);
  InlineExecutor own;
  (executor != nullptr && parts > 1 ? *executor : own).ParallelFor(parts, [&](int64_t part) {
    const int64_t start = part * kPart;
    largest[static_cast<size_t>(part)] = body(start, std::min(kPart, elements - start));
  });
  float result = 0;
  for (const float own_largest : largest) result = MaxOrNan(own_largest, result);
  return result;
}

Value MultiplyDequantized(const Value& lhs, const Value& lhs_scale, const Value& rhs, const Value& rhs_scale,
                          const DotDims& dims, DType dtype) {
  return ops::DotGeneral(ops::Fp8Dequantize(lhs, lhs_scale, dtype), ops::Fp8Dequantize(rhs, rhs_scale, dtype), dims);
}

Contraction ContractionOf(const DotDims& dims, const Aval& lhs, const Aval& rhs) {
  return MakeContraction(dims, lhs, rhs, DType::kF32, kernels::BestTarget());
}
Contraction ForwardContraction(int64_t rows, const Shape& kernel) {
  return ContractionOf(Fp8ForwardDims(), {DType::kE4M3FN, {rows, kernel[0]}}, {DType::kE4M3FN, kernel});
}

}  // namespace

float NextFp8Scale(float amax, float previous, double fp8_max, int margin, const Fp8Compat& compat) {
  if (std::isnan(amax)) return compat.nan_amax_flips_scale ? 1.0f / previous : previous;
  if (amax < 0x1p-126f) return compat.all_zero_amax_flips_scale ? 1.0f / previous : previous;
  if (std::isinf(amax)) return compat.nan_amax_flips_scale ? 1.0f / (1.0f / previous) : previous;
  const float ratio = static_cast<float>(fp8_max) / amax;
  // Infinite if amax is tiny.
  const int exponent = std::isinf(ratio) ? 256 - margin : std::ilogb(ratio) - margin;
  if (compat.tiny_scale_is_zero && std::abs(exponent) > 126) {
    return exponent > 0 ? 0.0f : std::numeric_limits<float>::infinity();
  }
  return std::ldexp(1.0f, -std::clamp(exponent, -126, 126));
}

void UpdateFp8State(float amax, const Fp8State& state, const Fp8ScaleRule& rule, float* next_scale,
                    float* next_history) {
  const absl::Span<const float> old = state.amax_history;
  std::rotate_copy(old.begin(), old.begin() + 1, old.end(), next_history);
  next_history[0] = amax;
  float largest = 0;
  for (size_t i = 0; i < old.size(); ++i) largest = MaxOrNan(next_history[i], largest);
  *next_scale = NextFp8Scale(largest, state.scale, MaxFinite(rule.dtype), rule.margin, rule.compat);
}

float Fp8AmaxOf(const ArrayRef& x, Executor* executor) {
  return MaxOverParts(x.shape.num_elements(), executor,
                      [&](int64_t start, int64_t count) { return kernels::AbsMaxAll(RowOf(x, start, count)); });
}

absl::StatusOr<float> QuantizeToFp8(const ArrayRef& x, float scale, DType dtype, std::optional<DType> compute_dtype,
                                    bool with_amax, void* codes, Executor* executor) {
  const DType computes = compute_dtype.value_or(x.dtype);
  const float divisor = Rounded(scale, computes);
  const bool product_is_known = computes == x.dtype || computes == DType::kF32;
  if (!product_is_known || !IsPowerOfTwo(divisor)) {
    const SuspendTrace suspend;
    const Value value(Array::Unowned(x.aval(), x.data)), own_scale(Array::Scalar(scale));
    AQT_ASSIGN_OR_RETURN(const Array made, QuantizeToFp8(value, own_scale, dtype, compute_dtype).ToArray());
    AQT_RETURN_IF_ERROR(CopyArray(made, MutableArrayRef(dtype, x.shape, codes)));
    return with_amax ? Fp8AmaxOf(x, executor) : 0.0f;
  }
  const float inverse = 1.0f / divisor;
  uint8_t* const out = static_cast<uint8_t*>(codes);
  return MaxOverParts(x.shape.num_elements(), executor, [&](int64_t start, int64_t count) {
    const kernels::FloatMatrix row = RowOf(x, start, count);
    const float largest = with_amax ? kernels::AbsMaxAll(row) : 0.0f;
    kernels::QuantizeFp8({.x = row,
                          .product_dtype = computes,
                          .grid = {.scale = &inverse},
                          .q_dtype = dtype,
                          .q = out + start,
                          .q_row_stride = count});
    return largest;
  });
}

Value QuantizeToFp8(const Value& x, const Value& scale, DType dtype, std::optional<DType> compute_dtype) {
  const DType computes = compute_dtype.value_or(x.dtype());
  const Value divided = ops::Cast(x, computes) / ops::Cast(ops::Reshape(scale, {}), computes);
  const double max = MaxFinite(dtype);
  return ops::Cast(ops::Clamp(-max, divided, max), dtype);
}

namespace {

int64_t ScratchBytesOf(const Contraction& contraction, const Aval& lhs, const Aval& rhs) {
  SlotSizes sizes;
  AddContractScaledSlots(contraction, lhs, rhs, /*has_lhs_scale=*/true, sizes);
  return sizes.Total();
}

}  // namespace

Fp8Product::Fp8Product(const Aval& lhs, const Aval& rhs, const DotDims& dims, DType dtype)
    : lhs_(lhs),
      rhs_(rhs),
      out_{dtype, DotOutputShape(dims, lhs.shape, rhs.shape)},
      contraction_(ContractionOf(dims, lhs, rhs)),
      scratch_bytes_(ScratchBytesOf(contraction_, lhs, rhs)) {}

absl::Status Fp8Product::Run(const Operand& lhs, const Operand& rhs, void* out, void* scratch, Executor* executor,
                             const void* rhs_panels) const {
  if (out_.shape.num_elements() == 0) return absl::OkStatus();
  const MutableArrayRef result(out_.dtype, out_.shape, out);
  const float left = Rounded(lhs.scale, out_.dtype), right = Rounded(rhs.scale, out_.dtype);
  if (!IsPowerOfTwo(left) || !IsPowerOfTwo(right)) {
    const SuspendTrace suspend;
    const auto value = [](const Aval& aval, const void* data) { return Value(Array::Unowned(aval, data)); };
    AQT_ASSIGN_OR_RETURN(
        const Array product,
        MultiplyDequantized(value(lhs_, lhs.codes), Value(Array::Scalar(lhs.scale)), value(rhs_, rhs.codes),
                            Value(Array::Scalar(rhs.scale)), contraction_.dims, out_.dtype)
            .ToArray());
    return CopyArray(product, result);
  }
  Scratch memory(scratch, scratch_bytes_);
  Workspace workspace(memory);
  ContractScaled(contraction_, ArrayRef(lhs_.dtype, lhs_.shape, lhs.codes), ArrayRef(rhs_.dtype, rhs_.shape, rhs.codes),
                 {.lhs_scale = &left, .rhs_scale = &right, .lhs_stride = 0, .rhs_stride = 0}, result, workspace,
                 {.executor = executor}, {.lhs = nullptr, .rhs = rhs_panels});
  return absl::OkStatus();
}

Value MultiplyFp8(const Value& lhs, const Value& lhs_scale, const Value& rhs, const Value& rhs_scale,
                  const DotDims& dims, DType dtype) {
  const auto rounded = [&](const Value& scale) {
    return ops::Cast(ops::Cast(ops::Reshape(scale, {}), dtype), DType::kF32);
  };
  const auto is_power_of_two = [](const Value& scale) {
    const Value in_range = ops::And(ops::GreaterEqual(scale, 0x1p-126), ops::LessEqual(scale, 0x1p126));
    return ops::And(in_range, ops::Equal(scale, ops::ReducePrecision(scale, 8, 0)));
  };
  const Value left = rounded(lhs_scale), right = rounded(rhs_scale);
  const Value sum = ops::DotGeneral(ops::Cast(lhs, DType::kBF16), ops::Cast(rhs, DType::kBF16), dims, DType::kF32);
  return ops::Select(ops::And(is_power_of_two(left), is_power_of_two(right)), ops::Cast(sum * left * right, dtype),
                     MultiplyDequantized(lhs, lhs_scale, rhs, rhs_scale, dims, dtype));
}

const DotDims& Fp8ForwardDims() {
  static const DotDims& dims = *new DotDims{.lhs_contracting = {1}, .rhs_contracting = {0}};
  return dims;
}

Fp8Panels Fp8PanelsOf(const Shape& x, const Shape& kernel) {
  const Contraction contraction = ForwardContraction(x[0], kernel);
  const kernels::PanelFormat& f = PackedFormat(contraction, Side::kRhs);
  return {.rows = x[0],
          .bytes = PackedBytes(contraction, Side::kRhs, kernel, contraction.rhs),
          .format = absl::StrCat("layout ", static_cast<int>(f.layout), ", element ", static_cast<int>(f.element),
                                 ", width ", f.width, ", group ", f.k_group)};
}

Array PackFp8(const Array& codes, const Fp8Panels& panels) {
  const Contraction contraction = ForwardContraction(panels.rows, codes.shape());
  return Array(Aval{DType::kU8, {panels.bytes}}, PackAhead(contraction, Side::kRhs, codes, contraction.rhs,
                                                           /*group_scales=*/nullptr, {.executor = CurrentExecutor()}));
}

absl::Status CheckFp8DType(DType dtype) {
  if (dtype == DType::kE4M3FN || dtype == DType::kE5M2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("quantizes to ", ToString(dtype), ", expected e4m3fn or e5m2"));
}

absl::Status CheckFp8ComputeDType(std::optional<DType> compute_dtype) {
  if (Computes(compute_dtype.value_or(DType::kF32))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("compute_dtype is ", ToString(*compute_dtype), ", expected f32, bf16 or f16"));
}

absl::Status CheckFp8Computes(absl::string_view name, const Aval& x, std::optional<DType> compute_dtype) {
  if (Computes(x.dtype)) return CheckFp8ComputeDType(compute_dtype);
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", x.ToString(), ", expected f32, bf16 or f16"));
}

absl::Status CheckFp8Scale(absl::string_view name, const Aval& scale) {
  if (scale.dtype == DType::kF32 && scale.shape.num_elements() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", scale.ToString(), ", expected one f32 number"));
}

absl::Status CheckFp8History(absl::string_view name, const Aval& history) {
  const bool is_row = history.dtype == DType::kF32 && history.shape.rank() == 1;
  if (is_row && history.shape[0] >= 1 && history.shape[0] <= kMaxHistory) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", history.ToString(), ", expected f32[length] with a length of 1 to ", kMaxHistory));
}

absl::Status CheckFp8Margin(int margin) {
  if (margin >= -64 && margin <= 64) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("margin = ", margin, ", expected -64 to 64"));
}

std::string Fp8CompatText(const Fp8Compat& compat) {
  const std::pair<bool, const char*> fields[] = {{compat.all_zero_amax_flips_scale, "all_zero_amax_flips_scale"},
                                                 {compat.nan_amax_flips_scale, "nan_amax_flips_scale"},
                                                 {compat.tiny_scale_is_zero, "tiny_scale_is_zero"}};
  std::string text;
  for (const auto& [is_set, name] : fields) {
    if (is_set) absl::StrAppend(&text, text.empty() ? ", compat=" : "+", name);
  }
  return text;
}

}  // namespace aqt::internal
