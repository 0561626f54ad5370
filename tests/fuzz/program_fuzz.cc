// Input: bytes that describe a program of basic operations and contractions of all kinds, quantized or not. For every
// input:
//   - InferOp accepts or refuses each operation, with any parameters;
//   - a traced program evaluates, and Expand, Dce and Fold keep its bits;
//   - Inject with int8 rules gives a program that evaluates, whose expansion has its bits, and which, converted and
//     folded, serves its bits;
//   - ValueAndGrad keeps the outputs, and its expansion has its bits.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/reduce/reduce.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/quantize/fold.h"
#include "aqt/transforms/quantize/inject.h"

namespace {

using namespace aqt;  // NOLINT: a program of its own

// Choices from bytes, with zeros after the end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t Next() { return empty() ? 0 : data_[at_++]; }
  int64_t Below(int64_t n) { return Next() % n; }
  bool Flip() { return Below(2) == 1; }

  // Mostly small; sometimes large enough to overflow.
  int64_t Number() {
    constexpr int64_t kEdges[] = {-1,
                                  int64_t{1} << 31,
                                  int64_t{1} << 40,
                                  int64_t{1} << 62,
                                  std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min()};
    const uint8_t byte = Next();
    return byte >= 250 ? kEdges[byte - 250] : byte % 4;
  }
  Shape AnyShape() {
    Shape shape;
    for (int64_t rank = Below(4); rank > 0; --rank) shape.push_back(Number());
    return shape;
  }
  PerAxis Numbers(int64_t rank) {
    PerAxis numbers;
    for (int64_t i = 0; i < rank; ++i) numbers.push_back(Number());
    return numbers;
  }
  Axes SomeAxes(int64_t rank) {
    Axes axes;
    for (int64_t i = 0; i < rank; ++i) {
      if (Flip()) axes.push_back(i);
    }
    return axes;
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kS32,   DType::kS8,
                             DType::kS4,  DType::kBool, DType::kU32, DType::kS64, DType::kE4M3FN};
constexpr int64_t kMaxElements = 512;

const Slot kW{SlotKind::kParam, "w"}, kV{SlotKind::kParam, "v"};

WindowDims AnyWindows(Bytes& bytes, int64_t rank) {
  return {bytes.Numbers(rank), bytes.Numbers(rank), bytes.Numbers(rank), bytes.Numbers(rank)};
}

Value Indices(Bytes& bytes) {
  return Value(Array::Of<int32_t>({static_cast<int32_t>(bytes.Number()), static_cast<int32_t>(bytes.Number())}, {2}));
}

BroadcastOp AnyBroadcast(Bytes& bytes, const Shape& in) {
  BroadcastOp op{bytes.AnyShape(), {}};
  // Axes of the operand first, last or anywhere.
  if (bytes.Flip()) {
    for (const int64_t extent : in) op.shape.push_back(extent == 1 ? bytes.Number() : extent);
  }
  const int64_t first = bytes.Flip() ? 0 : op.shape.rank() - in.rank();
  for (int64_t i = 0; i < in.rank(); ++i) op.axes.push_back(first + i);
  return op;
}

ReshapeOp AnyReshape(Bytes& bytes, const Shape& in) {
  ReshapeOp op{bytes.AnyShape()};
  if (bytes.Flip()) {  // one that fits
    op.shape = bytes.Flip() ? Shape{1} : Shape{};
    for (int64_t i = in.rank(); i-- > 0;) op.shape.push_back(in[i]);
  }
  return op;
}

// Any operation of up to three of `values`.
std::pair<Op, std::vector<Value>> AnyOp(Bytes& bytes, const std::vector<Value>& values) {
  const auto pick = [&] { return values[bytes.Below(static_cast<int64_t>(values.size()))]; };
  const Value x = pick();
  const int64_t rank = x.rank();
  switch (bytes.Below(28)) {
    case 0: return {UnaryOp{static_cast<kernels::UnaryKind>(bytes.Below(kernels::kNumUnaryKinds))}, {x}};
    case 1:
    case 2:
      return {BinaryOp{static_cast<kernels::BinaryKind>(bytes.Below(kernels::kNumBinaryKinds))},
              {x, bytes.Flip() ? x : pick()}};
    case 3:
      return {CompareOp{static_cast<kernels::CompareKind>(bytes.Below(kernels::kNumCompareKinds))},
              {x, bytes.Flip() ? x : pick()}};
    case 4: return {SelectOp{}, {pick(), x, bytes.Flip() ? x : pick()}};
    case 5: return {CastOp{kDTypes[bytes.Below(std::size(kDTypes))]}, {x}};
    case 6:
      return {ReduceOp{static_cast<kernels::ReduceKind>(bytes.Below(kernels::kNumReduceKinds)), bytes.SomeAxes(rank),
                       bytes.Flip()},
              {x}};
    case 7: return {AnyBroadcast(bytes, x.shape()), {x}};
    case 8: return {AnyReshape(bytes, x.shape()), {x}};
    case 9: {
      TransposeOp op{};
      const int64_t turn = bytes.Number();
      for (int64_t i = 0; i < rank; ++i) op.permutation.push_back(turn < 0 ? i : (i + turn % 4) % rank);
      return {op, {x}};
    }
    case 10: {
      SliceOp op{bytes.Numbers(rank), {}, {}};
      for (int64_t i = 0; i < rank; ++i) {
        op.limit.push_back(bytes.Flip() ? x.shape()[i] : bytes.Number());
        op.stride.push_back(bytes.Flip() ? 1 : bytes.Number());
      }
      return {op, {x}};
    }
    case 11: {
      PadOp op{bytes.Numbers(rank), bytes.Numbers(rank), bytes.Numbers(rank)};
      if (bytes.Flip()) op.value = static_cast<double>(bytes.Number());
      return {std::move(op), {x}};
    }
    case 12: return {ConcatenateOp{bytes.Number()}, {x, bytes.Flip() ? x : pick(), bytes.Flip() ? x : pick()}};
    case 13: return {ClampOp{}, {pick(), x, bytes.Flip() ? x : pick()}};
    case 14: return {IsFiniteOp{}, {x}};
    case 15: return {IntegerPowOp{bytes.Number()}, {x}};
    case 16: return {ReducePrecisionOp{{static_cast<int>(bytes.Number()), static_cast<int>(bytes.Number())}}, {x}};
    case 17: return {ReverseOp{bytes.SomeAxes(rank)}, {x}};
    case 18: return {IotaOp{kDTypes[bytes.Below(std::size(kDTypes))], bytes.AnyShape(), bytes.Number()}, {}};
    case 19: return {ArgReduceOp{static_cast<kernels::ArgKind>(bytes.Below(2)), bytes.Number()}, {x}};
    case 20: return {CumulativeSumOp{bytes.Number(), bytes.Flip()}, {x}};
    case 21: return {TakeOp{bytes.Number()}, {x, bytes.Flip() ? pick() : Indices(bytes)}};
    case 22: return {ScatterAddOp{bytes.Number(), bytes.Number()}, {bytes.Flip() ? pick() : Indices(bytes), x}};
    case 23: return {ReduceWindowOp{static_cast<kernels::ReduceKind>(bytes.Below(4)), AnyWindows(bytes, rank)}, {x}};
    case 24: return {ArgReduceWindowOp{static_cast<kernels::ArgKind>(bytes.Below(2)), AnyWindows(bytes, rank)}, {x}};
    case 25:
      return {RandomBitsOp{bytes.AnyShape()},
              {bytes.Flip() ? x : Value(Array::Of<uint32_t>({bytes.Next(), bytes.Next()}, {2}))}};
    case 26: {  // the payload of a NaN is not promised, so NaNs are replaced by zeros
      const bool small_float = IsFloat(x.dtype()) && !kernels::IsArithmetic(x.dtype());
      if (small_float) break;
      return {BitcastOp{kDTypes[bytes.Below(std::size(kDTypes))]},
              {IsFloat(x.dtype()) ? ops::Select(ops::IsFinite(x), x, 0.0) : x}};
    }
    default: break;
  }
  return {StopGradientOp{}, {x}};
}

// Dims for lhs and rhs: the first pairs of axes of equal extents, contracting or batch.
DotDims AnyDims(Bytes& bytes, const Shape& lhs, const Shape& rhs) {
  DotDims dims;
  std::vector<bool> taken(rhs.rank(), false);
  for (int64_t i = 0; i < lhs.rank(); ++i) {
    for (int64_t j = 0; j < rhs.rank(); ++j) {
      if (taken[j] || lhs[i] != rhs[j] || bytes.Below(4) == 0) continue;
      taken[j] = true;
      const bool batch = bytes.Below(3) == 0;
      (batch ? dims.lhs_batch : dims.lhs_contracting).push_back(i);
      (batch ? dims.rhs_batch : dims.rhs_contracting).push_back(j);
      break;
    }
  }
  return dims;
}

DotGeneralConfig AnyConfig(Bytes& bytes) {
  switch (bytes.Below(4)) {
    case 0: return FullyQuantized();  // draws random numbers in its gradient
    case 1: return DotGeneralMake(4, 8);
    case 2: return DotGeneralMake(8, std::nullopt, {.use_fwd_quant = false});
    default: return DotGeneralMake(8, 8);
  }
}

// One contraction, with its operands.
struct AnyContraction {
  ContractionDims dims;
  std::vector<Value> operands;
};

// A convolution of x [batch, spatial..., channels] with a constant, in up to two groups.
std::optional<AnyContraction> AnyConv(Bytes& bytes, const Value& x) {
  const int64_t spatial = x.rank() - 2, channels = x.rank() > 0 ? x.shape()[x.rank() - 1] : 0;
  if (spatial < 1 || spatial > 3) return std::nullopt;
  ConvDims dims;
  dims.feature_group_count = channels % 2 == 0 ? 1 + bytes.Below(2) : 1;
  dims.padding = bytes.Flip() ? ConvPadding::kSame : ConvPadding::kExplicit;
  Shape kernel;
  for (int64_t i = 0; i < spatial; ++i) {
    kernel.push_back(bytes.Below(4));
    dims.window_strides.push_back(1 + bytes.Below(3));
    dims.rhs_dilation.push_back(1 + bytes.Below(2));
    if (dims.padding == ConvPadding::kSame) continue;
    dims.lhs_dilation.push_back(1 + bytes.Below(2));
    dims.explicit_padding.push_back({bytes.Below(5) - 2, bytes.Below(5) - 2});
  }
  kernel.push_back(channels / dims.feature_group_count);
  kernel.push_back(bytes.Below(3) * dims.feature_group_count);
  return AnyContraction{dims, {x, Value(testing::RandomArray({x.dtype(), kernel}, bytes.Next()))}};
}

// A ragged contraction of the rows of x with a constant; some rows may belong to no group.
std::optional<AnyContraction> AnyRagged(Bytes& bytes, const Value& x) {
  if (x.rank() == 0) return std::nullopt;
  const int64_t k = x.shape()[x.rank() - 1], groups = bytes.Below(4);
  int64_t rows = 1;
  for (const int64_t extent : x.shape().extents().first(x.rank() - 1)) rows *= extent;
  ArrayBuilder sizes(DType::kS32, {groups});
  int64_t left = rows;
  for (int32_t& size : sizes.Mutable<int32_t>()) {
    size = static_cast<int32_t>(bytes.Below(left + 1));
    left -= size;
  }
  const Array matrices = testing::RandomArray({x.dtype(), {groups, k, bytes.Below(4)}}, bytes.Next());
  return AnyContraction{RaggedDims(), {ops::Reshape(x, {rows, k}), Value(matrices), Value(std::move(sizes).Build())}};
}

// An einsum whose letters may be repeated, summed over and in any order.
AnyContraction AnyEinsum(Bytes& bytes, const Value& lhs, const Value& rhs) {
  std::vector<std::pair<char, int64_t>> letters;
  const auto term = [&](const Shape& shape) {
    std::string text;
    for (const int64_t extent : shape) {
      const size_t at = bytes.Below(static_cast<int64_t>(letters.size()) + 1);
      if (at == letters.size() || letters[at].second != extent) {
        letters.emplace_back(static_cast<char>('a' + letters.size()), extent);
        text += letters.back().first;
      } else {
        text += letters[at].first;
      }
    }
    return text;
  };
  const std::string first = term(lhs.shape()), second = term(rhs.shape());
  std::string out;
  for (const auto& [letter, extent] : letters) {
    if (bytes.Flip()) out.insert(bytes.Flip() ? 0 : out.size(), 1, letter);
  }
  return {EinsumDims{absl::StrCat(first, ",", second, "->", out)}, {lhs, rhs}};
}

// The float operation.
Value FloatContraction(const ContractionDims& dims, absl::Span<const Value> in) {
  if (const auto* conv = std::get_if<ConvDims>(&dims)) return ops::Conv(in[0], in[1], *conv);
  if (const auto* einsum = std::get_if<EinsumDims>(&dims)) return ops::Einsum(einsum->equation, in[0], in[1]);
  return ops::RaggedDot(in[0], in[1], in[2]);
}

std::optional<AnyContraction> AnyComposite(Bytes& bytes, const Value& lhs, const Value& rhs) {
  switch (bytes.Below(3)) {
    case 0: return AnyConv(bytes, lhs);
    case 1: return AnyRagged(bytes, lhs);
    default: return AnyEinsum(bytes, lhs, rhs);
  }
}

// The aval of the result, or the error.
absl::StatusOr<Aval> OutOf(const AnyContraction& contraction, const DotGeneralConfig& config) {
  const Aval& lhs = contraction.operands[0].aval();
  const Aval& rhs = contraction.operands[1].aval();
  if (const EinsumDims* einsum = std::get_if<EinsumDims>(&contraction.dims)) {
    AQT_ASSIGN_OR_RETURN(const EinsumPlan plan, EinsumPlan::Make(einsum->equation, config, lhs, rhs));
    return plan.out_aval();
  }
  const ConvDims* conv = std::get_if<ConvDims>(&contraction.dims);
  AQT_ASSIGN_OR_RETURN(const AqtDot dot,
                       AqtDot::Make(config, lhs, rhs, conv != nullptr ? PlannedDims(*conv) : RaggedDims()));
  return dot.plan().out_aval();
}

// Whether a transform returned a program. An error must be the caller's, not an internal one.
bool Transformed(const absl::StatusOr<Program>& program) {
  AQT_CHECK(program.status().code() != absl::StatusCode::kInternal);
  return program.ok();
}

bool IsSmall(const Shape& shape) { return shape.num_elements() <= kMaxElements; }

// The traced function: output 0 is a scalar f32.
std::vector<Value> Build(Bytes bytes, absl::Span<const Value> in) {
  std::vector<Value> values(in.begin(), in.end());
  int written = 0;
  for (int step = 0; step < 16 && !bytes.empty(); ++step) {
    const NamedScope scope(bytes.Below(4) == 0 ? "a" : absl::StrCat("s", step));
    const int64_t choice = bytes.Below(10);
    if (choice == 7) {
      const Value& value = values[bytes.Below(static_cast<int64_t>(values.size()))];
      const SlotKind kind = bytes.Flip() ? SlotKind::kFrozen : SlotKind::kData;
      WriteSlot({kind, absl::StrCat("written_", written++)}, value);
      continue;
    }
    if (choice >= 8) {  // a contraction that is a composite, plain or quantized
      const Value lhs = values[bytes.Below(static_cast<int64_t>(values.size()))],
                  rhs = values[bytes.Below(static_cast<int64_t>(values.size()))];
      const std::optional<AnyContraction> any = AnyComposite(bytes, lhs, rhs);
      if (!any.has_value()) continue;
      QuantizedDotOptions options;
      if (choice == 9) options.config = AnyConfig(bytes);
      if (std::holds_alternative<ConvDims>(any->dims)) options.config = {.fwd = options.config.fwd};
      const absl::StatusOr<Aval> out = OutOf(*any, options.config);
      if (!out.ok() || !IsSmall(out->shape)) continue;
      values.push_back(choice == 8 ? FloatContraction(any->dims, any->operands)
                                   : QuantizedContraction(any->operands, any->dims, options, NextContractionName(),
                                                          std::source_location::current()));
      continue;
    }
    if (choice >= 5) {  // a contraction, plain or quantized
      const Value lhs = values[bytes.Below(static_cast<int64_t>(values.size()))],
                  rhs = values[bytes.Below(static_cast<int64_t>(values.size()))];
      const DotDims dims = AnyDims(bytes, lhs.shape(), rhs.shape());
      const DotGeneralOp plain{dims, IsFloat(lhs.dtype()) ? kFloats[bytes.Below(4)] : DType::kS32};
      const absl::StatusOr<std::vector<Aval>> out = InferOp(plain, {lhs.aval(), rhs.aval()});
      if (!out.ok() || !IsSmall((*out)[0].shape)) continue;
      const DType dtype = lhs.dtype();
      const bool quantizable = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
      if (choice == 5 || !quantizable) {
        values.push_back(Bind(plain, {lhs, rhs}, std::source_location::current())[0]);
      } else {
        const QuantizedDotOptions options{.config = AnyConfig(bytes)};
        if (!AqtDot::Make(options.config, lhs.aval(), rhs.aval(), dims).ok()) continue;
        values.push_back(QuantizedDot(lhs, rhs, dims, options, NextContractionName(), std::source_location::current()));
      }
      continue;
    }
    const auto [op, operands] = AnyOp(bytes, values);
    std::vector<Aval> avals;
    for (const Value& operand : operands) avals.push_back(operand.aval());
    const absl::StatusOr<std::vector<Aval>> out = InferOp(op, avals);
    if (!out.ok() || !IsSmall((*out)[0].shape)) continue;
    values.push_back(Bind(op, operands, std::source_location::current())[0]);
  }
  Value loss = Value(Array::Scalar(0.0f));
  for (size_t i = in.size(); i < values.size(); ++i) {
    loss = loss + ops::ReduceSum(ops::Cast(values[i], DType::kF32));
  }
  return {loss, values.back()};
}

SlotValues Evaluated(const Program& program, SlotValues values) {
  SlotValues stats = InitialStats(program);
  values.merge(stats);
  const absl::StatusOr<SlotValues> out = EvalSlots(program, values);
  AQT_CHECK(out.ok());
  return *out;
}

// Values that are in both `a` and `b` are equal; with `all`, every value of a is in b.
void CheckSame(const SlotValues& a, const SlotValues& b, bool all = true) {
  for (const auto& [slot, array] : a) {
    const auto it = b.find(slot);
    AQT_CHECK(it != b.end() || !all);
    if (it != b.end()) AQT_CHECK(SameBits(array, it->second));
  }
}

void CheckExpanded(const Program& program, const SlotValues& values) {
  const absl::StatusOr<Program> expanded = Expand(program);
  AQT_CHECK(expanded.ok());
  CheckSame(Evaluated(program, values), Evaluated(*expanded, values));
}

// The outputs and frozen values of `program`, folded with the parameters.
void CheckFolded(const Program& program, const SlotValues& values, const SlotValues& params) {
  const absl::StatusOr<Folded> folded = Fold(program, params);
  AQT_CHECK(folded.ok());
  SlotValues with = folded->values;
  for (const auto& [slot, array] : values) with.try_emplace(slot, array);
  SlotValues out = Evaluated(folded->program, with);
  const SlotValues want = Evaluated(program, values);
  for (const auto& [slot, array] : folded->values) {
    if (want.contains(slot)) out.try_emplace(slot, array);
  }
  CheckSame(want, out);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  // x, and two parameters; their values.
  const Slot x{SlotKind::kData, "x"};
  std::vector<Input> inputs;
  SlotValues values, params;
  for (const Slot& slot : {x, kW, kV}) {
    Shape shape;
    for (int64_t rank = bytes.Below(4); rank > 0; --rank) shape.push_back(bytes.Below(5));
    const Aval aval{kFloats[bytes.Below(4)], shape};
    inputs.push_back({slot, aval});
    const uint8_t scale = bytes.Next();
    const double high = scale == 0 ? std::numeric_limits<double>::infinity() : scale < 8 ? 1e30 : 2;
    values[slot] = testing::RandomArray(aval, scale, -1, high);
    if (slot.kind == SlotKind::kParam) params[slot] = values[slot];
  }
  values[{SlotKind::kKey, kSharedKeySlot}] = Array::Of<uint32_t>({1, 2}, KeyAval().shape);

  const absl::StatusOr<Program> program = Trace([&](absl::Span<const Value> in) { return Build(bytes, in); }, inputs);
  AQT_CHECK(program.ok());
  AQT_CHECK(Check(*program).ok());
  const SlotValues want = Evaluated(*program, values);
  CheckSame(want, Evaluated(Dce(*program), values));
  CheckExpanded(*program, values);
  CheckFolded(*program, values, params);

  InjectConfig config{.rules = {{.ops = {"dot_general", "ragged_dot", "einsum"}, .dot_general = DotGeneralMake(8, 8)},
                                {.ops = {"conv"}, .dot_general = DotGeneralConfig{.fwd = DotGeneralRawMake(8, 8)}}},
                      .strict = false};
  if (const absl::StatusOr<Program> injected = Inject(*program, config); Transformed(injected)) {
    CheckExpanded(*injected, values);
    config.param_mode = QuantMode::kConvert;
    if (const absl::StatusOr<Program> converted = Inject(*program, config); Transformed(converted)) {
      CheckFolded(*converted, values, params);
    }
  }

  const std::vector<int> wrt = program->InputsOfKind(SlotKind::kParam);
  const absl::StatusOr<Program> gradient = ValueAndGrad(*program, wrt);
  if (!Transformed(gradient)) return 0;
  CheckSame(want, Evaluated(*gradient, values));
  CheckExpanded(*gradient, values);
  return 0;
}
