#include "aqt/runtime/fusion/fusion.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "aqt/core/array.h"
#include "aqt/graph/op.h"
#include "aqt/kernels/reduce/reduce_parts.h"
#include "aqt/runtime/fusion/elementwise_op.h"

namespace aqt::internal {
namespace {

constexpr size_t kMaxMembers = 64;
constexpr size_t kMaxVisits = 256;  // limit of a search; beyond it, groups are not fused

class Fuser {
 public:
  Fuser(const Program& program, absl::Span<const VarId> roots, const std::vector<bool>& runs)
      : program_(program),
        roots_(roots),
        runs_(runs),
        producer_(program.vars.size(), -1),
        role_(program.vars.size(), FusedRole::kFull),
        group_of_(program.eqns.size(), -1),
        is_read_whole_(program.vars.size(), false) {}

  std::vector<FusedGroup> Fuse() &&;

 private:
  // A variable that a group reads from equations outside it.
  struct Read {
    VarId var;     // a root
    bool is_part;  // read piece by piece
  };
  struct Group {
    FusedGroup fused;
    bool can_grow = false;
    std::vector<Read> reads;
    std::vector<int> readers;  // groups, possibly repeated
    int last = 0;              // equation
    // The largest `last` of this group and of all groups that it needs: no group needs one with a larger horizon.
    int horizon = 0;
    int joined = -1;  // the group that absorbed this one
  };
  // An equation that is to join some groups, and the broadcasts that it takes along.
  struct Candidate {
    int eqn;
    FusedRole role;
    int64_t elements, columns;  // of the group
    std::vector<Read> reads;
    absl::InlinedVector<int, 3> groups;      // the distinct groups that produce its operands
    absl::InlinedVector<int, 3> broadcasts;  // equations
  };

  VarId Root(VarId var) const { return roots_[var]; }
  int64_t Elements(VarId var) const { return program_.aval(var).shape.num_elements(); }
  bool IsBroadcast(int eqn) const { return eqn >= 0 && std::holds_alternative<BroadcastOp>(program_.eqns[eqn].op); }
  // The group that produces a variable or, for a broadcast, its source; -1 if no equation produces it.
  int MakerOf(VarId root) {
    int producer = producer_[root];
    while (IsBroadcast(producer)) producer = producer_[Root(program_.eqns[producer].in[0])];
    return GroupOf(producer);
  }
  int GroupOf(int eqn) {
    if (eqn < 0 || group_of_[eqn] < 0) return -1;
    return group_of_[eqn] = Find(group_of_[eqn]);
  }
  int Find(int group) const {
    while (groups_[group].joined >= 0) group = groups_[group].joined;
    return group;
  }

  std::optional<Candidate> CandidateOf(int index);
  void AddOperand(VarId operand, Candidate& candidate);
  bool SpreadsRows(const Equation& broadcast, const FusedGroup& group) const;
  bool Join(const Candidate& candidate);
  bool Reaches(absl::Span<const int> from, absl::Span<const int> to);
  bool FindReaders(absl::Span<const int> groups, int horizon, std::vector<int>& found) const;
  void AddReads(absl::Span<const Read> reads, int group);
  void AddMembers(const Candidate& candidate, int group);
  int NewGroup(int eqn, bool can_grow);
  void Emit(int group, std::vector<FusedGroup>& order);

