#ifndef AQT_OPS_CONTRACTION_CONTRACTION_PROBLEMS_H_
#define AQT_OPS_CONTRACTION_CONTRACTION_PROBLEMS_H_

// Random contractions of all kinds, for tests of their operations.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <random>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/aqt_dot_testing.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/describe.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/random_equation.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/testing/calibrations.h"
#include "aqt/testing/contractions.h"
#include "aqt/testing/random.h"

namespace aqt {

using ::aqt::testing::FloatContraction;
using ::aqt::testing::Random;

inline Numerics RandomNumerics(Random& random, bool backward) {
  if (random.Below(5) == 0) return NoNumerics{};
  if (random.Below(6) == 0) {
    return random.Below(2) == 0 ? Fp8{} : Fp8{.dtype = DType::kE5M2, .exponent_bits = 5, .mantissa_bits = 2};
  }
  IntSymmetric n;
  n.bits = static_cast<int>(1 + random.Below(8));
  n.preserve_zero = n.bits > 1 && random.Below(5) != 0;
  n.preserve_max_val = random.Below(4) == 0;
  n.clip = random.Below(8) != 0;
  n.clip_gradient = !backward && random.Below(3) == 0;
  n.round = random.Below(10) != 0;
  if (random.Below(backward ? 2 : 5) == 0) {
    n.noise = Noise{.kind = random.Below(2) == 0 ? NoiseKind::kJaxUniform : NoiseKind::kRandomCenteredUniform};
    if (random.Below(3) == 0) n.noise->noise_sharing_axes = {0};
  }
  n.dtype = std::nullopt;
  if (n.preserve_zero && n.round && random.Below(4) != 0)
    n.dtype = n.bits <= 4 && random.Below(2) == 0 ? DType::kS4 : DType::kS8;
  return n;
}

inline TensorConfig RandomTensor(Random& random, bool backward) {
  TensorConfig tensor;
  tensor.quantizer.numerics = RandomNumerics(random, backward);
  if (random.Below(8) == 0) {
    tensor.quantizer.calibration = Constant{.bound = random.Uniform(0.5, 3)};
  } else if (random.Below(4) == 0) {
    tensor.quantizer.calibration = ::aqt::testing::DrawCalibration([&](int64_t n) { return random.Below(n); });
  } else {
    AbsMax abs_max{.clipping_scale = std::nullopt, .po2_scale = random.Below(6) == 0};
    if (random.Below(4) == 0) abs_max.clipping_scale = random.Uniform(0.3, 1.2);
    tensor.quantizer.calibration = abs_max;
  }
  if (random.Below(6) == 0) {
    tensor.quantizer.calib_shared_axes.per_tensor = true;
    if (backward && random.Below(3) == 0) tensor.calibration_mode = CalibrationMode::kRemainingAxis;
  }
  if (random.Below(8) == 0) tensor.quantizer.scale_dtype = random.Below(2) == 0 ? DType::kF32 : DType::kBF16;
  switch (random.Below(6)) {
    case 0: tensor.dequant_mode = DequantMode::kThisInput; break;
    case 1:
      tensor.dequant_mode = DequantMode::kOtherInput;
      tensor.calibration_mode = CalibrationMode::kRemainingAxis;
      break;
    default: break;
  }
  return tensor;
}

inline DotGeneralRawConfig RandomRaw(Random& random, bool backward) {
  DotGeneralRawConfig raw;
  raw.lhs = RandomTensor(random, backward);
  raw.rhs = RandomTensor(random, backward);
  if (backward) raw.rhs.use_fwd_quant = random.Below(3) == 0;
  switch (random.Below(4)) {
    case 0:
      raw.dg_accumulator_dtype = std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16}[random.Below(3)];
      break;
    case 1: raw.dg_accumulator_dtype = std::nullopt; break;
    default: raw.dg_accumulator_dtype = DType::kS32; break;
  }
  return raw;
}

// Rotates some of the contractions.
inline void AddHadamards(Random& random, DotGeneralConfig& config) {
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    const bool quantizes = IsQuantized(raw->lhs.quantizer.numerics) || IsQuantized(raw->rhs.quantizer.numerics);
    if (!quantizes || random.Below(3) != 0) continue;
    raw->hadamard = Hadamard{.block = int64_t{2} << random.Below(5)};
  }
}

