// The plan against the reference: random configurations, shapes, dimension numbers and data. A failure prints a seed
// that reproduces it: AQT_TEST_SEED=N AQT_TEST_CASES=1.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/reference/dot_general_reference.h"
#include "aqt/testing/calibrations.h"
#include "aqt/testing/same_bits.h"

namespace aqt {
namespace {

class Generator : public Choices {
 public:
  using Choices::Choices;

  Numerics RandomNumerics() {
    if (OneIn(6)) return NoNumerics{};
    if (OneIn(8)) return Fp8{.dtype = DType::kE4M3FN};
    if (OneIn(10)) return Fp8{.dtype = DType::kE5M2, .exponent_bits = 5, .mantissa_bits = 2};
    if (OneIn(8))
      return Fp{.format = {.nexp = Pick({0, 2, 3}), .nmant = Pick({1, 2}), .has_subnormals = !OneIn(3)},
                .clip_gradient = OneIn(3)};
    IntSymmetric n;
    n.bits = Pick({1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 8, 8, 12});
    n.preserve_zero = !OneIn(8);
    n.preserve_max_val = OneIn(4);
    n.clip = !OneIn(8);
    n.round = !OneIn(10);
    n.clip_gradient = OneIn(3);
    if (OneIn(4)) n.noise = Noise{Pick({NoiseKind::kJaxUniform, NoiseKind::kRandomCenteredUniform, NoiseKind::kFast})};
    if (n.noise.has_value() && OneIn(2)) n.noise->noise_sharing_axes = {Pick<int64_t>({0, -1})};
    n.dtype = n.bits == 4 ? DType::kS4 : DType::kS8;
    if (n.bits > 8 || !n.preserve_zero || OneIn(8)) n.dtype = std::nullopt;
    if (OneIn(6)) {
      n.dtype = Pick({DType::kS2, DType::kS4, DType::kS8, DType::kS32, DType::kF32, DType::kBF16, DType::kF16});
    }
    return n;
  }

  TensorConfig RandomTensor() {
    TensorConfig tensor;
    Quantizer& q = tensor.quantizer;
    q.numerics = RandomNumerics();
    if (IsQuantized(q.numerics)) {
      AbsMax absmax;
      if (OneIn(5)) absmax.clipping_scale = Pick({0.5, 0.3, 2.0, -0.7});
      absmax.po2_scale = OneIn(6);
      q.calibration = absmax;
      if (OneIn(8)) {
        Constant constant{.bound = Pick({0.7, 3.0}), .po2_scale = OneIn(3)};
        if (OneIn(3)) constant.bias = 0.3;
        q.calibration = constant;
      } else if (OneIn(3)) {
        q.calibration = testing::DrawCalibration([this](int64_t n) { return Below(n); });
      }
      if (OneIn(6)) q.scale_dtype = Pick({DType::kF32, DType::kBF16, DType::kF16});
      if (OneIn(6)) q.calib_shared_axes.per_tensor = true;
      else if (OneIn(10)) q.calib_shared_axes.axes = {Pick<int64_t>({0, -1})};
    }
    tensor.dequant_mode = Pick({DequantMode::kOutput, DequantMode::kOutput, DequantMode::kOutput,
                                DequantMode::kThisInput, DequantMode::kOtherInput});
    tensor.calibration_mode = tensor.dequant_mode == DequantMode::kOtherInput || OneIn(12)
                                  ? CalibrationMode::kRemainingAxis
                                  : CalibrationMode::kContractingAxis;
    return tensor;
  }

  // Sometimes turns numbers of a Constant calibration into arrays: of rank 0, or with one element that fits any shape
  // of the rank.
  void MakeConstantArrays(int64_t rank, Quantizer& quantizer) {
    auto* constant = quantizer.calibration.has_value() ? std::get_if<Constant>(&*quantizer.calibration) : nullptr;
    if (constant == nullptr) return;
    for (ConstantValue* value : {&constant->bound, constant->bias.has_value() ? &*constant->bias : nullptr}) {
      if (value == nullptr || !OneIn(2)) continue;
      const float number = static_cast<float>(std::get<double>(*value));
      const Shape shape(std::vector<int64_t>(OneIn(2) ? 0 : rank, 1));
      *value = ConstantArray{Cast(ArrayRef(&number, shape), Pick({DType::kF32, DType::kBF16, DType::kF16}))};
    }
  }

