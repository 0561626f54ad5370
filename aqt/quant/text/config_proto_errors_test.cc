#include "aqt/quant/text/config_proto.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "aqt/quant/config/builders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct ErrorCase {
  std::string text, where, message;
};

void ExpectErrors(const std::vector<ErrorCase>& cases) {
  for (const ErrorCase& c : cases) {
    const absl::Status status = DotGeneralFromText(c.text, "my.textproto").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), StartsWith("my.textproto:" + c.where)) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.text;
  }
}

const std::string kV4 = "schema: 1 base: 'config_v4'\n";
const std::string kLhs = "schema: 1\nfwd { lhs { quantizer {\n";

TEST(ConfigProtoTest, ErrorsHaveLineAndColumn) {
  ExpectErrors({
      {"", "1:1: ", "schema: 1"},
      {"\n schema: 2", "2:2: ", "schema 2 is not known"},
      {"schema: 1\n fwd { } dlhs { lhs: 3", "2:22: ", "Expected"},
      {"schema: 1\nbase: 'config_v5'", "2:1: ", "no preset \"config_v5\"; presets are binary"},
      {"schema: 1\n  clear: 'fwd'", "2:3: ", "there is no base"},
      {kV4 + "clear: 'dlhs' clear: 'fwd.lhs.use_fwd_quant'",
       "2:15: ", "\"fwd.lhs.use_fwd_quant\" is not set by the base"},
      {kV4 + "clear: 'fwd.left'", "2:1: ", "\"fwd.left\" is not set"},
      {kV4 + "clear: 'base.fwd'", "2:1: ", "is not set"},
  });
}

TEST(ConfigProtoTest, AQuantizerHasATextOfItsOwn) {
  const absl::StatusOr<Quantizer> quantizer = QuantizerFromText("int_symmetric { bits: 4 } abs_max {}");
  ASSERT_TRUE(quantizer.ok()) << quantizer.status();
  EXPECT_TRUE(*quantizer == DotGeneralFromText(kLhs + "int_symmetric { bits: 4 } abs_max {} } } }")->fwd.lhs.quantizer);
  const std::vector<std::pair<std::string, std::string>> errors = {
      {"int_symmetric {\n bits: 23 } abs_max {}", "q:1:1: IntSymmetric: bits = 23"},
      {"int_symmetric {}", "q:1:1: "},
      {"\n bits: 4", "q:2:6: "},
      {"schema: 1", "q:1:7: "},
  };
  for (const auto& [text, message] : errors) {
    const absl::Status status = QuantizerFromText(text, "q").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), StartsWith(message)) << text;
  }
}

