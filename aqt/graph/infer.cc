// InferOp: one function per operation.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/op.h"

namespace aqt {
namespace {

using Avals = absl::Span<const Aval>;
using Result = absl::StatusOr<Aval>;

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

std::string List(absl::Span<const int64_t> numbers) { return absl::StrCat("[", absl::StrJoin(numbers, ","), "]"); }

absl::Status ExpectCount(Avals in, size_t count) {
  if (in.size() == count) return absl::OkStatus();
  return Invalid("takes ", count, count == 1 ? " operand" : " operands", ", got ", in.size());
}

absl::Status ExpectSame(const Aval& a, const Aval& b) {
  if (a.dtype != b.dtype) {
    return Invalid("dtypes differ: ", a.ToString(), " and ", b.ToString(), "; cast one of them");
  }
  if (a.shape != b.shape) return Invalid("shapes differ: ", a.ToString(), " and ", b.ToString());
  return absl::OkStatus();
}

absl::Status ExpectArithmetic(const Aval& a) {
  if (kernels::IsArithmetic(a.dtype)) return absl::OkStatus();
  return Invalid("computes in f16, bf16, f32, f64 and s32, not in ", ToString(a.dtype), "; cast the operand");
}

// Axes must be distinct, in range and ascending.
absl::Status ExpectAscending(absl::Span<const int64_t> axes, int64_t rank) {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= rank)
      return Invalid("axis ", axes[i], " of ", List(axes), " is not in 0 .. ", rank - 1);
    if (i > 0 && axes[i] <= axes[i - 1]) return Invalid("axes ", List(axes), " are not in ascending order");
  }
  return absl::OkStatus();
}

absl::Status ExpectPerAxis(absl::string_view name, const PerAxis& numbers, int64_t rank) {
  if (static_cast<int64_t>(numbers.size()) == rank) return absl::OkStatus();
  return Invalid(name, " has ", numbers.size(), " numbers for ", rank, " axes");
}

absl::Status ExpectFloat(const Aval& a) {
  AQT_RETURN_IF_ERROR(ExpectArithmetic(a));
  if (IsFloat(a.dtype)) return absl::OkStatus();
  return Invalid("takes floats, not ", a.ToString(), "; cast the operand");
}

// The error for a dtype that kernels::Takes refuses.
template <class Kind>
absl::Status ExpectTakes(Kind kind, const Aval& a) {
  if (kernels::Takes(kind, a.dtype)) return absl::OkStatus();
  if (kernels::Takes(kind, DType::kBool)) return Invalid("takes bool, not ", a.ToString(), "; compare or cast it");
  return ExpectFloat(a);
}

Result Infer(const UnaryOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectTakes(op.kind, in[0]));
  return in[0];
}

Result Infer(const BinaryOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 2));
  AQT_RETURN_IF_ERROR(ExpectSame(in[0], in[1]));
  AQT_RETURN_IF_ERROR(ExpectTakes(op.kind, in[0]));
  return in[0];
}

Result Infer(const ClampOp&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 3));
  AQT_RETURN_IF_ERROR(Annotate(ExpectSame(in[0], in[1]), "the lower end and the operand"));
  AQT_RETURN_IF_ERROR(Annotate(ExpectSame(in[1], in[2]), "the operand and the upper end"));
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[1]));
  return in[1];
}

Result Infer(const IsFiniteOp&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[0]));
  return Aval{DType::kBool, in[0].shape};
}

Result Infer(const IntegerPowOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[0]));
  if (op.exponent < 0 && !IsFloat(in[0].dtype)) {
    return Invalid("exponent ", op.exponent, " is negative, and the operand is ", in[0].ToString(),
                   "; cast it to a float");
  }
  return in[0];
}

Result Infer(const ReducePrecisionOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectFloat(in[0]));
  if (op.precision.exponent_bits < 1) return Invalid("exponent_bits is ", op.precision.exponent_bits, ", not positive");
  if (op.precision.mantissa_bits < 0) return Invalid("mantissa_bits is ", op.precision.mantissa_bits, ", negative");
  return in[0];
}

Result Infer(const CompareOp&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 2));
  AQT_RETURN_IF_ERROR(ExpectSame(in[0], in[1]));
  if (in[0].dtype != DType::kBool) AQT_RETURN_IF_ERROR(ExpectArithmetic(in[0]));
  return Aval{DType::kBool, in[0].shape};
}