// Gives calibrations with state to some of the six operands.
inline void AddStates(Random& random, DotGeneralConfig& config) {
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    for (TensorConfig* tensor : {&raw->lhs, &raw->rhs}) {
      if (random.Below(2) == 0) continue;
      tensor->quantizer.calib_shared_axes.axes = {};
      switch (random.Below(3)) {
        case 0: tensor->quantizer.calibration = MeanOfAbsMax{.po2_scale = random.Below(4) == 0}; break;
        case 1:
          tensor->quantizer.calibration = WeightedStats{.l1_dev_coeff = 1, .lp_dev_coeff = 0.5, .ema_update_count = 2};
          break;
        default: tensor->quantizer.calibration = DelayedScaling{.amax_history_length = 1 + random.Below(3)}; break;
      }
    }
  }
}

// Statistics as they might be after some calls.
inline SlotValues SomeStats(const Program& program, Random& random) {
  SlotValues stats = InitialStats(program);
  for (auto& [slot, array] : stats) {
    array = array.dtype() == DType::kS32 ? Array::Scalar<int32_t>(3)
                                         : ::aqt::testing::RandomArray(array.aval(), random.Next(), 0.5, 2);
  }
  return stats;
}

// The expansion of an operation that has one.
inline std::vector<Value> ExpandAll(const Equation& eqn, absl::Span<const Value> operands) {
  const CompositeOp* op = std::get_if<CompositeOp>(&eqn.op);
  return op != nullptr && op->impl->has_expansion() ? op->impl->Expand(operands) : BindAgain(eqn, operands);
}

// A program without operations that have expansions. The expansion of an einsum contains a contraction.
inline absl::StatusOr<Program> ExpandFully(const Program& program) {
  const absl::StatusOr<Program> once = Rewrite(program, ExpandAll);
  return once.ok() ? Rewrite(*once, ExpandAll) : once;
}

// One contraction of any kind: configuration and operands.
struct ContractionProblem {
  Semantics semantics = {};
  DotGeneralConfig config = {};
  ContractionDims dims = {};
  Array lhs = {}, rhs = {};
  std::optional<Array> group_sizes = std::nullopt;

  bool is_float() const { return config == DotGeneralConfig{}; }
  std::string ToString() const {
    std::string text = absl::StrCat(KindOf(dims), " ", lhs.aval().ToString(), " x ", rhs.aval().ToString());
    if (group_sizes.has_value()) absl::StrAppend(&text, " groups ", ContentsText(*group_sizes));
    if (const auto* dot = std::get_if<DotDims>(&dims)) absl::StrAppend(&text, " ", dot->ToString());
    if (const auto* conv = std::get_if<ConvDims>(&dims)) absl::StrAppend(&text, " ", DescribeDims(*conv));
    if (const auto* einsum = std::get_if<EinsumDims>(&dims)) absl::StrAppend(&text, " ", einsum->equation);
    return absl::StrCat(text, " ", DescribeConfig(config));
  }
};

// The program of one contraction: parameters lhs and rhs, data groups and the key "key"; output "out".
inline Slot LhsSlot() { return {SlotKind::kParam, "lhs"}; }
inline Slot RhsSlot() { return {SlotKind::kParam, "rhs"}; }
inline Slot GroupsSlot() { return {SlotKind::kData, "groups"}; }
inline Slot OutSlot() { return {SlotKind::kData, "out"}; }

inline SlotValues ValuesOf(const ContractionProblem& problem) {
  SlotValues values = {{LhsSlot(), problem.lhs}, {RhsSlot(), problem.rhs}, {{SlotKind::kKey, "key"}, KeyArray(3)}};
  if (problem.group_sizes.has_value()) values.emplace(GroupsSlot(), *problem.group_sizes);
  return values;
}

inline std::vector<Input> InputsFor(const ContractionProblem& problem) {
  std::vector<Input> inputs = {{LhsSlot(), problem.lhs.aval()}, {RhsSlot(), problem.rhs.aval()}};
  if (problem.group_sizes.has_value()) inputs.push_back({GroupsSlot(), problem.group_sizes->aval()});
  return inputs;
}

// The weights of the output in the loss: the gradient of the output.
inline Array LossWeights(const Aval& out) {
  return Cast(::aqt::testing::RandomArray({DType::kF32, out.shape}, 7), out.dtype);
}

