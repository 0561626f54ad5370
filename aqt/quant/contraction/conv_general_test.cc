// Random convolutions: AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing one.

#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/config/semantics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/thread_pool.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/runtime.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/reference/conv_general_reference.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/testing/allocation_count.h"

namespace aqt {
namespace {

// ---- geometry

// As jax.lax.padtype_to_pads: (outputs - 1) * stride + window - in elements, the odd one at the end.
TEST(ConvGeometry, Same) {
  const auto axis = [](int64_t in, int64_t kernel, int64_t stride, int64_t dilation) {
    const ConvDims dims{.window_strides = {stride}, .padding = ConvPadding::kSame, .rhs_dilation = {dilation}};
    return MakeConvGeometry(dims, {1, in, 2}, {kernel, 2, 3})->axes[0];
  };
  const ConvAxis three = axis(9, 3, 1, 1), four = axis(9, 4, 1, 1), strided = axis(9, 3, 2, 1), wide = axis(9, 3, 1, 2),
                 skipping = axis(9, 1, 3, 1), empty = axis(0, 3, 1, 1);
  EXPECT_EQ(std::tuple(three.low, three.high, three.out), std::tuple(1, 1, 9));
  EXPECT_EQ(std::tuple(four.low, four.high, four.out), std::tuple(1, 2, 9));
  EXPECT_EQ(std::tuple(strided.low, strided.high, strided.out), std::tuple(1, 1, 5));
  EXPECT_EQ(std::tuple(wide.low, wide.high, wide.out), std::tuple(2, 2, 9));
  EXPECT_EQ(std::tuple(skipping.low, skipping.high, skipping.out), std::tuple(0, 0, 3));
  EXPECT_EQ(empty.out, 0);
}

TEST(ConvGeometry, ExplicitAndValid) {
  ConvDims dims{.window_strides = {2, 1}, .padding = ConvPadding::kExplicit, .explicit_padding = {{1, 0}, {0, 2}}};
  EXPECT_EQ(MakeConvGeometry(dims, {1, 7, 7, 2}, {3, 2, 2, 5})->OutShape(), (Shape{1, 3, 8, 5}));
  dims = {.padding = ConvPadding::kExplicit, .explicit_padding = {{2, 2}, {-1, -1}}, .lhs_dilation = {2, 1}};
  EXPECT_EQ(MakeConvGeometry(dims, {1, 4, 6, 2}, {3, 3, 2, 3})->OutShape(), (Shape{1, 9, 2, 3}));
  EXPECT_EQ(MakeConvGeometry({}, {2, 3, 4}, {5, 4, 1})->OutShape(), (Shape{2, 0, 1}));
  EXPECT_EQ(MakeConvGeometry({}, {2, 3, 4, 5, 6}, {1, 2, 3, 6, 1})->OutShape(), (Shape{2, 3, 3, 3, 1}));
}

TEST(ConvGeometry, ErrorsNameTheField) {
  const auto error = [](const ConvDims& dims, const Shape& lhs, const Shape& rhs) {
    const absl::Status status = MakeConvGeometry(dims, lhs, rhs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const Shape lhs{1, 8, 4}, rhs{3, 4, 6};
  EXPECT_EQ(
      error({}, {8, 4}, {4, 6}),
      "conv_general: lhs is [8,4], rhs [4,6]; expected lhs [batch, spatial..., in], rhs [spatial..., in / groups, out] "
      "with 1 to 3 spatial axes");
  EXPECT_EQ(error({}, lhs, {3, 3, 4, 6}).substr(0, 45), "conv_general: lhs is [1,8,4], rhs [3,3,4,6]; ");
  EXPECT_EQ(error({.window_strides = {1, 1}}, lhs, rhs),
            "conv_general: window_strides has 2 values, expected one for each of the 1 spatial axes, or none");
  EXPECT_EQ(error({.window_strides = {0}}, lhs, rhs), "conv_general: window_strides = 0, expected 1 .. 2^40");
  EXPECT_EQ(error({.rhs_dilation = {-1}}, lhs, rhs), "conv_general: rhs_dilation = -1, expected 1 .. 2^40");
  EXPECT_EQ(error({.padding = ConvPadding::kSame, .lhs_dilation = {2}}, lhs, rhs),
            "conv_general: padding SAME is not defined with lhs_dilation; give explicit pairs");
  EXPECT_EQ(error({.padding = ConvPadding::kExplicit}, lhs, rhs),
            "conv_general: padding is EXPLICIT with 0 explicit pairs, expected 1");
  EXPECT_EQ(error({.explicit_padding = {{1, 1}}}, lhs, rhs),
            "conv_general: padding is VALID with 1 explicit pairs, expected 0");
  const int64_t huge = int64_t{1} << 50;
  EXPECT_EQ(error({.padding = ConvPadding::kExplicit, .explicit_padding = {{huge, 0}}}, lhs, rhs),
            "conv_general: padding (1125899906842624,0) of axis 0, expected -2^40 .. 2^40");
  const int64_t least = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(error({.padding = ConvPadding::kExplicit, .explicit_padding = {{0, least}}}, lhs, rhs),
            "conv_general: padding (0,-9223372036854775808) of axis 0, expected -2^40 .. 2^40");
  EXPECT_EQ(error({.rhs_dilation = {int64_t{1} << 40}}, lhs, rhs),
            "conv_general: a dilated extent of axis 0 is above 2^40");
  const int64_t wide = int64_t{1} << 40;  // of an array without elements
  EXPECT_EQ(error({}, {1, 8, 8, 4}, {wide, wide, 4, 0}),
            "conv_general: rhs: shape [1099511627776,1099511627776,4,0] has more elements than fit into memory");
  EXPECT_EQ(
      error({.feature_group_count = 4}, lhs, rhs),
      "conv_general: feature_group_count = 4 with 4 input channels, a kernel for 4 of them and 6 output channels; "
      "expected groups that divide both channels, and a kernel for input channels / groups");
  EXPECT_EQ(error({.feature_group_count = 0}, lhs, rhs).substr(0, 37), "conv_general: feature_group_count = 0");
}

// ---- errors of the plan

DotGeneralRaw Int8(int spatial_dims = 1) { return ConvGeneralDilatedMake(spatial_dims, 8, 8); }

TEST(ConvGeneralPlan, ErrorsNameSideAndRemedy) {
  const Aval lhs{DType::kF32, {1, 8, 4}}, rhs{DType::kF32, {3, 4, 6}};
  const auto error = [&](const DotGeneralRaw& config, const Aval& l, const Aval& r) {
    const absl::Status status = ConvGeneralPlan::Make(config, l, r, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error(Int8(), lhs, {DType::kBF16, {3, 4, 6}}),
            "conv_general: lhs is f32[1,8,4], rhs bf16[3,4,6]; both must have one dtype, f32, bf16 or f16");
  DotGeneralRaw config = Int8();
  config.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
  config.lhs.dequant_mode = DequantMode::kOtherInput;
  EXPECT_EQ(error(config, lhs, rhs),
            "conv_general: lhs: DEQUANT_MODE_OTHER_INPUT with CALIBRATION_MODE_REMAINING_AXIS; expected "
            "DEQUANT_MODE_OUTPUT or "
            "DEQUANT_MODE_THIS_INPUT, with CALIBRATION_MODE_CONTRACTING_AXIS");
  config = Int8();
  config.rhs.quantizer.calib_shared_axes.axes = {0};
  EXPECT_EQ(error(config, lhs, rhs),
            "conv_general: fwd.rhs: DEQUANT_MODE_OUTPUT: scale of rhs has shape [1,4,6]: it varies along axis 1, but "
            "only along the output channel (the last axis) can it be multiplied onto the result; use "
            "DEQUANT_MODE_THIS_INPUT for others");
  config = Int8();
  config.lhs_mid_alpha = 0.5;
  EXPECT_EQ(error(config, lhs, rhs), "conv_general: mid alphas do not apply to a convolution");
  config = Int8();
  config.local_aqt = LocalAqt{};
  EXPECT_EQ(error(config, lhs, rhs), "conv_general: local_aqt does not apply to a convolution");
  config = Int8();
  config.rhs.use_fwd_quant = true;
  EXPECT_EQ(error(config, lhs, rhs), "conv_general: rhs: use_fwd_quant does not apply to a convolution");
  config = Int8();
  config.dg_accumulator_dtype = DType::kS8;
  EXPECT_EQ(error(config, lhs, rhs), "conv_general: accumulator dtype s8, expected s32, f32, bf16, f16 or none");
}

TEST(ConvGeneralPlan, CallsNameWhatDoesNotFit) {
  const Array lhs = RandomArray(DType::kF32, {1, 8, 4}, 1), rhs = RandomArray(DType::kF32, {3, 4, 6}, 2);
  DotGeneralRaw config = Int8();
  const ConvGeneralPlan plan = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {});
  ArrayBuilder out(plan.out_aval());
  Residuals residuals;
  EXPECT_EQ(plan.Forward(rhs, rhs, {}, out.ref()),
            absl::InvalidArgumentError("conv_general: lhs is f32[3,4,6], but the plan is for f32[1,8,4]"));
  EXPECT_EQ(plan.Backward(out.ref(), residuals, std::nullopt, std::nullopt),
            absl::FailedPreconditionError("conv_general: Backward needs the 4 residuals of a Forward, but got 0"));
  const PreparedOperand weight = *plan.Prepare(Side::kRhs, rhs);
  EXPECT_EQ(
      plan.Forward(lhs, weight, {}, out.ref(), &residuals),
      absl::InvalidArgumentError("conv_general: the gradient of a prepared operand is not defined; pass the float "
                                 "operand, or no Residuals"));
  QTensor per_input = *Quantize(config.rhs.quantizer, rhs, {});
  per_input.scale[0] = Array::Zeros(DType::kF32, {1, 4, 6});
  EXPECT_EQ(plan.Prepare(Side::kRhs, per_input).status(),
            absl::InvalidArgumentError("conv_general: the tensor for rhs: scale of rhs has shape [1,4,6]: it varies "
                                       "along axis 1, but only along the "
                                       "output channel (the last axis) can it be multiplied onto the result; use "
                                       "DEQUANT_MODE_THIS_INPUT for others"));
  class : public PlainProduct {
    void Contract(absl::string_view, const ArrayRef&, const ArrayRef&, const DotDims&,
                  const MutableArrayRef&) override {}
  } product;
  EXPECT_EQ(plan.Forward(lhs, rhs, {}, out.ref(), nullptr, {.product = &product}),
            absl::InvalidArgumentError("conv_general: Runtime::product contracts; it cannot convolve. Leave it null"));
  std::get<IntSymmetric>(config.lhs.quantizer.numerics).noise = Noise{};
  const ConvGeneralPlan noisy = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {});
  EXPECT_EQ(noisy.Forward(lhs, rhs, {}, out.ref()),
            absl::FailedPreconditionError(
                "conv_general: Forward rounds stochastically and draws random numbers: set Context::key"));
}

// ---- exact values

TEST(ConvGeneralPlan, CountsByHand) {
  const DotGeneralRaw config = ConvGeneralDilatedMake(1, std::nullopt, std::nullopt);
  const Array lhs = Array::Of<float>({1, 2, 3, 4}, {1, 4, 1}), rhs = Array::Of<float>({1, 10, 100}, {3, 1, 1});
  const auto conv = [&](const ConvDims& dims) {
    const Array out = *QuantizedConvGeneral(config, lhs, rhs, dims);
    return std::vector<float>(out.View<float>().begin(), out.View<float>().end());
  };
  EXPECT_EQ(conv({}), (std::vector<float>{321, 432}));
  EXPECT_EQ(conv({.padding = ConvPadding::kSame}), (std::vector<float>{210, 321, 432, 43}));
  EXPECT_EQ(conv({.window_strides = {2}, .padding = ConvPadding::kSame}), (std::vector<float>{321, 43}));
  EXPECT_EQ(conv({.padding = ConvPadding::kExplicit, .explicit_padding = {{0, 0}}, .lhs_dilation = {2}}),
            (std::vector<float>{201, 20, 302, 30, 403}));
  EXPECT_EQ(conv({.padding = ConvPadding::kExplicit, .explicit_padding = {{1, 1}}, .rhs_dilation = {2}}),
            (std::vector<float>{420, 31}));
}

// 1100 products of 127 * 127 pass 2^24: the sum is exact and rounded once.
TEST(ConvGeneralPlan, SumsAbove24BitsAreExact) {
  const DotGeneralRaw config = [] {
    DotGeneralRaw raw = ConvGeneralDilatedMake(1, 8, 8);
    for (Tensor* t : {&raw.lhs, &raw.rhs}) std::get<IntSymmetric>(t->quantizer.numerics).preserve_max_val = true;
    return raw;
  }();
  std::vector<float> lhs(1101, 127.0f), rhs(1101, 127.0f);
  lhs[1100] = 1;
  rhs[1100] = 1;
  const Array out =
      *QuantizedConvGeneral(config, ArrayRef(lhs.data(), {1, 1101, 1}), ArrayRef(rhs.data(), {1101, 1, 1}), {});
  EXPECT_EQ(out.View<float>()[0], static_cast<float>(1100 * 127 * 127 + 1)) << "scales are 1";
}

// ---- against the reference

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

struct Case {
  DotGeneralRaw config;
  ConvDims dims;
  Shape lhs, rhs;
  std::string text;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  template <class T>
  T Pick(std::initializer_list<T> values) {
    return *(values.begin() + Below(static_cast<int64_t>(values.size())));
  }
  uint64_t Bits() { return engine_(); }

  // About every twelfth element is a special value.
  Array WithSpecialValues(const Array& x) {
    ArrayBuilder values(DType::kF32, x.shape());
    EXPECT_TRUE(CastArray(x, values.ref()).ok());
    for (float& v : values.Mutable<float>()) {
      if (OneIn(12)) v = Pick({NAN, INFINITY, -INFINITY, 1e-40f, -0.0f, 3e38f, 1.17549435e-38f, 0.0f});
    }
    return Cast(std::move(values).Build(), x.dtype());
  }

  Case Next() {
    Case c;
    const int64_t spatial = 1 + Below(3);
    c.dims.feature_group_count = Pick<int64_t>({1, 1, 1, 2, 3});
    c.dims.padding = Pick({ConvPadding::kValid, ConvPadding::kSame, ConvPadding::kExplicit, ConvPadding::kExplicit});
    const int64_t group_in = OneIn(20) ? 0 : Pick<int64_t>({1, 1, 2, 3, 5}),
                  group_out = OneIn(20) ? 0 : Pick<int64_t>({1, 2, 3, 17});
    c.lhs.push_back(OneIn(30) ? 0 : 1 + Below(3));
    for (int64_t i = 0; i < spatial; ++i) {
      c.lhs.push_back(OneIn(30) ? 0 : 1 + Below(spatial == 1 ? 12 : 5));
      c.rhs.push_back(OneIn(40) ? 0 : 1 + Below(3));
      if (c.dims.padding == ConvPadding::kExplicit) {
        c.dims.explicit_padding.push_back({Below(5) - 1, Below(5) - 1});
        c.dims.lhs_dilation.push_back(1 + Below(3));
      }
      c.dims.window_strides.push_back(1 + Below(3));
      c.dims.rhs_dilation.push_back(1 + Below(2));
    }
    if (OneIn(3)) c.dims.window_strides.clear();
    if (OneIn(3)) c.dims.rhs_dilation.clear();
    if (OneIn(2)) c.dims.lhs_dilation.clear();
    c.lhs.push_back(group_in * c.dims.feature_group_count);
    c.rhs.push_back(group_in);
    c.rhs.push_back(group_out * c.dims.feature_group_count);

    c.config = ConvGeneralDilatedMake(static_cast<int>(spatial), RandomBits(), RandomBits());
    for (Tensor* t : {&c.config.lhs, &c.config.rhs}) {
      Quantizer& q = t->quantizer;
      if (OneIn(8)) t->dequant_mode = DequantMode::kThisInput;
      if (OneIn(3)) q.calib_shared_axes = {};
      if (OneIn(6)) q.calib_shared_axes = {.per_tensor = true};
      if (!IsQuantized(q.numerics)) continue;
      if (OneIn(6)) q.scale_dtype = Pick({DType::kF32, DType::kBF16});
      if (OneIn(4)) q.calibration = AbsMax{.clipping_scale = 0.6, .po2_scale = OneIn(2)};
      if (OneIn(6)) q.calibration = Constant{.bound = 0.7};
      if (auto* n = std::get_if<IntSymmetric>(&q.numerics)) {
        n->clip_gradient = OneIn(2);
        if (OneIn(4)) n->noise = Noise{};
      }
    }
    if (c.config.lhs.dequant_mode == DequantMode::kThisInput || c.config.rhs.dequant_mode == DequantMode::kThisInput) {
      c.config.dg_accumulator_dtype = std::nullopt;
    }
    if (OneIn(6)) c.config.dg_accumulator_dtype = Pick({DType::kF32, DType::kBF16, DType::kF16});
    return c;
  }

 private:
  aqt::Bits RandomBits() {
    if (OneIn(5)) return std::nullopt;
    if (OneIn(8)) return aqt::Bits::E4M3();
    return Pick({8, 8, 8, 4, 2, 1, 12});
  }
  std::mt19937_64 engine_;
};

struct ConvResults {
  Array out, dlhs, drhs;
};

ConvResults RunConv(const ConvGeneralPlan& plan, const ArrayRef& lhs, const ArrayRef& rhs, const ArrayRef& g,
                    const Context& context, const Runtime& runtime) {
  ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
  Residuals residuals;
  EXPECT_EQ(plan.Forward(lhs, rhs, context, out.ref(), &residuals, runtime), absl::OkStatus());
  EXPECT_EQ(plan.Backward(g, residuals, dlhs.ref(), drhs.ref(), runtime), absl::OkStatus());
  return {std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

TEST(ConvProperty, PlanEqualsReference) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), cases = FromEnvironment("AQT_TEST_CASES", 250);
  kernels::ThreadPool pool(3);
  int64_t integers = 0;
  for (int64_t i = 0; i < cases; ++i) {
    Generator random(static_cast<uint64_t>(first_seed + i));
    const Case c = random.Next();
    const DType dtype = random.Pick({DType::kF32, DType::kF32, DType::kBF16, DType::kF16});
    // Not in rhs: the reference does not multiply it by the zeros around g.
    Array lhs = RandomArray(dtype, c.lhs, random.Bits());
    if (random.OneIn(4)) lhs = random.WithSpecialValues(lhs);
    const Array rhs = RandomArray(dtype, c.rhs, random.Bits());
    const absl::StatusOr<ConvGeneralPlan> plan = ConvGeneralPlan::Make(c.config, lhs.aval(), rhs.aval(), c.dims);
    SCOPED_TRACE(absl::StrCat("seed ", first_seed + i, ": ", lhs.aval().ToString(), " ", rhs.aval().ToString(),
                              " groups ", c.dims.feature_group_count, " ", Describe(c.config.lhs.quantizer.numerics),
                              " ", Describe(c.config.rhs.quantizer.numerics)));
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Array g = RandomArray(dtype, plan->out_aval().shape, random.Bits());
    const Context context{.key = MakeKey(random.Bits())};
    const Semantics semantics{.arithmetic = random.Pick({Arithmetic::kXlaCompatible, Arithmetic::kIeee}),
                              .compat = random.OneIn(5) ? Compat::Original() : Compat{}};
    const absl::StatusOr<DotGeneralGradients> want =
        ReferenceConvGeneralWithGradients(c.config, lhs, rhs, g, c.dims, context, semantics);
    ASSERT_TRUE(want.ok()) << want.status();
    const bool exact = c.config.dg_accumulator_dtype == DType::kS32;
    integers += exact;
    for (const kernels::Target target : kernels::SupportedTargets()) {
      const ConvGeneralPlan on_target =
          *ConvGeneralPlan::Make(c.config, lhs.aval(), rhs.aval(), c.dims, {.semantics = semantics, .target = target});
      for (const bool observed : {false, true}) {
        Recorder recorder;
        const Runtime runtime{.executor = observed ? nullptr : &pool, .observer = observed ? &recorder : nullptr};
        const ConvResults got = RunConv(on_target, lhs, rhs, g, context, runtime);
        const bool scalar = target == kernels::Target::kScalar;
        if (scalar || exact) {
          EXPECT_TRUE(SameValues(got.out, want->out)) << target << observed;
        }
        if (scalar) {
          EXPECT_TRUE(SameValues(got.dlhs, want->dlhs)) << observed;
          EXPECT_TRUE(SameValues(got.drhs, want->drhs)) << observed;
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  if (cases >= 100) {
    EXPECT_GE(integers, cases / 8);
  }
}

// An example's result and gradient do not depend on its neighbours or on threads.
TEST(ConvGeneralPlan, ExamplesAreIndependent) {
  const ConvDims dims{.padding = ConvPadding::kSame, .feature_group_count = 2};
  const Array lhs = RandomArray(DType::kF32, {5, 20, 20, 8}, 1), rhs = RandomArray(DType::kF32, {3, 3, 4, 48}, 2);
  const Array g = RandomArray(DType::kF32, {5, 20, 20, 48}, 3);
  for (const Bits bits : {Bits(8), Bits(std::nullopt)}) {
    const DotGeneralRaw config = ConvGeneralDilatedMake(2, bits, bits);
    const ConvGeneralPlan all = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims);
    const ConvResults want = RunConv(all, lhs, rhs, g, {}, {});
    for (const kernels::Target target : kernels::SupportedTargets()) {
      const ConvGeneralPlan on_target =
          *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims, {.target = target});
      const ConvResults alone = RunConv(on_target, lhs, rhs, g, {}, {});
      // Sums of integers are the same on every target; the gradients are float sums.
      EXPECT_TRUE(bits != Bits(8) || BitEqual(alone.out, want.out)) << target;
      for (const int threads : {1, 2, 7}) {
        kernels::ThreadPool pool(threads);
        const ConvResults got = RunConv(on_target, lhs, rhs, g, {}, {.executor = &pool});
        EXPECT_TRUE(BitEqual(got.out, alone.out) && BitEqual(got.dlhs, alone.dlhs) && BitEqual(got.drhs, alone.drhs))
            << threads << " threads, " << target;
      }
    }
    const PlanOptions ieee_options{.semantics = {.arithmetic = Arithmetic::kIeee}};
    const ConvGeneralPlan all_ieee = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims, ieee_options);
    const ConvGeneralPlan one =
        *ConvGeneralPlan::Make(config, {DType::kF32, {1, 20, 20, 8}}, rhs.aval(), dims, ieee_options);
    const ConvResults ieee = RunConv(all_ieee, lhs, rhs, g, {}, {});
    for (int64_t e = 0; e < 5; ++e) {
      const auto example = [&](const Array& x) {
        Shape shape = x.shape();
        shape[0] = 1;
        return ArrayRef(x.View<float>().data() + e * shape.num_elements(), shape);
      };
      const ConvResults got = RunConv(one, example(lhs), rhs, example(g), {}, {});
      EXPECT_TRUE(BitEqual(got.out, Array::CopyOf(example(ieee.out))));
      EXPECT_TRUE(BitEqual(got.dlhs, Array::CopyOf(example(ieee.dlhs))));
    }
  }
}

// ---- gradients

// The convolution is linear in each operand, so its derivative by an element is its value at a unit vector, without
// error: dlhs[i] = sum of g * conv(e_i, rhs). Sums of n products in f32 differ by at most n * 2^-24 * (1 + 2^-10) of
// the sum of absolute values.
TEST(ConvGradient, UnquantizedEqualsDifferences) {
  Generator random(7);
  const DotGeneralRaw config = ConvGeneralDilatedMake(1, std::nullopt, std::nullopt);
  for (int round = 0; round < 20; ++round) {
    Case c = random.Next();
    const Array lhs = RandomArray(DType::kF32, c.lhs, random.Bits()),
                rhs = RandomArray(DType::kF32, c.rhs, random.Bits());
    DotGeneralRaw plain = config;
    plain.lhs.quantizer.calib_shared_axes = plain.rhs.quantizer.calib_shared_axes = {};
    const ConvGeneralPlan plan = *ConvGeneralPlan::Make(plain, lhs.aval(), rhs.aval(), c.dims);
    const Array g = RandomArray(DType::kF32, plan.out_aval().shape, random.Bits());
    const ConvResults got = RunConv(plan, lhs, rhs, g, {}, {});
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const Array& x = side == Side::kLhs ? lhs : rhs;
      const Array& d = side == Side::kLhs ? got.dlhs : got.drhs;
      for (int64_t i = 0; i < x.num_elements(); i += 1 + x.num_elements() / 40) {
        ArrayBuilder unit(x.aval()), out(plan.out_aval());
        unit.Mutable<float>()[i] = 1;
        const MutableArrayRef e = unit.ref();
        ASSERT_EQ(side == Side::kLhs ? plan.Forward(e, rhs, {}, out.ref()) : plan.Forward(lhs, e, {}, out.ref()),
                  absl::OkStatus());
        double sum = 0, size = 0;
        for (int64_t j = 0; j < g.num_elements(); ++j) {
          const double product = static_cast<double>(g.View<float>()[j]) * out.Mutable<float>()[j];
          sum += product;
          size += std::fabs(product);
        }
        ASSERT_LE(std::fabs(d.View<float>()[i] - sum),
                  static_cast<double>(g.num_elements()) * 0x1p-24 * (1 + 0x1p-10) * size)
            << "round " << round << " " << side << " " << i;
      }
    }
  }
}

// Straight through: the gradient of the unquantized convolution at the dequantized operands.
TEST(ConvGradient, QuantizedIsThatOfTheDequantizedOperands) {
  const ConvDims dims{.window_strides = {2, 1}, .padding = ConvPadding::kSame};
  const Array lhs = RandomArray(DType::kF32, {2, 7, 6, 3}, 1), rhs = RandomArray(DType::kF32, {3, 2, 3, 4}, 2);
  const Array g = RandomArray(DType::kF32, {2, 4, 6, 4}, 3);
  DotGeneralRaw config = Int8(2);
  const DotGeneralGradients got = *QuantizedConvGeneralWithGradients(config, lhs, rhs, g, dims);
  const Array full_lhs = *FakeQuant(config.lhs.quantizer, lhs, {}),
              full_rhs = *FakeQuant(config.rhs.quantizer, rhs, {});
  const DotGeneralGradients want = *QuantizedConvGeneralWithGradients(
      ConvGeneralDilatedMake(2, std::nullopt, std::nullopt), full_lhs, full_rhs, g, dims);
  EXPECT_TRUE(BitEqual(got.dlhs, want.dlhs));
  EXPECT_TRUE(BitEqual(got.drhs, want.drhs));

  // clip_gradient: zero where the value was clipped, and only there.
  std::get<AbsMax>(*config.lhs.quantizer.calibration).clipping_scale = 0.5;
  const DotGeneralGradients open = *QuantizedConvGeneralWithGradients(config, lhs, rhs, g, dims);
  std::get<IntSymmetric>(config.lhs.quantizer.numerics).clip_gradient = true;
  const DotGeneralGradients masked = *QuantizedConvGeneralWithGradients(config, lhs, rhs, g, dims);
  const QTensor q = *Quantize(config.lhs.quantizer, lhs, {});
  const Array scaled = *q.ScaledValue(lhs);
  int64_t clipped = 0;
  for (int64_t i = 0; i < lhs.num_elements(); ++i) {
    const bool inside = std::fabs(scaled.View<float>()[i]) <= 127;
    clipped += !inside;
    EXPECT_EQ(masked.dlhs.View<float>()[i], inside ? open.dlhs.View<float>()[i] : 0.0f);
  }
  EXPECT_GT(clipped, 0);
  EXPECT_LT(clipped, lhs.num_elements());
}

TEST(ConvGradient, TheOriginalHasNoneThroughIntegers) {
  const Array lhs = RandomArray(DType::kF32, {2, 7, 3}, 1), rhs = RandomArray(DType::kF32, {3, 3, 4}, 2);
  const Array g = RandomArray(DType::kF32, {2, 5, 4}, 3);
  const DotGeneralRaw config = ConvGeneralDilatedMake(1, std::nullopt, 8);
  const DotGeneralGradients got = *QuantizedConvGeneralWithGradients(
      config, lhs, rhs, g, {}, {}, {.semantics = {.compat = {.conv_integer_gradient_is_zero = true}}});
  EXPECT_TRUE(BitEqual(got.drhs, Array::Zeros(DType::kF32, rhs.shape())));
  const DotGeneralGradients ours = *QuantizedConvGeneralWithGradients(config, lhs, rhs, g, {});
  EXPECT_TRUE(BitEqual(got.dlhs, ours.dlhs)) << "an operand in float has its gradient";
  EXPECT_FALSE(BitEqual(ours.drhs, got.drhs));
}

// ---- stored tensors

TEST(ConvGeneralPlan, TakesStoredTensors) {
  const Array lhs = RandomArray(DType::kBF16, {2, 6, 5, 3}, 1), rhs = RandomArray(DType::kBF16, {3, 3, 3, 4}, 2);
  const DotGeneralRaw config = ConvGeneralDilatedMake(2, 8, 4);
  const ConvGeneralPlan plan = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {});
  const Array want = *QuantizedConvGeneral(config, lhs, rhs, {});
  const QTensor stored = *Quantize(config.rhs.quantizer, rhs, {});
  EXPECT_EQ(stored.scale[0].shape(), (Shape{1, 1, 1, 4}));
  QTensor range = *Quantize(config.lhs.quantizer, lhs, {});
  EXPECT_EQ(range.scale[0].shape(), (Shape{2, 1, 1, 1}));
  range.qvalue = std::nullopt;
  const PreparedOperand weight = *plan.Prepare(Side::kRhs, stored), scales = *plan.Prepare(Side::kLhs, range);
  ArrayBuilder out(plan.out_aval());
  ASSERT_EQ(plan.Forward(DotOperand(lhs, scales), weight, {}, out.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(out).Build(), want));
  // Two scales for one tensor: 0.5 and 2 times the original.
  QTensor two = stored;
  two.scale = {Cast(stored.scale[0], DType::kBF16), Array::Scalar(1.0f)};
  two.scale[1] = *two.scale[1].Reshaped({1, 1, 1, 1});
  const ConvGeneralPlan f32 =
      *ConvGeneralPlan::Make(config, {DType::kF32, lhs.shape()}, {DType::kF32, rhs.shape()}, {});
  const PreparedOperand doubled = *f32.Prepare(Side::kRhs, two);
  const Array wide = Cast(lhs, DType::kF32);
  ArrayBuilder general(f32.out_aval()), fused(f32.out_aval());
  ASSERT_EQ(f32.Forward(wide, doubled, {}, general.ref()), absl::OkStatus());
  two.scale.pop_back();
  ASSERT_EQ(f32.Forward(wide, *f32.Prepare(Side::kRhs, two), {}, fused.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(general).Build(), std::move(fused).Build()));
}

TEST(ConvGeneralPlan, NothingIsAllocatedAfterTheFirstCall) {
  for (const Bits bits : {Bits(8), Bits(std::nullopt)}) {
    const DotGeneralRaw config = ConvGeneralDilatedMake(2, bits, bits);
    const Array lhs = RandomArray(DType::kF32, {2, 9, 8, 3}, 1), rhs = RandomArray(DType::kF32, {3, 3, 3, 4}, 2);
    const ConvGeneralPlan plan =
        *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {.padding = ConvPadding::kSame});
    const Array g = RandomArray(DType::kF32, plan.out_aval().shape, 3);
    ArrayBuilder out(plan.out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
    const PreparedOperand weight = bits.quantized() ? *plan.Prepare(Side::kRhs, rhs) : PreparedOperand();
    const DotOperand served = bits.quantized() ? DotOperand(weight) : DotOperand(rhs);
    Residuals residuals;
    for (int call = 0; call < 3; ++call) {
      const int64_t before = testing::AllocationCount();
      const bool ok = plan.Forward(lhs, served, {}, out.ref()).ok() &&
                      plan.Forward(lhs, rhs, {}, out.ref(), &residuals).ok() &&
                      plan.Backward(g, residuals, dlhs.ref(), drhs.ref()).ok();
      const int64_t during = testing::AllocationCount() - before;
      ASSERT_TRUE(ok);
      EXPECT_EQ(during > 0, call == 0) << during;
    }
  }
}

// Views: transposed, strided operands and results, and panels cut into several chunks.
TEST(ConvGeneralPlan, TakesAnyStrides) {
  const Array lhs = RandomArray(DType::kF32, {2, 9, 3}, 1), rhs = RandomArray(DType::kF32, {3, 3, 4}, 2);
  const Array lhs_t = RandomArray(DType::kF32, {3, 9, 2}, 1), rhs_t = RandomArray(DType::kF32, {4, 3, 3}, 2);
  const ArrayRef lhs_view(DType::kF32, {2, 9, 3}, {1, 2, 18}, lhs_t.data()),
      rhs_view(DType::kF32, {3, 3, 4}, {1, 3, 9}, rhs_t.data());
  for (const Bits bits : {Bits(8), Bits(std::nullopt)}) {
    const ConvGeneralPlan plan =
        *ConvGeneralPlan::Make(ConvGeneralDilatedMake(1, bits, bits), lhs.aval(), rhs.aval(), {});
    ArrayBuilder dense(plan.out_aval()), wide(DType::kF32, {4, 7, 4});
    ASSERT_EQ(plan.Forward(lhs_view, rhs_view, {}, dense.ref()), absl::OkStatus());
    const MutableArrayRef every_second(DType::kF32, {2, 7, 4}, {56, 4, 1}, wide.data());
    ASSERT_EQ(plan.Forward(Array::CopyOf(lhs_view), Array::CopyOf(rhs_view), {}, every_second), absl::OkStatus());
    EXPECT_TRUE(BitEqual(std::move(dense).Build(), Array::CopyOf(every_second)));
  }
}

TEST(ConvGeneralPlan, ManyWindowsAreTakenInParts) {
  // One example's windows have 3 * 3 * 64 * 96 * 96 = 5.3 MB in s8, 21 MB in f32: examples one by one; in f32 kernel
  // rows, too.
  const Array lhs = RandomArray(DType::kF32, {3, 98, 98, 64}, 1), rhs = RandomArray(DType::kF32, {3, 3, 64, 2}, 2);
  const DotGeneralRaw config = Int8(2);
  const Array got = *QuantizedConvGeneral(config, lhs, rhs, {});
  const Array last(Aval{DType::kF32, {1, 98, 98, 64}}, {lhs.buffer(), lhs.View<float>().data() + 2 * 98 * 98 * 64});
  const Array one = *QuantizedConvGeneral(config, last, rhs, {}, {}, {.semantics = {.arithmetic = Arithmetic::kIeee}});
  const Array ieee = *QuantizedConvGeneral(config, lhs, rhs, {}, {}, {.semantics = {.arithmetic = Arithmetic::kIeee}});
  EXPECT_TRUE(BitEqual(one, Array::CopyOf(ArrayRef(ieee.View<float>().data() + 2 * 96 * 96 * 2, {1, 96, 96, 2}))));
  EXPECT_EQ(got.num_elements(), 3 * 96 * 96 * 2);
}

}  // namespace
}  // namespace aqt