Result Infer(const SelectOp&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 3));
  if (in[0].dtype != DType::kBool) return Invalid("the predicate is ", in[0].ToString(), ", not bool");
  AQT_RETURN_IF_ERROR(ExpectSame(in[1], in[2]));
  if (in[0].shape != in[1].shape) {
    return Invalid("shapes differ: predicate ", in[0].ToString(), " and choices ", in[1].ToString());
  }
  return in[1];
}

Result Infer(const CastOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  return Aval{op.dtype, in[0].shape};
}

Result Infer(const BitcastOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  const DType from = in[0].dtype;
  if (from == DType::kBool || op.dtype == DType::kBool) {
    return Invalid("the bits of ", in[0].ToString(), " do not become ", ToString(op.dtype),
                   ": bool has no bits of its own; compare or cast instead");
  }
  if (BitWidth(from) != BitWidth(op.dtype)) {
    return Invalid("the widths differ: ", ToString(from), " has ", BitWidth(from), " bits, ", ToString(op.dtype),
                   " has ", BitWidth(op.dtype), "; cast the operand first");
  }
  return Aval{op.dtype, in[0].shape};
}

Result Infer(const ReduceOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[0]));
  AQT_RETURN_IF_ERROR(ExpectAscending(op.axes, in[0].shape.rank()));
  Aval out{in[0].dtype, {}};
  for (int64_t axis = 0; axis < in[0].shape.rank(); ++axis) {
    const bool reduced = std::find(op.axes.begin(), op.axes.end(), axis) != op.axes.end();
    if (!reduced) out.shape.push_back(in[0].shape[axis]);
    else if (op.keepdims) out.shape.push_back(1);
  }
  return out;
}

Result Infer(const BroadcastOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectPerAxis("axes", op.axes, in[0].shape.rank()));
  AQT_RETURN_IF_ERROR(ExpectAscending(op.axes, op.shape.rank()));
  for (int64_t i = 0; i < in[0].shape.rank(); ++i) {
    const int64_t from = in[0].shape[i], to = op.shape[op.axes[i]];
    if (from != 1 && from != to) {
      return Invalid("axis ", i, " of ", in[0].ToString(), " has extent ", from, ", axis ", op.axes[i],
                     " of the result ", op.shape.ToString(), " has ", to, "; only extent 1 is stretched");
    }
  }
  return Aval{in[0].dtype, op.shape};
}

Result Infer(const ReshapeOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(CheckShape(op.shape));
  const int64_t elements = op.shape.num_elements();
  if (elements != in[0].shape.num_elements()) {
    return Invalid("numbers of elements differ: ", in[0].ToString(), " has ", in[0].shape.num_elements(), ", ",
                   op.shape.ToString(), " has ", elements);
  }
  return Aval{in[0].dtype, op.shape};
}

Result Infer(const TransposeOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  const int64_t rank = in[0].shape.rank();
  Axes sorted = op.permutation;
  std::sort(sorted.begin(), sorted.end());
  bool is_permutation = static_cast<int64_t>(sorted.size()) == rank;
  for (int64_t i = 0; is_permutation && i < rank; ++i) is_permutation = sorted[i] == i;
  if (!is_permutation)
    return Invalid(List(op.permutation), " is not a permutation of the ", rank, " axes of ", in[0].ToString());
  Aval out{in[0].dtype, {}};
  for (int64_t axis : op.permutation) out.shape.push_back(in[0].shape[axis]);
  return out;
}

Result Infer(const SliceOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  const Shape& shape = in[0].shape;
  AQT_RETURN_IF_ERROR(ExpectPerAxis("start", op.start, shape.rank()));
  AQT_RETURN_IF_ERROR(ExpectPerAxis("limit", op.limit, shape.rank()));
  AQT_RETURN_IF_ERROR(ExpectPerAxis("stride", op.stride, shape.rank()));
  Aval out{in[0].dtype, {}};
  for (int64_t i = 0; i < shape.rank(); ++i) {
    if (op.start[i] < 0 || op.start[i] > op.limit[i] || op.limit[i] > shape[i] || op.stride[i] < 1) {
      return Invalid("[", op.start[i], ":", op.limit[i], ":", op.stride[i], "] is not a slice of axis ", i, " of ",
                     in[0].ToString());
    }
    const int64_t span = op.limit[i] - op.start[i];
    out.shape.push_back(span == 0 ? 0 : (span - 1) / op.stride[i] + 1);
  }
  return out;
}

