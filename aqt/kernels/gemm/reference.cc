#include "aqt/kernels/gemm/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/core/rng.h"

namespace aqt::kernels {
namespace {

float Round(float x, DType dtype) {
  if (dtype == DType::kBF16) return ToFloat(RoundTo<BFloat16>(x));
  if (dtype == DType::kF16) return ToFloat(RoundTo<Float16>(x));
  return x;
}

float Flush(float x, bool flush) { return flush && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// Element (b, r, i) times its factor.
float LoadScaled(const QuantizeArgs& args, int64_t b, int64_t r, int64_t i) {
  const Operand& src = args.src;
  const bool flush = args.step.subnormals_are_zero;
  const float x = Flush(ReferenceLoad(src, b, r, i), flush);
  if (args.k_factor == nullptr) return x;
  return Round(Flush(x * args.k_factor[b * src.k.Count() + i], flush && src.dtype != DType::kF16), src.dtype);
}

float AbsMax(const QuantizeArgs& args, int64_t b0, int64_t b1, int64_t r0, int64_t r1) {
  const Operand& src = args.src;
  const bool flush = args.step.subnormals_are_zero;
  float max = 0;
  for (int64_t b = b0; b < b1; ++b) {
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t i = 0; i < src.k.Count(); ++i) {
        const float x = std::fabs(Flush(LoadScaled(args, b, r, i), flush));
        if (std::isnan(x)) return x;
        max = std::max(max, x);
      }
    }
  }
  return max;
}

// The byte that stores a qvalue.
int8_t Quantized(float y, const QuantizeStep& step) {
  if (step.q_dtype == DType::kE4M3FN) {
    return static_cast<int8_t>(ConvertElement<Float8E4M3FN>(y, Overflow::kSaturate).bits);
  }
  if (step.q_dtype == DType::kE5M2) {
    return static_cast<int8_t>(ConvertElement<Float8E5M2>(y, Overflow::kSaturate).bits);
  }
  return std::isnan(y) ? 0 : static_cast<int8_t>(std::nearbyint(std::clamp(y, step.lo, step.hi)));
}

}  // namespace

void AbsMaxScale::operator()(float* absmax_to_scale, int64_t count) const {
  const float bound = Round(quant_bound, dtype);
  const float reciprocal = Round(1.0f / bound, dtype == DType::kF16 ? DType::kF16 : DType::kF32);
  for (int64_t i = 0; i < count; ++i) {
    const float m = absmax_to_scale[i] == 0.0f ? 1.0f : absmax_to_scale[i];
    const float scale = divide ? m / bound : m * reciprocal;
    absmax_to_scale[i] =
        Flush(Round(Flush(scale, subnormals_are_zero), dtype), subnormals_are_zero && dtype != DType::kF16);
  }
}

float ReferenceLoad(const Operand& src, int64_t b, int64_t r, int64_t i) {
  const int64_t at = src.batch.Offset(b) + src.rows.Offset(r) + src.k.Offset(i);
  switch (src.dtype) {
    case DType::kF32: return static_cast<const float*>(src.data)[at];
    case DType::kBF16: return ToFloat(static_cast<const BFloat16*>(src.data)[at]);
    case DType::kF16: return ToFloat(static_cast<const Float16*>(src.data)[at]);
    case DType::kE4M3FN: return ToFloat(static_cast<const Float8E4M3FN*>(src.data)[at]);
    case DType::kE5M2: return ToFloat(static_cast<const Float8E5M2*>(src.data)[at]);
    case DType::kS2:
    case DType::kS4:
    case DType::kS8: return static_cast<const int8_t*>(src.data)[at];
    default: AQT_CHECK(!"a dtype that Pack takes");
  }
}

float ReferenceNoise(const NoiseOperand& noise, int64_t b, int64_t r, int64_t i) {
  const int64_t number = noise.batch.Offset(b) + noise.rows.Offset(r) + noise.k.Offset(i);
  const RandomNumbers& numbers = noise.numbers;
  switch (numbers.kind()) {
    case RandomNumbers::Kind::kBits32: return UniformF32(numbers.bits().Bits32(number)) - 0.5f;
    case RandomNumbers::Kind::kBits16: return static_cast<float>((numbers.bits().Bits16(number) + 0.5) / 65536 - 0.5);
    case RandomNumbers::Kind::kFast:
      return static_cast<float>(((numbers.fast().Bits32(number) >> 10) + 0.5) / 4194304 - 0.5);
  }
  AQT_CHECK(!"a kind of numbers");
}

