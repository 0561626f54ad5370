#include "aqt/quant/reference/product_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <variant>

#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/digits/digits.h"
#include "aqt/kernels/digits/reference.h"
#include "aqt/kernels/quantize/hadamard_reference.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/reference/gradient_reference.h"
#include "aqt/quant/reference/scale_reference.h"

namespace aqt::reference {
namespace {

bool Has(const Axes& axes, int64_t axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

// Finds the scale for `calibrated` and quantizes x.
Quantized QuantizeSide(const TensorConfig& tensor, const Value& calibrated, const Value& x, const Axes& contracting,
                       const Axes& batch, const std::optional<Key>& key, const Semantics& semantics) {
  Quantized result;
  const Quantizer& quantizer = tensor.quantizer;
  if (!IsQuantized(quantizer.numerics)) {
    result.operand = calibrated;
    return result;
  }
  const int64_t rank = static_cast<int64_t>(x.shape.size());
  const bool contracts = tensor.calibration_mode == CalibrationMode::kContractingAxis;
  const Index shared = SharedAxes(quantizer, rank, contracts ? contracting : RemainingAxes(rank, contracting, batch));
  const TensorBits bits = MakeTensorBits(quantizer.numerics, x.shape, key, semantics.prng_layout);
  result.scale = MakeScale(quantizer, calibrated, shared, bits, semantics);
  result.has_scale = true;
  std::optional<Value> bias;  // of the rank of x
  const auto* constant = std::get_if<Constant>(&*quantizer.calibration);
  if (constant != nullptr && constant->bias.has_value()) {
    const auto* array = std::get_if<ConstantArray>(&*constant->bias);
    const Value given = array != nullptr ? FromArray(array->array) : Value(x.dtype, {});
    const bool number = given.shape.empty();
    bias = Value(number ? x.dtype : result.scale.dtype, number ? Index(rank, 1) : given.shape);
    for (size_t i = 0; i < bias->data.size(); ++i) {
      const double v = array != nullptr ? given.data[i] : std::get<double>(*constant->bias);
      bias->data[i] = internal::HostConstant(bias->dtype, v);
    }
  }

  const DType scaled = internal::Promote(x.dtype, result.scale.dtype);
  const auto* integer = std::get_if<IntSymmetric>(&quantizer.numerics);
  const auto* fp = std::get_if<Fp>(&quantizer.numerics);
  result.q = Value(QvalueDType(quantizer.numerics, scaled), x.shape);
  const bool clips_at_bound = semantics.compat.clip_gradient_at_bound;
  const Value bounds = integer != nullptr && integer->clip_gradient && clips_at_bound
                           ? MakeBounds(quantizer, calibrated, shared, bits, semantics)
                           : Value();
  ForEach(x.shape, [&](const Index& i) {
    float y = x(i);
    if (bias.has_value()) y = Plus(internal::Promote(x.dtype, bias->dtype), y, (*bias)(i));
    y = ScaleOne(semantics, scaled, y, result.scale.dtype, result.scale(i), result.scale.shape == x.shape);
    if (integer != nullptr && integer->clip_gradient) {
      const bool passes = clips_at_bound
                              ? std::fabs(Flush(x.dtype, x(i))) <= Flush(x.dtype, bounds(i))
                              : std::fabs(Flush(scaled, y)) <= internal::HostConstant(scaled, ClipBound(*integer));
      result.mask.push_back(passes ? 1 : 0);
    }
    result.q[i] =
        Store(result.q.dtype, QuantizeOne(quantizer.numerics, semantics.compat, scaled, y, &bits.bits, bits.Number(i)));
    if (fp != nullptr && fp->clip_gradient) result.mask.push_back(std::isnan(result.q(i)) ? 0 : 1);
  });
  if (tensor.dequant_mode != DequantMode::kThisInput) {
    result.operand = result.q;
    return result;
  }
  result.operand = Value(x.dtype, x.shape);
  ForEach(x.shape, [&](const Index& i) {
    float y = Times(scaled, Round(x.dtype, result.q(i)), result.scale(i));
    if (bias.has_value()) y = Minus(scaled, y, (*bias)(i));
    result.operand[i] = Round(x.dtype, y);
  });
  return result;
}

// The dtype of a product is the operand dtype that comes later in this list.
DType Later(DType a, DType b) {
  constexpr DType kOrder[] = {DType::kS2,   DType::kS4,  DType::kS8,   DType::kS32, DType::kE4M3FN,
                              DType::kE5M2, DType::kF16, DType::kBF16, DType::kF32};
  DType later = a;
  for (const DType dtype : kOrder) later = dtype == a || dtype == b ? dtype : later;
  return later;
}

// Whether a float product multiplies f32, bf16 or f16 by integers of at most a byte.
bool MeetOnDigits(DType lhs, DType rhs, DType product) {
  const auto is_float = [](DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  };
  return is_float(lhs) && IsByteInteger(rhs) && is_float(product);
}

Value Contract(const Quantized& lhs, const Quantized& rhs, const ProductAxes& axes, std::optional<DType> accumulator,
               WeightOnly weight_only) {
  DType a = lhs.operand.dtype, b = rhs.operand.dtype;
  if (a == DType::kS4 && b == DType::kS4) a = b = DType::kS8;
  Value out(accumulator.value_or(Later(a, b)), axes.product_shape);
  const bool convert = a != b || (a == DType::kF16 && out.dtype == DType::kBF16);
  const auto operand = [&](DType dtype, float v) {
    if (convert && IsFloat(out.dtype)) {
      v = static_cast<float>(Store(out.dtype, v));
      dtype = out.dtype;
    }
    return dtype == DType::kF32 || dtype == DType::kBF16 ? FlushSubnormal(v) : v;
  };
  const bool on_digits = weight_only == WeightOnly::kDigits && MeetOnDigits(a, b, out.dtype);
  ForEach(axes.product_shape, [&](const Index& p) {
    int64_t integer_sum = 0;
    float float_sum = 0;
    std::vector<float> floats;
    std::vector<int8_t> integers;
    ForEach(axes.sum_shape, [&](const Index& s) {
      const float l = operand(a, lhs.operand(ProductAxes::Gather(axes.lhs_source, p, s)));
      const float r = operand(b, rhs.operand(ProductAxes::Gather(axes.rhs_source, p, s)));
      if (on_digits) {
        floats.push_back(l);
        integers.push_back(static_cast<int8_t>(r));
      } else if (IsInteger(out.dtype)) {
        integer_sum += static_cast<int64_t>(l) * static_cast<int64_t>(r);
      } else {
        float_sum += l * r;
      }
    });
    if (on_digits) {
      const kernels::DigitFormat format{.bits = BitWidth(b), .n = 1, .k = static_cast<int64_t>(floats.size())};
      float_sum = kernels::ReferenceDigitSum(format, floats, integers, {});
    }
    if (IsInteger(out.dtype)) {
      // Wraps to the width of the accumulator.
      const int unused = 64 - BitWidth(out.dtype);
      out[p] = static_cast<double>(static_cast<int64_t>(static_cast<uint64_t>(integer_sum) << unused) >> unused);
    } else {
      float sum = FlushSubnormal(float_sum);
      if (a == DType::kBF16 && b == DType::kBF16 && out.dtype == DType::kF16) sum = Round(DType::kBF16, sum);
      if (out.dtype == DType::kE4M3FN || out.dtype == DType::kE5M2) sum = Round(DType::kF16, sum);
      out[p] = Store(out.dtype, sum);
    }
  });
  return out;
}

// (absmax over the remaining axes)^alpha; ones without alpha.
Value MidScale(const Value& x, const Axes& contracting, const Axes& batch, std::optional<double> alpha) {
  Index shape = x.shape;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (!Has(contracting, axis) && !Has(batch, axis)) shape[axis] = 1;
  }
  Value mid(x.dtype, shape);
  ForEach(x.shape, [&](const Index& i) { mid[i] = std::max(mid(i), std::fabs(x(i))); });
  for (double& m : mid.data) {
    const float absmax = Flush(x.dtype, static_cast<float>(m));
    m = !alpha.has_value() || absmax == 0 ? 1.0 : PowerOf(x.dtype, absmax, *alpha);
  }
  ForEach(x.shape, [&](const Index& i) {
    if (alpha.has_value() && std::isnan(x(i))) mid[i] = std::nan("");
  });
  return mid;
}

// own / other, with `other` in the other operand's layout.
Value Ratio(const Value& own, const Value& other, const Axes& own_contracting, const Axes& own_batch,
            const Axes& other_contracting, const Axes& other_batch) {
  Value ratio(own.dtype, own.shape);
  ForEach(own.shape, [&](const Index& i) {
    Index there(other.shape.size(), 0);
    for (size_t j = 0; j < own_contracting.size(); ++j) there[other_contracting[j]] = i[own_contracting[j]];
    for (size_t j = 0; j < own_batch.size(); ++j) there[other_batch[j]] = i[own_batch[j]];
    ratio[i] = Over(own.dtype, own(i), other(there));
  });
  return ratio;
}

// x / ratio.
Value Rescaled(const Value& x, const Value& ratio, const Semantics& semantics) {
  Value result(x.dtype, x.shape);
  const bool multiply = semantics.arithmetic == Arithmetic::kXlaCompatible && ratio.shape != x.shape;
  ForEach(x.shape, [&](const Index& i) {
    const float reciprocal = Over(x.dtype == DType::kF16 ? DType::kF16 : DType::kF32, 1.0f, ratio(i));
    result[i] = multiply ? Times(x.dtype, x(i), reciprocal) : Over(x.dtype, x(i), ratio(i));
  });
  return result;
}

// LocalAqt: x with `axis` cut into `count` parts, (count, size). The parts of an empty axis are empty.
Value CutAxis(Value x, int64_t axis, int64_t count) {
  const int64_t size = count == 0 ? 0 : x.shape[axis] / count;
  x.shape[axis] = size;
  x.shape.insert(x.shape.begin() + axis, count);
  return x;
}

// `axes` after a new axis has been inserted before axis `cut`, which itself moves up by one.
Axes AfterCut(Axes axes, int64_t cut) {
  for (int64_t& axis : axes) axis += axis >= cut ? 1 : 0;
  return axes;
}

// The sum over the first axis.
Value SumFirst(const Value& x) {
  Value sum(DType::kF32, Index(x.shape.begin() + 1, x.shape.end()));
  ForEach(x.shape, [&](const Index& i) {
    const Index rest(i.begin() + 1, i.end());
    sum[rest] = Plus(DType::kF32, sum(rest), x(i));
  });
  for (double& v : sum.data) v = Round(x.dtype, static_cast<float>(v));
  sum.dtype = x.dtype;
  return sum;
}

}  // namespace

ProductAxes::ProductAxes(const DotDims& dims, const Index& lhs, const Index& rhs)
    : lhs_source(lhs.size()), rhs_source(rhs.size()) {
  for (size_t i = 0; i < dims.lhs_batch.size(); ++i) {
    lhs_source[dims.lhs_batch[i]] = rhs_source[dims.rhs_batch[i]] = static_cast<int64_t>(product_shape.size());
    product_shape.push_back(lhs[dims.lhs_batch[i]]);
  }
  for (size_t axis = 0; axis < lhs.size(); ++axis) {
    if (Has(dims.lhs_batch, axis) || Has(dims.lhs_contracting, axis)) continue;
    lhs_source[axis] = static_cast<int64_t>(product_shape.size());
    product_shape.push_back(lhs[axis]);
  }
  for (size_t axis = 0; axis < rhs.size(); ++axis) {
    if (Has(dims.rhs_batch, axis) || Has(dims.rhs_contracting, axis)) continue;
    rhs_source[axis] = static_cast<int64_t>(product_shape.size());
    product_shape.push_back(rhs[axis]);
  }
  for (size_t i = 0; i < dims.lhs_contracting.size(); ++i) {
    lhs_source[dims.lhs_contracting[i]] = rhs_source[dims.rhs_contracting[i]] =
        static_cast<int64_t>(product_shape.size() + sum_shape.size());
    sum_shape.push_back(lhs[dims.lhs_contracting[i]]);
  }
}

Index ProductAxes::Gather(const Index& source, const Index& product, const Index& sum) {
  Index index;
  for (const int64_t s : source) {
    const int64_t rank = static_cast<int64_t>(product.size());
    index.push_back(s < rank ? product[s] : sum.empty() ? 0 : sum[s - rank]);
  }
  return index;
}

void MultiplyOther(const Value& scale, const Axes& own_contracting, const Axes& own_batch,
                   const Axes& other_contracting, const Axes& other_batch, Value& other) {
  const DType dtype = other.dtype;
  ForEach(other.shape, [&](const Index& i) {
    Index own(scale.shape.size(), 0);
    for (size_t j = 0; j < own_contracting.size(); ++j) own[own_contracting[j]] = i[other_contracting[j]];
    for (size_t j = 0; j < own_batch.size(); ++j) own[own_batch[j]] = i[other_batch[j]];
    other[i] = Times(dtype, other(i), Round(dtype, scale(own)));
  });
}

Value Rotated(const std::optional<Hadamard>& hadamard, const Value& x, const Axes& contracting) {
  if (!hadamard.has_value()) return x;
  Value out = x;
  Index rows = x.shape, sums;
  for (const int64_t axis : contracting) {
    sums.push_back(x.shape[axis]);
    rows[axis] = 1;
  }
  ForEach(rows, [&](const Index& r) {
    std::vector<float> row;
    const auto for_row = [&](auto f) {
      ForEach(sums, [&](const Index& s) {
        Index i = r;
        for (size_t j = 0; j < contracting.size(); ++j) i[contracting[j]] = s[j];
        f(i);
      });
    };
    for_row([&](const Index& i) { row.push_back(x(i)); });
    kernels::reference::HadamardRow(x.dtype, hadamard->block, static_cast<int64_t>(row.size()), row.data());
    size_t next = 0;
    for_row([&](const Index& i) { out[i] = row[next++]; });
  });
  return out;
}

QuantizedProduct Multiply(const DotGeneralRawConfig& config, const Value& lhs_in, const Value& rhs_in,
                          const DotDims& dims, const std::optional<Key>& lhs_key, const std::optional<Key>& rhs_key,
                          const Semantics& semantics) {
  QuantizedProduct r;
  const Value lhs = Rotated(config.hadamard, lhs_in, dims.lhs_contracting);
  const Value rhs = Rotated(config.hadamard, rhs_in, dims.rhs_contracting);
  Value lhs_calibrated = lhs, rhs_calibrated = rhs;
  if (config.lhs_mid_alpha.has_value() || config.rhs_mid_alpha.has_value()) {
    const Value lhs_mid = MidScale(lhs, dims.lhs_contracting, dims.lhs_batch, config.lhs_mid_alpha);
    const Value rhs_mid = MidScale(rhs, dims.rhs_contracting, dims.rhs_batch, config.rhs_mid_alpha);
    r.lhs_ratio = Ratio(lhs_mid, rhs_mid, dims.lhs_contracting, dims.lhs_batch, dims.rhs_contracting, dims.rhs_batch);
    r.rhs_ratio = Ratio(rhs_mid, lhs_mid, dims.rhs_contracting, dims.rhs_batch, dims.lhs_contracting, dims.lhs_batch);
    lhs_calibrated = Rescaled(lhs, *r.lhs_ratio, semantics);
    rhs_calibrated = Rescaled(rhs, *r.rhs_ratio, semantics);
  }
  const bool original = semantics.compat.mid_scales_on_original_operands;
  if (original) r.lhs_ratio = r.rhs_ratio = std::nullopt;
  r.lhs = QuantizeSide(config.lhs, lhs_calibrated, original ? lhs : lhs_calibrated, dims.lhs_contracting,
                       dims.lhs_batch, lhs_key, semantics);
  r.rhs = QuantizeSide(config.rhs, rhs_calibrated, original ? rhs : rhs_calibrated, dims.rhs_contracting,
                       dims.rhs_batch, rhs_key, semantics);
  if (r.lhs.has_scale && config.lhs.dequant_mode == DequantMode::kOtherInput) {
    MultiplyOther(r.lhs.scale, dims.lhs_contracting, dims.lhs_batch, dims.rhs_contracting, dims.rhs_batch,
                  r.rhs.operand);
  }
  if (r.rhs.has_scale && config.rhs.dequant_mode == DequantMode::kOtherInput) {
    MultiplyOther(r.rhs.scale, dims.rhs_contracting, dims.rhs_batch, dims.lhs_contracting, dims.lhs_batch,
                  r.lhs.operand);
  }
  const ProductAxes axes(dims, lhs.shape, rhs.shape);
  const Value product = Contract(r.lhs, r.rhs, axes, config.dg_accumulator_dtype, semantics.WeightOnlySums());
  r.out = Value(lhs.dtype, axes.product_shape);
  ForEach(axes.product_shape, [&](const Index& p) {
    DType dtype = lhs.dtype;
    float y = Round(dtype, static_cast<float>(product.data[product.Position(p)]));
    const auto multiply = [&](const TensorConfig& tensor, const Quantized& side, const Index& source) {
      if (!side.has_scale || tensor.dequant_mode != DequantMode::kOutput) return;
      dtype = internal::Promote(dtype, side.scale.dtype);
      y = Times(dtype, y, side.scale(ProductAxes::Gather(source, p, {})));
    };
    multiply(config.lhs, r.lhs, axes.lhs_source);
    multiply(config.rhs, r.rhs, axes.rhs_source);
    r.out[p] = Round(lhs.dtype, y);
  });
  return r;
}

Value MultiplyLocally(const DotGeneralRawConfig& config, const Value& lhs, const Value& rhs, const DotDims& dims,
                      const std::optional<Key>& lhs_key, const std::optional<Key>& rhs_key,
                      const Semantics& semantics_in) {
  Semantics semantics = semantics_in;
  semantics.weight_only = WeightOnly::kFloat;
  if (!config.local_aqt.has_value() || dims.lhs_contracting.empty()) {
    return Multiply(config, lhs, rhs, dims, lhs_key, rhs_key, semantics).out;
  }
  const LocalAqt& local = *config.local_aqt;
  int64_t lhs_cut = dims.lhs_contracting[0], rhs_cut = dims.rhs_contracting[0];
  if (local.tile_largest_shape) {
    for (int64_t axis = static_cast<int64_t>(lhs.shape.size()) - 1; axis >= 0; --axis) {
      const auto* found = std::find(dims.lhs_contracting.begin(), dims.lhs_contracting.end(), axis);
      if (found == dims.lhs_contracting.end() || (lhs.shape[axis] < lhs.shape[lhs_cut])) continue;
      lhs_cut = axis;
      rhs_cut = dims.rhs_contracting[found - dims.lhs_contracting.begin()];
    }
  }
  const int64_t count = local.tile_largest_shape ? lhs.shape[lhs_cut] / *local.contraction_axis_shard_size
                                                 : *local.contraction_axis_shard_count;
  DotDims cut{AfterCut(dims.lhs_contracting, lhs_cut), AfterCut(dims.rhs_contracting, rhs_cut),
              AfterCut(dims.lhs_batch, lhs_cut), AfterCut(dims.rhs_batch, rhs_cut)};
  cut.lhs_batch.insert(cut.lhs_batch.begin(), lhs_cut);
  cut.rhs_batch.insert(cut.rhs_batch.begin(), rhs_cut);
  return SumFirst(
      Multiply(config, CutAxis(lhs, lhs_cut, count), CutAxis(rhs, rhs_cut, count), cut, lhs_key, rhs_key, semantics)
          .out);
}

}  // namespace aqt::reference