// An integer type or bool must hold the number exactly.
absl::Status ExpectValue(double value, DType dtype) {
  if (IsFloat(dtype)) return absl::OkStatus();
  const double low = dtype == DType::kBool ? 0 : static_cast<double>(IntegerMin(dtype));
  const double high = dtype == DType::kBool ? 1 : static_cast<double>(IntegerMax(dtype));
  // The largest s64 rounds to 2^63 in f64, and s64 cannot hold that.
  if (value == std::floor(value) && value >= low && value <= high && value < 0x1p63) return absl::OkStatus();
  return Invalid("the value ", value, " is none of ", ToString(dtype));
}

Result Infer(const PadOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  const Shape& shape = in[0].shape;
  AQT_RETURN_IF_ERROR(ExpectPerAxis("low", op.low, shape.rank()));
  AQT_RETURN_IF_ERROR(ExpectPerAxis("high", op.high, shape.rank()));
  AQT_RETURN_IF_ERROR(ExpectPerAxis("interior", op.interior, shape.rank()));
  Aval out{in[0].dtype, {}};
  for (int64_t i = 0; i < shape.rank(); ++i) {
    const auto refuse = [&](absl::string_view why) {
      return Invalid("the padding of axis ", i, " of ", in[0].ToString(), why, ": low ", op.low[i], ", high ",
                     op.high[i], ", interior ", op.interior[i]);
    };
    if (op.interior[i] < 0) return refuse(" is negative between elements");
    const CheckedInt inside = CheckedInt(std::max<int64_t>(shape[i] - 1, 0)) * op.interior[i];
    const CheckedInt extent = CheckedInt(shape[i]) + inside + op.low[i] + op.high[i];
    // KeptElements also needs the distance of the last element from the first.
    if (!extent.ok() || !(extent - op.low[i]).ok()) return refuse(" exceeds 2^63 - 1");
    if (extent.value() < 0) return refuse(" takes more elements away than there are");
    out.shape.push_back(extent.value());
  }
  AQT_RETURN_IF_ERROR(ExpectValue(op.value, in[0].dtype));
  return out;
}

Result Infer(const ReverseOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectAscending(op.axes, in[0].shape.rank()));
  return in[0];
}

Result Infer(const IotaOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 0));
  AQT_RETURN_IF_ERROR(ExpectAscending({op.axis}, op.shape.rank()));
  if (op.dtype == DType::kBool) return Invalid("counts in numbers, not in bool");
  return Aval{op.dtype, op.shape};
}

// An element's index must fit into s32.
absl::Status ExpectCountable(int64_t elements, const Aval& a) {
  if (elements <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return Invalid("the numbers of ", elements, " elements of ", a.ToString(), " do not fit into s32");
}

Result Infer(const ArgReduceOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[0]));
  AQT_RETURN_IF_ERROR(ExpectAscending({op.axis}, in[0].shape.rank()));
  const int64_t extent = in[0].shape[op.axis];
  if (extent == 0) return Invalid("axis ", op.axis, " of ", in[0].ToString(), " has no elements");
  AQT_RETURN_IF_ERROR(ExpectCountable(extent, in[0]));
  Aval out{DType::kS32, {}};
  for (int64_t axis = 0; axis < in[0].shape.rank(); ++axis) {
    if (axis != op.axis) out.shape.push_back(in[0].shape[axis]);
  }
  return out;
}

Result Infer(const CumulativeSumOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[0]));
  AQT_RETURN_IF_ERROR(ExpectAscending({op.axis}, in[0].shape.rank()));
  return in[0];
}

absl::Status ExpectIndices(const Aval& indices) {
  if (indices.dtype == DType::kS32) return absl::OkStatus();
  return Invalid("the indices are ", indices.ToString(), ", not s32; cast them");
}

