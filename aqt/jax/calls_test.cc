// The handlers, called as XLA calls them. docs/jax.md says how they are tested with JAX.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "aqt/core/array.h"
#include "aqt/core/rng.h"
#include "aqt/jax/call.h"
#include "aqt/jax/contraction_calls.h"
#include "aqt/jax/describe.h"
#include "aqt/jax/fake_xla.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/text/compat_names.h"
#include "aqt/quant/text/config_proto.h"
#include "gtest/gtest.h"

namespace aqt::jax {
namespace {

constexpr char kText[] = "schema: 1 base: \"fully_quantized_int8\"";

std::string Spec(const std::string& more = "") { return absl::StrCat("dims 1|0||\n", more, "config\n", kText); }

abi::Error* ForwardHandler(abi::CallFrame* frame) { return Handle(frame, Forward); }
abi::Error* GradientHandler(abi::CallFrame* frame) { return Handle(frame, Gradient); }
abi::Error* QuantizeHandler(abi::CallFrame* frame) { return Handle(frame, QuantizeSide); }
abi::Error* PackHandler(abi::CallFrame* frame) { return Handle(frame, PackOperand); }
abi::Error* DequantizeHandler(abi::CallFrame* frame) { return Handle(frame, DequantizeTensor); }
abi::Error* ThrowingHandler(abi::CallFrame* frame) {
  return Handle(frame, [](const Call&) -> absl::Status { throw std::bad_alloc(); });
}

Array Numbers(Shape shape, uint64_t seed) {
  ArrayBuilder builder(DType::kF32, std::move(shape));
  const RandomBits bits(MakeKey(seed), builder.aval().shape.num_elements());
  int64_t i = 0;
  for (float& x : builder.Mutable<float>()) x = UniformF32(bits.Bits32(i++)) - 0.5f;
  return std::move(builder).Build();
}

Array KeyArray(Key key) { return Array::Of<uint32_t>({key.hi, key.lo}, {2}); }

std::vector<Array> RunForward(const Array& lhs, const Array& rhs, Pool pool) {
  FakeXla xla(pool, 3);
  xla.AddArgument(lhs);
  xla.AddArgument(rhs);
  const std::vector<Aval> results = {{DType::kF32, {5, 7}},
                                     {DType::kS8, {5, 12}},
                                     {DType::kF32, {5, 1}},
                                     {DType::kS8, {12, 7}},
                                     {DType::kF32, {1, 7}}};
  for (const Aval& aval : results) xla.AddResult(aval);
  xla.SetText("spec", Spec());
  xla.SetText("passes", "both");
  xla.SetText("lhs", "float");
  xla.SetText("rhs", "float");
  EXPECT_EQ(xla.Run(ForwardHandler), "");
  std::vector<Array> arrays;
  for (size_t i = 0; i < results.size(); ++i) arrays.push_back(xla.Result(i));
  return arrays;
}

Array RunGradient(const std::string& side, const Aval& result, const Array& g, const std::vector<Array>& residuals,
                  Key lhs_key, Key rhs_key) {
  FakeXla xla;
  xla.AddArgument(g);
  for (size_t i = 1; i < residuals.size(); ++i) xla.AddArgument(residuals[i]);
  xla.AddArgument(KeyArray(lhs_key));
  xla.AddArgument(KeyArray(rhs_key));
  xla.AddResult(result);
  xla.SetText("spec", Spec());
  xla.SetText("side", side);
  xla.SetText("lhs", "f32[5,12]");
  xla.SetText("rhs", "f32[12,7]");
  EXPECT_EQ(xla.Run(GradientHandler), "");
  return xla.Result(0);
}

// Exact: a handler computes what the plan computes, whatever the pool does.
TEST(Handlers, ComputeWhatThePlanComputes) {
  const Array lhs = Numbers({5, 12}, 1), rhs = Numbers({12, 7}, 2), g = Numbers({5, 7}, 3);
  const Key key = MakeKey(4);
  const auto want =
      QuantizedDotGeneralWithGradients(*DotGeneralFromText(kText), lhs, rhs, g, MatMulDims(), {.key = key});
  ASSERT_TRUE(want.ok()) << want.status();
  const OperandKeys keys = SplitContextKey(key);
  for (const Pool pool : {Pool::kNone, Pool::kInCaller, Pool::kNever, Pool::kThreads}) {
    const std::vector<Array> forward = RunForward(lhs, rhs, pool);
    EXPECT_TRUE(BitEqual(forward[0], want->out));
    EXPECT_TRUE(BitEqual(RunGradient("lhs", lhs.aval(), g, forward, keys.dlhs_lhs, keys.dlhs_rhs), want->dlhs));
    EXPECT_TRUE(BitEqual(RunGradient("rhs", rhs.aval(), g, forward, keys.drhs_lhs, keys.drhs_rhs), want->drhs));
  }
}

// Exact: a frozen weight gives the result of the float weight.
TEST(Handlers, ServeAFrozenWeight) {
  const Array lhs = Numbers({5, 12}, 1), rhs = Numbers({12, 7}, 2);
  FakeXla quantize;
  quantize.AddArgument(rhs);
  quantize.AddResult({DType::kS8, {12, 7}});
  quantize.AddResult({DType::kF32, {1, 7}});
  quantize.SetText("spec", Spec());
  quantize.SetText("side", "rhs");
  quantize.SetText("other", "f32[1,12]");
  ASSERT_EQ(quantize.Run(QuantizeHandler), "");

  FakeXla serve;
  serve.AddArgument(lhs);
  serve.AddArgument(quantize.Result(0));
  serve.AddArgument(quantize.Result(1));
  serve.AddResult({DType::kF32, {5, 7}});
  serve.SetText("spec", Spec());
  serve.SetText("passes", "forward");
  serve.SetText("lhs", "float");
  serve.SetText("rhs", "qvalue:1");
  ASSERT_EQ(serve.Run(ForwardHandler), "");
  EXPECT_TRUE(BitEqual(serve.Result(0), RunForward(lhs, rhs, Pool::kNone)[0]));

  FakeXla dequantize;
  dequantize.AddArgument(quantize.Result(0));
  dequantize.AddArgument(quantize.Result(1));
  dequantize.AddResult(rhs.aval());
  ASSERT_EQ(dequantize.Run(DequantizeHandler), "");
  const absl::Span<const int8_t> qvalue = quantize.Result(0).View<int8_t>();
  EXPECT_EQ(dequantize.Result(0).View<float>()[9],
            static_cast<float>(qvalue[9]) * quantize.Result(1).View<float>()[9 % 7]);
}

// Exact: entries of a leading axis are contractions of their own, with shared noise where the keys are.
TEST(Handlers, AddLeadingBatchAxes) {
  const auto spec = [](absl::string_view dims, absl::string_view levels) {
    return absl::StrCat("dims ", dims, "\n", levels,
                        "config\nschema: 1 fwd { lhs { quantizer { calib_shared_axes { per_tensor: true } abs_max {} "
                        "int_symmetric { noise {} } } } }");
  };
  const auto run = [&](const std::string& text, const Array& lhs, const Array& rhs, const Aval& result) {
    FakeXla xla;
    xla.AddArgument(lhs);
    xla.AddArgument(rhs);
    xla.AddArgument(KeyArray(MakeKey(7)));
    xla.AddResult(result);
    xla.SetText("spec", text);
    xla.SetText("passes", "forward");
    xla.SetText("lhs", "float");
    xla.SetText("rhs", "float");
    EXPECT_EQ(xla.Run(ForwardHandler), "");
    return xla.Result(0);
  };
  const Array lhs = Numbers({3, 4, 6}, 1), rhs = Numbers({3, 6, 2}, 2);
  const Array batched = run(spec("2|1|0|0", "levels 110000\n"), lhs, rhs, {DType::kF32, {3, 4, 2}});
  const auto entry = [](const Array& array, int64_t i, Shape shape) {
    const int64_t size = shape.num_elements();
    return Array::FromSpan(array.View<float>().subspan(i * size, size), std::move(shape));
  };
  // One scale for the whole tensor is divided, several are multiplied with the reciprocal: at most a bucket apart.
  for (int64_t i = 0; i < 3; ++i) {
    const Array single = run(spec("1|0||", ""), entry(lhs, i, {4, 6}), entry(rhs, i, {6, 2}), {DType::kF32, {4, 2}});
    const Array part = entry(batched, i, {4, 2});
    for (int64_t j = 0; j < 8; ++j) EXPECT_NEAR(part.View<float>()[j], single.View<float>()[j], 6 * 0.25 / 127.5);
  }
}

TEST(Handlers, ReportMistakes) {
  const auto error = [](const std::string& spec, const std::string& form, const Array& lhs) {
    FakeXla xla;
    xla.AddArgument(lhs);
    xla.AddArgument(Numbers({12, 7}, 2));
    xla.AddResult({DType::kF32, {5, 7}});
    xla.SetText("spec", spec);
    xla.SetText("passes", "forward");
    xla.SetText("lhs", form);
    xla.SetText("rhs", "float");
    return xla.Run(ForwardHandler);
  };
  const Array lhs = Numbers({5, 12}, 1);
  EXPECT_EQ(error(Spec(), "float", lhs), "");
  EXPECT_TRUE(absl::StrContains(error(Spec(), "floats", lhs), "lhs is 'floats', expected float, scales:N"));
  EXPECT_TRUE(absl::StrContains(error(Spec(), "float", Numbers({5, 11}, 1)), "[5,11]"));
  EXPECT_TRUE(absl::StrContains(error(Spec("colour red\n"), "float", lhs), "'colour red'"));
  EXPECT_TRUE(absl::StrContains(error(Spec("compat no_such_field\n"), "float", lhs), "no_such_field"));
  EXPECT_TRUE(absl::StrContains(error("dims 1|0||\nconfig\nschema: 1 fwd { hls {} }", "float", lhs), "1:"));
  EXPECT_TRUE(
      absl::StrContains(error(Spec(), "float", Array::Zeros(DType::kBool, {5, 12})), "argument 0 has XLA's data"));
  FakeXla empty;
  EXPECT_TRUE(absl::StrContains(empty.Run(ForwardHandler), "no string attribute 'spec'"));
  FakeXla memory;
  EXPECT_EQ(memory.Run(ThrowingHandler), "out of memory");
}

TEST(Handlers, AnswerForMetadata) {
  abi::Metadata metadata = {};
  abi::MetadataExtension extension{{sizeof(extension), abi::kMetadataExtension, nullptr}, &metadata};
  abi::CallFrame frame = {};
  frame.extensions = &extension.base;
  metadata.version.minor_version = 77;
  EXPECT_EQ(ForwardHandler(&frame), nullptr);
  EXPECT_EQ(metadata.version.major_version, 0);
  EXPECT_EQ(metadata.version.minor_version, 1);
}

// Exact: packing ahead of time changes no bit, for any address of the panels.
TEST(Handlers, ServeAPackedWeight) {
  const Array lhs = Numbers({5, 12}, 1), rhs = Numbers({12, 7}, 2);
  const DotGeneralPlan plan = *DotGeneralPlan::Make(*DotGeneralFromText(kText), lhs.aval(), rhs.aval(), MatMulDims());
  const PreparedOperand prepared = *plan.Prepare(Side::kRhs, rhs);
  const Aval panels{DType::kU8, {prepared.panel_bytes()}};
  FakeXla pack;
  pack.AddArgument(*prepared.qtensor().qvalue);
  pack.AddArgument(prepared.qtensor().scale[0]);
  pack.AddResult(panels);
  pack.SetText("spec", Spec());
  pack.SetText("side", "rhs");
  pack.SetText("lhs", "f32[1,12]");
  pack.SetText("rhs", "f32[12,7]");
  ASSERT_EQ(pack.Run(PackHandler), "");

  const auto serve = [&](const Array& packed, const std::string& form, std::string* error) {
    FakeXla xla;
    xla.AddArgument(lhs);
    xla.AddArgument(packed);
    xla.AddArgument(prepared.qtensor().scale[0]);
    xla.AddResult({DType::kF32, {5, 7}});
    xla.SetText("spec", Spec());
    xla.SetText("passes", "forward");
    xla.SetText("lhs", "float");
    xla.SetText("rhs", form);
    *error = xla.Run(ForwardHandler);
    return xla.Result(0);
  };
  const Array want = RunForward(lhs, rhs, Pool::kNone)[0];
  const auto memory = std::make_unique<char[]>(static_cast<size_t>(panels.num_bytes() + 80));
  for (size_t offset : {0, 16, 1}) {
    char* const data = memory.get() + offset;
    std::memcpy(data, pack.Result(0).data(), static_cast<size_t>(panels.num_bytes()));
    std::string error;
    EXPECT_TRUE(BitEqual(serve(Array::Unowned(panels, data), "panels:1:f32[12,7]", &error), want));
    EXPECT_EQ(error, "");
  }
  std::string error;
  serve(Array::Unowned({DType::kU8, {3}}, memory.get()), "panels:1:f32[12,7]", &error);
  EXPECT_TRUE(absl::StrContains(error, "fwd.rhs has panels of 3 bytes, expected ")) << error;
  serve(pack.Result(0), "panels:1", &error);
  EXPECT_TRUE(absl::StrContains(error, "'' is not a dtype and a shape")) << error;
  serve(pack.Result(0), "panels:x:f32[12,7]", &error);
  EXPECT_TRUE(absl::StrContains(error, "expected float, scales:N, qvalue:N, both:N or panels:N:f32[2,3]")) << error;
}

// Exact: what the bytes of panels depend on is in the key, and rows of the other operand are not.
TEST(Describe, Panels) {
  const auto panels = [](const std::string& dims, const std::string& lhs, const std::string& rhs) {
    const std::string text =
        DescribeContraction(absl::StrCat("dims ", dims, "\nconfig\n", kText), lhs, rhs, true).value();
    return text.substr(text.find("\"panels\":"));
  };
  const std::string usual = panels("1|0||", "f32[5,12]", "f32[12,7]");
  const auto of_rhs = [](const std::string& text) { return text.substr(text.rfind(",[\"")); };
  EXPECT_EQ(of_rhs(usual), of_rhs(panels("2|0||", "f32[3,9,12]", "f32[12,7]")));
  EXPECT_NE(usual, panels("1|1||", "f32[5,12]", "f32[7,12]"));
  EXPECT_NE(panels("1|0||", "f32[7,7]", "f32[7,7]"), panels("1|1||", "f32[7,7]", "f32[7,7]"));
  EXPECT_TRUE(absl::StrContains(usual, " of [12,7]\",")) << usual;
}

TEST(Describe, AContraction) {
  const std::string text = *DescribeContraction(Spec(), "f32[5,12]", "f32[12,7]", false);
  EXPECT_EQ(text.substr(0, text.find(",\"panels\"")),
            "{\"out\":\"f32[5,7]\",\"residuals\":[{\"side\":\"lhs\",\"kind\":\"qvalue\",\"aval\":\"s8[5,12]\"},"
            "{\"side\":\"lhs\",\"kind\":\"scale\",\"aval\":\"f32[5,1]\"},"
            "{\"side\":\"rhs\",\"kind\":\"qvalue\",\"aval\":\"s8[12,7]\"},"
            "{\"side\":\"rhs\",\"kind\":\"scale\",\"aval\":\"f32[1,7]\"}],"
            "\"draws\":[\"\",\"\",\"noise\",\"noise\",\"noise\",\"noise\"],\"splits\":[[0],[1],[],[],[],[]],"
            "\"quantized\":[[\"s8[5,12]\",\"f32[5,1]\"],[\"s8[12,7]\",\"f32[1,7]\"]]");
  EXPECT_EQ(DescribeContraction(Spec(), "f32[5,12", "f32[12,7]", false).status().message(),
            "'f32[5,12' is not a dtype and a shape, such as f32[2,3]");
}

TEST(Describe, FieldsOfCompat) {
  EXPECT_EQ(*CompatText("abs_mean_counts_zeros weight_only_in_float"),
            "weight_only_in_float: true abs_mean_counts_zeros: true");
  EXPECT_EQ(*CompatText(""), "");
  const std::string fields = absl::StrReplaceAll(*CompatText("qwix"), {{": true", ""}});
  EXPECT_EQ(*CompatFromNames(fields, ' ', ""), Compat::Qwix());
  EXPECT_TRUE(absl::StartsWith(CompatText("qwax").status().message(), "Compat has no field \"qwax\"; expected "));
}

// The part of a description between "splits": and the next name.
std::string SplitsOf(const std::string& config) {
  const std::string text =
      DescribeContraction(absl::StrCat("dims 1|0||\nconfig\n", config), "f32[8,12]", "f32[12,6]", false).value();
  const size_t begin = text.find("\"splits\":") + 9;
  return text.substr(begin, text.find(",\"quantized\"") - begin);
}

// lhs [m, k], rhs [k, n], g [m, n]; operands of dlhs are g and rhs, those of drhs g and lhs.
TEST(Describe, WhereOperandsCanBeSplit) {
  const std::string abs_max = "{ quantizer { int_symmetric { bits: 8 dtype: \"s8\" } abs_max {} } }";
  const auto products = [](const std::string& fields) {
    return absl::StrCat("schema: 1 fwd {", fields, "} dlhs {", fields, "} drhs {", fields, "}");
  };
  EXPECT_EQ(SplitsOf(products(absl::StrCat("lhs ", abs_max, " rhs ", abs_max))), "[[0],[1],[0],[0],[1],[1]]");
  EXPECT_EQ(SplitsOf("schema: 1"), "[[0,1],[0,1],[0,1],[0,1],[0,1],[0,1]]");
  const std::string per_tensor =
      "{ quantizer { int_symmetric { bits: 8 } abs_max {} calib_shared_axes { per_tensor: true } } }";
  EXPECT_EQ(SplitsOf(absl::StrCat("schema: 1 fwd { lhs ", per_tensor, "}")), "[[],[0,1],[0,1],[0,1],[0,1],[0,1]]");
  const std::string constant = "{ quantizer { int_symmetric { bits: 8 } constant { bound { number: 2 } } } }";
  EXPECT_EQ(SplitsOf(absl::StrCat("schema: 1 fwd { rhs ", constant, "}")), "[[0,1],[0,1],[0,1],[0,1],[0,1],[0,1]]");
  const std::string shared_noise =
      "{ quantizer { int_symmetric { bits: 8 noise { kind: NOISE_KIND_JAX_UNIFORM noise_sharing_axes: 0 } } abs_max {} "
      "} }";
  EXPECT_EQ(SplitsOf(absl::StrCat("schema: 1 dlhs { lhs ", shared_noise, "}")), "[[0,1],[0,1],[0],[0,1],[0,1],[0,1]]");
  EXPECT_EQ(SplitsOf(absl::StrCat("schema: 1 drhs { lhs ", shared_noise, "}")), "[[0,1],[0,1],[0,1],[0,1],[],[0,1]]");
  EXPECT_EQ(SplitsOf(absl::StrCat("schema: 1 fwd { lhs ", abs_max, " rhs ", abs_max,
                                  " lhs_mid_alpha: 0.5 rhs_mid_alpha: 0.5 }")),
            "[[],[],[0,1],[0,1],[0,1],[0,1]]");
}

}  // namespace
}  // namespace aqt::jax