// The float contraction or, if the configuration quantizes anything, the quantized one, and a loss: a weighted sum, so
// that gradients differ between elements.
inline absl::StatusOr<Program> LossOf(const ContractionProblem& problem) {
  const QuantizedDotOptions options{.config = problem.config, .key_slot = "key", .semantics = problem.semantics};
  return Trace(
      [&](absl::Span<const Value> in) {
        const Value out = problem.is_float()
                              ? FloatContraction(problem.dims, in)
                              : QuantizedContraction(in, problem.dims, options, "dot", std::source_location::current());
        return std::vector<Value>{ops::ReduceSum(out * Value(LossWeights(out.aval()))), out};
      },
      InputsFor(problem), std::vector<Slot>{{SlotKind::kData, "loss"}, OutSlot()});
}

template <class T>
T Pick(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.Below(static_cast<int64_t>(values.size()))];
}

inline Semantics RandomSemantics(Random& random) {
  Semantics semantics;
  if (random.Below(3) == 0) semantics.arithmetic = Arithmetic::kIeee;
  if (random.Below(3) == 0) semantics.prng_layout = PrngLayout::kOriginal;
  if (random.Below(6) == 0) semantics.compat = Compat::Original();
  return semantics;
}

// Mostly ordinary numbers; sometimes tiny ones (subnormal products), zeros, ties.
inline double RandomMagnitude(Random& random) { return Pick<double>(random, {1, 1, 1, 3, 1e-3, 1e-20, 1e-38, 0}); }

inline DType RandomFloat(Random& random) { return Pick(random, {DType::kF32, DType::kF32, DType::kBF16, DType::kF16}); }

// About one element in twelve is a special value.
inline Array WithSpecialValues(Random& random, const Array& x) {
  constexpr double kSpecial[] = {NAN, INFINITY, -INFINITY, 1e-40, -0.0, 6e4, 1.17549435e-38, -1e-39};
  ArrayBuilder values(DType::kF64, x.shape());
  const Array wide = Cast(x, DType::kF64);
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    values.Mutable<double>()[i] = random.Below(12) == 0 ? kSpecial[random.Below(8)] : wide.View<double>()[i];
  }
  return Cast(std::move(values).Build(), x.dtype());
}

// Fills operands of these shapes. Special values occur only where nothing is quantized: other tests cover their scales.
inline void FillOperands(Random& random, const Shape& lhs, const Shape& rhs, ContractionProblem& problem) {
  const DType dtype = RandomFloat(random);
  const double magnitude = RandomMagnitude(random);
  problem.lhs = ::aqt::testing::RandomArray({dtype, lhs}, random.Next(), -magnitude, magnitude);
  problem.rhs = ::aqt::testing::RandomArray({dtype, rhs}, random.Next());
  if (!problem.is_float() || random.Below(2) == 0) return;
  problem.lhs = WithSpecialValues(random, problem.lhs);
  problem.rhs = WithSpecialValues(random, problem.rhs);
}

