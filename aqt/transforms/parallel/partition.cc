#include "aqt/transforms/parallel/partition.h"

#include <algorithm>
#include <source_location>
#include <utility>

#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/collective/collective_ops.h"

namespace aqt::internal {
namespace {

// Cuts the result of an operation on replicated operands, where there is a better way than slicing it.
std::shared_ptr<Part::Cutter> CutterOf(const Partition& partition, const Op& op, absl::Span<const Part> in,
                                       const Aval& out) {
  const std::vector<Part> operands(in.begin(), in.end());
  if (const auto* broadcast = std::get_if<BroadcastOp>(&op)) {
    return std::make_shared<Part::Cutter>(Part::Cutter{[=](int64_t axis) {
      BroadcastOp part = *broadcast;
      part.shape = partition.AvalOfPart(out, axis).shape;
      const auto at = std::find(part.axes.begin(), part.axes.end(), axis);
      const int64_t own = at - part.axes.begin();
      const bool stretched = at == part.axes.end() || operands[0].whole.shape[own] == 1;
      return BindOne(part, {stretched ? operands[0].value : partition.Cut(operands[0], own)});
    }});
  }
  const bool any = std::any_of(in.begin(), in.end(), [](const Part& part) { return part.cutter != nullptr; });
  if (!any || !WorksByElement(op)) return nullptr;
  return std::make_shared<Part::Cutter>(Part::Cutter{[=](int64_t axis) {
    std::vector<Value> parts;
    for (const Part& operand : operands) parts.push_back(partition.Cut(operand, axis));
    return BindOne(op, parts);
  }});
}

}  // namespace

Aval Partition::AvalOfPart(Aval whole, int64_t axis) const {
  whole.shape[axis] /= processes_;
  return whole;
}

Value Partition::Whole(const Part& part) const {
  return part.axis.has_value() ? ops::AllGather(part.value, *part.axis, processes_) : part.value;
}

Value Partition::Cut(const Part& part, int64_t axis) const {
  if (part.axis == axis) return part.value;
  if (part.cutter != nullptr) {
    const auto found = part.cutter->made.find(axis);
    if (found != part.cutter->made.end()) return found->second;
    return part.cutter->made.emplace(axis, part.cutter->make(axis)).first->second;
  }
  PerAxis start(part.whole.shape.rank(), 0), limit(part.whole.shape.begin(), part.whole.shape.end());
  const int64_t extent = part.whole.shape[axis] / processes_;
  start[axis] = rank_ * extent;
  limit[axis] = start[axis] + extent;
  return ops::Slice(Whole(part), start, limit);
}

Value Partition::AllReduce(AllReduceKind kind, const Value& x) const {
  if (x.dtype() != DType::kF16 && x.dtype() != DType::kBF16) return ops::AllReduce(kind, x, processes_);
  return ops::Cast(ops::AllReduce(kind, ops::Cast(x, DType::kF32), processes_), x.dtype());
}

std::vector<Part> Partition::Apply(const Op& op, absl::Span<const Part> in, absl::Span<const Aval> out) const {
  const bool all_whole = std::none_of(in.begin(), in.end(), [](const Part& part) { return part.axis.has_value(); });
  if (!all_whole && out.size() == 1) {
    if (std::optional<Part> part = CutOperation(*this, op, in, out[0])) return {*std::move(part)};
  }
  std::vector<Value> operands;
  for (const Part& part : OperandsOf(*this, op, in)) operands.push_back(Whole(part));
  std::vector<Part> results;
  for (Value& value : Bind(op, operands, std::source_location::current())) {
    const Aval& whole = out[results.size()];
    results.push_back({std::move(value), whole, {}, all_whole ? CutterOf(*this, op, in, whole) : nullptr});
  }
  return results;
}

}  // namespace aqt::internal