Result Infer(const TakeOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 2));
  AQT_RETURN_IF_ERROR(ExpectIndices(in[1]));
  AQT_RETURN_IF_ERROR(ExpectAscending({op.axis}, in[0].shape.rank()));
  Aval out{in[0].dtype, {}};
  for (int64_t axis = 0; axis < in[0].shape.rank(); ++axis) {
    if (axis != op.axis) out.shape.push_back(in[0].shape[axis]);
    else
      for (const int64_t extent : in[1].shape) out.shape.push_back(extent);
  }
  AQT_RETURN_IF_ERROR(CheckShape(out.shape));
  if (in[0].shape[op.axis] == 0 && out.shape.num_elements() > 0) {
    return Invalid("axis ", op.axis, " of ", in[0].ToString(), " has no elements to take");
  }
  return out;
}

Result Infer(const ScatterAddOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 2));
  AQT_RETURN_IF_ERROR(ExpectIndices(in[0]));
  const Shape &indices = in[0].shape, &updates = in[1].shape;
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[1]));
  if (op.axis < 0 || op.axis + indices.rank() > updates.rank()) {
    return Invalid("axis ", op.axis, " and the ", indices.rank(), " axes of the indices do not fit in the updates ",
                   in[1].ToString());
  }
  Aval out{in[1].dtype, Shape(updates.extents().first(op.axis))};
  for (int64_t i = 0; i < indices.rank(); ++i) {
    if (updates[op.axis + i] == indices[i]) continue;
    return Invalid("axis ", op.axis + i, " of the updates ", in[1].ToString(), " has another extent than axis ", i,
                   " of the indices ", in[0].ToString());
  }
  if (op.extent < 0) return Invalid("the extent ", op.extent, " is negative");
  if (op.extent == 0 && updates.num_elements() > 0) return Invalid("the extent is 0: no place for the updates");
  out.shape.push_back(op.extent);
  for (int64_t axis = op.axis + indices.rank(); axis < updates.rank(); ++axis) out.shape.push_back(updates[axis]);
  return out;
}

// The number of windows along each axis.
absl::StatusOr<Shape> InferWindows(const WindowDims& dims, const Shape& shape) {
  AQT_RETURN_IF_ERROR(ExpectPerAxis("window", dims.window, shape.rank()));
  AQT_RETURN_IF_ERROR(ExpectPerAxis("stride", dims.stride, shape.rank()));
  AQT_RETURN_IF_ERROR(ExpectPerAxis("low", dims.low, shape.rank()));
  AQT_RETURN_IF_ERROR(ExpectPerAxis("high", dims.high, shape.rank()));
  Shape out;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    const int64_t window = dims.window[i], low = dims.low[i], high = dims.high[i];
    if (window < 1 || dims.stride[i] < 1) {
      return Invalid("window ", window, " and stride ", dims.stride[i], " of axis ", i, " are not both positive");
    }
    if (low < 0 || low >= window || high < 0 || high >= window) {
      return Invalid("padding ", low, " and ", high, " of axis ", i, " is not within 0 .. ", window - 1,
                     ": less than the window");
    }
    const CheckedInt extent = CheckedInt(shape[i]) + low + high;
    if (!extent.ok()) return Invalid("the padded extent of axis ", i, " exceeds 2^63 - 1");
    out.push_back(extent.value() < window ? 0 : (extent.value() - window) / dims.stride[i] + 1);
  }
  return out;
}

Result Infer(const ReduceWindowOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[0]));
  if (op.kind == kernels::ReduceKind::kProd) return Invalid("there are no products of windows");
  AQT_ASSIGN_OR_RETURN(Shape shape, InferWindows(op.dims, in[0].shape));
  return Aval{in[0].dtype, std::move(shape)};
}

Result Infer(const ArgReduceWindowOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  AQT_RETURN_IF_ERROR(ExpectArithmetic(in[0]));
  AQT_ASSIGN_OR_RETURN(Shape shape, InferWindows(op.dims, in[0].shape));
  AQT_RETURN_IF_ERROR(ExpectCountable(in[0].shape.num_elements(), in[0]));
  if (in[0].shape.num_elements() == 0) {
    for (const int64_t extent : shape) {
      if (extent == 0) return Aval{DType::kS32, std::move(shape)};
    }
    return Invalid("the windows of ", in[0].ToString(), " have no elements");
  }
  return Aval{DType::kS32, std::move(shape)};
}

Result Infer(const RandomBitsOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  if (in[0] != Aval{DType::kU32, {2}}) return Invalid("the key is ", in[0].ToString(), ", expected u32[2]");
  return Aval{DType::kU32, op.shape};
}

