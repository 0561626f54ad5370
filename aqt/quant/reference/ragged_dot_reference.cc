#include "aqt/quant/reference/ragged_dot_reference.h"

#include <iterator>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/digits/reference.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/reference/gradient_reference.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

std::vector<double> Values(const ArrayRef& x) {
  const Array wide = Cast(x, DType::kF64);
  return std::vector<double>(wide.View<double>().begin(), wide.View<double>().end());
}

float Round(DType dtype, float v) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Arith<T>::Round(v); });
}
float Times(DType dtype, float a, double b) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Mul<T>(a, static_cast<float>(b)); });
}

struct QuantizedOperand {
  QTensor qtensor;
  Array in_product, dequantized;
  std::vector<double> values, scale;  // of in_product; empty scale: not applied to the result
  DType scale_dtype = DType::kF32;
};

absl::StatusOr<QuantizedOperand> QuantizeOperand(const TensorConfig& tensor, const ArrayRef& x, const Axes& axes,
                                                 std::optional<Key> key, const Context& context,
                                                 const Semantics& semantics) {
  QuantizedOperand operand;
  if (!IsQuantized(tensor.quantizer.numerics)) {
    operand.in_product = Array::CopyOf(x);
  } else {
    Context own = context;
    own.key = key;
    AQT_ASSIGN_OR_RETURN(operand.qtensor, Quantize(tensor.quantizer, x, axes, own, semantics));
    const bool fake = tensor.dequant_mode == DequantMode::kThisInput;
    AQT_ASSIGN_OR_RETURN(const Array dequantized, operand.qtensor.Dequantize());
    operand.in_product = fake ? dequantized : *operand.qtensor.qvalue;
    if (!fake) {
      operand.scale = Values(operand.qtensor.scale[0]);
      operand.scale_dtype = operand.qtensor.scale[0].dtype();
    }
  }
  operand.values = Values(operand.in_product);
  return operand;
}

// One element of a product: a sum of terms, then the scales of both sides.
class Element {
 public:
  // `digits`: a float lhs is multiplied with an integer rhs on digits.
  Element(const DotGeneralRawConfig& raw, DType dtype, const QuantizedOperand& a, const QuantizedOperand& b,
          bool digits = false)
      : dtype_(dtype), a_(a), b_(b), exact_(raw.dg_accumulator_dtype == DType::kS32) {
    const DType l = a.in_product.dtype(), r = b.in_product.dtype();
    accumulator_ = raw.dg_accumulator_dtype.value_or(Larger(l, r));
    converts_ = !exact_ && (l != r || (l == DType::kF16 && accumulator_ == DType::kBF16));
    const auto is_float = [](DType d) { return d == DType::kF32 || d == DType::kBF16 || d == DType::kF16; };
    digits_ = digits && is_float(l) && IsByteInteger(r) && is_float(accumulator_);
    to_bf16_first_ = l == DType::kBF16 && r == DType::kBF16 && accumulator_ == DType::kF16;
  }
  void Add(int64_t a, int64_t b) {
    if (digits_) {
      floats_.push_back(InProduct(a_, a));
      integers_.push_back(static_cast<int8_t>(b_.values[b]));
    } else if (exact_) {
      sum_ += a_.values[a] * b_.values[b];
    } else {
      const float product = InProduct(a_, a) * InProduct(b_, b);
      sum_ = static_cast<float>(sum_) + product;
    }
  }
  double Finish(int64_t a_scale, int64_t b_scale) const {
    float y = static_cast<float>(sum_);
    if (digits_) {
      y = kernels::ReferenceDigitSum({.bits = BitWidth(b_.in_product.dtype()), .n = 1, .k = std::ssize(floats_)},
                                     floats_, integers_, {});
    }
    if (!exact_) {
      y = FlushSubnormal(y);
      if (to_bf16_first_) y = Round(DType::kBF16, y);
      if (accumulator_ == DType::kE4M3FN || accumulator_ == DType::kE5M2) y = Round(DType::kF16, y);
      y = To(accumulator_, y);
    }
    y = Round(dtype_, y);
    DType wide = dtype_;
    for (const auto& [operand, index] : {std::pair(&a_, a_scale), std::pair(&b_, b_scale)}) {
      if (operand->scale.empty()) continue;
      wide = internal::Promote(wide, operand->scale_dtype);
      y = Times(wide, y, operand->scale[operand->scale.size() == 1 ? 0 : index]);
    }
    return Round(dtype_, y);
  }