  // A tensor for a product of integers.
  TensorConfig RandomIntegerTensor() {
    TensorConfig tensor = RandomTensor();
    IntSymmetric n{.bits = Pick({2, 3, 4, 4, 5, 6, 7, 8, 8, 8, 8})};
    n.preserve_max_val = OneIn(4);
    n.clip = !OneIn(8);
    n.clip_gradient = OneIn(3);
    if (OneIn(4)) n.noise = Noise{};
    n.dtype = n.bits == 4 ? DType::kS4 : DType::kS8;
    tensor.quantizer.numerics = n;
    if (!tensor.quantizer.calibration.has_value()) tensor.quantizer.calibration = AbsMax{};
    if (auto* constant = std::get_if<Constant>(&*tensor.quantizer.calibration)) constant->bias.reset();
    if (!tensor.quantizer.calib_shared_axes.per_tensor) tensor.quantizer.calib_shared_axes = {};
    tensor.dequant_mode = DequantMode::kOutput;
    tensor.calibration_mode = CalibrationMode::kContractingAxis;
    return tensor;
  }

  DotGeneralRawConfig RandomRaw(bool backward) {
    DotGeneralRawConfig raw;
    if (!OneIn(3)) {
      raw.lhs = RandomIntegerTensor();
      raw.rhs = RandomIntegerTensor();
      raw.rhs.use_fwd_quant = backward && OneIn(2);
      raw.dg_accumulator_dtype = DType::kS32;
      if (OneIn(12)) raw.lhs_mid_alpha = 0.5;
      return raw;
    }
    raw.lhs = RandomTensor();
    raw.rhs = RandomTensor();
    raw.rhs.use_fwd_quant = backward && OneIn(2);
    if (!OneIn(3)) raw.dg_accumulator_dtype = Pick({DType::kS32, DType::kF32, DType::kBF16, DType::kF16});
    if (OneIn(6)) raw.lhs_mid_alpha = 0.5;
    if (OneIn(6)) raw.rhs_mid_alpha = 0.3;
    return raw;
  }

  struct Shapes {
    Shape lhs, rhs;
    DotDims dims;
  };

  // Cuts the backward contractions, mostly so that the cuts fit the shapes.
  void AddLocalAqt(const Shapes& shapes, DotGeneralConfig& config) {
    for (const Side wrt : {Side::kLhs, Side::kRhs}) {
      if (!OneIn(3)) continue;
      DotGeneralRawConfig& raw = wrt == Side::kLhs ? config.dlhs : config.drhs;
      const Shape g = DotOutputShape(shapes.dims, shapes.lhs, shapes.rhs);
      const Axes contracting =
          MakeBackwardDotDims(shapes.dims, shapes.lhs.rank(), shapes.rhs.rank(), wrt).dims.lhs_contracting;
      const auto divisor = [&](int64_t extent) {
        int64_t d = 1 + Below(std::max<int64_t>(extent, 3));
        while (!OneIn(30) && extent % d != 0) --d;
        return d;
      };
      LocalAqt local{.tile_largest_shape = OneIn(2)};
      if (local.tile_largest_shape) {
        int64_t largest = 1;
        for (const int64_t axis : contracting) largest = std::max(largest, g[axis]);
        local.contraction_axis_shard_size = divisor(largest);
      } else {
        local.contraction_axis_shard_count = divisor(contracting.empty() ? 1 : g[contracting[0]]);
      }
      raw.local_aqt = local;
      for (TensorConfig* tensor : {&raw.lhs, &raw.rhs}) tensor->quantizer.calib_shared_axes = {};
    }
  }

  Shapes RandomShapes() {
    const auto extent = [&] { return OneIn(40) ? 0 : Pick<int64_t>({1, 2, 3, 4, 5, 6, 7}); };
    const auto extents = [&](std::initializer_list<int64_t> counts) {
      std::vector<int64_t> list(Pick(counts));
      for (int64_t& e : list) e = extent();
      return list;
    };
    const std::vector<int64_t> batch = extents({0, 0, 1, 2}), lhs_free = extents({0, 1, 1, 2}),
                               rhs_free = extents({0, 1, 1, 2});
    std::vector<int64_t> contract = extents({0, 1, 1, 1, 2});
    if (!contract.empty() && OneIn(3)) contract[0] = Pick<int64_t>({16, 31, 64, 65});
    Shapes s;
    Place(batch, lhs_free, contract, s.lhs, s.dims.lhs_batch, s.dims.lhs_contracting);
    Place(batch, rhs_free, contract, s.rhs, s.dims.rhs_batch, s.dims.rhs_contracting);
    return s;
  }