// Extents of 0 to 19, mostly small; rank up to 6, operands and result of up to 2000 elements.
inline Problem RandomDotProblem(Random& random) {
  Problem problem;
  if (random.Below(3) == 0) problem.semantics.arithmetic = Arithmetic::kIeee;
  if (random.Below(3) == 0) problem.semantics.prng_layout = PrngLayout::kOriginal;
  if (random.Below(6) == 0) {
    problem.config = FullyQuantized();
  } else {
    problem.config = {RandomRaw(random, false), RandomRaw(random, true), RandomRaw(random, true)};
    AddHadamards(random, problem.config);
  }
  const DType dtype = RandomFloat(random);
  struct Axis {
    int64_t extent;
    int kind;  // 0 batch, 1 contracting, 2 remaining
    int pair;
  };
  const auto extent = [&]() -> int64_t {
    const int64_t pick = random.Below(20);
    return pick == 0 ? 0 : pick < 4 ? 1 : pick < 14 ? 1 + random.Below(6) : 1 + random.Below(19);
  };
  std::vector<Axis> sides[2];
  const int64_t batch = random.Below(3) == 0 ? 1 + random.Below(2) : 0,
                contracting = random.Below(8) == 0 ? 0 : 1 + random.Below(2);
  for (int i = 0; i < batch + contracting; ++i) {
    const Axis axis{extent(), i < batch ? 0 : 1, i};
    sides[0].push_back(axis);
    sides[1].push_back(axis);
  }
  for (std::vector<Axis>& side : sides) {
    for (int64_t i = random.Below(3); i > 0; --i) side.push_back({extent(), 2, -1});
    for (size_t i = side.size(); i > 1; --i) std::swap(side[i - 1], side[random.Below(static_cast<int64_t>(i))]);
  }
  Shape shapes[2];
  for (int s = 0; s < 2; ++s) {
    for (const Axis& axis : sides[s]) shapes[s].push_back(axis.extent);
  }
  for (int pair = 0; pair < batch + contracting; ++pair) {
    int64_t at[2];
    for (int s = 0; s < 2; ++s) {
      at[s] = std::find_if(sides[s].begin(), sides[s].end(), [&](const Axis& a) { return a.pair == pair; }) -
              sides[s].begin();
    }
    (pair < batch ? problem.dims.lhs_batch : problem.dims.lhs_contracting).push_back(at[0]);
    (pair < batch ? problem.dims.rhs_batch : problem.dims.rhs_contracting).push_back(at[1]);
  }
  if (random.Below(5) == 0) {
    // Two tiles for each even axis; the first contracting axis has tiles of one element.
    DotTiling& tiling = problem.config.tiling.emplace();
    for (size_t i = 0; i < problem.dims.lhs_contracting.size(); ++i) {
      const int64_t axis = problem.dims.lhs_contracting[i], other = problem.dims.rhs_contracting[i];
      if (i > 0 && shapes[0][axis] % 2 != 0) continue;
      AxisTiling tiles;
      (i > 0 ? tiles.tile_count : tiles.tile_size) = i > 0 ? 2 : 1;
      tiles.axis = axis;
      tiling.lhs.contraction_axes.push_back(tiles);
      tiles.axis = other;
      tiling.rhs.contraction_axes.push_back(tiles);
    }
    for (int s = 0; s < 2; ++s) {
      for (size_t axis = 0; axis < sides[s].size(); ++axis) {
        if (sides[s][axis].kind != 2 || sides[s][axis].extent % 2 != 0) continue;
        TensorTiling& tensor = s == 0 ? tiling.lhs : tiling.rhs;
        tensor.remaining_axes.push_back({.axis = static_cast<int64_t>(axis), .tile_count = 2});
      }
    }
  }
  // LocalAqt cuts dlhs by a shard count that fits half of the time, and drhs by one that always fits.
  if (random.Below(4) == 0) {
    problem.config.dlhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 1 + random.Below(4)};
    problem.config.drhs.local_aqt = LocalAqt{.contraction_axis_shard_size = 1, .tile_largest_shape = true};
    for (DotGeneralRawConfig* raw : {&problem.config.dlhs, &problem.config.drhs}) {
      raw->lhs.quantizer.calib_shared_axes = raw->rhs.quantizer.calib_shared_axes = {};
    }
  }
  const double magnitude = RandomMagnitude(random);
  problem.lhs = ::aqt::testing::RandomArray({dtype, shapes[0]}, random.Next(), -magnitude, magnitude);
  problem.rhs = ::aqt::testing::RandomArray({dtype, shapes[1]}, random.Next());
  return problem;
}

inline bool IsSmall(const Problem& problem) {
  constexpr int64_t kMaxElements = 2000;
  return problem.lhs.num_elements() <= kMaxElements && problem.rhs.num_elements() <= kMaxElements &&
         DotOutputShape(problem.dims, problem.lhs.shape(), problem.rhs.shape()).num_elements() <= kMaxElements;
}

// The same, but small; sometimes nothing is quantized.
inline ContractionProblem RandomDotContraction(Random& random) {
  Problem problem;
  do {
    problem = RandomDotProblem(random);
  } while (!IsSmall(problem));
  if (random.Below(4) == 0) problem.config = {};
  return {problem.semantics, problem.config, problem.dims, problem.lhs, problem.rhs};
}

