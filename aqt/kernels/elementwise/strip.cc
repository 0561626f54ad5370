#include "aqt/kernels/elementwise/strip.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/elementwise/strip_internal.h"

namespace aqt::kernels {
namespace {

using Kind = StripFunction::Kind;
using Operand = StripFunction::Operand;
using Where = StripFunction::Operand::Where;

std::optional<Kind> KindOf(UnaryKind kind) {
  switch (kind) {
    case UnaryKind::kNeg: return Kind::kNeg;
    case UnaryKind::kAbs: return Kind::kAbs;
    case UnaryKind::kFlush: return Kind::kFlush;
    case UnaryKind::kSqrt: return Kind::kSqrt;
    case UnaryKind::kRsqrt: return Kind::kRsqrt;
    case UnaryKind::kExp: return Kind::kExp;
    case UnaryKind::kExpm1: return Kind::kExpm1;
    case UnaryKind::kLog: return Kind::kLog;
    case UnaryKind::kLog1p: return Kind::kLog1p;
    case UnaryKind::kTanh: return Kind::kTanh;
    case UnaryKind::kLogistic: return Kind::kLogistic;
    case UnaryKind::kErf: return Kind::kErf;
    default: return std::nullopt;
  }
}

std::optional<Kind> KindOf(BinaryKind kind) {
  switch (kind) {
    case BinaryKind::kAdd: return Kind::kAdd;
    case BinaryKind::kSub: return Kind::kSub;
    case BinaryKind::kMul: return Kind::kMul;
    case BinaryKind::kDiv: return Kind::kDiv;
    case BinaryKind::kMax: return Kind::kMax;
    case BinaryKind::kMin: return Kind::kMin;
    default: return std::nullopt;
  }
}

Kind KindOf(CompareKind kind) {
  switch (kind) {
    case CompareKind::kEq: return Kind::kEq;
    case CompareKind::kNe: return Kind::kNe;
    case CompareKind::kLt: return Kind::kLt;
    case CompareKind::kLe: return Kind::kLe;
    case CompareKind::kGt: return Kind::kGt;
    case CompareKind::kGe: return Kind::kGe;
  }
  return Kind::kEq;
}

// The kind with its operands swapped.
Kind Reversed(Kind kind) {
  switch (kind) {
    case Kind::kSub: return Kind::kSubFrom;
    case Kind::kDiv: return Kind::kDivInto;
    case Kind::kLt: return Kind::kGt;
    case Kind::kLe: return Kind::kGe;
    case Kind::kGt: return Kind::kLt;
    case Kind::kGe: return Kind::kLe;
    default: return kind;
  }
}

// Fuses a product with a number and a following step of this kind.
std::optional<Kind> AfterProduct(Kind kind) {
  switch (kind) {
    case Kind::kAdd: return Kind::kMulAdd;
    case Kind::kSub: return Kind::kMulSub;
    case Kind::kSubFrom: return Kind::kMulSubFrom;
    case Kind::kMul: return Kind::kMulMul;
    default: return std::nullopt;
  }
}

// Fuses the load of a value and a following step of this kind.
std::optional<Kind> AfterLoad(Kind kind) {
  switch (kind) {
    case Kind::kAdd: return Kind::kLoadAdd;
    case Kind::kSub:
    case Kind::kSubFrom: return Kind::kLoadSub;
    case Kind::kDiv:
    case Kind::kDivInto: return Kind::kLoadDiv;
    default: return std::nullopt;
  }
}

// A step of this kind that combines a product and a kept value, expressed as a step on the kept value and the operands
// of the product.
std::optional<Kind> OfKept(Kind kind) {
  switch (kind) {
    case Kind::kAdd:
    case Kind::kMulAdd: return Kind::kAddProduct;
    case Kind::kSub:
    case Kind::kMulSub: return Kind::kSubFromProduct;
    case Kind::kSubFrom:
    case Kind::kMulSubFrom: return Kind::kSubProduct;
    default: return std::nullopt;
  }
}

// Whether results of this kind need no rounding to a small float dtype.
bool IsExact(Kind kind) {
  return kind == Kind::kNeg || kind == Kind::kAbs || kind == Kind::kFlush || kind == Kind::kMax || kind == Kind::kMin;
}

Where ArrayOf(DType dtype) {
  if (dtype == DType::kBF16) return Where::kBf16Array;
  return dtype == DType::kF16 ? Where::kF16Array : Where::kArray;
}

Kind LoadOf(const Operand& x) {
  switch (x.where) {
    case Where::kBf16Array: return Kind::kLoadBf16;
    case Where::kF16Array: return Kind::kLoadF16;
    case Where::kBoolArray: return Kind::kLoadBool;
    default: return Kind::kLoad;
  }
}

Kind RoundingTo(DType dtype) { return dtype == DType::kBF16 ? Kind::kRoundBf16 : Kind::kRoundF16; }

Kind WriteOf(DType dtype) {
  if (dtype == DType::kBool) return Kind::kWriteBool;
  if (dtype == DType::kBF16) return Kind::kWriteBf16;
  return dtype == DType::kF16 ? Kind::kWriteF16 : Kind::kWrite;
}

bool IsNumber(const Operand& x) { return x.where == Where::kNumber; }
bool IsSlot(const Operand& x, int slot) { return x.where == Where::kSlot && x.index == slot; }

// Whether the value of the slot is read before another value is stored there.
bool IsRead(absl::Span<const StripFunction::Step> steps, int slot) {
  for (const StripFunction::Step& step : steps) {
    if (step.kind == Kind::kKeep) {
      if (step.x.index == slot) return false;
    } else if (IsSlot(step.x, slot) || IsSlot(step.y, slot) || IsSlot(step.z, slot)) {
      return true;
    }
  }
  return false;
}

// Fuses loads and products with the steps after them.
std::vector<StripFunction::Step> Joined(const std::vector<StripFunction::Step>& steps) {
  std::vector<StripFunction::Step> joined;
  for (const StripFunction::Step& step : steps) {
    if (!joined.empty()) {
      StripFunction::Step& last = joined.back();
      if (last.kind == Kind::kLoad && step.kind == Kind::kMul && IsNumber(step.x)) {
        last = {Kind::kLoadMul, last.x, step.x};
        continue;
      }
      const std::optional<Kind> both = AfterProduct(step.kind);
      if (last.kind == Kind::kMul && IsNumber(last.x) && both.has_value()) {
        last = {*both, step.x, last.x};
        continue;
      }
      if (last.kind == Kind::kMul && step.kind == Kind::kAdd && !IsNumber(step.x)) {
        last = {Kind::kMulAddEach, step.x, last.x};
        continue;
      }
      const std::optional<Kind> loaded = AfterLoad(step.kind);
      if (last.kind == Kind::kLoad && loaded.has_value()) {
        const bool reversed = step.kind == Kind::kSubFrom || step.kind == Kind::kDivInto;
        last = reversed ? StripFunction::Step{*loaded, step.x, last.x} : StripFunction::Step{*loaded, last.x, step.x};
        continue;
      }
    }
    joined.push_back(step);
  }
  return joined;
}

// Avoids keeping a value that is only added to, or subtracted from, the product that follows.
std::vector<StripFunction::Step> WithoutKept(absl::Span<const StripFunction::Step> steps) {
  std::vector<StripFunction::Step> rest;
  while (!steps.empty()) {
    if (steps.size() >= 3 && steps[0].kind == Kind::kKeep && steps[1].kind == Kind::kLoadMul) {
      const int slot = steps[0].x.index;
      const std::optional<Kind> kind = OfKept(steps[2].kind);
      if (kind.has_value() && IsSlot(steps[2].x, slot) && !IsSlot(steps[1].x, slot) &&
          !IsRead(steps.subspan(3), slot)) {
        rest.push_back({*kind, steps[1].x, steps[1].y, steps[2].y});
        steps.remove_prefix(3);
        continue;
      }
    }
    rest.push_back(steps[0]);
    steps.remove_prefix(1);
  }
  return rest;
}

}  // namespace

bool StripBuilder::Takes(UnaryKind kind) { return KindOf(kind).has_value(); }
bool StripBuilder::Takes(BinaryKind kind) { return KindOf(kind).has_value(); }
bool StripBuilder::Takes(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

int StripBuilder::Add(Node node) {
  const int id = static_cast<int>(nodes_.size());
  if (!node.is_leaf()) AQT_CHECK(++num_steps_ <= kMaxSteps);
  nodes_.push_back(std::move(node));
  return id;
}

int StripBuilder::Array(DType dtype, bool is_row) {
  AQT_CHECK(Takes(dtype) && num_arrays_ < kMaxOperands);
  const int array =
      Add({.kind = Kind::kLoad, .leaf = {ArrayOf(dtype), static_cast<uint8_t>(num_arrays_++), is_row}, .dtype = dtype});
  // Other dtypes are widened once, by a step of their own.
  return dtype == DType::kF32 ? array : Cast(dtype, array);
}

int StripBuilder::BoolArray() {
  AQT_CHECK(num_arrays_ < kMaxOperands);
  return Add(
      {.kind = Kind::kLoad, .leaf = {Where::kBoolArray, static_cast<uint8_t>(num_arrays_++)}, .dtype = DType::kBool});
}

int StripBuilder::Number(bool per_row, DType dtype) {
  AQT_CHECK(Takes(dtype) && numbers_.size() < kMaxOperands);
  numbers_.push_back({per_row});
  return Add(
      {.kind = Kind::kLoad, .leaf = {Where::kNumber, static_cast<uint8_t>(numbers_.size() - 1)}, .dtype = dtype});
}

int StripBuilder::Rounded(int value) {
  const DType dtype = nodes_[value].dtype;
  if (dtype == DType::kF32 || IsExact(nodes_[value].kind)) return value;
  return Add({.kind = RoundingTo(dtype), .in = {value, -1, -1}, .dtype = dtype});
}

int StripBuilder::Unary(UnaryKind kind, int x) {
  return Rounded(Add({.kind = *KindOf(kind), .in = {x, -1, -1}, .dtype = nodes_[x].dtype}));
}

int StripBuilder::Binary(BinaryKind kind, int x, int y) {
  AQT_DCHECK(nodes_[x].dtype == nodes_[y].dtype);
  return Rounded(Add({.kind = *KindOf(kind), .in = {x, y, -1}, .dtype = nodes_[x].dtype}));
}

int StripBuilder::Compare(CompareKind kind, int x, int y) {
  AQT_DCHECK(nodes_[x].dtype == nodes_[y].dtype);
  return Add({.kind = KindOf(kind), .in = {x, y, -1}, .dtype = DType::kBool});
}

int StripBuilder::Select(int condition, int x, int y) {
  AQT_DCHECK(nodes_[x].dtype == nodes_[y].dtype);
  return Add({.kind = Kind::kSelect, .in = {condition, x, y}, .dtype = nodes_[x].dtype});
}

int StripBuilder::Cast(DType dtype, int x) {
  AQT_CHECK(Takes(dtype) && Takes(nodes_[x].dtype));
  const bool widens = dtype == DType::kF32 || dtype == nodes_[x].dtype;
  return Add({.kind = widens ? Kind::kCopy : RoundingTo(dtype), .in = {x, -1, -1}, .dtype = dtype});
}

int StripBuilder::Cost() const {
  constexpr int kFunction = 8;  // such as exp
  int cost = 0;
  for (const Node& node : nodes_) cost += node.is_leaf() ? 0 : node.kind >= Kind::kRsqrt ? kFunction : 1;
  return cost;
}

void StripBuilder::Output(int value) {
  AQT_CHECK(!nodes_[value].is_leaf() && nodes_[value].output < 0);
  nodes_[value].output = num_outputs_++;
}

void StripBuilder::SumRows(int value) {
  AQT_CHECK(!nodes_[value].is_leaf() && nodes_[value].dtype == DType::kF32 && nodes_[value].row_sum < 0);
  nodes_[value].row_sum = static_cast<int>(row_sums_.size());
  row_sums_.push_back(num_outputs_++);
}

// Orders the nodes so that each directly follows its operands where possible. The accumulator then often holds one of
// them. The first operand is computed first. All nodes before an output stay before it, because the output may be
// written to memory that they read.
class StripBuilder::Sorter {
 public:
  explicit Sorter(const std::vector<Node>& nodes) : nodes_(nodes), ids_(nodes.size(), -1) {}

  std::vector<Node> Nodes() && {
    for (int id = 0; id < static_cast<int>(nodes_.size()); ++id) {
      if (nodes_[id].output < 0 && nodes_[id].row_sum < 0) continue;
      std::vector<bool> is_operand(nodes_.size(), false);
      MarkOperands(id, is_operand);
      for (int other = 0; other < id; ++other) {
        if (!is_operand[other]) Visit(other);
      }
      Visit(id);
    }
    return std::move(sorted_);
  }

 private:
  // Marks the operands of a node, and theirs in turn.
  void MarkOperands(int id, std::vector<bool>& is_operand) const {
    for (const int in : nodes_[id].in) {
      if (in < 0 || is_operand[in]) continue;
      is_operand[in] = true;
      MarkOperands(in, is_operand);
    }
  }

  void Visit(int id) {
    if (ids_[id] >= 0) return;
    Node node = nodes_[id];
    for (int& in : node.in) {
      if (in < 0) continue;
      Visit(in);
      in = ids_[in];
    }
    ids_[id] = static_cast<int>(sorted_.size());
    sorted_.push_back(node);
  }

  const std::vector<Node>& nodes_;
  std::vector<int> ids_;  // index in sorted_
  std::vector<Node> sorted_;
};

// Emits the steps in the order of the nodes. The accumulator holds the value of the last step. A value that is read
// later is kept in a slot until its last use.
class StripBuilder::Scheduler {
 public:
  explicit Scheduler(std::vector<Node> nodes) : nodes_(std::move(nodes)), slots_(nodes_.size(), -1) {}

  std::vector<StripFunction::Step> Steps() && {
    FindUses();
    for (int id = 0; id < static_cast<int>(nodes_.size()); ++id) {
      if (!nodes_[id].is_leaf()) AddNode(id);
    }
    return std::move(steps_);
  }

 private:
  // Whether the operands of a node can be swapped so that `value` is the first.
  static bool TakesFirst(const Node& node, int value) {
    return node.in[0] == value || (node.in[1] == value && node.kind != Kind::kSelect);
  }

  // Determines which values are kept, and until when.
  void FindUses() {
    int previous = -1;
    for (int id = 0; id < static_cast<int>(nodes_.size()); ++id) {
      const Node& node = nodes_[id];
      if (node.is_leaf()) continue;
      for (const int in : node.in) {
        if (in < 0) continue;
        nodes_[in].last_use = id;
        if (in != previous || !TakesFirst(node, in)) nodes_[in].is_kept = true;
      }
      if (node.in[1] == node.in[0] && node.kind != Kind::kMul) nodes_[node.in[0]].is_kept = true;
      previous = id;
    }
  }

  Operand OperandOf(int value) const {
    const Node& node = nodes_[value];
    if (node.is_leaf()) return node.leaf;
    AQT_DCHECK(slots_[value] >= 0);
    return {Where::kSlot, static_cast<uint8_t>(slots_[value])};
  }

  void AddNode(int id) {
    const Node& node = nodes_[id];
    Kind kind = node.kind;
    int first = node.in[0], second = node.in[1];
    // A number should be the second operand.
    const bool exchanges =
        second >= 0 && first != accumulator_ && (second == accumulator_ || IsNumber(nodes_[first].leaf));
    if (kind != Kind::kSelect && exchanges) {
      std::swap(first, second);
      kind = Reversed(kind);
    }
    if (first != accumulator_) {
      const Operand operand = OperandOf(first);
      steps_.push_back({LoadOf(operand), operand});
      accumulator_ = first;
    }
    if (kind == Kind::kMul && first == second) {
      kind = Kind::kSquare;
      second = -1;
    }
    StripFunction::Step step{kind};
    if (second >= 0) step.x = OperandOf(second);
    if (node.in[2] >= 0) step.y = OperandOf(node.in[2]);
    if (kind != Kind::kCopy) steps_.push_back(step);
    accumulator_ = id;
    for (const int in : node.in) {
      if (in >= 0 && nodes_[in].last_use == id && slots_[in] >= 0) free_.push_back(std::exchange(slots_[in], -1));
    }
    if (node.output >= 0) steps_.push_back({WriteOf(node.dtype), {Where::kArray, static_cast<uint8_t>(node.output)}});
    if (node.row_sum >= 0) steps_.push_back({Kind::kSumRow, {Where::kRowSum, static_cast<uint8_t>(node.row_sum)}});
    if (node.is_kept) {
      if (free_.empty()) free_.push_back(num_slots_++);
      slots_[id] = free_.back();
      free_.pop_back();
      steps_.push_back({Kind::kKeep, {Where::kSlot, static_cast<uint8_t>(slots_[id])}});
    }
  }

  std::vector<Node> nodes_;
  std::vector<int> slots_;  // by value
  std::vector<int> free_;
  int num_slots_ = 0;
  int accumulator_ = -1;  // the value
  std::vector<StripFunction::Step> steps_;
};

StripFunction StripBuilder::Build() && {
  StripFunction function;
  function.numbers_ = std::move(numbers_);
  function.row_sums_ = std::move(row_sums_);
  function.steps_ = WithoutKept(Joined(Scheduler(Sorter(nodes_).Nodes()).Steps()));
  for (const StripFunction::Step& step : function.steps_) {
    for (const Operand& operand : {step.x, step.y, step.z}) {
      if (operand.where == Where::kSlot) function.num_slots_ = std::max(function.num_slots_, operand.index + 1);
    }
  }
  return function;
}

int64_t StripFunction::PreparedBytes(Target target) const {
  return internal::PreparedStripBytes({steps_, numbers_, row_sums_, num_slots_}, target);
}

void StripFunction::Prepare(const StripCall& call, void* prepared, Target target) const {
  internal::PrepareStrip({steps_, numbers_, row_sums_, num_slots_}, call, prepared, target);
}

void StripFunction::Run(const StripCall& call, void* prepared) {
  (*static_cast<internal::RunPrepared*>(prepared))(call, prepared);
}

}  // namespace aqt::kernels