  // Tiles that fit the shapes.
  DotTiling RandomTiling(const Shapes& shapes) {
    const auto tiles_of = [&](int64_t extent) {
      int64_t tiles = 1 + Below(std::max<int64_t>(extent, 3));
      while (extent % tiles != 0) --tiles;
      return tiles;
    };
    // By count, by size, or by both; from the front or from the end.
    const auto cut = [&](const Shape& shape, int64_t axis, int64_t tiles) {
      AxisTiling tiling{.axis = OneIn(2) ? axis : axis - shape.rank()};
      const int64_t size = shape[axis] / tiles;
      if (size == 0 || OneIn(2)) tiling.tile_count = tiles;
      if (!tiling.tile_count.has_value() || (size > 0 && OneIn(3))) tiling.tile_size = size;
      return tiling;
    };
    DotTiling tiling;
    for (size_t i = 0; i < shapes.dims.lhs_contracting.size(); ++i) {
      if (OneIn(3)) continue;
      const int64_t lhs_axis = shapes.dims.lhs_contracting[i], rhs_axis = shapes.dims.rhs_contracting[i];
      const int64_t tiles = tiles_of(shapes.lhs[lhs_axis]);
      tiling.lhs.contraction_axes.push_back(cut(shapes.lhs, lhs_axis, tiles));
      tiling.rhs.contraction_axes.push_back(cut(shapes.rhs, rhs_axis, tiles));
    }
    if (OneIn(2)) {
      std::reverse(tiling.lhs.contraction_axes.begin(), tiling.lhs.contraction_axes.end());
      std::reverse(tiling.rhs.contraction_axes.begin(), tiling.rhs.contraction_axes.end());
    }
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const DotDims own = side == Side::kLhs ? shapes.dims : shapes.dims.Swapped();
      const Shape& shape = side == Side::kLhs ? shapes.lhs : shapes.rhs;
      TensorTiling& tensor = side == Side::kLhs ? tiling.lhs : tiling.rhs;
      for (const int64_t axis : RemainingAxes(shape.rank(), own.lhs_contracting, own.lhs_batch)) {
        if (!OneIn(3)) tensor.remaining_axes.push_back(cut(shape, axis, tiles_of(shape[axis])));
      }
      if (OneIn(2)) std::reverse(tensor.remaining_axes.begin(), tensor.remaining_axes.end());
    }
    return tiling;
  }

  Array RandomData(DType dtype, const Shape& shape) {
    std::vector<float> values(shape.num_elements());
    const float scale = Pick({1.0f, 1.0f, 100.0f, 1e-3f, 1e-37f, 1e30f});
    std::normal_distribution<float> normal;
    for (float& v : values) v = normal(engine_) * scale;
    const auto sprinkle = [&](float special) {
      for (float& v : values) v = OneIn(20) ? special : v;
    };
    if (OneIn(4)) sprinkle(0);
    if (OneIn(8)) sprinkle(1e-40f);
    if (OneIn(12)) sprinkle(std::numeric_limits<float>::quiet_NaN());
    if (OneIn(12)) sprinkle(std::numeric_limits<float>::infinity());
    if (OneIn(6)) std::fill(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2, 0.0f);
    return Cast(ArrayRef(values.data(), shape), dtype);
  }

