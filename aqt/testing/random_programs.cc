#include "aqt/testing/random_programs.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <source_location>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"

namespace aqt::testing {
namespace {

constexpr int64_t kMaxElements = 2000;
constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// An operation with attributes for operands drawn from `values`. It may not fit.
struct Attempt {
  Op op;
  std::vector<size_t> operands;
};

class Drawing {
 public:
  // The first `args` values are the arguments of the program.
  Drawing(uint64_t seed, absl::Span<const Value> values, size_t args) : random_(seed), values_(values), args_(args) {}

  // Another operation like `op`, or nullopt if it does not fit.
  std::optional<Attempt> Draw(const Op& op) {
    Attempt attempt{op, {}};
    attempt.operands = {Pick()};
    std::visit([&]<class O>(O& o) { Fill(o, attempt.operands); }, attempt.op);
    std::vector<Aval> avals;
    for (const size_t operand : attempt.operands) avals.push_back(values_[operand].aval());
    const absl::StatusOr<std::vector<Aval>> out = InferOp(attempt.op, avals);
    if (!out.ok() || (*out)[0].shape.num_elements() > kMaxElements) return std::nullopt;
    return attempt;
  }

 private:
  // Picks later values more often.
  size_t Pick() {
    const int64_t n = static_cast<int64_t>(values_.size());
    return static_cast<size_t>(std::max(random_.Below(n), random_.Below(n)));
  }
  // A value with this aval, if there is another one; otherwise any value.
  size_t Like(const Aval& aval) {
    for (int i = 0; i < 20; ++i) {
      const size_t candidate = Pick();
      if (values_[candidate].aval() == aval) return candidate;
    }
    return Pick();
  }
  size_t OfDType(DType dtype) {
    for (int i = 0; i < 20; ++i) {
      const size_t candidate = Pick();
      if (values_[candidate].dtype() == dtype) return candidate;
    }
    return Pick();
  }
  const Aval& X(const std::vector<size_t>& in) const { return values_[in[0]].aval(); }
  int64_t Axis(const std::vector<size_t>& in) {
    const int64_t rank = X(in).shape.rank();
    return rank == 0 ? 0 : random_.Below(rank);
  }
  Axes SomeAxes(int64_t rank) {
    Axes axes;
    for (int64_t i = 0; i < rank; ++i) {
      if (random_.Below(2) == 0) axes.push_back(i);
    }
    return axes;
  }
  PerAxis Numbers(int64_t rank, int64_t low, int64_t high) {
    PerAxis numbers;
    for (int64_t i = 0; i < rank; ++i) numbers.push_back(low + random_.Below(high - low + 1));
    return numbers;
  }
  Shape SomeShape() {
    Shape shape;
    for (int64_t rank = random_.Below(4); rank > 0; --rank) shape.push_back(1 + random_.Below(5));
    return shape;
  }
  WindowDims Windows(int64_t rank) {
    WindowDims dims{Numbers(rank, 1, 3), Numbers(rank, 1, 2), {}, {}};
    for (int64_t i = 0; i < rank; ++i) {
      dims.low.push_back(random_.Below(dims.window[i]));
      dims.high.push_back(random_.Below(dims.window[i]));
    }
    return dims;
  }