 private:
  // The dtype of a product without an accumulator: the one with the higher rank.
  static DType Larger(DType a, DType b) {
    const auto place = [](DType dtype) {
      switch (dtype) {
        case DType::kF32: return 8;
        case DType::kBF16: return 7;
        case DType::kF16: return 6;
        case DType::kE5M2: return 5;
        case DType::kE4M3FN: return 4;
        case DType::kS32: return 3;
        case DType::kS8: return 2;
        case DType::kS4: return 1;
        default: return 0;  // s2
      }
    };
    return place(a) > place(b) ? a : b;
  }
  static float To(DType dtype, float v) {
    return VisitDType(dtype, [&]<class T>() { return ConvertElement<float>(ConvertElement<T>(v)); });
  }
  float InProduct(const QuantizedOperand& x, int64_t i) const {
    float v = static_cast<float>(x.values[i]);
    if (converts_) v = To(accumulator_, v);
    const DType dtype = converts_ ? accumulator_ : x.in_product.dtype();
    return dtype == DType::kF32 || dtype == DType::kBF16 ? FlushSubnormal(v) : v;
  }

  const DType dtype_;
  const QuantizedOperand &a_, &b_;
  const bool exact_;
  DType accumulator_;
  bool converts_ = false, to_bf16_first_ = false;
  bool digits_ = false;
  double sum_ = 0;
  std::vector<float> floats_;
  std::vector<int8_t> integers_;
};

// By row; -1 of the last rows, which are in no group.
std::vector<int64_t> GroupOfRows(int64_t rows, absl::Span<const int64_t> group_sizes) {
  std::vector<int64_t> group_of(rows, -1);
  int64_t next = 0;
  for (size_t i = 0; i < group_sizes.size(); ++i) {
    for (int64_t j = 0; j < group_sizes[i] && next < rows; ++j) group_of[next++] = static_cast<int64_t>(i);
  }
  return group_of;
}

}  // namespace