 private:
  // Shuffles the axes of one operand and records where the batch and contracting axes went.
  void Place(const std::vector<int64_t>& batch, const std::vector<int64_t>& free, const std::vector<int64_t>& contract,
             Shape& shape, Axes& batch_axes, Axes& contract_axes) {
    std::vector<int64_t> extents = batch;
    extents.insert(extents.end(), free.begin(), free.end());
    extents.insert(extents.end(), contract.begin(), contract.end());
    std::vector<size_t> order(extents.size());
    std::iota(order.begin(), order.end(), 0);
    if (OneIn(2)) std::shuffle(order.begin(), order.end(), engine_);
    std::vector<int64_t> where(extents.size());
    for (size_t i = 0; i < order.size(); ++i) {
      shape.push_back(extents[order[i]]);
      where[order[i]] = static_cast<int64_t>(i);
    }
    batch_axes.assign(where.begin(), where.begin() + static_cast<int64_t>(batch.size()));
    contract_axes.assign(where.end() - static_cast<int64_t>(contract.size()), where.end());
  }
};

// Makes most random configurations legal; Make rejects the others, which are skipped.
void Repair(DotGeneralRawConfig& raw, bool backward) {
  const auto integer = [](const TensorConfig& t) {
    const auto* n = std::get_if<IntSymmetric>(&t.quantizer.numerics);
    return n != nullptr && n->dtype.has_value() && t.dequant_mode != DequantMode::kThisInput;
  };
  for (TensorConfig* tensor : {&raw.lhs, &raw.rhs}) {
    const auto* constant =
        tensor->quantizer.calibration.has_value() ? std::get_if<Constant>(&*tensor->quantizer.calibration) : nullptr;
    if (constant != nullptr && constant->bias.has_value()) tensor->dequant_mode = DequantMode::kThisInput;
    // Backward, a single scale for the tensor is legal in any mode.
    const bool any_mode = backward && tensor->quantizer.calib_shared_axes.per_tensor;
    if (tensor->dequant_mode == DequantMode::kOutput && !any_mode)
      tensor->calibration_mode = CalibrationMode::kContractingAxis;
  }
  if (raw.lhs.calibration_mode == CalibrationMode::kRemainingAxis ||
      raw.rhs.calibration_mode == CalibrationMode::kRemainingAxis) {
    raw.lhs_mid_alpha = raw.rhs_mid_alpha = std::nullopt;
  }
  if (raw.dg_accumulator_dtype == DType::kS32 && !(integer(raw.lhs) && integer(raw.rhs))) {
    raw.dg_accumulator_dtype = std::nullopt;
  }
}

// The results that do not depend on the target: products of integers.
struct Exact {
  bool out, dlhs, drhs;
};
Exact ExactParts(const DotGeneralConfig& config) {
  const bool fwd = config.fwd.dg_accumulator_dtype == DType::kS32;
  // With use_fwd_quant the backward passes read the forward qvalues, which are exact for any product.
  return {fwd, config.dlhs.dg_accumulator_dtype == DType::kS32, config.drhs.dg_accumulator_dtype == DType::kS32};
}

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

std::string Text(const TensorConfig& t) {
  std::ostringstream os;
  os << Describe(t.quantizer.numerics) << " " << t.dequant_mode << " " << t.calibration_mode
     << (t.quantizer.calib_shared_axes.per_tensor ? " per tensor" : "") << (t.use_fwd_quant ? " fwd quant" : "");
  return os.str();
}

std::string Text(const TensorTiling& tiling) {
  std::ostringstream os;
  for (const auto* list : {&tiling.contraction_axes, &tiling.remaining_axes}) {
    os << (list == &tiling.contraction_axes ? "contracting" : ", remaining");
    for (const AxisTiling& t : *list) {
      os << " " << t.axis << ":" << t.tile_count.value_or(0) << "x" << t.tile_size.value_or(0);
    }
  }
  return os.str();
}

std::string Text(const DotGeneralRawConfig& raw) {
  std::ostringstream os;
  os << Text(raw.lhs) << " | " << Text(raw.rhs);
  if (raw.hadamard.has_value()) os << " | hadamard " << raw.hadamard->block;
  if (raw.local_aqt.has_value()) {
    os << " | local count " << raw.local_aqt->contraction_axis_shard_count.value_or(0) << " size "
       << raw.local_aqt->contraction_axis_shard_size.value_or(0);
  }
  return os.str();
}

struct Problem {
  DotGeneralConfig config;
  DotDims dims;
  Array lhs, rhs;
  Context context;
  Semantics semantics;

  absl::StatusOr<DotGeneralPlan> Plan(const PlanOptions& options = {}) const {
    return DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims, options);
  }
  std::string ToString() const {
    std::ostringstream os;
    os << lhs.aval() << " x " << rhs.aval() << " " << dims << "\n  fwd " << Text(config.fwd) << "\n  dlhs "
       << Text(config.dlhs) << "\n  drhs " << Text(config.drhs);
    for (const CompatField& field : CompatFields()) {
      if (semantics.compat.*field.member) os << "\n  " << field.name;
    }
    if (config.tiling.has_value()) {
      os << "\n  tiles of lhs: " << Text(config.tiling->lhs) << "; of rhs: " << Text(config.tiling->rhs);
    }
    return os.str();
  }
};