TEST(ConfigProtoTest, ErrorsOfAQuantizerHaveLineAndColumn) {
  ExpectErrors({
      {kLhs + "  int_symmetric { bits: 23 } abs_max {} } } }", "2:13: ", "fwd.lhs.quantizer: IntSymmetric: bits = 23"},
      {kLhs + "  int_symmetric {} } } }", "2:13: ", "needs a calibration"},
      {kLhs + "  int_symmetric {\n dtype: 's3' } abs_max {} } } }", "4:2: ", "\"s3\" is not a data type; expected s2"},
      {kLhs + "  int_symmetric {\n dtype: 'int8' } abs_max {} } } }", "4:2: ", "is not a data type; write \"s8\""},
      {kLhs + "  int_symmetric { dtype: 'e5m2' } abs_max {} } } }", "2:13: ", "container e5m2"},
      {kLhs + "  int_symmetric { bits: 0 } abs_max {} } } }", "2:13: ", "bits = 0, but 1 to 22"},
      {kLhs + "  fp { format { radix: 3 } } abs_max {} } } }", "2:13: ", "radix 3, expected 2 or 4"},
      {kLhs + "  fp { format { nexp: 8 } } abs_max {} } } }", "2:13: ", "nexp = 8, nmant = 1; expected 0 to 7"},
      {kLhs + "  fp { format { nexp: 0 nmant: 0 } } abs_max {} } } }", "2:13: ", "has no values"},
      {kLhs + "  int_symmetric {} abs_mean { p: 0 } } } }", "2:13: ", "AbsMean: p = 0"},
      {kLhs + "  int_symmetric {} abs_mean { clipping_scale: nan } } } }", "2:13: ", "clipping_scale = nan"},
      {kLhs + "  int_symmetric {} snr_search { candidates: [1, nan] } } } }", "2:13: ", "candidate nan"},
      {kLhs + "  int_symmetric {} constant { bound { number: nan } } } } }", "2:13: ", "bound = nan"},
      {kLhs + "  fp8 { dtype: 'none' } abs_max {} } } }", "3:9: ", "needs a dtype"},
      {kLhs + "  fp8 { mantissa_bits: 2 } abs_max {} } } }", "2:13: ", "exponent_bits = 4, mantissa_bits = 2"},
      {kLhs + "  scale_dtype: 's8' } } }", "2:13: ", "scale_dtype s8"},
      {kLhs + "  calib_shared_axes { per_tensor: true axes: 1 } } } }", "3:3: ", "exclude each other"},
      {kLhs + "  int_symmetric {} abs_max { clipping_scale: nan } } } }", "2:13: ", "clipping_scale = nan"},
      {kLhs + "  int_symmetric {} weighted_stats { lp_order: 31 max_dev_coeff: 1 } } } }", "2:13: ", "lp_order = 31"},
      {kLhs + "  int_symmetric {} weighted_stats {} } } }", "2:13: ", "all four coefficients are 0"},
      {kLhs + "  int_symmetric {} delayed_scaling { amax_history_length: 0 } } } }",
       "2:13: ", "amax_history_length = 0, expected 1 to 1048576"},
      {kLhs + "  int_symmetric {} constant { bound { } } } } }", "3:31: ", "needs number or array"},
      {kLhs + "  int_symmetric {} constant { bound { number: 0 } } } } }", "2:13: ", "bound = 0"},
      {kLhs + "  constant { bound { array { dtype: 's8' } } } } } }", "3:30: ", "f32, bf16 or f16"},
      {kLhs + "  constant { bound { array { values: 1 } } } } } }", "3:22: ", "needs a dtype"},
      {kLhs + "  constant { bias { array { dtype: 'f32' shape: -2 } } } } } }", "3:42: ", "-2"},
      {kLhs + "  constant { bias { array { dtype: 'f32' shape: [2, 2]\nvalues: [1, 2, 3] } } } } } }",
       "4:1: ", "[2,2] has 4 elements, but there are 3"},
  });
}

