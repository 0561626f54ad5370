#include "tests/digest/other_cases.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/quant_dot.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/quant/tensor/gptq.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/quant/text/config_proto.h"
#include "tests/digest/cases.h"
#include "tests/digest/contraction.h"
#include "tests/digest/draw.h"
#include "tests/digest/hash.h"

namespace aqt::digest {
namespace {

void Add(absl::string_view name, bool everywhere, const Hash& hash, Fields& fields) {
  fields.push_back({std::string(name), everywhere, hash.value()});
}

// False, with the code as a field, for an error.
bool AddStatus(absl::string_view name, const absl::Status& status, Fields& fields) {
  if (!status.ok()) fields.push_back({std::string(name), true, static_cast<uint64_t>(status.code())});
  return status.ok();
}

void Add(absl::string_view name, const QTensor& qtensor, Fields& fields) {
  if (qtensor.qvalue.has_value()) Add(absl::StrCat(name, ".qvalue"), true, Hash().Add(*qtensor.qvalue), fields);
  for (const Array& scale : qtensor.scale) Add(absl::StrCat(name, ".scale"), true, Hash().Add(scale), fields);
  for (const Array& bias : qtensor.bias) Add(absl::StrCat(name, ".bias"), true, Hash().Add(bias), fields);
}

Axes DrawAxes(Draw& draw, int64_t rank) {
  Axes axes;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (draw.OneIn(2)) axes.push_back(axis);
  }
  return axes;
}

std::string Text(const Quantizer& quantizer) {
  DotGeneralConfig config;
  config.fwd.lhs.quantizer = quantizer;
  return ToText(config);
}

}  // namespace

Case DrawQuantDot(uint64_t seed) {
  Draw draw(seed);
  struct Operand {
    Array value;
    aqt::Bits bits;
    std::optional<Axes> axes;
    std::optional<DType> dequant_dtype;
  };
  const DotShapes shapes = DrawDotShapes(draw);
  const auto operand = [&](const Shape& shape, const Axes& contracting, const Axes& batch, DequantMode mode) {
    Operand o;
    o.value = DrawData(draw, DrawDType(draw), shape);
    if (draw.OneIn(4)) return o;
    o.bits = draw.Pick<aqt::Bits>({8, 8, 8, 4, 4, 3, 2, 1, 12, aqt::Bits::E4M3(), aqt::Bits::E5M2()});
    const Axes remaining = RemainingAxes(shape.rank(), contracting, batch);
    if (draw.OneIn(12)) {
      o.axes = DrawAxes(draw, shape.rank());
    } else if (!draw.OneIn(6)) {
      o.axes = mode == DequantMode::kOtherInput ? remaining : contracting;
    }
    if (draw.OneIn(3)) o.dequant_dtype = draw.Pick({DType::kBF16, DType::kF16});
    return o;
  };
  const auto mode = [&] {
    return draw.Pick({DequantMode::kOutput, DequantMode::kOutput, DequantMode::kThisInput, DequantMode::kOtherInput});
  };
  QuantDotOptions options;
  options.lhs_dequant_mode = mode();
  options.rhs_dequant_mode = mode();
  if (draw.OneIn(3)) options.out_dtype = draw.Pick({DType::kF32, DType::kBF16, DType::kF16});
  const Operand lhs = operand(shapes.lhs, shapes.dims.lhs_contracting, shapes.dims.lhs_batch, options.lhs_dequant_mode);
  const Operand rhs = operand(shapes.rhs, shapes.dims.rhs_contracting, shapes.dims.rhs_batch, options.rhs_dequant_mode);
  const Semantics semantics = DrawSemantics(draw);

  Case c;
  c.words = absl::StrCat("quant_dot ", shapes.dims.ToString());
  for (const Operand* o : {&lhs, &rhs}) {
    absl::StrAppend(&c.words, " ", o->value.aval().ToString());
    if (!o->bits.quantized()) continue;
    absl::StrAppend(&c.words, " ", Describe(NumericsFromBits(o->bits)), " ",
                    o->axes.has_value() ? absl::StrCat("[", absl::StrJoin(*o->axes, ","), "]") : "per tensor");
  }
  absl::StrAppend(&c.words, " ", ToString(options.lhs_dequant_mode), " ", ToString(options.rhs_dequant_mode), " ",
                  ToString(semantics.arithmetic));
  c.run = [=](const Machine& where) {
    Fields fields;
    std::optional<QTensor> quantized[2];
    bool integers =
        options.lhs_dequant_mode == DequantMode::kOutput && options.rhs_dequant_mode == DequantMode::kOutput;
    for (const Operand* o : {&lhs, &rhs}) {
      integers = integers && o->bits.bits().value_or(0) >= 2 && o->bits.bits().value_or(9) <= 8;
      if (!o->bits.quantized()) continue;
      const absl::StatusOr<QTensor> q =
          QuantizeToBits(o->value, o->bits,
                         o->axes.has_value() ? std::optional(absl::MakeConstSpan(*o->axes)) : std::nullopt, semantics);
      if (!AddStatus("quantize", q.status(), fields)) return fields;
      Add("quantize", *q, fields);
      std::optional<QTensor>& mine = quantized[o == &lhs ? 0 : 1];
      mine = *q;
      if (o->dequant_dtype.has_value()) mine->dequant_dtype = *o->dequant_dtype;
    }
    const auto given = [&](const Operand& o, const std::optional<QTensor>& q) {
      return q.has_value() ? QuantDotOperand(*q) : QuantDotOperand(o.value);
    };
    QuantDotOptions on_target = options;
    on_target.semantics = semantics;
    on_target.target = where.target;
    const absl::StatusOr<Array> out = QuantDotGeneral(given(lhs, quantized[0]), given(rhs, quantized[1]), shapes.dims,
                                                      on_target, {.executor = where.executor});
    if (AddStatus("out", out.status(), fields)) Add("out", integers, Hash().Add(*out), fields);
    return fields;
  };
  return c;
}