bool SearchesSnr(const DotGeneralConfig& config) {
  for (const DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    for (const TensorConfig* tensor : {&raw->lhs, &raw->rhs}) {
      const std::optional<Calibration>& calibration = tensor->quantizer.calibration;
      if (calibration.has_value() && std::holds_alternative<SnrSearch>(*calibration)) return true;
    }
  }
  return false;
}

// All fields of AQT or none, and sometimes some of Qwix, which SnrSearch does not have.
Compat RandomCompat(Generator& random, const DotGeneralConfig& config) {
  Compat compat = random.OneIn(2) ? Compat::Original() : Compat{};
  return !random.OneIn(2) || SearchesSnr(config) ? compat : WithSomeOfQwix(random, compat);
}

Problem RandomProblem(Generator& random) {
  DotGeneralConfig config{
      .fwd = random.RandomRaw(false), .dlhs = random.RandomRaw(true), .drhs = random.RandomRaw(true)};
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    Repair(*raw, raw != &config.fwd);
    if (!random.OneIn(3) || (!IsQuantized(raw->lhs.quantizer.numerics) && !IsQuantized(raw->rhs.quantizer.numerics)))
      continue;
    raw->hadamard = Hadamard{.block = random.Pick<int64_t>({2, 4, 8, 16, 64})};
    raw->lhs_mid_alpha = raw->rhs_mid_alpha = std::nullopt;
  }
  const Generator::Shapes shapes = random.RandomShapes();
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    const bool forward = raw == &config.fwd;
    random.MakeConstantArrays(forward ? shapes.lhs.rank() : DotOutputShape(shapes.dims, shapes.lhs, shapes.rhs).rank(),
                              raw->lhs.quantizer);
    random.MakeConstantArrays(forward || raw == &config.dlhs ? shapes.rhs.rank() : shapes.lhs.rank(),
                              raw->rhs.quantizer);
  }
  // LocalAqt was made for the backward contractions of the untiled shapes.
  if (random.OneIn(3)) {
    config.tiling = random.RandomTiling(shapes);
  } else {
    random.AddLocalAqt(shapes, config);
  }
  const DType dtype = random.Pick({DType::kF32, DType::kF32, DType::kBF16, DType::kF16});
  Array lhs = random.RandomData(dtype, shapes.lhs), rhs = random.RandomData(dtype, shapes.rhs);
  const Context context{.key = MakeKey(random.Bits())};
  const Semantics semantics{.arithmetic = random.Pick({Arithmetic::kXlaCompatible, Arithmetic::kIeee}),
                            .compat = RandomCompat(random, config),
                            .prng_layout = random.Pick({PrngLayout::kPartitionable, PrngLayout::kOriginal}),
                            .weight_only = random.Pick({WeightOnly::kDigits, WeightOnly::kFloat})};
  return {config, shapes.dims, std::move(lhs), std::move(rhs), context, semantics};
}

// How often the generator made what the test is for.
struct Coverage {
  int64_t legal = 0, packed = 0, cut = 0, tiled = 0, prepared = 0, rotated = 0;

  void Add(const DotGeneralConfig& config, const Exact& exact) {
    ++legal;
    packed += exact.out + exact.dlhs + exact.drhs;
    tiled += config.tiling.has_value() && (exact.out || exact.dlhs || exact.drhs);
    rotated += (exact.out && config.fwd.hadamard.has_value()) + (exact.dlhs && config.dlhs.hadamard.has_value()) +
               (exact.drhs && config.drhs.hadamard.has_value());
    cut += (config.dlhs.local_aqt.has_value() && exact.dlhs) + (config.drhs.local_aqt.has_value() && exact.drhs);
  }
};