Result Infer(const ConcatenateOp& op, Avals in) {
  if (in.empty()) return Invalid("takes one or more operands");
  Aval out = in[0];
  if (op.axis < 0 || op.axis >= out.shape.rank()) return Invalid("axis ", op.axis, " is not one of ", out.ToString());
  for (size_t i = 1; i < in.size(); ++i) {
    Aval other = in[i];
    bool fits = other.dtype == out.dtype && other.shape.rank() == out.shape.rank();
    if (fits) {
      const int64_t extent = other.shape[op.axis];
      other.shape[op.axis] = out.shape[op.axis];
      fits = other.shape == out.shape;
      const CheckedInt sum = CheckedInt(out.shape[op.axis]) + extent;
      if (!sum.ok()) return Invalid("the extents of axis ", op.axis, " add up to more than 2^63 - 1");
      out.shape[op.axis] = sum.value();
    }
    if (!fits) {
      return Invalid("operand ", i, " is ", in[i].ToString(), ", operand 0 is ", in[0].ToString(),
                     ": only the extents of axis ", op.axis, " may differ");
    }
  }
  return out;
}

bool IsDotFloat(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

bool IsDotInteger(DType dtype) {
  return IsByteInteger(dtype) || dtype == DType::kU8 || dtype == DType::kS16 || dtype == DType::kS32;
}

// The float dtypes allowed with an rhs of integers of up to a byte.
bool IsSmallDotFloat(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32; }

Result Infer(const DotGeneralOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 2));
  const bool integers = IsDotInteger(in[0].dtype) && IsDotInteger(in[1].dtype);
  const bool mixed = IsSmallDotFloat(in[0].dtype) && IsByteInteger(in[1].dtype);
  if (!integers && !mixed) {
    if (in[0].dtype != in[1].dtype) {
      return Invalid("dtypes differ: lhs ", in[0].ToString(), ", rhs ", in[1].ToString(), "; cast one of them");
    }
    if (!IsDotFloat(in[0].dtype)) {
      return Invalid("takes f16, bf16, f32, f64 and integers of at most 32 bits, not ", ToString(in[0].dtype),
                     "; cast the operands");
    }
  }
  if (integers ? op.out != DType::kS32 : !IsDotFloat(op.out)) {
    return Invalid("gives ", integers ? "s32" : "f16, bf16, f32 or f64", " for ", ToString(in[0].dtype),
                   " operands, not ", ToString(op.out));
  }
  AQT_RETURN_IF_ERROR(ValidateDotDims(op.dims, in[0].shape, in[1].shape));
  return Aval{op.out, DotOutputShape(op.dims, in[0].shape, in[1].shape)};
}

Result Infer(const StopGradientOp&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectCount(in, 1));
  return in[0];
}

// No shape in a program may overflow. Operands are checked, too, because inputs come from outside.
absl::Status CheckShapes(absl::string_view what, Avals avals) {
  for (size_t i = 0; i < avals.size(); ++i) {
    AQT_RETURN_IF_ERROR(Annotate(CheckShape(avals[i].shape), absl::StrCat(what, " ", i)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Aval>> InferUnchecked(const Op& op, Avals operands) {
  return std::visit(
      [&]<class O>(const O& o) -> absl::StatusOr<std::vector<Aval>> {
        if constexpr (std::is_same_v<O, CompositeOp>) {
          AQT_ASSIGN_OR_RETURN(std::vector<Aval> out, o.impl->Infer(operands));
          if (static_cast<int>(out.size()) != o.impl->num_outputs()) {
            return absl::InternalError(
                absl::StrCat("the composite declares ", o.impl->num_outputs(), " outputs and infers ", out.size()));
          }
          return out;
        } else {
          AQT_ASSIGN_OR_RETURN(Aval out, Infer(o, operands));
          return std::vector<Aval>{std::move(out)};
        }
      },
      op);
}

}  // namespace

absl::StatusOr<std::vector<Aval>> InferOp(const Op& op, absl::Span<const Aval> operands) {
  AQT_RETURN_IF_ERROR(CheckShapes("operand", operands));
  AQT_ASSIGN_OR_RETURN(std::vector<Aval> out, InferUnchecked(op, operands));
  AQT_RETURN_IF_ERROR(CheckShapes("output", out));
  return out;
}

}  // namespace aqt
