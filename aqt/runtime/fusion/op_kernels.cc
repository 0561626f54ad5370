#include "aqt/runtime/fusion/op_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/eval_op.h"
#include "aqt/kernels/contraction.h"
#include "aqt/kernels/move/pad.h"
#include "aqt/kernels/reduce/reduce.h"
#include "aqt/kernels/reduce/reduce_parts.h"
#include "aqt/runtime/fusion/elementwise_op.h"
#include "aqt/runtime/fusion/strided_copy.h"

namespace aqt::internal {
namespace {

OpKernel Elementwise(ElementwiseFn fn, size_t operands, const Aval& out, bool in_place) {
  OpKernel kernel{.run = [fn = std::move(fn), n = out.shape.num_elements()](const KernelCall& call) {
    fn(call.in, n, call.out[0]);
    return absl::OkStatus();
  }};
  for (size_t i = 0; in_place && i < operands; ++i) kernel.may_share.emplace_back(static_cast<int>(i), 0);
  return kernel;
}

// Reduces [outer, k, inner] over k.
OpKernel ReduceMiddle(kernels::ReduceKind kind, DType dtype, int64_t outer, int64_t k, int64_t inner) {
  constexpr int64_t kColumns = 512;  // partial results of this many stay in the first-level cache
  if (inner == 1) {
    return {.run = [=](const KernelCall& call) {
      kernels::ReduceRows(kind, dtype, call.in[0], outer, k, call.out[0]);
      return absl::OkStatus();
    }};
  }
  const int64_t size = SizeOf(dtype);
  const auto run = [=](const KernelCall& call) {
    const char* x = static_cast<const char*>(call.in[0]);
    char* to = static_cast<char*>(call.out[0]);
    for (int64_t i = 0; i < outer; ++i, x += k * inner * size, to += inner * size) {
      for (int64_t first = 0; first < inner; first += kColumns) {
        const int64_t columns = std::min(kColumns, inner - first);
        kernels::StartLanes(kind, dtype, columns, call.scratch);
        kernels::AddToLanes(kind, dtype, x + first * size, inner, 0, k, columns, call.scratch);
        kernels::FinishLanes(kind, dtype, columns, call.scratch, to + first * size);
      }
    }
    return absl::OkStatus();
  };
  return {.run = run, .scratch_bytes = kernels::LaneBytes(dtype, std::min(kColumns, inner))};
}

OpKernel Reduction(const ReduceOp& op, const Aval& in) {
  const std::optional<kernels::ReduceExtents> e = kernels::ReduceExtentsOf(in.shape, op.axes);
  if (e.has_value() && in.shape.num_elements() > 0 && kernels::ReducesParts(op.kind)) {
    return ReduceMiddle(op.kind, in.dtype, e->outer, e->k, e->inner);
  }
  return {.run = [op, x = ArrayRef(in.dtype, in.shape, nullptr)](const KernelCall& call) {
    ArrayRef operand = x;
    operand.data = call.in[0];
    kernels::Reduce(op.kind, operand, op.axes, call.out[0]);
    return absl::OkStatus();
  }};
}

OpKernel Concatenation(const ConcatenateOp& op, absl::Span<const Aval> in, const Aval& out) {
  int64_t rows = 1;
  for (int64_t i = 0; i < op.axis; ++i) rows *= out.shape[i];
  std::vector<size_t> part_bytes;  // of one row
  for (const Aval& part : in) part_bytes.push_back(rows == 0 ? 0 : part.num_bytes() / rows);
  return {.run = [rows, part_bytes](const KernelCall& call) {
    char* to = static_cast<char*>(call.out[0]);
    for (int64_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < part_bytes.size(); ++i) {
        const size_t bytes = part_bytes[i];
        if (bytes > 0) std::memcpy(to, static_cast<const char*>(call.in[i]) + row * bytes, bytes);
        to += bytes;
      }
    }
    return absl::OkStatus();
  }};
}

// Pads with zeros.
OpKernel Padding(const PadOp& op, const Aval& in, const Aval& out) {
  const Strides strides = DenseStrides(in.shape);
  std::vector<kernels::PadAxis> axes;
  for (int64_t i = 0; i < in.shape.rank(); ++i) {
    axes.push_back(PadAxisOf(op, i, in.shape[i], out.shape[i]));
    axes.back().stride = strides[i];
  }
  return {.run = [axes = std::move(axes), size = SizeOf(out.dtype)](const KernelCall& call) {
    kernels::Pad(call.in[0], size, axes, call.out[0], call.executor);
    return absl::OkStatus();
  }};
}

OpKernel Product(const DotGeneralOp& op, absl::Span<const Aval> in, const Aval& out) {
  const kernels::ContractPlan plan(op.dims, in[0], in[1], out);
  return {.run =
              [plan](const KernelCall& call) {
                plan.Run(call.in[0], call.in[1], call.out[0], call.scratch, call.executor, call.block);
                return absl::OkStatus();
              },
          .scratch_bytes = plan.scratch_bytes(),
          .has_blocks = plan.has_blocks()};
}

// As Eval does it.
OpKernel Evaluation(const Op& op, absl::Span<const Aval> in, const Aval& out) {
  std::vector<ArrayRef> operands;
  for (const Aval& aval : in) operands.emplace_back(aval.dtype, aval.shape, nullptr);
  return {.run = [op, operands, result = MutableArrayRef(out.dtype, out.shape, nullptr)](const KernelCall& call) {
    absl::InlinedVector<ArrayRef, 4> own(operands.begin(), operands.end());  // allocates nothing
    for (size_t i = 0; i < own.size(); ++i) own[i].data = call.in[i];
    MutableArrayRef own_result = result;
    own_result.data = call.out[0];
    EvalOpInto(op, own, own_result, call.executor);
    return absl::OkStatus();
  }};
}

}  // namespace

OpKernel KernelOf(const Op& op, absl::Span<const Aval> in, const Aval& out) {
  if (in.empty()) return Evaluation(op, in, out);
  if (ElementwiseFn fn = ElementwiseOf(op, in, out)) {
    const bool in_place = !std::holds_alternative<CastOp>(op);  // it reads and writes different types
    return Elementwise(std::move(fn), in.size(), out, in_place);
  }
  if (std::optional<StridedCopy> copy = StridedCopy::Of(op, in[0], out)) {
    return OpKernel{.run = [copy = *std::move(copy)](const KernelCall& call) {
      copy.Run(call.in[0], call.out[0], call.executor);
      return absl::OkStatus();
    }};
  }
  if (const auto* reduce = std::get_if<ReduceOp>(&op)) return Reduction(*reduce, in[0]);
  if (const auto* concatenate = std::get_if<ConcatenateOp>(&op)) return Concatenation(*concatenate, in, out);
  if (const auto* pad = std::get_if<PadOp>(&op); pad != nullptr && pad->value == 0 && in[0].shape.rank() > 0) {
    return Padding(*pad, in[0], out);
  }
  if (const auto* dot = std::get_if<DotGeneralOp>(&op)) return Product(*dot, in, out);
  return Evaluation(op, in, out);
}

}  // namespace aqt::internal
