// Random convolutions. AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing case.

#include "aqt/quant/contraction/conv_general.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

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
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/reference/conv_general_reference.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

DotGeneralRawConfig Int8(int spatial_dims = 1) { return ConvGeneralDilatedMake(spatial_dims, 8, 8); }

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

struct Case {
  DotGeneralRawConfig config;
  ConvDims dims;
  Shape lhs, rhs;
  std::string text;
};

class Generator : public Choices {
 public:
  using Choices::Choices;

  // About every twelfth element is a special value.
  Array WithSpecialValues(const Array& x) {
    ArrayBuilder values(DType::kF32, x.shape());
    EXPECT_TRUE(CastArray(x, values.ref()).ok());
    for (float& v : values.Mutable<float>()) {
      if (OneIn(12)) v = Pick({NAN, INFINITY, -INFINITY, 1e-40f, -0.0f, 3e38f, 1.17549435e-38f, 0.0f});
    }
    return Cast(std::move(values).Build(), x.dtype());
  }

  Compat RandomCompat() {
    if (OneIn(5)) return Compat::Original();
    return OneIn(2) ? Compat{} : WithSomeOfQwix(*this, {});
  }

  Case Next() {
    Case c;
    const int64_t spatial = 1 + Below(3);
    c.dims.feature_group_count = Pick<int64_t>({1, 1, 1, 2, 3});
    c.dims.padding = Pick({ConvPadding::kValid, ConvPadding::kSame, ConvPadding::kExplicit, ConvPadding::kExplicit});
    // Full lines of 64 bytes: such windows are stored by lines, not packed.
    const auto channels = [&](const std::vector<int64_t>& few) {
      return OneIn(20) ? 0 : OneIn(4) ? Pick<int64_t>({16, 32, 64, 128}) : few[Below(static_cast<int64_t>(few.size()))];
    };
    const int64_t group_in = channels({1, 1, 2, 3, 5}), group_out = channels({1, 2, 3, 17});
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
    for (TensorConfig* t : {&c.config.lhs, &c.config.rhs}) {
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
    // Not for rhs: the reference does not multiply it by the zeros around g.
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
                              .compat = random.RandomCompat()};
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
        const bool scalar = !target.Has(kernels::Capability::kAvx2);
        if (scalar || exact) {
          EXPECT_TRUE(SameValues(got.out, want->out)) << target << observed;
        }
        if (scalar) {
          EXPECT_TRUE(SameValues(got.dlhs, want->dlhs)) << observed;
          EXPECT_TRUE(SameValues(got.drhs, want->drhs)) << observed;
        }
        if (::testing::Test::HasFailure()) return;
        if (observed) continue;
        const absl::StatusOr<PreparedOperand> kernel = on_target.Prepare(Side::kRhs, rhs, context, runtime);
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        ArrayBuilder out(on_target.out_aval());
        ASSERT_EQ(on_target.Forward(lhs, kernel->WithoutValues(), context, out.ref(), nullptr, runtime),
                  absl::OkStatus());
        EXPECT_TRUE(SameValues(std::move(out).Build(), got.out)) << target;
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
    const DotGeneralRawConfig config = ConvGeneralDilatedMake(2, bits, bits);
    const ConvGeneralPlan all = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims);
    const ConvResults want = RunConv(all, lhs, rhs, g, {}, {});
    for (const kernels::Target target : kernels::SupportedTargets()) {
      const ConvGeneralPlan on_target =
          *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims, {.target = target});
      const ConvResults single = RunConv(on_target, lhs, rhs, g, {}, {});
      // Integer sums are the same on every target; the gradients are float sums.
      EXPECT_TRUE(bits != Bits(8) || BitEqual(single.out, want.out)) << target;
      for (const int threads : {1, 2, 7}) {
        kernels::ThreadPool pool(threads);
        const ConvResults got = RunConv(on_target, lhs, rhs, g, {}, {.executor = &pool});
        EXPECT_TRUE(BitEqual(got.out, single.out) && BitEqual(got.dlhs, single.dlhs) && BitEqual(got.drhs, single.drhs))
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

// The convolution is linear in each operand, so its derivative by an element is its value at a unit vector, without
// error: dlhs[i] = sum of g * conv(e_i, rhs). Sums of n products in f32 differ by at most n * 2^-24 * (1 + 2^-10) of
// the sum of absolute values.
TEST(ConvGradient, UnquantizedEqualsDifferences) {
  Generator random(7);
  const DotGeneralRawConfig config = ConvGeneralDilatedMake(1, std::nullopt, std::nullopt);
  for (int round = 0; round < 20; ++round) {
    Case c = random.Next();
    const Array lhs = RandomArray(DType::kF32, c.lhs, random.Bits()),
                rhs = RandomArray(DType::kF32, c.rhs, random.Bits());
    DotGeneralRawConfig plain = config;
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
  DotGeneralRawConfig config = Int8(2);
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
  const DotGeneralRawConfig config = ConvGeneralDilatedMake(1, std::nullopt, 8);
  const DotGeneralGradients got = *QuantizedConvGeneralWithGradients(
      config, lhs, rhs, g, {}, {}, {.semantics = {.compat = {.conv_integer_gradient_is_zero = true}}});
  EXPECT_TRUE(BitEqual(got.drhs, Array::Zeros(DType::kF32, rhs.shape())));
  const DotGeneralGradients ours = *QuantizedConvGeneralWithGradients(config, lhs, rhs, g, {});
  EXPECT_TRUE(BitEqual(got.dlhs, ours.dlhs)) << "an operand in float has its gradient";
  EXPECT_FALSE(BitEqual(ours.drhs, got.drhs));
}

}  // namespace
}  // namespace aqt