  using In = std::vector<size_t>;
  void Fill(UnaryOp& op, In& in) {
    if (op.kind == kernels::UnaryKind::kNot) in = {OfDType(DType::kBool)};
  }
  void Fill(BinaryOp& op, In& in) {
    if (kernels::Takes(op.kind, DType::kBool)) in = {OfDType(DType::kBool)};
    in.push_back(Like(X(in)));
  }
  void Fill(CompareOp&, In& in) { in.push_back(Like(X(in))); }
  void Fill(SelectOp&, In& in) { in = {Like({DType::kBool, X(in).shape}), in[0], Like(X(in))}; }
  void Fill(CastOp& op, In&) {
    constexpr DType kDTypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                                 DType::kS32, DType::kS32, DType::kBool, DType::kS8,  DType::kE4M3FN};
    op.dtype = kDTypes[random_.Below(std::size(kDTypes))];
  }
  // The payload of a NaN is not promised, so its bits must not be visible: no computed float.
  void Fill(BitcastOp& op, In& in) {
    while (in[0] >= args_ && IsFloat(X(in).dtype)) in = {Pick()};
    constexpr DType kDTypes[] = {DType::kF32, DType::kS32, DType::kU32,  DType::kF16, DType::kBF16,
                                 DType::kS16, DType::kF64, DType::kE5M2, DType::kS8};
    for (int i = 0; i < 20; ++i) {
      op.dtype = kDTypes[random_.Below(std::size(kDTypes))];
      if (BitWidth(op.dtype) == BitWidth(X(in).dtype)) break;
    }
  }
  void Fill(ClampOp&, In& in) { in = {Like(X(in)), in[0], Like(X(in))}; }
  void Fill(IsFiniteOp&, In&) {}
  void Fill(IntegerPowOp& op, In&) { op.exponent = random_.Below(7) - 2; }
  void Fill(ReducePrecisionOp& op, In&) {
    op.precision = {static_cast<int>(2 + random_.Below(7)), static_cast<int>(random_.Below(10))};
  }
  void Fill(ReduceOp& op, In& in) {
    op.axes = SomeAxes(X(in).shape.rank());
    op.keepdims = random_.Below(2) == 0;
  }
  void Fill(BroadcastOp& op, In& in) {
    for (const int64_t extent : X(in).shape) {
      if (random_.Below(3) == 0) op.shape.push_back(1 + random_.Below(3));
      op.axes.push_back(op.shape.rank());
      op.shape.push_back(extent == 1 ? 1 + random_.Below(4) : extent);
    }
    if (random_.Below(3) == 0) op.shape.push_back(2);
  }
  void Fill(ReshapeOp& op, In& in) {
    const Shape& shape = X(in).shape;
    if (random_.Below(2) == 0) {
      op.shape = Shape{shape.num_elements()};
    } else {
      for (int64_t i = shape.rank(); i-- > 0;) op.shape.push_back(shape[i]);
      op.shape.push_back(1);
    }
  }
  void Fill(TransposeOp& op, In& in) {
    for (int64_t i = 0; i < X(in).shape.rank(); ++i) op.permutation.push_back(i);
    for (size_t i = op.permutation.size(); i > 1; --i) {
      std::swap(op.permutation[i - 1], op.permutation[random_.Below(static_cast<int64_t>(i))]);
    }
  }
  void Fill(SliceOp& op, In& in) {
    for (const int64_t extent : X(in).shape) {
      op.start.push_back(random_.Below(extent + 1));
      op.limit.push_back(op.start.back() + random_.Below(extent - op.start.back() + 1));
      op.stride.push_back(1 + random_.Below(2));
    }
    if (random_.Below(2) == 0) op.start.assign(op.start.size(), 0);  // empty less often
  }
  void Fill(PadOp& op, In& in) {
    const int64_t rank = X(in).shape.rank();
    op = {Numbers(rank, -1, 2), Numbers(rank, -1, 1), Numbers(rank, 0, 1)};
    if (random_.Below(2) == 0) op.value = 1;
  }
  void Fill(ReverseOp& op, In& in) { op.axes = SomeAxes(X(in).shape.rank()); }
  void Fill(IotaOp& op, In& in) {
    in = {};
    op.dtype = random_.Below(3) == 0 ? DType::kS32 : kFloats[random_.Below(4)];
    op.shape = SomeShape();
    op.axis = op.shape.rank() == 0 ? 0 : random_.Below(op.shape.rank());
  }
  void Fill(ArgReduceOp& op, In& in) { op.axis = Axis(in); }
  void Fill(CumulativeSumOp& op, In& in) {
    op.axis = Axis(in);
    op.reverse = random_.Below(2) == 0;
  }
  void Fill(TakeOp& op, In& in) {
    op.axis = Axis(in);
    in.push_back(OfDType(DType::kS32));
  }
  void Fill(ScatterAddOp& op, In& in) {
    const size_t indices = OfDType(DType::kS32);
    op.axis = Axis(in);
    op.extent = 1 + random_.Below(5);
    in = {indices, in[0]};
  }
  void Fill(ReduceWindowOp& op, In& in) { op.dims = Windows(X(in).shape.rank()); }
  void Fill(ArgReduceWindowOp& op, In& in) { op.dims = Windows(X(in).shape.rank()); }
  void Fill(RandomBitsOp& op, In& in) {
    op.shape = SomeShape();
    in = {OfDType(DType::kU32)};
  }
  void Fill(ConcatenateOp& op, In& in) {
    op.axis = Axis(in);
    for (int64_t more = random_.Below(3); more > 0; --more) in.push_back(Like(X(in)));
  }
  void Fill(DotGeneralOp& op, In& in) {
    in.push_back(OfDType(X(in).dtype));
    const Shape &lhs = values_[in[0]].shape(), &rhs = values_[in[1]].shape();
    for (int64_t i = 0; i < lhs.rank(); ++i) {
      for (int64_t j = 0; j < rhs.rank(); ++j) {
        const bool taken = std::count(op.dims.rhs_contracting.begin(), op.dims.rhs_contracting.end(), j) +
                               std::count(op.dims.rhs_batch.begin(), op.dims.rhs_batch.end(), j) >
                           0;
        if (taken || lhs[i] != rhs[j] || random_.Below(3) == 0) continue;
        const bool batch = random_.Below(3) == 0;
        (batch ? op.dims.lhs_batch : op.dims.lhs_contracting).push_back(i);
        (batch ? op.dims.rhs_batch : op.dims.rhs_contracting).push_back(j);
        break;
      }
    }
    op.out = IsFloat(X(in).dtype) ? kFloats[random_.Below(4)] : DType::kS32;
  }
  void Fill(StopGradientOp&, In&) {}
  void Fill(CompositeOp&, In&) {}

