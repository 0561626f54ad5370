#ifndef AQT_GRAPH_SAVED_OP_FIELDS_H_
#define AQT_GRAPH_SAVED_OP_FIELDS_H_

// The fields of the basic operations by name, for files. A saved name never changes.

#include "aqt/graph/op.h"

namespace aqt::internal {

// The name of the family in files, and `visit(name, field)` for each field. O may be const.
template <class Op>
struct OpFields;

#define AQT_OP_WITHOUT_FIELDS(Op, name)   \
  template <>                             \
  struct OpFields<Op> {                   \
    static constexpr char kName[] = name; \
    template <class O, class V>           \
    static void Visit(O&, V&&) {}         \
  }
AQT_OP_WITHOUT_FIELDS(SelectOp, "select");
AQT_OP_WITHOUT_FIELDS(ClampOp, "clamp");
AQT_OP_WITHOUT_FIELDS(IsFiniteOp, "is_finite");
AQT_OP_WITHOUT_FIELDS(StopGradientOp, "stop_gradient");
#undef AQT_OP_WITHOUT_FIELDS

// The statements of Visit.
#define AQT_OP_FIELDS(Op, name, ...)      \
  template <>                             \
  struct OpFields<Op> {                   \
    static constexpr char kName[] = name; \
    template <class O, class V>           \
    static void Visit(O& op, V&& visit) { \
      __VA_ARGS__;                        \
    }                                     \
  }
AQT_OP_FIELDS(UnaryOp, "unary", visit("kind", op.kind));
AQT_OP_FIELDS(BinaryOp, "binary", visit("kind", op.kind));
AQT_OP_FIELDS(CompareOp, "compare", visit("kind", op.kind));
AQT_OP_FIELDS(CastOp, "cast", visit("dtype", op.dtype));
AQT_OP_FIELDS(BitcastOp, "bitcast", visit("dtype", op.dtype));
AQT_OP_FIELDS(IntegerPowOp, "integer_pow", visit("exponent", op.exponent));
AQT_OP_FIELDS(ReducePrecisionOp, "reduce_precision", visit("exponent_bits", op.precision.exponent_bits),
              visit("mantissa_bits", op.precision.mantissa_bits));
AQT_OP_FIELDS(ReduceOp, "reduce", visit("kind", op.kind), visit("axes", op.axes), visit("keepdims", op.keepdims));
AQT_OP_FIELDS(BroadcastOp, "broadcast", visit("shape", op.shape), visit("axes", op.axes));
AQT_OP_FIELDS(ReshapeOp, "reshape", visit("shape", op.shape));
AQT_OP_FIELDS(TransposeOp, "transpose", visit("permutation", op.permutation));
AQT_OP_FIELDS(SliceOp, "slice", visit("start", op.start), visit("limit", op.limit), visit("stride", op.stride));
AQT_OP_FIELDS(PadOp, "pad", visit("low", op.low), visit("high", op.high), visit("interior", op.interior),
              visit("value", op.value));
AQT_OP_FIELDS(ReverseOp, "reverse", visit("axes", op.axes));
AQT_OP_FIELDS(IotaOp, "iota", visit("dtype", op.dtype), visit("shape", op.shape), visit("axis", op.axis));
AQT_OP_FIELDS(ArgReduceOp, "arg_reduce", visit("kind", op.kind), visit("axis", op.axis));
AQT_OP_FIELDS(CumulativeSumOp, "cumulative_sum", visit("axis", op.axis), visit("reverse", op.reverse));
AQT_OP_FIELDS(TakeOp, "take", visit("axis", op.axis));
AQT_OP_FIELDS(ScatterAddOp, "scatter_add", visit("axis", op.axis), visit("extent", op.extent));
AQT_OP_FIELDS(ReduceWindowOp, "reduce_window", visit("kind", op.kind), visit("window", op.dims.window),
              visit("stride", op.dims.stride), visit("low", op.dims.low), visit("high", op.dims.high));
AQT_OP_FIELDS(ArgReduceWindowOp, "arg_reduce_window", visit("kind", op.kind), visit("window", op.dims.window),
              visit("stride", op.dims.stride), visit("low", op.dims.low), visit("high", op.dims.high));
AQT_OP_FIELDS(RandomBitsOp, "random_bits", visit("shape", op.shape));
AQT_OP_FIELDS(ConcatenateOp, "concatenate", visit("axis", op.axis));
AQT_OP_FIELDS(DotGeneralOp, "dot_general", visit("lhs_contracting", op.dims.lhs_contracting),
              visit("rhs_contracting", op.dims.rhs_contracting), visit("lhs_batch", op.dims.lhs_batch),
              visit("rhs_batch", op.dims.rhs_batch), visit("out", op.out));
#undef AQT_OP_FIELDS

}  // namespace aqt::internal

#endif  // AQT_GRAPH_SAVED_OP_FIELDS_H_
