#include "aqt/runtime/fusion/fused_kernel.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/elementwise/convert.h"
#include "aqt/kernels/elementwise/strip.h"
#include "aqt/kernels/reduce/reduce_parts.h"
#include "aqt/runtime/fusion/elementwise_op.h"
#include "aqt/runtime/fusion/fused_program.h"
#include "aqt/runtime/fusion/strided_copy.h"
#include "aqt/runtime/memory/arena_layout.h"

namespace aqt::internal {
namespace {

constexpr int64_t kPieceElements = 16384;
// A strip with fewer rows is slower than its steps run separately.
constexpr int64_t kMinRowsOfStrips = 64;
// From this many columns on, one number per row is read in place; below, copying it to each element is faster.
constexpr int64_t kMinColumnsOfRowNumbers = 32;
// A row shared by all rows is stored once if its columns are full strips and at least this many: it stays in L1 and
// takes less scratch memory. A strip that is not full costs more.
constexpr int64_t kMinColumnsOfOneRow = 256, kColumnsOfStrips = 128;

// Outputs of at least this many bytes are written past the caches: they would not stay there, and would be read first.
constexpr int64_t kMinStreamedBytes = int64_t{8} << 20;

using Location = FusedLocation;
using Instruction = FusedInstruction;

class Builder {
 public:
  Builder(const Program& program, absl::Span<const VarId> roots, const FusedGroup& group, absl::Span<const VarId> in,
          absl::Span<const VarId> out, int64_t block_columns = 0)
      : program_(program), roots_(roots), group_(group), in_(in), out_(out), block_columns_(block_columns) {}

  OpKernel Make() &&;
  std::shared_ptr<const FusedProgram> program() const { return fused_; }

 private:
  VarId Root(VarId var) const { return roots_[var]; }
  const Equation& EquationOf(const FusedMember& member) const { return program_.eqns[member.eqn]; }
  // The root whose elements a member reads for this operand.
  VarId ReadOf(VarId var) const {
    const auto number = numbers_.find(Root(var));
    return number != numbers_.end() ? number->second.source : Root(var);
  }
  // The number of elements in a row of the member's result.
  int64_t Width(FusedRole role) const { return role == FusedRole::kFull ? columns_ : 1; }

  void ChooseColumns();
  void FindUses();
  // Finds the members that become steps of strips (kernels/elementwise/strip.h), and the broadcasts that these read in
  // place.
  void FindStrips();
  void FindNumbers();
  bool CanBeStep(const FusedMember& member) const;
  bool IsRowSum(const FusedMember& member) const;
  bool IsOutput(VarId var) const;
  // Whether is_it(i) holds for each member i that reads the variable.
  template <class F>
  bool AllReaders(VarId var, const F& is_it) const;
  bool OnlyStepsRead(VarId var, int strip) const;
  // Whether the variable is a large output of the program that is read by no member outside this strip.
  bool IsStreamed(VarId var, int strip) const;
  // Whether all rows of a broadcast with this period are equal, and only steps read it.
  bool IsOneRow(VarId var, FusedRole role, int64_t period) const;
  void Add(const FusedMember& member, int index);
  void AddReduction(const Equation& eqn, FusedRole role, int index);
  void AddBroadcast(const Equation& eqn, FusedRole role);
  void AddElementwise(const Equation& eqn, ElementwiseFn fn, FusedRole role, int index);
  void AddStrip(int first, int last);
  struct Strip;
  int StripOperand(VarId var, Strip& strip) const;  // its id
  void AddStep(int index, Strip& strip, Instruction& instruction);
  // Whether any instruction so far that runs for each piece reads the location.
  bool IsRead(const Location& location) const;
  // Whether it is a large operand of the group that no member has read yet.
  bool IsInMemory(VarId var, const Location& location) const;
  // The location of an operand with `width` elements in a row.
  Location LocationOf(VarId root, int64_t width, DType dtype) const;
  Location External(VarId root, int64_t row_bytes, int64_t element_bytes = 0) const {
    const auto it = std::find(in_.begin(), in_.end(), root);
    AQT_CHECK(it != in_.end());
    return {Location::Where::kIn, it - in_.begin(), row_bytes, element_bytes};
  }
  // The location for the result of member `index`.
  Location Result(const Equation& eqn, FusedRole role, bool once);
  void GiveBack(int index);
  // Records which operands the result may overwrite: those that are not read after this member.
  void FindShared(const Equation& eqn, const Location& out, int index);