  Random random_;
  absl::Span<const Value> values_;
  const size_t args_;
};

template <class Kind, class O>
void AddKinds(int count, O op, std::vector<Op>& ops) {
  for (int kind = 0; kind < count; ++kind) {
    op.kind = static_cast<Kind>(kind);
    ops.push_back(op);
  }
}

template <size_t... I>
void AddAlternatives(std::index_sequence<I...>, std::vector<Op>& ops) {
  const auto add = [&]<class O>(O op) {
    if constexpr (std::is_same_v<O, UnaryOp>) AddKinds<kernels::UnaryKind>(kernels::kNumUnaryKinds, op, ops);
    else if constexpr (std::is_same_v<O, BinaryOp>) AddKinds<kernels::BinaryKind>(kernels::kNumBinaryKinds, op, ops);
    else if constexpr (std::is_same_v<O, CompareOp>) AddKinds<kernels::CompareKind>(kernels::kNumCompareKinds, op, ops);
    else if constexpr (std::is_same_v<O, ReduceOp>) AddKinds<kernels::ReduceKind>(kernels::kNumReduceKinds, op, ops);
    else if constexpr (std::is_same_v<O, ReduceWindowOp>) AddKinds<kernels::ReduceKind>(3, op, ops);  // no products
    else if constexpr (std::is_same_v<O, ArgReduceOp>) AddKinds<kernels::ArgKind>(2, op, ops);
    else if constexpr (std::is_same_v<O, ArgReduceWindowOp>) AddKinds<kernels::ArgKind>(2, op, ops);
    else if constexpr (!std::is_same_v<O, CompositeOp>) ops.push_back(op);
  };
  (add(std::variant_alternative_t<I, Op>{}), ...);
}

}  // namespace

std::vector<Op> AllBasicOps() {
  std::vector<Op> ops;
  AddAlternatives(std::make_index_sequence<std::variant_size_v<Op>>(), ops);
  return ops;
}

std::vector<Array> RandomProgramArgs(uint64_t seed) {
  std::vector<Array> args;
  for (const Aval& aval :
       {Aval{DType::kF32, {4, 6}}, Aval{DType::kF32, {6}}, Aval{DType::kBF16, {4, 6}}, Aval{DType::kF16, {2, 3, 4}},
        Aval{DType::kF64, {4, 3}}, Aval{DType::kF32, {}}, Aval{DType::kS32, {5}}, Aval{DType::kS32, {4, 6}},
        Aval{DType::kS8, {4, 6}}, Aval{DType::kBool, {4, 6}}, Aval{DType::kU32, {2}}}) {
    args.push_back(RandomArray(aval, seed++, aval.dtype == DType::kU32 || aval.dtype == DType::kBool ? 0 : -2,
                               aval.dtype == DType::kU32 ? 1e9 : 2));
  }
  // One third is true.
  ArrayBuilder bools(DType::kBool, {4, 6});
  for (int64_t i = 0; i < 24; ++i) bools.Mutable<bool>()[i] = i % 3 == 0;
  args[9] = std::move(bools).Build();
  return args;
}

std::vector<Value> RandomFunction(uint64_t seed, int steps, absl::Span<const Value> args) {
  const std::vector<Op> ops = AllBasicOps();
  std::vector<Value> values(args.begin(), args.end());
  std::vector<bool> used(values.size(), false);
  Random random(seed);
  for (int step = 0; step < steps; ++step) {
    // Every step makes the same number of draws, whether earlier ones fit or not: a program with fewer steps is a
    // prefix.
    const Op& op = ops[random.Below(static_cast<int64_t>(ops.size()))];
    const uint64_t first = random.Next();
    for (uint64_t attempt = 0; attempt < 50; ++attempt) {
      const std::optional<Attempt> drawn = Drawing(first + attempt, values, args.size()).Draw(op);
      if (!drawn.has_value()) continue;
      std::vector<Value> operands;
      for (const size_t operand : drawn->operands) {
        operands.push_back(values[operand]);
        used[operand] = true;
      }
      values.push_back(Bind(drawn->op, operands, std::source_location::current())[0]);
      used.push_back(false);
      break;
    }
  }
  Value loss = ValueOrNumber(0.0).As(DType::kF32);
  std::vector<Value> outputs = {loss};
  for (size_t i = args.size(); i < values.size(); ++i) {
    if (used[i]) continue;
    outputs.push_back(values[i]);
    if (IsFloat(values[i].dtype())) loss = loss + ops::ReduceSum(ops::Cast(values[i], DType::kF32));
  }
  outputs[0] = loss;
  return outputs;
}

absl::StatusOr<Program> RandomProgram(uint64_t seed, int steps) {
  return TraceWith([&](absl::Span<const Value> in) { return RandomFunction(seed, steps, in); },
                   RandomProgramArgs(seed));
}

int Shrink(int steps, const std::function<bool(int)>& fails) {
  for (int fewer = 0; fewer < steps; ++fewer) {
    if (fails(fewer)) return fewer;
  }
  return steps;
}

}  // namespace aqt::testing