TEST(ConfigProtoTest, ErrorsOfAContractionHaveLineAndColumn) {
  ExpectErrors({
      {kV4 + "fwd {\n lhs { calibration_mode: CALIBRATION_MODE_REMAINING_AXIS } }",
       "3:8: ", "fwd.lhs.calibration_mode: DEQUANT_MODE_OUTPUT with"},
      {kV4 + "fwd {\n rhs { dequant_mode: DEQUANT_MODE_OTHER_INPUT } }",
       "3:8: ", "OTHER_INPUT with CALIBRATION_MODE_CONTRACTING"},
      {kV4 + "fwd {\n rhs { quantizer { constant { bias { number: 1 } } } } }",
       "3:2: ", "a bias needs DEQUANT_MODE_THIS_INPUT"},
      {kV4 + "fwd {\n lhs { dequant_mode: 7 } }", "3:8: ", "7 is not a value of the enum DequantMode"},
      {kV4 + "drhs {\n dg_accumulator_dtype: 's32' }", "3:2: ", "lhs enters the product as a float"},
      {kV4 + "fwd {\n dg_accumulator_dtype: 's8' }", "3:2: ", "accumulator dtype s8, expected s32"},
      {kV4 + "fwd { rhs { dequant_mode: DEQUANT_MODE_THIS_INPUT }\n dg_accumulator_dtype: 's32' }",
       "3:2: ", "rhs enters the product as a float"},
      {kV4 + "fwd {\n local_aqt {} }", "3:2: ", "only supported in dlhs and drhs"},
      {kV4 + "dlhs {\n local_aqt {} }", "3:2: ", "dlhs.local_aqt: local_aqt: needs a contraction_axis_shard_count"},
      {kV4 + "drhs {\n local_aqt { contraction_axis_shard_size: 2 } }", "3:2: ", "belongs to tile_largest_shape"},
      {kV4 + "drhs {\n local_aqt { tile_largest_shape: true } }", "3:2: ", "needs a contraction_axis_shard_size"},
      {kV4 + "drhs {\n local_aqt { contraction_axis_shard_count: 0 } }", "3:2: ", "= 0, expected at least 1"},
      {kV4 + "drhs {\n local_aqt { contraction_axis_shard_size: 2 contraction_axis_shard_count: 2 "
             "tile_largest_shape: true } }",
       "3:2: ", "leave contraction_axis_shard_count out"},
      {kV4 + "drhs { local_aqt { contraction_axis_shard_count: 2 }\n rhs {\n"
             "   quantizer { calib_shared_axes { axes: 0 } } } }",
       "4:4: ", "drhs.rhs.quantizer: calib_shared_axes cannot be set with local_aqt"},
      {kV4 + "drhs { lhs { dequant_mode: DEQUANT_MODE_THIS_INPUT\n"
             "  calibration_mode: CALIBRATION_MODE_REMAINING_AXIS }\n lhs_mid_alpha: 0.5 }",
       "4:2: ", "but lhs has CALIBRATION_MODE_REMAINING_AXIS"},
      {kV4 + "fwd {\n rhs_mid_alpha: inf }", "3:2: ", "rhs_mid_alpha = inf, expected a finite number"},
      {kV4 + "fwd {\n hadamard { block: 48 } }",
       "3:2: ", "fwd.hadamard: hadamard: block = 48, expected a power of two from 2 to 4096"},
      {kV4 + "fwd { hadamard { block: 8192 } }", "", "block = 8192, expected"},
      {kV4 + "fwd { hadamard { block: 1 } }", "", "block = 1, expected"},
      {kV4 + "fwd { hadamard { block: -64 } }", "", "block = -64, expected"},
      {kV4 + "dlhs { hadamard { } lhs_mid_alpha: 0.5 }", "", "dlhs.hadamard: hadamard: does not go together with mid"},
      {"schema: 1\nfwd { hadamard { } }", "2:7: ", "neither operand is quantized"},
      {kV4 + "tiling { lhs {\n contraction_axes { tile_size: 2 } } }", "", "an axis to tile needs a number: axis: -1"},
      {kV4 + "tiling { lhs {\n contraction_axes { axis: 1 } } }", "", "axis 1 needs a tile_count or a tile_size"},
      {kV4 + "dlhs { lhs {\n  use_fwd_quant: true } }", "3:3: ", "only the rhs of dlhs and of drhs"},
      {kV4 + "fwd { rhs {\n  use_fwd_quant: true } }", "3:3: ", "only the rhs of dlhs and of drhs"},
      {"schema: 1\ndlhs { rhs { use_fwd_quant: true } }", "2:14: ",
       "dlhs.rhs.use_fwd_quant: use_fwd_quant takes the quantization of the operand in fwd, but that is not "
       "quantized"},
      // A field that the text leaves out has the position of the enclosing message.
      {"schema: 1 base: 'fully_quantized_int8'\nfwd {\n rhs { quantizer { no_numerics {} } } }",
       "1:1: ", "dlhs.rhs.use_fwd_quant"},
      {"schema: 1 base: 'fully_quantized_int8'\nfwd {}\ndlhs {}\nclear: 'fwd.lhs'", "1:1: ", "drhs.rhs.use_fwd_quant"},
  });
}