absl::StatusOr<DotGeneralGradients> ReferenceRaggedDotWithGradients(const DotGeneralConfig& config, const ArrayRef& lhs,
                                                                    const ArrayRef& rhs, const ArrayRef& g,
                                                                    absl::Span<const int64_t> group_sizes,
                                                                    const Context& context,
                                                                    const Semantics& semantics) {
  const int64_t m = lhs.shape[0], k = lhs.shape[1], groups = rhs.shape[0], n = rhs.shape[2];
  const DType dtype = lhs.dtype;
  OperandKeys keys;
  if (context.key.has_value()) keys = SplitContextKey(*context.key, semantics.prng_layout);
  AQT_ASSIGN_OR_RETURN(const QuantizedOperand l,
                       QuantizeOperand(config.fwd.lhs, lhs, {1}, keys.fwd_lhs, context, semantics));
  AQT_ASSIGN_OR_RETURN(const QuantizedOperand r,
                       QuantizeOperand(config.fwd.rhs, rhs, {0, 1}, keys.fwd_rhs, context, semantics));

  // The inputs of the backward passes: g, multiplied by the forward scale of the saved operand if its qvalues are used.
  Array dlhs_g = Array::CopyOf(g), drhs_g = dlhs_g, saved_rhs = Array::CopyOf(rhs), saved_lhs = Array::CopyOf(lhs);
  const auto scaled = [&](const QuantizedOperand& operand, bool per_row) {
    std::vector<float> values;
    const std::vector<double> from = Values(g), scale = Values(operand.qtensor.scale[0]);
    for (int64_t i = 0; i < m * n; ++i) {
      const double s = scale[scale.size() == 1 ? 0 : per_row ? i / n : i % n];
      values.push_back(Times(dtype, static_cast<float>(from[i]), Round(dtype, static_cast<float>(s))));
    }
    return Cast(ArrayRef(values.data(), g.shape), dtype);
  };
  if (config.dlhs.rhs.use_fwd_quant) {
    dlhs_g = scaled(r, false);
    saved_rhs = Cast(*r.qtensor.qvalue, dtype);
  }
  if (config.drhs.rhs.use_fwd_quant) {
    drhs_g = scaled(l, true);
    saved_lhs = Cast(*l.qtensor.qvalue, dtype);
  }
  AQT_ASSIGN_OR_RETURN(const QuantizedOperand dl_g,
                       QuantizeOperand(config.dlhs.lhs, dlhs_g, {1}, keys.dlhs_lhs, context, semantics));
  AQT_ASSIGN_OR_RETURN(const QuantizedOperand dl_y,
                       QuantizeOperand(config.dlhs.rhs, saved_rhs, {0, 2}, keys.dlhs_rhs, context, semantics));
  AQT_ASSIGN_OR_RETURN(const QuantizedOperand dr_g,
                       QuantizeOperand(config.drhs.lhs, drhs_g, {0}, keys.drhs_lhs, context, semantics));
  AQT_ASSIGN_OR_RETURN(const QuantizedOperand dr_y,
                       QuantizeOperand(config.drhs.rhs, saved_lhs, {0}, keys.drhs_rhs, context, semantics));

  const std::vector<int64_t> group_of = GroupOfRows(m, group_sizes);
  std::vector<double> out(m * n, 0.0), dlhs(m * k, 0.0), drhs(groups * k * n, 0.0);
  for (int64_t row = 0; row < m && group_of[row] >= 0; ++row) {
    const int64_t matrix = group_of[row] * k * n;
    for (int64_t c = 0; c < n; ++c) {
      Element e(config.fwd, dtype, l, r, semantics.WeightOnlySums() == WeightOnly::kDigits);
      for (int64_t i = 0; i < k; ++i) e.Add(row * k + i, matrix + i * n + c);
      out[row * n + c] = e.Finish(row, c);
    }
    for (int64_t i = 0; i < k; ++i) {
      Element e(config.dlhs, dtype, dl_g, dl_y);
      for (int64_t c = 0; c < n; ++c) e.Add(row * n + c, matrix + i * n + c);
      dlhs[row * k + i] = e.Finish(row, i);
    }
  }
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t c = 0; c < n; ++c) {
        Element e(config.drhs, dtype, dr_g, dr_y);
        for (int64_t row = 0; row < m; ++row) {
          if (group_of[row] == group) e.Add(row * n + c, row * k + i);
        }
        drhs[(group * k + i) * n + c] = e.Finish(c, i);
      }
    }
  }
  const auto straight = [&](const std::vector<double>& d, const TensorConfig& tensor, const ArrayRef& x,
                            const Axes& axes, const QuantizedOperand& operand) {
    const Array plain = Cast(Array::FromSpan<double>(d, x.shape), dtype);
    return reference::StraightThrough(tensor.quantizer, x, axes, operand.qtensor, plain, semantics);
  };
  DotGeneralGradients result;
  result.out = Cast(Array::FromSpan<double>(out, {m, n}), dtype);
  AQT_ASSIGN_OR_RETURN(result.dlhs, straight(dlhs, config.fwd.lhs, lhs, {1}, l));
  AQT_ASSIGN_OR_RETURN(result.drhs, straight(drhs, config.fwd.rhs, rhs, {0, 1}, r));
  return result;
}

}  // namespace aqt