// 1 to 3 spatial axes, groups, strides, dilations and paddings of all kinds; sometimes nothing is quantized.
inline ContractionProblem RandomConvProblem(Random& random) {
  ContractionProblem problem{.semantics = RandomSemantics(random)};
  ConvDims dims;
  Shape lhs, rhs;
  const int64_t spatial = 1 + random.Below(3);
  dims.feature_group_count = Pick<int64_t>(random, {1, 1, 2, 3});
  dims.padding = Pick(random, {ConvPadding::kValid, ConvPadding::kSame, ConvPadding::kExplicit});
  const int64_t group_in = random.Below(20) == 0 ? 0 : 1 + random.Below(3);
  const int64_t group_out = random.Below(20) == 0 ? 0 : 1 + random.Below(3);
  lhs.push_back(random.Below(30) == 0 ? 0 : 1 + random.Below(3));
  for (int64_t i = 0; i < spatial; ++i) {
    lhs.push_back(random.Below(30) == 0 ? 0 : 1 + random.Below(spatial == 1 ? 10 : 4));
    rhs.push_back(random.Below(40) == 0 ? 0 : 1 + random.Below(3));
    if (dims.padding == ConvPadding::kExplicit) {
      dims.explicit_padding.push_back({random.Below(6) - 2, random.Below(6) - 2});
      dims.lhs_dilation.push_back(1 + random.Below(3));
    }
    dims.window_strides.push_back(1 + random.Below(3));
    dims.rhs_dilation.push_back(1 + random.Below(2));
  }
  lhs.push_back(group_in * dims.feature_group_count);
  rhs.push_back(group_in);
  rhs.push_back(group_out * dims.feature_group_count);
  problem.dims = dims;
  if (random.Below(4) != 0) {
    problem.config.fwd = RandomRaw(random, /*backward=*/false);
    for (TensorConfig* tensor : {&problem.config.fwd.lhs, &problem.config.fwd.rhs}) {
      tensor->calibration_mode = CalibrationMode::kContractingAxis;
      if (tensor->dequant_mode == DequantMode::kOtherInput) tensor->dequant_mode = DequantMode::kOutput;
    }
  }
  FillOperands(random, lhs, rhs, problem);
  return problem;
}

// Up to 4 groups, some empty, and rows in no group; sometimes nothing is quantized.
inline ContractionProblem RandomRaggedProblem(Random& random) {
  ContractionProblem problem{.semantics = RandomSemantics(random), .dims = RaggedDims()};
  const int64_t groups = random.Below(5), k = random.Below(20) == 0 ? 0 : 1 + random.Below(9),
                n = random.Below(20) == 0 ? 0 : 1 + random.Below(6);
  ArrayBuilder sizes(DType::kS32, {groups});
  int64_t rows = random.Below(2) == 0 ? 0 : random.Below(3);
  for (int32_t& size : sizes.Mutable<int32_t>()) {
    size = random.Below(3) == 0 ? 0 : static_cast<int32_t>(random.Below(6));
    rows += size;
  }
  problem.group_sizes = std::move(sizes).Build();
  if (random.Below(4) != 0)
    problem.config = {RandomRaw(random, false), RandomRaw(random, true), RandomRaw(random, true)};
  FillOperands(random, {rows, k}, {groups, k, n}, problem);
  return problem;
}

// Equations with ellipses, diagonals, sums and broadcast axes; operands may differ in dtype. Sometimes nothing is
// quantized.
inline ContractionProblem RandomEinsumProblem(Random& random) {
  ContractionProblem problem{.semantics = RandomSemantics(random)};
  constexpr int64_t kMaxElements = 1500;
  std::mt19937_64 engine(random.Next());
  RandomEquation equation;
  do {
    equation = MakeRandomEquation(engine, /*plain=*/false);
  } while (equation.lhs_shape.num_elements() > kMaxElements || equation.rhs_shape.num_elements() > kMaxElements ||
           equation.out_shape.num_elements() > kMaxElements);
  problem.dims = EinsumDims{equation.text};
  if (random.Below(4) != 0) {
    problem.config = {RandomRaw(random, false), RandomRaw(random, true), RandomRaw(random, true)};
    AddHadamards(random, problem.config);
  }
  FillOperands(random, equation.lhs_shape, equation.rhs_shape, problem);
  if (random.Below(4) == 0) problem.rhs = Cast(problem.rhs, RandomFloat(random));
  if (problem.is_float()) problem.semantics.compat = {};  // ops::Einsum has none
  return problem;
}

}  // namespace aqt

#endif  // AQT_OPS_CONTRACTION_CONTRACTION_PROBLEMS_H_