TEST(ConfigProtoTest, OldNamesLeadToTheNewOnes) {
  const std::string tensor = "schema: 1 fwd { lhs { ";
  const std::string quantizer = tensor + "quantizer { ";
  for (const ErrorCase& c : std::vector<ErrorCase>{
           {"schema: 1 fwd { dg_in_dtype: 's8' }", "", "int_symmetric { dtype: \"s8\" }"},
           {"schema: 1 fwd { use_fake_quant: true }", "", "dequant_mode: DEQUANT_MODE_THIS_INPUT"},
           {"schema: 1 fwd { dg_quantizer { } }", "", "Write lhs { quantizer { ... } } and rhs"},
           {"schema: 1 fwd { lhs_mid { } }", "", "Write lhs_mid_alpha"},
           {"schema: 1 fwd { rhs_mid { } }", "", "Write rhs_mid_alpha"},
           {"schema: 1 hadamard { }", "", "Write fwd { hadamard { block: ... } }"},
           {"schema: 1 fwd { hadamard_block: 64 }", "", "Write hadamard { block: ... }"},
           {"schema: 1 fwd { jax_scope_name: 'aqt' }", "", "scopes are those of the program"},
           {tensor + "use_fake_quant: true", "", "dequant_mode: DEQUANT_MODE_THIS_INPUT"},
           {tensor + "numerics { }", "", "are in quantizer"},
           {tensor + "int_symmetric { }", "", "Write quantizer { int_symmetric"},
           {tensor + "calibration { }", "", "Write quantizer { abs_max"},
           {tensor + "calib_shared_axes { }", "", "quantizer { calib_shared_axes"},
           {tensor + "scale_stop_grad: true", "", "quantizer { scale_stop_grad"},
           {tensor + "bits: 8", "", "quantizer { int_symmetric { bits"},
           {tensor + "po2_scale: true", "", "abs_max { po2_scale: true }"},
           {quantizer + "po2_scale: true", "", "abs_max { po2_scale: true }"},
           {quantizer + "numerics { }", "", "int_symmetric { ... }, fp8 { ... }"},
           {quantizer + "calibration { }", "", "abs_max {}, abs_mean {}"},
           {quantizer + "bits: 8", "", "Write int_symmetric { bits"},
           {quantizer + "context { }", "", "key, step and mode belong to each call"},
           {quantizer + "IntNumerics { bits: 8 }", "", "Write int_symmetric."},
           {quantizer + "int_numerics { bits: 8 }", "", "Write int_symmetric."},
           {quantizer + "IntSymmetric { bits: 8 }", "", "Write int_symmetric."},
           {quantizer + "NoNumerics { }", "", "Write no_numerics."},
           {quantizer + "Fp8Numerics { }", "", "Write fp8."},
           {quantizer + "FpNumerics { }", "", "Write fp."},
           {quantizer + "int_symmetric { noise_fn: 1 }", "", "noise { kind"},
           {quantizer + "int_symmetric { stochastic_rounding: true }", "", "noise { kind"},
           {quantizer + "AbsMaxCalibration { }", "", "Write abs_max."},
           {quantizer + "AbsMeanCalibration { }", "", "Write abs_mean."},
           {quantizer + "ConstantCalibration { }", "", "Write constant."},
           {quantizer + "SnrBasedAutoCalibration { }", "", "Write snr_search."},
           {quantizer + "MeanOfAbsMaxCalibration { }", "", "Write mean_of_abs_max."},
           {quantizer + "WeightedStatsCalibration { }", "", "Write weighted_stats."},
           {quantizer + "DelayedScalingCalibration { }", "", "Write delayed_scaling."},
           {quantizer + "delayed_scaling { quant_collection: 'aqt' }", "", "statistics are in slots of kind stat"},
           {quantizer + "int_symmetric { noise { kind: jax.uniform } }", "", "Write NOISE_KIND_JAX_UNIFORM."},
           {quantizer + "int_symmetric { noise { kind: \"jax.uniform\" } }", "", "Write NOISE_KIND_JAX_UNIFORM."},
           {quantizer + "int_symmetric { noise { kind: \"custom-1\" } }", "",
            "Write NOISE_KIND_RANDOM_CENTERED_UNIFORM."},
           {quantizer + "int_symmetric { noise { kind: custom-1 } }", "", "Write NOISE_KIND_RANDOM_CENTERED_UNIFORM."},
           {quantizer + "snr_search { auto_clip_search_config: 1 }", "", "Write candidates: [...]"},
           {quantizer + "abs_max { scale: 2 }", "", "Write clipping_scale."},
           {tensor + "dequant_mode: OUTPUT", "", "Write DEQUANT_MODE_OUTPUT."},
           {tensor + "dequant_mode: THIS_INPUT", "", "Write DEQUANT_MODE_THIS_INPUT."},
           {tensor + "dequant_mode: OTHER_INPUT", "", "Write DEQUANT_MODE_OTHER_INPUT."},
           {tensor + "calibration_mode: CONTRACTING_AXIS", "", "Write CALIBRATION_MODE_CONTRACTING_AXIS."},
           {tensor + "calibration_mode: REMAINING_AXIS", "", "Write CALIBRATION_MODE_REMAINING_AXIS."},
       }) {
    const absl::Status status = DotGeneralFromText(c.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), StartsWith("config:1:")) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.text;
  }
}

}  // namespace
}  // namespace aqt