// With and without an observer, with and without threads: what is exact equals the reference, and nothing depends on
// either. Returns the results.
PlanResults ExpectEqualsReference(const Problem& problem, const DotGeneralPlan& plan, const Array& g,
                                  const DotGeneralGradients& want, bool scalar, kernels::ThreadPool& pool) {
  const Exact exact = ExactParts(problem.config);
  std::optional<PlanResults> unobserved;
  for (const bool observed : {false, true}) {
    Recorder recorder;
    const Runtime runtime{.executor = observed ? nullptr : &pool, .observer = observed ? &recorder : nullptr};
    const PlanResults got = RunPlan(plan, problem.lhs, problem.rhs, g, problem.context, runtime);
    if (scalar || exact.out) {
      EXPECT_TRUE(SameValues(got.out, want.out)) << observed;
    }
    if (scalar || exact.dlhs) {
      EXPECT_TRUE(SameValues(got.dlhs, want.dlhs)) << observed;
    }
    if (scalar || exact.drhs) {
      EXPECT_TRUE(SameValues(got.drhs, want.drhs)) << observed;
    }
    if (!observed) unobserved = got;
    EXPECT_TRUE(SameBits(got.out, unobserved->out));
    EXPECT_TRUE(SameBits(got.dlhs, unobserved->dlhs));
    EXPECT_TRUE(SameBits(got.drhs, unobserved->drhs));
  }
  return *unobserved;
}

// Prepared, each side gives the same bits, with only what the kernels read if that is all it keeps. Returns how many
// sides can be prepared.
int64_t ExpectPreparedGives(const Array& want, const Problem& problem, const DotGeneralPlan& plan,
                            kernels::ThreadPool& pool) {
  int64_t prepared = 0;
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const bool is_lhs = side == Side::kLhs;
    const Array &lhs = problem.lhs, &rhs = problem.rhs;
    const Runtime runtime{.executor = &pool};
    const absl::StatusOr<PreparedOperand> whole = plan.Prepare(side, is_lhs ? lhs : rhs, problem.context, runtime);
    if (!whole.ok()) continue;  // a calibration with state, mid alphas
    ++prepared;
    const PreparedOperand weight = whole->WithoutValues();
    ArrayBuilder out(plan.out_aval());
    EXPECT_EQ(is_lhs ? plan.Forward(weight, rhs, problem.context, out.ref(), nullptr, runtime)
                     : plan.Forward(lhs, weight, problem.context, out.ref(), nullptr, runtime),
              absl::OkStatus());
    EXPECT_TRUE(SameBits(std::move(out).Build(), want)) << (is_lhs ? "lhs" : "rhs");
  }
  return prepared;
}

TEST(Property, PlanEqualsReference) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), num_cases = FromEnvironment("AQT_TEST_CASES", 300);
  kernels::ThreadPool pool(3);
  Coverage coverage;
  for (int64_t i = 0; i < num_cases; ++i) {
    const uint64_t seed = static_cast<uint64_t>(first_seed + i);
    Generator random(seed);
    Problem problem = RandomProblem(random);
    absl::StatusOr<DotGeneralPlan> plan = problem.Plan();
    if (!plan.ok()) {
      // Often the forward pass is legal and use_fwd_quant is not.
      problem.config.dlhs.rhs.use_fwd_quant = problem.config.drhs.rhs.use_fwd_quant = false;
      plan = problem.Plan();
    }
    if (!plan.ok()) {
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << plan.status();
      continue;
    }
    coverage.Add(problem.config, ExactParts(problem.config));
    const Array g = random.RandomData(problem.lhs.dtype(), plan->out_aval().shape);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", problem.ToString()));
    const absl::StatusOr<DotGeneralGradients> want = ReferenceDotGeneralWithGradients(
        problem.config, problem.lhs, problem.rhs, g, problem.dims, problem.context, problem.semantics);
    ASSERT_TRUE(want.ok()) << want.status();
    for (const kernels::Target target : kernels::SupportedTargets()) {
      SCOPED_TRACE(target);
      const DotGeneralPlan on_target = *problem.Plan({.semantics = problem.semantics, .target = target});
      const bool scalar = !target.Has(kernels::Capability::kAvx2);
      const PlanResults got = ExpectEqualsReference(problem, on_target, g, *want, scalar, pool);
      coverage.prepared += ExpectPreparedGives(got.out, problem, on_target, pool);
      if (::testing::Test::HasFailure()) return;
    }
  }
  // The generator must cover enough.
  if (num_cases >= 100) {
    EXPECT_GE(coverage.legal, num_cases / 2);
    EXPECT_GE(coverage.packed, num_cases / 2);
    EXPECT_GE(coverage.cut, num_cases / 10);
    EXPECT_GE(coverage.tiled, num_cases / 10);
    EXPECT_GE(coverage.rotated, num_cases / 5);
    EXPECT_GE(coverage.prepared, num_cases);
  }
}

}  // namespace
}  // namespace aqt