  const Program& program_;
  const absl::Span<const VarId> roots_;
  const std::vector<bool>& runs_;
  std::vector<int> producer_;        // by variable: the equation that produces it
  std::vector<FusedRole> role_;      // by variable: the role of the member that produces it
  std::vector<int> group_of_;        // by equation; a broadcast has its own group here
  std::vector<bool> is_read_whole_;  // by variable produced by a broadcast: whether anything but members of groups
                                     // reads it
  std::vector<Group> groups_;
  std::vector<bool> is_emitted_;
};

int Fuser::NewGroup(int eqn, bool can_grow) {
  groups_.emplace_back();
  Group& group = groups_.back();
  group.last = group.horizon = eqn;
  group.can_grow = can_grow;
  group_of_[eqn] = static_cast<int>(groups_.size()) - 1;
  return group_of_[eqn];
}

// Whether the broadcast of one element per row gives the rows of the group's matrices.
bool Fuser::SpreadsRows(const Equation& broadcast, const FusedGroup& group) const {
  if (group.columns == 0 || Elements(broadcast.out[0]) != group.elements) return false;
  const auto& op = std::get<BroadcastOp>(broadcast.op);
  const Shape& from = program_.aval(broadcast.in[0]).shape;
  if (from.num_elements() * group.columns != group.elements) return false;
  // Axes that are not in `from` come last.
  int64_t rows = 1;
  for (int64_t axis = 0; axis < op.shape.rank() && rows < from.num_elements(); ++axis) {
    const auto it = std::find(op.axes.begin(), op.axes.end(), axis);
    const int64_t extent = it == op.axes.end() ? 1 : from[it - op.axes.begin()];
    if (extent != op.shape[axis]) return false;
    rows *= extent;
  }
  return true;
}

void Fuser::AddOperand(VarId operand, Candidate& candidate) {
  const VarId root = Root(operand);
  const auto add_group = [&](int group) {
    if (std::find(candidate.groups.begin(), candidate.groups.end(), group) == candidate.groups.end()) {
      candidate.groups.push_back(group);
    }
  };
  const int producer = producer_[root];
  if (IsBroadcast(producer) && candidate.role != FusedRole::kReduceRows &&
      candidate.role != FusedRole::kReduceColumns && candidate.role != FusedRole::kReduceAll) {
    const Equation& broadcast = program_.eqns[producer];
    const VarId source = Root(broadcast.in[0]);
    if (std::find(candidate.broadcasts.begin(), candidate.broadcasts.end(), producer) == candidate.broadcasts.end()) {
      candidate.broadcasts.push_back(producer);
    }
    const int group = GroupOf(producer_[source]);
    const bool is_row = group >= 0 && groups_[group].can_grow &&
                        (role_[source] == FusedRole::kRow || role_[source] == FusedRole::kReduceRows) &&
                        candidate.role == FusedRole::kFull && SpreadsRows(broadcast, groups_[group].fused);
    if (is_row) add_group(group);
    candidate.reads.push_back({source, is_row});
    return;
  }
  const int group = IsBroadcast(producer) ? -1 : GroupOf(producer);
  if (IsBroadcast(producer)) is_read_whole_[root] = true;
  bool is_part = true;
  if (group >= 0 && groups_[group].can_grow) {
    const FusedRole made = role_[root];
    const FusedGroup& fused = groups_[group].fused;
    const bool is_matrix = made == FusedRole::kFull, is_row = made == FusedRole::kRow || made == FusedRole::kReduceRows;
    const bool wants_row = candidate.role == FusedRole::kRow;
    if (is_row && candidate.role == FusedRole::kFull && candidate.columns == 0 && candidate.groups.empty()) {
      // An operation on the results of a row reduction.
      candidate.role = FusedRole::kRow;
      candidate.elements = fused.elements;
      candidate.columns = fused.columns;
      add_group(group);
    } else if ((is_row && wants_row) || (is_matrix && !wants_row)) {
      add_group(group);
    }
    is_part = is_matrix || is_row;
  }
  candidate.reads.push_back({root, is_part});
}

std::optional<Fuser::Candidate> Fuser::CandidateOf(int index) {
  const Equation& eqn = program_.eqns[index];
  if (eqn.out.size() != 1 || eqn.in.empty() || Elements(eqn.in[0]) == 0 || Elements(eqn.out[0]) == 0) {
    return std::nullopt;
  }
  if (const auto* reduce = std::get_if<ReduceOp>(&eqn.op)) {
    const std::optional<kernels::ReduceExtents> e =
        kernels::ReduceExtentsOf(program_.aval(eqn.in[0]).shape, reduce->axes);
    if (!e.has_value() || !kernels::ReducesParts(reduce->kind)) return std::nullopt;
    Candidate candidate{index, FusedRole::kReduceRows, Elements(eqn.in[0]), e->k, {}, {}, {}};
    if (e->inner > 1) {
      if (e->outer > 1 || e->inner > kMaxFusedColumns) return std::nullopt;
      candidate.role = FusedRole::kReduceColumns;
      candidate.columns = e->inner;
    } else if (e->k > kMaxFusedRow) {
      if (e->outer > 1) return std::nullopt;
      candidate.role = FusedRole::kReduceAll;
      candidate.columns = 0;
    }
    AddOperand(eqn.in[0], candidate);
    return candidate;
  }
  if (!ElementwiseOf(eqn.op, OperandAvals(program_, eqn), program_.aval(eqn.out[0]))) return std::nullopt;
  Candidate candidate{index, FusedRole::kFull, Elements(eqn.out[0]), 0, {}, {}, {}};
  for (const VarId var : eqn.in) AddOperand(var, candidate);
  return candidate;
}

// Whether a group of `from` is in `to`, or needs one of `to`.
bool Fuser::Reaches(absl::Span<const int> from, absl::Span<const int> to) {
  int least = groups_[to[0]].horizon;
  for (const int group : to) least = std::min(least, groups_[group].horizon);
  absl::flat_hash_set<int> seen(from.begin(), from.end());
  std::vector<int> open(from.begin(), from.end());
  for (size_t visits = 0; !open.empty(); ++visits) {
    const int group = open.back();
    open.pop_back();
    if (visits > kMaxVisits || std::find(to.begin(), to.end(), group) != to.end()) return true;
    if (groups_[group].horizon < least) continue;
    for (const Read& read : groups_[group].reads) {
      const int next = MakerOf(read.var);
      if (next >= 0 && seen.insert(next).second) open.push_back(next);
    }
  }
  return false;
}

// The groups below this horizon that need one of `groups`; false if there are too many.
bool Fuser::FindReaders(absl::Span<const int> groups, int horizon, std::vector<int>& found) const {
  absl::flat_hash_set<int> seen(groups.begin(), groups.end());
  std::vector<int> open(groups.begin(), groups.end());
  while (!open.empty()) {
    const int group = open.back();
    open.pop_back();
    for (const int reader : groups_[group].readers) {
      const int next = Find(reader);
      if (groups_[next].horizon >= horizon || !seen.insert(next).second) continue;
      if (found.size() == kMaxVisits) return false;
      found.push_back(next);
      open.push_back(next);
    }
  }
  return true;
}

void Fuser::AddReads(absl::Span<const Read> reads, int index) {
  for (const Read& read : reads) {
    groups_[index].reads.push_back(read);
    const int maker = MakerOf(read.var);
    if (maker < 0 || maker == index) continue;
    groups_[maker].readers.push_back(index);
    groups_[index].horizon = std::max(groups_[index].horizon, groups_[maker].horizon);
  }
}

// Joins as many of the operands' groups as fit together, in their order; false if there are none.
bool Fuser::Join(const Candidate& candidate) {
  absl::InlinedVector<int, 3> members;
  int64_t columns = candidate.columns;
  for (const int group : candidate.groups) {
    const FusedGroup& fused = groups_[group].fused;
    if (fused.elements != candidate.elements) continue;
    if (fused.columns != 0 && columns != 0 && fused.columns != columns) continue;
    size_t size = fused.members.size() + 1 + candidate.broadcasts.size();
    for (const int other : members) size += groups_[other].fused.members.size();
    if (size > kMaxMembers) continue;
    // No path between two members may leave the group, nor may a member need another member's complete result.
    absl::InlinedVector<int, 3> all = members;
    all.push_back(group);
    std::vector<int> outside;
    bool fits = true;
    const auto check = [&](absl::Span<const Read> reads) {
      for (const Read& read : reads) {
        const int made_in = MakerOf(read.var);
        if (made_in < 0) continue;
        if (std::find(all.begin(), all.end(), made_in) == all.end()) outside.push_back(made_in);
        else if (!read.is_part || IsBroadcast(producer_[read.var])) fits = false;
      }
    };
    check(candidate.reads);
    for (const int member : all) check(groups_[member].reads);
    if (!fits || (!outside.empty() && Reaches(outside, all))) continue;
    int horizon = candidate.eqn;
    for (const int own : all) horizon = std::max(horizon, groups_[own].horizon);
    for (const int other : outside) horizon = std::max(horizon, groups_[other].horizon);
    std::vector<int> readers;
    if (!FindReaders(all, horizon, readers)) continue;
    for (const int reader : readers) groups_[reader].horizon = horizon;
    members.push_back(group);
    if (columns == 0) columns = fused.columns;
  }
  if (members.empty()) return false;
  Group& into = groups_[members[0]];
  for (size_t i = 1; i < members.size(); ++i) {
    Group& other = groups_[members[i]];
    into.fused.members.insert(into.fused.members.end(), other.fused.members.begin(), other.fused.members.end());
    into.reads.insert(into.reads.end(), other.reads.begin(), other.reads.end());
    into.readers.insert(into.readers.end(), other.readers.begin(), other.readers.end());
    into.last = std::max(into.last, other.last);
    into.horizon = std::max(into.horizon, other.horizon);
    other.joined = members[0];
    other.fused.members.clear();
    other.reads.clear();
    other.readers.clear();
  }
  into.fused.columns = columns;
  AddMembers(candidate, members[0]);
  return true;
}

void Fuser::AddMembers(const Candidate& candidate, int index) {
  Group& group = groups_[index];
  for (const int broadcast : candidate.broadcasts) {
    const auto is_it = [&](const FusedMember& member) { return member.eqn == broadcast; };
    if (std::any_of(group.fused.members.begin(), group.fused.members.end(), is_it)) continue;
    group.fused.members.push_back({broadcast, candidate.role});
  }
  group.fused.members.push_back({candidate.eqn, candidate.role});
  group.last = std::max(group.last, candidate.eqn);
  group.horizon = std::max(group.horizon, candidate.eqn);
  group_of_[candidate.eqn] = index;
  AddReads(candidate.reads, index);
  role_[program_.eqns[candidate.eqn].out[0]] = candidate.role;
}

// Emits the group after all groups that it reads. They are emitted already, except those that have grown past this
// one's end.
void Fuser::Emit(int index, std::vector<FusedGroup>& order) {
  if (is_emitted_[index]) return;
  is_emitted_[index] = true;
  for (const Read& read : groups_[index].reads) {
    const int group = GroupOf(producer_[read.var]);
    if (group >= 0) Emit(group, order);
  }
  FusedGroup& fused = groups_[index].fused;
  std::sort(fused.members.begin(), fused.members.end(),
            [](const FusedMember& a, const FusedMember& b) { return a.eqn < b.eqn; });
  const auto is_same = [](const FusedMember& a, const FusedMember& b) { return a.eqn == b.eqn; };
  fused.members.erase(std::unique(fused.members.begin(), fused.members.end(), is_same), fused.members.end());
  order.push_back(std::move(fused));
}

std::vector<FusedGroup> Fuser::Fuse() && {
  for (size_t i = 0; i < program_.eqns.size(); ++i) {
    if (!runs_[i]) continue;
    for (const VarId var : program_.eqns[i].out) {
      if (Root(var) == var) producer_[var] = static_cast<int>(i);
    }
  }
  for (const Program::Port& port : program_.outputs) is_read_whole_[Root(port.var)] = true;
  for (size_t i = 0; i < program_.eqns.size(); ++i) {
    const int index = static_cast<int>(i);
    if (!runs_[i] || IsBroadcast(index)) continue;
    if (const std::optional<Candidate> candidate = CandidateOf(index)) {
      if (Join(*candidate)) continue;
      // A separate group. A row operation becomes a matrix operation there.
      Candidate alone = *candidate;
      if (alone.role == FusedRole::kRow) {
        alone.role = FusedRole::kFull;
        alone.elements = Elements(program_.eqns[i].out[0]);
        alone.columns = 0;
      }
      const int group = NewGroup(index, /*can_grow=*/true);
      groups_[group].fused.elements = alone.elements;
      groups_[group].fused.columns = alone.columns;
      AddMembers(alone, group);
      continue;
    }
    const int group = NewGroup(index, /*can_grow=*/false);
    groups_[group].fused.members = {{index, FusedRole::kFull}};
    for (const VarId var : program_.eqns[i].in) {
      AddReads({{Root(var), false}}, group);
      if (IsBroadcast(producer_[Root(var)])) is_read_whole_[Root(var)] = true;
    }
  }
  // Broadcasts of broadcasts.
  for (size_t i = program_.eqns.size(); i-- > 0;) {
    const int index = static_cast<int>(i);
    if (!runs_[i] || !IsBroadcast(index)) continue;
    const VarId source = Root(program_.eqns[i].in[0]);
    if (IsBroadcast(producer_[source])) is_read_whole_[source] = true;
    if (!is_read_whole_[program_.eqns[i].out[0]]) continue;
    const int group = NewGroup(index, /*can_grow=*/false);
    groups_[group].fused.members = {{index, FusedRole::kFull}};
    groups_[group].reads = {{source, false}};
  }
  // Sorts groups by their last equations.
  std::vector<int> by_end;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].joined < 0) by_end.push_back(static_cast<int>(i));
  }
  std::sort(by_end.begin(), by_end.end(), [&](int a, int b) { return groups_[a].last < groups_[b].last; });
  is_emitted_.assign(groups_.size(), false);
  std::vector<FusedGroup> order;
  for (const int group : by_end) Emit(group, order);
  return order;
}

}  // namespace

std::vector<FusedGroup> FuseEquations(const Program& program, absl::Span<const VarId> roots,
                                      const std::vector<bool>& runs) {
  return Fuser(program, roots, runs).Fuse();
}

}  // namespace aqt::internal
