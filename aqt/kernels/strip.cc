#include "aqt/kernels/strip.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "aqt/core/check.h"
#include "aqt/kernels/elementwise.h"
#include "aqt/kernels/strip_internal.h"
#include "aqt/kernels/target.h"

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

// The kind with exchanged operands.
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

}  // namespace

bool StripBuilder::Takes(UnaryKind kind) { return KindOf(kind).has_value(); }
bool StripBuilder::Takes(BinaryKind kind) { return KindOf(kind).has_value(); }

int StripBuilder::Add(Node node) {
  const int id = static_cast<int>(nodes_.size());
  for (const int in : node.in) {
    if (in >= 0) nodes_[in].last_use = id;
  }
  if (!node.is_leaf()) AQT_CHECK(++num_steps_ <= kMaxSteps);
  nodes_.push_back(std::move(node));
  return id;
}

int StripBuilder::Array() {
  AQT_CHECK(num_arrays_ < kMaxOperands);
  return Add({.kind = Kind::kLoad, .leaf = {Where::kArray, static_cast<uint8_t>(num_arrays_++)}});
}

int StripBuilder::BoolArray() {
  AQT_CHECK(num_arrays_ < kMaxOperands);
  return Add({.kind = Kind::kLoad, .leaf = {Where::kBoolArray, static_cast<uint8_t>(num_arrays_++)}});
}

int StripBuilder::Number(bool per_row) {
  AQT_CHECK(numbers_.size() < kMaxOperands);
  numbers_.push_back({per_row});
  return Add({.kind = Kind::kLoad, .leaf = {Where::kNumber, static_cast<uint8_t>(numbers_.size() - 1)}});
}

int StripBuilder::Unary(UnaryKind kind, int x) { return Add({.kind = *KindOf(kind), .in = {x, -1, -1}}); }
int StripBuilder::Binary(BinaryKind kind, int x, int y) { return Add({.kind = *KindOf(kind), .in = {x, y, -1}}); }
int StripBuilder::Compare(CompareKind kind, int x, int y) {
  return Add({.kind = KindOf(kind), .in = {x, y, -1}, .is_condition = true});
}
int StripBuilder::Select(int condition, int x, int y) { return Add({.kind = Kind::kSelect, .in = {condition, x, y}}); }

void StripBuilder::Output(int value) {
  AQT_CHECK(!nodes_[value].is_leaf() && nodes_[value].output < 0);
  nodes_[value].output = num_outputs_++;
}

// Puts the steps in the order of the nodes. The accumulator has the value of the last one; a value that others read is
// kept in a slot until its last use.
class StripBuilder::Scheduler {
 public:
  explicit Scheduler(std::vector<Node> nodes) : nodes_(std::move(nodes)), slots_(nodes_.size(), -1) {}

  std::vector<StripFunction::Step> Steps() && {
    FindKept();
    for (int id = 0; id < static_cast<int>(nodes_.size()); ++id) {
      if (!nodes_[id].is_leaf()) AddNode(id);
    }
    return std::move(steps_);
  }

 private:
  // Whether the operands of a node can be exchanged so that `value` is its first.
  static bool TakesFirst(const Node& node, int value) {
    return node.in[0] == value || (node.in[1] == value && node.kind != Kind::kSelect);
  }

  void FindKept() {
    int previous = -1;
    for (int id = 0; id < static_cast<int>(nodes_.size()); ++id) {
      const Node& node = nodes_[id];
      if (node.is_leaf()) continue;
      for (const int in : node.in) {
        if (in >= 0 && !(in == previous && TakesFirst(node, in))) nodes_[in].is_kept = true;
      }
      if (node.in[1] == node.in[0]) nodes_[node.in[0]].is_kept = true;
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
    if (kind != Kind::kSelect && second >= 0 && first != accumulator_ && second == accumulator_) {
      std::swap(first, second);
      kind = Reversed(kind);
    }
    if (first != accumulator_) {
      const Operand operand = OperandOf(first);
      steps_.push_back({operand.where == Where::kBoolArray ? Kind::kLoadBool : Kind::kLoad, operand});
      accumulator_ = first;
    }
    StripFunction::Step step{kind};
    if (second >= 0) step.x = OperandOf(second);
    if (node.in[2] >= 0) step.y = OperandOf(node.in[2]);
    steps_.push_back(step);
    accumulator_ = id;
    for (const int in : node.in) {
      if (in >= 0 && nodes_[in].last_use == id && slots_[in] >= 0) free_.push_back(std::exchange(slots_[in], -1));
    }
    if (node.is_kept) {
      if (free_.empty()) free_.push_back(num_slots_++);
      slots_[id] = free_.back();
      free_.pop_back();
      steps_.push_back({Kind::kKeep, {Where::kSlot, static_cast<uint8_t>(slots_[id])}});
    }
    if (node.output >= 0) {
      const Kind write = node.is_condition ? Kind::kWriteBool : Kind::kWrite;
      steps_.push_back({write, {Where::kArray, static_cast<uint8_t>(node.output)}});
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
  function.steps_ = Scheduler(std::move(nodes_)).Steps();
  return function;
}

void StripFunction::Run(const StripCall& call, Target target) const {
  internal::RunStrips({steps_.data(), steps_.size()}, {numbers_.data(), numbers_.size()}, call, target);
}

}  // namespace aqt::kernels
