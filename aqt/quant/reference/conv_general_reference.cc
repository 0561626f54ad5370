#include "aqt/quant/reference/conv_general_reference.h"

#include <algorithm>
#include <cstdint>
#include <limits>
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
#include "aqt/quant/contraction/conv_general.h"
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

// The next step of a sum: exact, or f32 with two roundings.
double Step(bool exact, double sum, double a, double b) {
  if (exact) return sum + a * b;
  const float product = static_cast<float>(a) * static_cast<float>(b);
  return static_cast<float>(sum) + product;
}

float RoundTo(DType dtype, float value) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Arith<T>::Round(value); });
}

// The numbers that a product reads: in its dtype, with f32 and bf16 subnormals flushed.
std::vector<double> ProductValues(const ArrayRef& x, DType dtype) {
  std::vector<double> values = Values(Cast(x, dtype));
  for (double& v : values) v = dtype != DType::kF16 && std::fabs(v) < 0x1p-126 ? std::copysign(0.0, v) : v;
  return values;
}

// Runs all loops: f(b, out position, input channel of the group, output channel, index of lhs or -1, index of rhs,
// index of out). The order is batch, positions, output channel, kernel, input channel.
template <class F>
void ForEachProduct(const ConvGeometry& geometry, F f) {
  std::vector<ConvAxis> axes(3 - geometry.axes.size(), ConvAxis{.in = 1, .kernel = 1, .out = 1});
  axes.insert(axes.end(), geometry.axes.begin(), geometry.axes.end());
  const auto source = [](const ConvAxis& axis, int64_t o, int64_t k) {
    const int64_t place = o * axis.stride + k * axis.rhs_dilation - axis.low;
    const bool hit = place >= 0 && place % axis.lhs_dilation == 0 && place / axis.lhs_dilation < axis.in;
    return hit ? place / axis.lhs_dilation : -1;
  };
  const int64_t group_in = geometry.in_channels / geometry.groups, group_out = geometry.out_channels / geometry.groups;
  for (int64_t b = 0; b < geometry.batch; ++b) {
    for (int64_t o0 = 0; o0 < axes[0].out; ++o0) {
      for (int64_t o1 = 0; o1 < axes[1].out; ++o1) {
        for (int64_t o2 = 0; o2 < axes[2].out; ++o2) {
          for (int64_t c = 0; c < geometry.out_channels; ++c) {
            const int64_t out =
                (((b * axes[0].out + o0) * axes[1].out + o1) * axes[2].out + o2) * geometry.out_channels + c;
            for (int64_t k0 = 0; k0 < axes[0].kernel; ++k0) {
              for (int64_t k1 = 0; k1 < axes[1].kernel; ++k1) {
                for (int64_t k2 = 0; k2 < axes[2].kernel; ++k2) {
                  for (int64_t i = 0; i < group_in; ++i) {
                    const int64_t x0 = source(axes[0], o0, k0), x1 = source(axes[1], o1, k1),
                                  x2 = source(axes[2], o2, k2);
                    const int64_t channel = c / group_out * group_in + i;
                    const int64_t lhs =
                        x0 < 0 || x1 < 0 || x2 < 0
                            ? -1
                            : (((b * axes[0].in + x0) * axes[1].in + x1) * axes[2].in + x2) * geometry.in_channels +
                                  channel;
                    const int64_t rhs =
                        (((k0 * axes[1].kernel + k1) * axes[2].kernel + k2) * group_in + i) * geometry.out_channels + c;
                    f(lhs, rhs, out);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

struct QuantizedOperand {
  QTensor qtensor;
  Array in_product, dequantized;
};

absl::StatusOr<QuantizedOperand> QuantizeOperand(const TensorConfig& tensor, const ArrayRef& x, const Axes& axes,
                                                 std::optional<Key> key, const Context& context,
                                                 const Semantics& semantics) {
  QuantizedOperand operand;
  if (!IsQuantized(tensor.quantizer.numerics)) {
    operand.in_product = operand.dequantized = Array::CopyOf(x);
    return operand;
  }
  Context own = context;
  own.key = key;
  AQT_ASSIGN_OR_RETURN(operand.qtensor, Quantize(tensor.quantizer, x, axes, own, semantics));
  AQT_ASSIGN_OR_RETURN(operand.dequantized, operand.qtensor.Dequantize());
  operand.in_product = tensor.dequant_mode == DequantMode::kThisInput ? operand.dequantized : *operand.qtensor.qvalue;
  return operand;
}

Array FromSums(const std::vector<double>& sums, const Aval& aval) {
  std::vector<float> values;
  for (const double sum : sums) values.push_back(RoundTo(aval.dtype, FlushSubnormal(static_cast<float>(sum))));
  return Cast(ArrayRef(values.data(), aval.shape), aval.dtype);
}

// A sum of integers that could not overflow s32 is exact.
bool IsExact(const DotGeneralRawConfig& config, const QuantizedOperand& l, const QuantizedOperand& r,
             const ConvGeometry& geometry, const Compat& compat) {
  const auto is_byte = [](DType container) { return IsInteger(container) && container != DType::kS32; };
  if (!is_byte(l.in_product.dtype()) || !is_byte(r.in_product.dtype())) return false;
  const auto largest = [&](const TensorConfig& t, DType container) {
    const auto* integer = std::get_if<IntSymmetric>(&t.quantizer.numerics);
    const double held = -static_cast<double>(IntegerMin(container));
    const double beyond = compat.integers_reach_lowest ? 1 : 0;
    return integer != nullptr && integer->clip ? std::min<double>(held, ClipBound(*integer) + beyond) : held;
  };
  return static_cast<double>(geometry.SumLength()) * largest(config.lhs, l.in_product.dtype()) *
             largest(config.rhs, r.in_product.dtype()) <=
         std::numeric_limits<int32_t>::max();
}

// The sum for an element of lhs runs over kernel elements, then output channels: terms are collected first, then added
// in order.
std::vector<double> LhsGradientSums(const ConvGeometry& geometry, const std::vector<double>& cotangent,
                                    const std::vector<double>& rhs, int64_t size) {
  struct Term {
    int64_t kernel, channel;
    double a, b;
  };
  std::vector<std::vector<Term>> terms(size);
  const int64_t channels = geometry.out_channels;
  const int64_t per_kernel = channels * (geometry.in_channels / geometry.groups);
  ForEachProduct(geometry, [&](int64_t x, int64_t k, int64_t o) {
    if (x >= 0) terms[x].push_back({k / per_kernel, k % channels, cotangent[o], rhs[k]});
  });
  std::vector<double> dlhs(size, 0.0);
  for (int64_t x = 0; x < size; ++x) {
    // Each kernel element has at most one output position.
    std::sort(terms[x].begin(), terms[x].end(), [](const Term& s, const Term& t) {
      return s.kernel != t.kernel ? s.kernel < t.kernel : s.channel < t.channel;
    });
    for (const Term& term : terms[x]) dlhs[x] = Step(false, dlhs[x], term.a, term.b);
  }
  return dlhs;
}

}  // namespace

absl::StatusOr<DotGeneralGradients> ReferenceConvGeneralWithGradients(const DotGeneralRawConfig& config,
                                                                      const ArrayRef& lhs, const ArrayRef& rhs,
                                                                      const ArrayRef& g, const ConvDims& dims,
                                                                      const Context& context,
                                                                      const Semantics& semantics) {
  AQT_RETURN_IF_ERROR(ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims).status());
  AQT_ASSIGN_OR_RETURN(const ConvGeometry geometry, MakeConvGeometry(dims, lhs.shape, rhs.shape));
  const DType dtype = lhs.dtype;
  Axes lhs_axes, rhs_axes;
  for (int64_t axis = 0; axis + 1 < lhs.shape.rank(); ++axis) {
    lhs_axes.push_back(axis + 1);
    rhs_axes.push_back(axis);
  }
  const auto key = [&](int64_t side) {
    return context.key.has_value() ? std::optional<Key>(SplitKey(*context.key, 2, side, semantics.prng_layout))
                                   : std::nullopt;
  };
  AQT_ASSIGN_OR_RETURN(const QuantizedOperand l,
                       QuantizeOperand(config.lhs, lhs, lhs_axes, key(0), context, semantics));
  AQT_ASSIGN_OR_RETURN(const QuantizedOperand r,
                       QuantizeOperand(config.rhs, rhs, rhs_axes, key(1), context, semantics));
  const bool exact = IsExact(config, l, r, geometry, semantics.compat);

  const Shape out_shape = geometry.OutShape();
  const std::vector<double> a = ProductValues(l.in_product, dtype), b = ProductValues(r.in_product, dtype);
  std::vector<double> sums(out_shape.num_elements(), 0.0);
  ForEachProduct(geometry,
                 [&](int64_t x, int64_t k, int64_t o) { sums[o] = Step(exact, sums[o], x < 0 ? 0 : a[x], b[k]); });
  const int64_t channels = geometry.out_channels;
  const int64_t per_example = geometry.batch == 0 ? 1 : out_shape.num_elements() / geometry.batch;
  for (size_t o = 0; o < sums.size(); ++o) {
    float y = static_cast<float>(sums[o]);
    if (!exact) {
      const DType wanted = config.dg_accumulator_dtype.value_or(dtype);
      const bool ignored = wanted == DType::kS32 || semantics.compat.conv_ignores_accumulator_dtype;
      y = RoundTo(ignored ? dtype : wanted, FlushSubnormal(y));
    }
    y = RoundTo(dtype, y);
    DType wide = dtype;
    const auto scale = [&](const QuantizedOperand& operand, const TensorConfig& tensor, int64_t index) {
      if (operand.qtensor.scale.empty() || tensor.dequant_mode != DequantMode::kOutput) return;
      const Array& s = operand.qtensor.scale[0];
      wide = internal::Promote(wide, s.dtype());
      const float value = static_cast<float>(Values(s)[s.num_elements() == 1 ? 0 : index]);
      y = internal::VisitFloat(wide, [&]<class T>() { return internal::Mul<T>(y, value); });
    };
    scale(l, config.lhs, static_cast<int64_t>(o) / per_example);
    scale(r, config.rhs, static_cast<int64_t>(o) % channels);
    sums[o] = RoundTo(dtype, y);
  }
  DotGeneralGradients result;
  result.out = Cast(Array::FromSpan<double>(sums, out_shape), dtype);

  const std::vector<double> full_lhs = ProductValues(l.dequantized, dtype),
                            full_rhs = ProductValues(r.dequantized, dtype), cotangent = ProductValues(g, dtype);
  std::vector<double> drhs(rhs.shape.num_elements(), 0.0);
  ForEachProduct(geometry, [&](int64_t x, int64_t k, int64_t o) {
    drhs[k] = Step(false, drhs[k], x < 0 ? 0 : full_lhs[x], cotangent[o]);
  });
  const std::vector<double> dlhs = LhsGradientSums(geometry, cotangent, full_rhs, lhs.shape.num_elements());
  const auto gradient = [&](const std::vector<double>& d, const TensorConfig& tensor, const ArrayRef& x,
                            const Axes& axes, const QuantizedOperand& operand) -> absl::StatusOr<Array> {
    const auto* integer = std::get_if<IntSymmetric>(&tensor.quantizer.numerics);
    if (integer != nullptr && semantics.compat.conv_integer_gradient_is_zero) return Array::Zeros(x.dtype, x.shape);
    return reference::StraightThrough(tensor.quantizer, x, axes, operand.qtensor, FromSums(d, x.aval()), semantics);
  };
  AQT_ASSIGN_OR_RETURN(result.dlhs, gradient(dlhs, config.lhs, lhs, lhs_axes, l));
  AQT_ASSIGN_OR_RETURN(result.drhs, gradient(drhs, config.rhs, rhs, rhs_axes, r));
  return result;
}

}  // namespace aqt