  const Program& program_;
  const absl::Span<const VarId> roots_;
  const FusedGroup& group_;
  const absl::Span<const VarId> in_, out_;
  const int64_t block_columns_;  // not 0: computes blocks of matrices with this many columns
  int64_t columns_ = 1, rows_ = 0, piece_rows_ = 0;
  absl::flat_hash_map<VarId, Location> made_;                        // by members so far
  absl::flat_hash_map<VarId, int> last_;                             // the member that reads a variable last
  absl::flat_hash_map<VarId, std::pair<int64_t, int64_t>> scratch_;  // offset and bytes of returned memory
  absl::flat_hash_map<VarId, std::vector<int>> readers_;             // members
  std::vector<int> strips_;                                          // by member: the first member of its strip, or -1
  // Broadcasts of a number, or of one number per row, that are read in place.
  struct Numbers {
    VarId source;
    bool per_row;
  };
  absl::flat_hash_map<VarId, Numbers> numbers_;
  absl::flat_hash_set<VarId> one_rows_;          // broadcasts stored as one row
  absl::flat_hash_map<VarId, bool> read_whole_;  // operands of which a piece reads other rows than its own
  ArenaLayout layout_, kept_;
  std::shared_ptr<FusedProgram> fused_ = std::make_shared<FusedProgram>();
  std::vector<std::pair<int, int>> may_share_;
  // An f32 matrix whose first reader is a reduction, and the instructions that prefetch it, with their costs. Each
  // prefetches a part, so that memory is busy throughout.
  struct Ahead {
    Location matrix;
    std::vector<std::pair<size_t, int>> strips = {};
    int cost = 0;
  };
  std::vector<Ahead> ahead_;
};

// Chooses full periods of broadcast rows if possible, so that they are copied only once.
void Builder::ChooseColumns() {
  columns_ = std::max<int64_t>(group_.columns, 1);
  if (block_columns_ != 0) {
    columns_ = block_columns_;
  } else if (group_.columns == 0) {
    for (const FusedMember& member : group_.members) {
      const Equation& eqn = EquationOf(member);
      if (!std::holds_alternative<BroadcastOp>(eqn.op)) continue;
      const int64_t period = StridedCopy::Of(eqn.op, program_.aval(eqn.in[0]), program_.aval(eqn.out[0]))->period();
      if (period > columns_ && period <= kPieceElements) columns_ = period;
    }
  }
  rows_ = group_.elements / columns_;
  piece_rows_ = std::min(rows_, std::max<int64_t>(1, kPieceElements / columns_));
}

void Builder::FindUses() {
  for (size_t i = 0; i < group_.members.size(); ++i) {
    const Equation& eqn = EquationOf(group_.members[i]);
    for (const VarId var : eqn.in) {
      last_[Root(var)] = static_cast<int>(i);
      readers_[Root(var)].push_back(static_cast<int>(i));
      if (std::holds_alternative<BroadcastOp>(eqn.op)) read_whole_[Root(var)] = true;
    }
  }
}

bool Builder::CanBeStep(const FusedMember& member) const {
  if (member.role != FusedRole::kFull && (member.role != FusedRole::kRow || piece_rows_ < kMinRowsOfStrips))
    return false;
  using Strip = kernels::StripBuilder;
  const Equation& eqn = EquationOf(member);
  const Aval& out = program_.aval(eqn.out[0]);
  if (out.shape.num_elements() == 1 || eqn.in.empty() || !Strip::Takes(program_.aval(eqn.in.back()).dtype))
    return false;
  if (const auto* unary = std::get_if<UnaryOp>(&eqn.op)) return Strip::Takes(unary->kind);
  if (const auto* binary = std::get_if<BinaryOp>(&eqn.op)) return Strip::Takes(binary->kind);
  if (std::holds_alternative<CastOp>(eqn.op)) return Strip::Takes(out.dtype);
  return std::holds_alternative<CompareOp>(eqn.op) || std::holds_alternative<SelectOp>(eqn.op);
}

// Whether the member is an f32 sum of rows.
bool Builder::IsRowSum(const FusedMember& member) const {
  const Equation& eqn = EquationOf(member);
  return member.role == FusedRole::kReduceRows && std::get<ReduceOp>(eqn.op).kind == kernels::ReduceKind::kSum &&
         program_.aval(eqn.in[0]).dtype == DType::kF32;
}

// Successive steps of one role form a strip, together with sums of the rows that it computes. Broadcasts that do not
// read its results may stand between them. A step that reads one of the sums, or the bits of a result as another dtype,
// begins a new strip: within a strip, only the results themselves are passed on. A second sum of the same value ends a
// strip. A single cast is not a strip.
void Builder::FindStrips() {
  absl::flat_hash_map<VarId, int> made_by;  // strips
  absl::flat_hash_set<VarId> sums, summed;
  int strip = -1, steps = 0;
  const auto is_made_here = [&](VarId var) {
    const auto made = made_by.find(Root(var));
    return strip >= 0 && made != made_by.end() && made->second == strip;
  };
  const auto is_passed_on = [&](VarId var) {
    return !sums.contains(Root(var)) && program_.aval(var).dtype == program_.aval(Root(var)).dtype;
  };
  for (size_t i = 0; i < group_.members.size(); ++i) {
    const FusedMember& member = group_.members[i];
    const Equation& eqn = EquationOf(member);
    strips_.push_back(-1);
    if (std::holds_alternative<BroadcastOp>(eqn.op)) {
      if (!eqn.in.empty() && is_made_here(eqn.in[0])) strip = -1;
      continue;
    }
    if (strip >= 0 && group_.members[strip].role == FusedRole::kFull && IsRowSum(member) && is_made_here(eqn.in[0]) &&
        is_passed_on(eqn.in[0]) && summed.insert(Root(eqn.in[0])).second) {
      strips_.back() = made_by[eqn.out[0]] = strip;
      sums.insert(eqn.out[0]);
      continue;
    }
    const bool is_cut =
        std::any_of(eqn.in.begin(), eqn.in.end(), [&](VarId var) { return is_made_here(var) && !is_passed_on(var); });
    if (is_cut || !CanBeStep(member)) strip = -1;
    if (!CanBeStep(member)) continue;
    // Counts like StripBuilder: values of bf16 and f16 are rounded, and arrays of them are widened.
    const auto is_small = [&](VarId var) { return SizeOf(program_.aval(var).dtype) == 2; };
    const auto is_small_array = [&](VarId var) { return is_small(var) && !is_made_here(var); };
    const auto own_steps = [&] {
      return 1 + static_cast<int>(is_small(eqn.out[0]) + std::count_if(eqn.in.begin(), eqn.in.end(), is_small_array));
    };
    if (strip < 0 || group_.members[strip].role != member.role ||
        steps + own_steps() > kernels::StripBuilder::kMaxSteps) {
      strip = static_cast<int>(i);
      steps = 0;
    }
    steps += own_steps();
    strips_.back() = strip;
    made_by[eqn.out[0]] = strip;
  }
  // The kernel of a single cast is faster than a strip.
  for (size_t i = 0; i < strips_.size(); ++i) {
    const bool is_cast = std::holds_alternative<CastOp>(EquationOf(group_.members[i]).op);
    if (is_cast && std::count(strips_.begin(), strips_.end(), strips_[i]) == 1) strips_[i] = -1;
  }
}

bool Builder::IsOutput(VarId var) const { return std::find(out_.begin(), out_.end(), var) != out_.end(); }

template <class F>
bool Builder::AllReaders(VarId var, const F& is_it) const {
  const auto readers = readers_.find(var);
  return readers == readers_.end() || std::all_of(readers->second.begin(), readers->second.end(), is_it);
}

// Whether there are readers and all of them are steps of strips; of strip `strip`, if that is not -1.
bool Builder::OnlyStepsRead(VarId var, int strip) const {
  return !IsOutput(var) && readers_.contains(var) &&
         AllReaders(var, [&](int reader) { return strips_[reader] >= 0 && (strip < 0 || strips_[reader] == strip); });
}

bool Builder::IsStreamed(VarId var, int strip) const {
  const auto is_var = [&](const Program::Port& port) { return Root(port.var) == var; };
  return program_.aval(var).num_bytes() >= kMinStreamedBytes &&
         std::any_of(program_.outputs.begin(), program_.outputs.end(), is_var) &&
         AllReaders(var, [&](int reader) { return strips_[reader] == strip; });
}

// Broadcasts of numbers, or of an f32 number per row, that only steps read.
void Builder::FindNumbers() {
  absl::flat_hash_set<VarId> made;  // by members so far
  for (const FusedMember& member : group_.members) {
    const Equation& eqn = EquationOf(member);
    if (!std::holds_alternative<BroadcastOp>(eqn.op)) {
      made.insert(eqn.out[0]);
      continue;
    }
    const VarId source = Root(eqn.in[0]);
    const DType dtype = program_.aval(eqn.out[0]).dtype;
    if (!kernels::StripBuilder::Takes(dtype) || !OnlyStepsRead(eqn.out[0], /*strip=*/-1)) continue;
    const bool per_row = made.contains(source);
    const bool is_number = program_.aval(source).shape.num_elements() == 1 && !per_row;
    const bool is_per_row =
        per_row && dtype == DType::kF32 && member.role == FusedRole::kFull && columns_ >= kMinColumnsOfRowNumbers;
    if (is_number || is_per_row) numbers_[eqn.out[0]] = {source, per_row};
  }
  for (const auto& [var, numbers] : numbers_) {
    for (const int reader : readers_[var]) last_[numbers.source] = std::max(last_[numbers.source], reader);
  }
}

bool Builder::IsRead(const Location& location) const {
  const auto is_it = [&](const Location& in) { return in.where == location.where && in.offset == location.offset; };
  return std::any_of(fused_->each.begin(), fused_->each.end(), [&](const Instruction& instruction) {
    return std::any_of(instruction.in.begin(), instruction.in.end(), is_it);
  });
}

bool Builder::IsInMemory(VarId var, const Location& location) const {
  return location.where == Location::Where::kIn && program_.aval(var).num_bytes() >= kMinStreamedBytes &&
         !IsRead(location);
}

Location Builder::LocationOf(VarId root, int64_t width, DType dtype) const {
  const auto it = made_.find(root);
  return it != made_.end() ? it->second : External(root, width * SizeOf(dtype), width == 0 ? 0 : SizeOf(dtype));
}

Location Builder::Result(const Equation& eqn, FusedRole role, bool once) {
  const VarId var = eqn.out[0];
  const int64_t row_bytes = Width(role) * SizeOf(program_.aval(var).dtype);
  const auto it = std::find(out_.begin(), out_.end(), var);
  Location location;
  if (it != out_.end()) {
    location = {Location::Where::kOut, it - out_.begin(), row_bytes, SizeOf(program_.aval(var).dtype)};
  } else if (once) {
    location = {Location::Where::kKept, kept_.Take(piece_rows_ * row_bytes), 0};
  } else {
    location = {Location::Where::kScratch, layout_.Take(piece_rows_ * row_bytes), 0};
    scratch_[var] = {location.offset, piece_rows_ * row_bytes};
  }
  made_[var] = location;
  return location;
}

void Builder::GiveBack(int index) {
  for (const VarId var : EquationOf(group_.members[index]).in) {
    const VarId array = ReadOf(var);
    const auto it = scratch_.find(array);
    if (it == scratch_.end() || last_[array] != index) continue;
    layout_.Give(it->second.first, it->second.second);
    scratch_.erase(it);
  }
}

void Builder::FindShared(const Equation& eqn, const Location& out, int index) {
  if (out.where != Location::Where::kOut) return;
  for (size_t i = 0; i < in_.size(); ++i) {
    const auto last = last_.find(in_[i]);
    if (last == last_.end() || last->second > index || read_whole_.contains(in_[i])) continue;
    // A conversion reads and writes different types.
    const bool is_read_here = last->second == index;
    if (is_read_here && std::holds_alternative<CastOp>(eqn.op)) continue;
    const Aval &from = program_.aval(in_[i]), &to = program_.aval(eqn.out[0]);
    if (from.num_bytes() == to.num_bytes() && SizeOf(from.dtype) == SizeOf(to.dtype)) {
      may_share_.emplace_back(static_cast<int>(i), static_cast<int>(out.offset));
    }
  }
}

void Builder::AddElementwise(const Equation& eqn, ElementwiseFn fn, FusedRole role, int index) {
  const int64_t width = Width(role);
  Instruction instruction;
  for (const VarId var : eqn.in) {
    instruction.in.push_back(LocationOf(Root(var), width, program_.aval(var).dtype));
  }
  instruction.run = [fn = std::move(fn), width](const FusedCall& call) { fn(call.in, call.rows * width, call.out[0]); };
  instruction.out = {Result(eqn, role, /*once=*/false)};
  FindShared(eqn, instruction.out[0], index);
  fused_->each.push_back(std::move(instruction));
}

// The steps of a strip, and what they read and write.
struct Builder::Strip {
  int first = 0;
  FusedRole role = FusedRole::kFull;
  kernels::StripBuilder steps = {};
  // An array may be read as two dtypes.
  absl::flat_hash_map<std::pair<VarId, DType>, int> ids = {};
  std::vector<Location> arrays = {}, numbers = {};
  std::vector<DType> number_dtypes = {};
  uint32_t streamed = 0, fetched = 0;
};

int Builder::StripOperand(VarId var, Strip& strip) const {
  const VarId root = Root(var);
  const DType dtype = program_.aval(var).dtype;
  const std::pair<VarId, DType> key{root, dtype};
  if (const auto it = strip.ids.find(key); it != strip.ids.end()) return it->second;
  if (const auto it = numbers_.find(root); it != numbers_.end()) {
    strip.numbers.push_back(LocationOf(it->second.source, 0, dtype));
    strip.number_dtypes.push_back(dtype);
    return strip.ids[key] = strip.steps.Number(it->second.per_row, dtype);
  }
  strip.arrays.push_back(LocationOf(root, Width(strip.role), dtype));
  if (block_columns_ == 0 && strip.arrays.size() <= 32 && IsInMemory(root, strip.arrays.back()))
    strip.fetched |= uint32_t{1} << (strip.arrays.size() - 1);
  return strip.ids[key] =
             dtype == DType::kBool ? strip.steps.BoolArray() : strip.steps.Array(dtype, one_rows_.contains(root));
}

void Builder::AddStep(int index, Strip& strip, Instruction& instruction) {
  const Equation& eqn = EquationOf(group_.members[index]);
  if (group_.members[index].role == FusedRole::kReduceRows) {
    strip.steps.SumRows(strip.ids.at({Root(eqn.in[0]), DType::kF32}));
    instruction.out.push_back(Result(eqn, FusedRole::kReduceRows, /*once=*/false));
    FindShared(eqn, instruction.out.back(), index);
    return;
  }
  absl::InlinedVector<int, 3> in;
  for (const VarId var : eqn.in) in.push_back(StripOperand(var, strip));
  int id;
  if (const auto* unary = std::get_if<UnaryOp>(&eqn.op)) id = strip.steps.Unary(unary->kind, in[0]);
  else if (const auto* binary = std::get_if<BinaryOp>(&eqn.op)) id = strip.steps.Binary(binary->kind, in[0], in[1]);
  else if (const auto* compare = std::get_if<CompareOp>(&eqn.op)) id = strip.steps.Compare(compare->kind, in[0], in[1]);
  else if (std::holds_alternative<CastOp>(eqn.op)) id = strip.steps.Cast(program_.aval(eqn.out[0]).dtype, in[0]);
  else id = strip.steps.Select(in[0], in[1], in[2]);
  strip.ids[{eqn.out[0], program_.aval(eqn.out[0]).dtype}] = id;
  if (OnlyStepsRead(eqn.out[0], strip.first)) return;
  strip.steps.Output(id);
  if (instruction.out.size() < 32 && IsStreamed(eqn.out[0], strip.first)) {
    strip.streamed |= uint32_t{1} << instruction.out.size();
  }
  instruction.out.push_back(Result(eqn, strip.role, /*once=*/false));
  FindShared(eqn, instruction.out.back(), index);
}

std::function<void(const FusedCall&)> PrepareStrip(const kernels::StripFunction& function, size_t num_arrays,
                                                   const std::vector<DType>& number_dtypes, int64_t width,
                                                   uint32_t streamed, uint32_t fetched) {
  return [=](const FusedCall& call) {
    const float* numbers_of_call[kernels::StripBuilder::kMaxOperands];
    float widened[kernels::StripBuilder::kMaxOperands];
    for (size_t i = 0; i < number_dtypes.size(); ++i) {
      const void* const number = call.in[num_arrays + i];
      const bool is_f32 = number_dtypes[i] == DType::kF32;
      if (!is_f32) kernels::Convert(number_dtypes[i], number, DType::kF32, 1, &widened[i]);
      numbers_of_call[i] = is_f32 ? static_cast<const float*>(number) : &widened[i];
    }
    // A line that was read to be updated is already in the caches.
    uint32_t past_caches = streamed;
    for (uint32_t left = streamed; left != 0; left &= left - 1) {
      const void* const out = call.out[std::countr_zero(left)];
      if (std::find(call.in, call.in + num_arrays, out) != call.in + num_arrays) past_caches &= ~(left & -left);
    }
    function.Prepare({.arrays = call.in,
                      .numbers = numbers_of_call,
                      .outputs = call.out,
                      .rows = call.rows,
                      .columns = width,
                      .streamed = past_caches,
                      .fetched = fetched,
                      .ahead_part = call.ahead_part},
                     call.prepared);
  };
}

std::function<void(const FusedCall&)> RunStrip(size_t num_arrays, size_t num_numbers, int64_t width) {
  return [=](const FusedCall& call) {
    // Only numbers per row are read; they are f32.
    const float* numbers_of_call[kernels::StripBuilder::kMaxOperands];
    for (size_t i = 0; i < num_numbers; ++i) numbers_of_call[i] = static_cast<const float*>(call.in[num_arrays + i]);
    kernels::StripFunction::Run({.arrays = call.in,
                                 .numbers = numbers_of_call,
                                 .outputs = call.out,
                                 .rows = call.rows,
                                 .columns = call.columns != 0 ? call.columns : width,
                                 .ahead = static_cast<const float*>(call.ahead),
                                 .row_stride = call.row_stride},
                                call.prepared);
  };
}

// Adds the steps first .. last and the broadcasts between them.
void Builder::AddStrip(int first, int last) {
  Strip strip{.first = first, .role = group_.members[first].role};
  Instruction instruction;
  for (int i = first; i <= last; ++i) {
    if (strips_[i] == first) AddStep(i, strip, instruction);
  }
  instruction.in.assign(strip.arrays.begin(), strip.arrays.end());
  instruction.in.insert(instruction.in.end(), strip.numbers.begin(), strip.numbers.end());
  fused_->streams |= strip.streamed != 0;
  const int64_t width = Width(strip.role);
  const int cost = strip.steps.Cost();
  const kernels::StripFunction function = std::move(strip.steps).Build();
  instruction.prepared = {Location::Where::kKept, kept_.Take(function.PreparedBytes()), 0};
  instruction.prepare =
      PrepareStrip(function, strip.arrays.size(), strip.number_dtypes, width, strip.streamed, strip.fetched);
  instruction.run = RunStrip(strip.arrays.size(), strip.numbers.size(), width);
  if (strip.role == FusedRole::kFull && !ahead_.empty()) {
    Ahead& ahead =
        *std::min_element(ahead_.begin(), ahead_.end(), [](const Ahead& a, const Ahead& b) { return a.cost < b.cost; });
    ahead.strips.emplace_back(fused_->each.size(), cost);
    ahead.cost += cost;
    instruction.ahead = ahead.matrix;
  }
  fused_->each.push_back(std::move(instruction));
}

bool Builder::IsOneRow(VarId var, FusedRole role, int64_t period) const {
  const bool repeats = period > 0 && columns_ % period == 0;
  const bool whole_strips =
      block_columns_ != 0 || (columns_ >= kMinColumnsOfOneRow && columns_ % kColumnsOfStrips == 0);
  return role == FusedRole::kFull && repeats && whole_strips &&
         kernels::StripBuilder::Takes(program_.aval(var).dtype) && OnlyStepsRead(var, /*strip=*/-1);
}

void Builder::AddBroadcast(const Equation& eqn, FusedRole role) {
  const Aval &from = program_.aval(eqn.in[0]), &to = program_.aval(eqn.out[0]);
  const int64_t width = Width(role), size = SizeOf(to.dtype);
  const VarId source = Root(eqn.in[0]);
  Instruction instruction;
  if (const auto it = made_.find(source); it != made_.end()) {  // one element per row
    instruction.in = {it->second};
    instruction.run = [width, size](const FusedCall& call) {
      StridedCopy({call.rows, width}, {1, 0}, 0, size).Run(call.in[0], call.out[0]);
    };
    instruction.out = {Result(eqn, role, /*once=*/false)};
    fused_->each.push_back(std::move(instruction));
    return;
  }
  StridedCopy copy = *StridedCopy::Of(eqn.op, from, to);
  const int64_t period = copy.period();
  const bool once = period > 0 && (piece_rows_ * width % period == 0 || piece_rows_ == rows_) && !IsOutput(eqn.out[0]);
  instruction.in = {External(source, 0)};
  if (IsOneRow(eqn.out[0], role, period)) {
    one_rows_.insert(eqn.out[0]);
    if (period == columns_ && from.shape.num_elements() == columns_) {  // it is one row already
      made_[eqn.out[0]] = {Location::Where::kIn, External(source, 0).offset, 0, size};
      return;
    }
    const Location row{Location::Where::kKept, kept_.Take(columns_ * size), 0};
    instruction.run = [copy = std::move(copy), width](const FusedCall& call) {
      copy.RunPart(call.in[0], 0, width, call.out[0]);
    };
    instruction.out = {made_[eqn.out[0]] = row};
    fused_->before.push_back(std::move(instruction));
    return;
  }
  instruction.run = [copy = std::move(copy), width](const FusedCall& call) {
    copy.RunPart(call.in[0], call.first * width, call.rows * width, call.out[0]);
  };
  instruction.out = {Result(eqn, role, once)};
  (once ? fused_->before : fused_->each).push_back(std::move(instruction));
}

void Builder::AddReduction(const Equation& eqn, FusedRole role, int index) {
  const kernels::ReduceKind kind = std::get<ReduceOp>(eqn.op).kind;
  const DType dtype = program_.aval(eqn.in[0]).dtype;
  const Location x = LocationOf(Root(eqn.in[0]), columns_, dtype);
  const int64_t columns = columns_;
  if (role == FusedRole::kReduceRows) {
    if (x.where == Location::Where::kIn && dtype == DType::kF32 && !IsRead(x)) ahead_.push_back({x});
    const Location out = Result(eqn, role, /*once=*/false);
    FindShared(eqn, out, index);
    const auto run = [=](const FusedCall& call) {
      kernels::ReduceRows(kind, dtype, call.in[0], call.rows, columns, call.out[0]);
    };
    fused_->each.push_back({run, {x}, {out}});
    return;
  }
  const bool all = role == FusedRole::kReduceAll;
  const int64_t results = all ? 1 : columns;
  const Location lanes{Location::Where::kKept, kept_.Take(kernels::LaneBytes(dtype, results)), 0};
  const auto start = [=](const FusedCall& call) { kernels::StartLanes(kind, dtype, results, call.out[0]); };
  const auto add = [=](const FusedCall& call) {
    if (all) kernels::AddToRow(kind, dtype, call.in[0], call.first * columns, call.rows * columns, call.out[0]);
    else kernels::AddToLanes(kind, dtype, call.in[0], columns, call.first, call.rows, columns, call.out[0]);
  };
  const auto finish = [=](const FusedCall& call) {
    kernels::FinishLanes(kind, dtype, results, const_cast<void*>(call.in[0]), call.out[0]);
  };
  const auto out = std::find(out_.begin(), out_.end(), eqn.out[0]);
  AQT_CHECK(out != out_.end());
  fused_->before.push_back({start, {}, {lanes}});
  fused_->each.push_back({add, {x}, {lanes}});
  fused_->after.push_back({finish, {lanes}, {Location{Location::Where::kOut, out - out_.begin(), 0}}});
}

void Builder::Add(const FusedMember& member, int index) {
  const Equation& eqn = EquationOf(member);
  if (const int strip = strips_[index]; strip >= 0) {
    const bool is_last = std::find(strips_.begin() + index + 1, strips_.end(), strip) == strips_.end();
    if (!is_last) return;
    AddStrip(strip, index);
    for (int i = strip; i < index; ++i) {
      if (strips_[i] == strip) GiveBack(i);
    }
  } else if (ElementwiseFn fn = ElementwiseOf(eqn.op, OperandAvals(program_, eqn), program_.aval(eqn.out[0]))) {
    AddElementwise(eqn, std::move(fn), member.role, index);
  } else if (std::holds_alternative<BroadcastOp>(eqn.op)) {
    if (!numbers_.contains(eqn.out[0])) AddBroadcast(eqn, member.role);
  } else {
    AddReduction(eqn, member.role, index);
  }
  GiveBack(index);
}

OpKernel Builder::Make() && {
  ChooseColumns();
  FindUses();
  FindStrips();
  FindNumbers();
  for (size_t i = 0; i < group_.members.size(); ++i) Add(group_.members[i], static_cast<int>(i));
  for (const Ahead& ahead : ahead_) {
    int before = 0;
    const auto share = [&] { return static_cast<float>(before) / static_cast<float>(ahead.cost); };
    for (const auto& [index, cost] : ahead.strips) {
      const float begin = share();
      before += cost;
      fused_->each[index].ahead_part = {begin, share()};
    }
  }
  fused_->rows = rows_;
  fused_->columns = columns_;
  fused_->piece_rows = piece_rows_;
  fused_->kept_at = layout_.num_bytes();
  fused_->scratch_bytes = layout_.num_bytes() + kept_.num_bytes();
  return {.run =
              [fused = fused_](const KernelCall& call) {
                fused->Run(call);
                return absl::OkStatus();
              },
          .scratch_bytes = fused_->scratch_bytes,
          .may_share = std::move(may_share_)};
}

}  // namespace

OpKernel FusedKernel(const Program& program, absl::Span<const VarId> roots, const FusedGroup& group,
                     absl::Span<const VarId> in, absl::Span<const VarId> out) {
  return Builder(program, roots, group, in, out).Make();
}

std::optional<StripKernel> StripOfBlocks(const Program& program, absl::Span<const VarId> roots, const FusedGroup& group,
                                         int64_t columns, absl::Span<const VarId> in, absl::Span<const VarId> out) {
  if (columns % kColumnsOfStrips != 0 || (group.columns != 0 && group.columns != columns)) return std::nullopt;
  const auto is_full = [](const FusedMember& member) { return member.role == FusedRole::kFull; };
  if (!std::all_of(group.members.begin(), group.members.end(), is_full)) return std::nullopt;
  Builder builder(program, roots, group, in, out, columns);
  const std::shared_ptr<const FusedProgram> fused = builder.program();
  OpKernel kernel = std::move(builder).Make();
  if (!fused->is_strip()) return std::nullopt;
  return StripKernel{.fused = fused, .may_share = std::move(kernel.may_share)};
}

}  // namespace aqt::internal
