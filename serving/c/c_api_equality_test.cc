// Results of the C interface are those of the C++ interface, bit for bit.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/c_api.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/io/file.h"
#include "aqt/models/text/text_embedder.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/quant/text/config_proto.h"
#include "gtest/gtest.h"
#include "serving/c/c_api_testdata.h"
#include "serving/convert/convert_job.h"
#include "serving/tools/test_util.h"

namespace aqt {
namespace {

// Values of a bell shape in any float dtype.
Array Values(DType dtype, Shape shape, int seed) { return serving::MakeWeight(dtype, std::move(shape), seed); }

aqt_array Ref(const Array& array) {
  return {const_cast<void*>(array.data()), static_cast<aqt_dtype>(array.dtype()) + 1,
          static_cast<int32_t>(array.shape().rank()), array.shape().extents().data(), nullptr};
}
aqt_aval AvalOf(const Array& array) {
  const aqt_array ref = Ref(array);
  return {ref.dtype, ref.rank, ref.dims};
}

// An array of zeros, for results.
Array Empty(const Aval& aval) { return Array::Zeros(aval.dtype, aval.shape); }

struct Case {
  const char* config;
  DType dtype;
  Shape lhs, rhs;
  DotDims dims;
};

std::vector<Case> Cases() {
  const DotDims batched = {.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
  const DotDims two = {.lhs_contracting = {2, 0}, .rhs_contracting = {0, 1}};
  return {
      {"schema: 1", DType::kF32, {5, 7}, {7, 3}, MatMulDims()},
      {"schema: 1 base: 'fully_quantized_int8'", DType::kF32, {5, 64}, {64, 33}, MatMulDims()},
      {"schema: 1 base: 'fully_quantized_int8'", DType::kBF16, {4, 3, 16}, {4, 16, 5}, batched},
      {"schema: 1 base: 'int4_weights'", DType::kF32, {1, 96}, {96, 40}, MatMulDims()},
      {"schema: 1 base: 'fp8_current'", DType::kF16, {6, 4, 8}, {8, 6, 3}, two},
      {"schema: 1 base: 'config_v4'", DType::kF32, {17, 31}, {31, 2}, MatMulDims()},
  };
}

TEST(CApiEqualityTest, ContractionsAndGradients) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.config);
    const Array lhs = Values(c.dtype, c.lhs, 1), rhs = Values(c.dtype, c.rhs, 2);
    for (const PrngLayout layout : {PrngLayout::kPartitionable, PrngLayout::kOriginal}) {
      PlanOptions options;
      options.semantics.prng_layout = layout;
      options.semantics.compat = Compat::Original();
      const auto plan = DotGeneralPlan::Make(*DotGeneralFromText(c.config), lhs.aval(), rhs.aval(), c.dims, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const Array g = Values(c.dtype, plan->out_aval().shape, 3);
      const Context context = {.key = Key{1, 2}};
      ArrayBuilder out(plan->out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
      Residuals residuals;
      ASSERT_TRUE(plan->Forward(lhs, rhs, context, out.ref(), &residuals).ok());
      ASSERT_TRUE(plan->Backward(g, residuals, context, dlhs.ref(), drhs.ref()).ok());
      const Array want[3] = {std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};

      aqt_plan_options c_options = AQT_PLAN_OPTIONS_INIT;
      c_options.prng_layout = layout == PrngLayout::kOriginal ? AQT_PRNG_ORIGINAL : AQT_PRNG_PARTITIONABLE;
      c_options.compat = "original";
      const aqt_dot_dims dims = {c.dims.lhs_contracting.data(), c.dims.rhs_contracting.data(),
                                 c.dims.lhs_contracting.size(), c.dims.lhs_batch.data(),
                                 c.dims.rhs_batch.data(),       c.dims.lhs_batch.size()};
      const aqt_aval l_aval = AvalOf(lhs), r_aval = AvalOf(rhs);
      aqt_error* error = nullptr;
      aqt_dot_general* c_plan = nullptr;
      ASSERT_EQ(aqt_dot_general_make(c.config, &l_aval, &r_aval, &dims, &c_options, &c_plan, &error), AQT_OK)
          << aqt_error_message(error);
      const Array got[3] = {Empty(want[0].aval()), Empty(lhs.aval()), Empty(rhs.aval())};
      const aqt_array l = Ref(lhs), r = Ref(rhs), o = Ref(got[0]), dout = Ref(g), dl = Ref(got[1]), dr = Ref(got[2]);
      const aqt_operand left = {&l, nullptr}, right = {&r, nullptr};
      aqt_call_options call = AQT_CALL_OPTIONS_INIT;
      call.has_key = 1;
      call.key[0] = 1;
      call.key[1] = 2;
      aqt_residuals* kept = nullptr;
      ASSERT_EQ(aqt_residuals_make(0, &kept, &error), AQT_OK);
      ASSERT_EQ(aqt_dot_general_forward(c_plan, &left, &right, &call, &o, kept, &error), AQT_OK)
          << aqt_error_message(error);
      ASSERT_EQ(aqt_dot_general_backward(c_plan, &dout, kept, &call, &dl, &dr, &error), AQT_OK)
          << aqt_error_message(error);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(BitEqual(got[i], want[i])) << i;
      aqt_residuals_free(kept);
      aqt_dot_general_free(c_plan);
    }
  }
}

TEST(CApiEqualityTest, Quantizers) {
  const Array x = Values(DType::kF32, {12, 32}, 4);
  for (const char* config : {"int_symmetric { bits: 8 } abs_max {}", "int_symmetric { bits: 4 noise {} } abs_max {}",
                             "fp8 { dtype: 'e4m3fn' } abs_max { po2_scale: true }"}) {
    SCOPED_TRACE(config);
    const absl::StatusOr<Quantizer> quantizer = QuantizerFromText(config);
    ASSERT_TRUE(quantizer.ok()) << quantizer.status();
    const QTensor want = *Quantize(*quantizer, x, {0}, {.key = MakeKey(7)});
    aqt_error* error = nullptr;
    aqt_quantizer* handle = nullptr;
    ASSERT_EQ(aqt_quantizer_make(config, nullptr, &handle, &error), AQT_OK) << aqt_error_message(error);
    aqt_call_options call = AQT_CALL_OPTIONS_INIT;
    call.has_key = 1;
    call.key[1] = 7;
    const int64_t axes[] = {0};
    const aqt_array ref = Ref(x);
    aqt_qtensor* got = nullptr;
    ASSERT_EQ(aqt_quantizer_quantize(handle, &ref, axes, 1, &call, &got, &error), AQT_OK) << aqt_error_message(error);
    aqt_array qvalue, scale;
    ASSERT_EQ(aqt_qtensor_part(got, AQT_QVALUE, 0, &qvalue, &error), AQT_OK);
    ASSERT_EQ(aqt_qtensor_part(got, AQT_SCALE, 0, &scale, &error), AQT_OK);
    EXPECT_EQ(qvalue.dtype, Ref(*want.qvalue).dtype);
    EXPECT_TRUE(BitEqual(Array::Unowned(want.qvalue->aval(), qvalue.data), *want.qvalue));
    EXPECT_TRUE(BitEqual(Array::Unowned(want.scale[0].aval(), scale.data), want.scale[0]));
    const Array values = Empty(x.aval());
    const aqt_array out = Ref(values);
    ASSERT_EQ(aqt_qtensor_dequantize(got, &out, &error), AQT_OK) << aqt_error_message(error);
    EXPECT_TRUE(BitEqual(values, *want.Dequantize()));
    aqt_qtensor_free(got);
    aqt_quantizer_free(handle);
  }
}

TEST(CApiEqualityTest, Programs) {
  size_t size = 0;
  const char* bytes = TestProgramBytes(&size);
  const Array x = Values(DType::kF32, {2, 3}, 5), w = Values(DType::kF32, {3, 2}, 6);
  const std::vector<Array> want = *Eval(*LoadProgram({bytes, size}), {x, w});
  aqt_error* error = nullptr;
  aqt_program* program = nullptr;
  ASSERT_EQ(aqt_program_load(bytes, size, &program, &error), AQT_OK) << aqt_error_message(error);
  const Array got = Empty(want[0].aval());
  const aqt_array args[] = {Ref(x), Ref(w)}, out = Ref(got);
  ASSERT_EQ(aqt_program_run(program, args, 2, &out, 1, nullptr, &error), AQT_OK) << aqt_error_message(error);
  EXPECT_TRUE(BitEqual(got, want[0]));
  aqt_program_free(program);
}

TEST(CApiEqualityTest, Embeddings) {
  const char* folder = "tests/golden/models/bert";
  const auto embedder = models::TextEmbedder::Open(io::LocalFileSystem(), folder);
  ASSERT_TRUE(embedder.ok()) << embedder.status();
  aqt_error* error = nullptr;
  aqt_embedder* handle = nullptr;
  ASSERT_EQ(aqt_embedder_open(folder, nullptr, &handle, &error), AQT_OK) << aqt_error_message(error);
  const char* texts[] = {"w7 w8  w9", "w5"};
  const Array got = Empty({DType::kF32, {2, aqt_embedder_width(handle)}});
  const aqt_array out = Ref(got);
  ASSERT_EQ(aqt_embedder_embed(handle, texts, nullptr, 2, nullptr, &out, nullptr, &error), AQT_OK);
  std::vector<float> want;
  for (const char* text : texts) {
    const std::vector<float> values = embedder->Embed(text)->values;
    want.insert(want.end(), values.begin(), values.end());
  }
  EXPECT_TRUE(BitEqual(got, Array::FromSpan<float>(want, got.shape())));
  aqt_embedder_free(handle);
}

using CApiConvertTest = serving::FolderTest;

TEST_F(CApiConvertTest, Checkpoints) {
  serving::WriteSmallModel(At("model"), DType::kBF16);
  const std::string config = "schema: 1 base: 'w8a8_dynamic'";
  serving::WriteText(At("config.textproto"), config);
  serving::ConvertJob job;
  job.input = At("model");
  job.output = At("want");
  job.recipe.config_file = At("config.textproto");
  const auto want = serving::RunConvertJob(io::LocalFileSystem(), job);
  ASSERT_TRUE(want.ok()) << want.status();

  aqt_error* error = nullptr;
  aqt_convert_options options = AQT_CONVERT_OPTIONS_INIT;
  options.config = config.c_str();
  options.jobs = 2;
  aqt_string* report = nullptr;
  ASSERT_EQ(aqt_convert(At("model").c_str(), At("got").c_str(), &options, &report, &error), AQT_OK)
      << aqt_error_message(error);
  EXPECT_NE(std::string(aqt_string_data(report)).find(absl::StrCat("\"num_tensors\": ", want->num_tensors)),
            std::string::npos);
  aqt_string_free(report);
  ASSERT_EQ(serving::ListTree(At("got")), serving::ListTree(At("want")));
  for (const std::string& file : serving::ListTree(At("want"))) {
    if (io::LocalFileSystem().Stat(At("want/" + file))->kind == io::FileKind::kFolder) continue;
    EXPECT_EQ(serving::ReadText(At("got/" + file)), serving::ReadText(At("want/" + file))) << file;
  }
}

}  // namespace
}  // namespace aqt