void ReferenceQuantize(const QuantizeArgs& args, ScaleRule rule, int8_t* q) {
  const Operand& src = args.src;
  const QuantizeStep& step = args.step;
  const bool flush = step.subnormals_are_zero;
  const int64_t batch = src.batch.Count(), rows = src.rows.Count(), k = src.k.Count();
  if (args.scales == QuantizeArgs::Scales::kSingle) {
    *args.scale = AbsMax(args, 0, batch, 0, rows);
    rule(args.scale, 1);
  }
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t r = 0; r < rows; ++r) {
      float* scale = args.scale;
      if (args.scales == QuantizeArgs::Scales::kPerRow) {
        scale += b * rows + r;
        *scale = AbsMax(args, b, b + 1, r, r + 1);
        rule(scale, 1);
      } else if (args.scales == QuantizeArgs::Scales::kGiven) {
        scale += b * args.scale_batch_stride + r * args.scale_row_stride;
      }
      float inverse = Flush(Round(1.0f / Flush(*scale, flush), step.scale_dtype), flush);
      if (std::isinf(inverse)) inverse = 1.0f;
      for (int64_t i = 0; i < k; ++i) {
        float y = Round(Flush(LoadScaled(args, b, r, i), flush) * inverse, step.product_dtype);
        if (args.noise != nullptr) y = Round(y + ReferenceNoise(*args.noise, b, r, i), step.product_dtype);
        *q++ = Quantized(y, step);
      }
    }
  }
}

float ReferenceUnpack(const PanelFormat& format, const void* panels, int64_t k, int64_t r, int64_t i) {
  const int64_t group = i / format.k_group, in_group = i % format.k_group, row = r % format.width;
  int64_t element;  // within the panel, after the header
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    const int64_t step = group / PanelFormat::kStepGroups, in_step = group % PanelFormat::kStepGroups;
    element = ((step * format.width + row) * PanelFormat::kStepGroups + in_step) * format.k_group + in_group;
  } else {
    element = (group * format.width + row) * format.k_group + in_group;
  }
  const char* data = static_cast<const char*>(panels) + r / format.width * format.PanelBytes(k) + format.HeaderBytes();
  if (format.element == PanelFormat::Element::kS4) {
    const int64_t group_size = int64_t{format.width} * format.k_group, at = element % group_size;
    const int bits = static_cast<uint8_t>(data[group / 2 * group_size + at]) >> (group % 2 * 4) & 15;
    return static_cast<float>(bits < 8 ? bits : bits - 16);
  }
  const char* from = data + element * format.ElementBits() / 8;
  switch (format.element) {
    case PanelFormat::Element::kS4: break;
    case PanelFormat::Element::kS8: return *reinterpret_cast<const int8_t*>(from);
    case PanelFormat::Element::kU8Offset: return *reinterpret_cast<const uint8_t*>(from) - 128;
    case PanelFormat::Element::kS16: return *reinterpret_cast<const int16_t*>(from);
    case PanelFormat::Element::kBF16: return ToFloat(*reinterpret_cast<const BFloat16*>(from));
    case PanelFormat::Element::kF32: return *reinterpret_cast<const float*>(from);
  }
  AQT_CHECK(!"an element type");
}

void ReferenceGemmS8(int64_t batch, int64_t m, int64_t n, int64_t k, const int8_t* lhs, const int8_t* rhs,
                     int32_t* sums) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        int64_t sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += lhs[(b * m + r) * k + i] * rhs[(b * n + c) * k + i];
        *sums++ = static_cast<int32_t>(sum);
      }
    }
  }
}

void ReferenceGemmF32(int64_t batch, int64_t m, int64_t n, int64_t k, const float* lhs, const float* rhs, double* sums,
                      double* magnitudes) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double product = static_cast<double>(lhs[(b * m + r) * k + i]) * rhs[(b * n + c) * k + i];
          sum += product;
          magnitude += std::fabs(product);
        }
        *sums++ = sum;
        *magnitudes++ = magnitude;
      }
    }
  }
}

float ReferenceEpilogue(const GemmProblem& problem, int64_t b, int64_t m, int64_t n, float sum) {
  const Epilogue& epi = problem.epilogue;
  float v = Round(Flush(sum, epi.subnormals_are_zero), epi.sum_dtype);
  const auto times = [&](float scale, DType dtype) { v = Round(Flush(v * scale, epi.subnormals_are_zero), dtype); };
  const auto times_lhs = [&] {
    if (epi.lhs_scale != nullptr) times(epi.lhs_scale[b * epi.lhs_batch_stride + m * epi.lhs_stride], epi.first_dtype);
  };
  const auto times_rhs = [&] {
    if (epi.rhs_scale != nullptr) times(epi.rhs_scale[b * epi.rhs_batch_stride + n * epi.rhs_stride], epi.second_dtype);
  };
  if (epi.rhs_first) times_rhs();
  times_lhs();
  if (!epi.rhs_first) times_rhs();
  return Round(v, problem.out.dtype);
}

}  // namespace aqt::kernels