Case DrawGptq(uint64_t seed) {
  Draw draw(seed);
  const int64_t features = draw.Pick<int64_t>({4, 8, 12, 24}), rows = 1 + draw.Below(12);
  const DType dtype = DrawDType(draw);
  const auto data = [&](const Shape& shape) {
    ArrayBuilder values(DType::kF32, shape);
    for (float& v : values.Mutable<float>()) v = static_cast<float>(draw.Uniform(-1, 1));
    return Cast(std::move(values).Build(), dtype);
  };
  std::vector<Array> batches;
  for (int i = 0; i < 2; ++i) batches.push_back(data({1 + draw.Below(20), features}));
  const Array w = data({features, rows});
  Quantizer quantizer = DrawTensor(draw, {.integers = !draw.OneIn(4)}).quantizer;
  if (auto* n = std::get_if<IntSymmetric>(&quantizer.numerics)) n->noise.reset();
  GptqOptions options;
  options.percdamp = draw.Pick({0.01, 0.1, 1.0});
  options.act_order = draw.OneIn(2);
  options.keep_nearest_where_better = !draw.OneIn(3);
  const bool tiled = draw.OneIn(3);
  const Semantics semantics = DrawSemantics(draw);

  Case c;
  c.words = absl::StrCat("gptq ", w.aval().ToString(), options.act_order ? " act_order" : "", tiled ? " tiled" : "",
                         options.keep_nearest_where_better ? "" : " greedy", " ", ToString(semantics.arithmetic), "\n",
                         Text(quantizer));
  c.run = [=](const Machine& where) {
    Fields fields;
    HessianState state = HessianState::Zeros(features);
    for (const Array& x : batches) {
      absl::StatusOr<HessianState> next = UpdateHessian(state, x, {1}, where.executor);
      if (!AddStatus("update", next.status(), fields)) return fields;
      state = *std::move(next);
    }
    Add("hessian", true, Hash().Add(state.sum).Add(state.count), fields);
    GptqOptions with_tiling = options;
    const absl::StatusOr<TilingState> tiling = TilingState::Make(w.shape(), {{.axis = 0, .tile_size = 4}});
    if (tiled) with_tiling.tiling = &*tiling;
    const absl::StatusOr<GptqResult> result =
        GptqQuantize(quantizer, w, {0}, *state.Hessian(), with_tiling, semantics, where.executor);
    if (!AddStatus("gptq", result.status(), fields)) return fields;
    Add("weight", result->weight, fields);
    Add("errors", true,
        Hash()
            .Add(result->rows)
            .Add(result->rows_kept_nearest)
            .Add(Array::Scalar(result->error))
            .Add(Array::Scalar(result->nearest_error)),
        fields);
    return fields;
  };
  return c;
}

Case DrawQuantize(uint64_t seed) {
  Draw draw(seed);
  const DotShapes shapes = DrawDotShapes(draw);
  const Quantizer quantizer = DrawTensor(draw, {.state = draw.OneIn(3)}).quantizer;
  const DType dtype = DrawDType(draw);
  std::vector<Array> batches;
  for (int i = 0; i < 3; ++i) batches.push_back(DrawData(draw, dtype, shapes.lhs));
  const Array g = DrawData(draw, dtype, shapes.lhs);
  const Axes axes = DrawAxes(draw, shapes.lhs.rank());
  Semantics semantics = DrawSemantics(draw);
  semantics.prng_layout = draw.Pick({PrngLayout::kPartitionable, PrngLayout::kOriginal});
  const Context context{.key = MakeKey(draw.Bits())};

  Case c;
  c.words = absl::StrCat("quantize ", g.aval().ToString(), " axes ", absl::StrJoin(axes, ","), " ",
                         ToString(semantics.arithmetic), semantics.compat == Compat{} ? "" : " as the original", "\n",
                         Text(quantizer));
  c.run = [=](const Machine&) {
    Fields fields;
    const Array& x = batches.back();
    QTensor calibrated;
    if (HasState(quantizer)) {
      absl::StatusOr<CalibrationState> state = InitialCalibrationState(quantizer, x.aval(), axes);
      if (!AddStatus("initial", state.status(), fields)) return fields;
      for (const Array& batch : batches) {
        state = UpdateCalibration(quantizer, *state, batch, axes);
        if (!AddStatus("update", state.status(), fields)) return fields;
      }
      const absl::StatusOr<CalibratedTensor> next = CalibrateWithState(quantizer, *state, x, axes, context, semantics);
      if (!AddStatus("calibrate", next.status(), fields)) return fields;
      for (const auto& [name, array] : next->state) Add(name, true, Hash().Add(array), fields);
      const absl::StatusOr<Array> scale = StaticScale(quantizer, next->state, x.aval(), axes, semantics);
      if (AddStatus("static_scale", scale.status(), fields)) Add("static_scale", true, Hash().Add(*scale), fields);
      calibrated = next->qtensor;
    } else {
      const absl::StatusOr<QTensor> result = Calibrate(quantizer, x, axes, semantics, nullptr, context);
      if (!AddStatus("calibrate", result.status(), fields)) return fields;
      calibrated = *result;
    }
    const absl::StatusOr<QTensor> q = CalculateQvalue(quantizer, x, calibrated, context, semantics);
    if (!AddStatus("qvalue", q.status(), fields)) return fields;
    Add("quantized", *q, fields);
    const absl::StatusOr<Array> back = q->Dequantize();
    if (AddStatus("dequantize", back.status(), fields)) Add("dequantize", true, Hash().Add(*back), fields);
    const absl::StatusOr<Array> dx = QuantizeGradient(quantizer, x, *q, g, semantics);
    if (AddStatus("gradient", dx.status(), fields)) Add("gradient", true, Hash().Add(*dx), fields);
    return fields;
  };
  return c;
}

}  // namespace aqt::digest
