#include "aqt/runtime/fused_kernel.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/binary_number.h"
#include "aqt/kernels/reduce_parts.h"
#include "aqt/runtime/arena_layout.h"
#include "aqt/runtime/elementwise_op.h"
#include "aqt/runtime/strided_copy.h"

namespace aqt::internal {
namespace {

constexpr int64_t kPieceElements = 2048;
constexpr int64_t kMinPiecesPerThread = 8;

// Where a value is: `row_bytes` further on for each row.
struct Location {
  enum class Where : uint8_t {
    kIn,
    kOut,
    kScratch,
    kKept,  // in scratch memory that keeps its contents from piece to piece
  } where;
  int64_t offset = 0;  // kIn, kOut: index of the operand or result; otherwise bytes
  int64_t row_bytes = 0;
};

// One operation on rows first .. first + rows - 1 of the piece's matrices.
struct Instruction {
  std::function<void(const void* const* in, int64_t first, int64_t rows, void* out)> run;
  absl::InlinedVector<Location, 3> in;
  Location out;
};

struct Fused {
  int64_t rows, piece_rows;
  std::vector<Instruction> before;  // once, ahead of the first piece
  std::vector<Instruction> each;    // for each piece
  std::vector<Instruction> after;
  int64_t kept_at = 0;  // behind the rest of the scratch memory
  int64_t scratch_bytes = 0;

  void Run(const KernelCall& call) const;
  // Rows first .. end - 1.
  void RunRows(const KernelCall& call, int64_t first, int64_t end, char* scratch) const;
  void RunOne(const Instruction& instruction, const KernelCall& call, int64_t first, int64_t rows, char* scratch) const;
};

void Fused::RunOne(const Instruction& instruction, const KernelCall& call, int64_t first, int64_t rows,
                   char* scratch) const {
  const auto at = [&](const Location& location) -> char* {
    switch (location.where) {
      case Location::Where::kIn:
        return static_cast<char*>(const_cast<void*>(call.in[location.offset])) + first * location.row_bytes;
      case Location::Where::kOut: return static_cast<char*>(call.out[location.offset]) + first * location.row_bytes;
      case Location::Where::kScratch: return scratch + location.offset;
      case Location::Where::kKept: return scratch + kept_at + location.offset;
    }
    return nullptr;
  };
  const void* in[6];
  AQT_DCHECK(instruction.in.size() <= 6);
  for (size_t i = 0; i < instruction.in.size(); ++i) in[i] = at(instruction.in[i]);
  instruction.run(in, first, rows, at(instruction.out));
}

void Fused::RunRows(const KernelCall& call, int64_t first, int64_t end, char* scratch) const {
  for (const Instruction& instruction : before) RunOne(instruction, call, 0, piece_rows, scratch);
  for (int64_t row = first; row < end; row += piece_rows) {
    const int64_t count = std::min(piece_rows, end - row);
    for (const Instruction& instruction : each) RunOne(instruction, call, row, count, scratch);
  }
  for (const Instruction& instruction : after) RunOne(instruction, call, 0, 0, scratch);
}

// Of other threads than the caller's; grows to what the largest group needs.
char* ScratchOfThread(int64_t bytes) {
  thread_local std::shared_ptr<void> memory;
  thread_local int64_t size = 0;
  if (size < bytes) {
    memory = AllocateUninitialized(bytes);
    size = bytes;
  }
  return static_cast<char*>(memory.get());
}

void Fused::Run(const KernelCall& call) const {
  const int64_t pieces = (rows + piece_rows - 1) / piece_rows;
  const int64_t threads = call.executor == nullptr || !after.empty() ? 1 : call.executor->NumThreads();
  const int64_t parts = std::max<int64_t>(1, std::min(threads, pieces / kMinPiecesPerThread));
  if (parts == 1) return RunRows(call, 0, rows, static_cast<char*>(call.scratch));
  const int64_t part_rows = (pieces + parts - 1) / parts * piece_rows;
  call.executor->ParallelFor(parts, [&](int64_t part) {
    char* scratch = part == 0 ? static_cast<char*>(call.scratch) : ScratchOfThread(scratch_bytes);
    RunRows(call, part * part_rows, std::min(rows, (part + 1) * part_rows), scratch);
  });
}

class Builder {
 public:
  Builder(const Program& program, absl::Span<const VarId> roots, const FusedGroup& group, absl::Span<const VarId> in,
          absl::Span<const VarId> out)
      : program_(program), roots_(roots), group_(group), in_(in), out_(out) {}

  OpKernel Make() &&;

 private:
  VarId Root(VarId var) const { return roots_[var]; }
  const Equation& EquationOf(const FusedMember& member) const { return program_.eqns[member.eqn]; }
  // The root whose elements a member reads for this operand.
  VarId ReadOf(VarId var) const {
    const auto number = numbers_.find(Root(var));
    return number != numbers_.end() ? number->second.source : Root(var);
  }
  // Elements in a row of the member's result.
  int64_t Width(FusedRole role) const { return role == FusedRole::kFull ? columns_ : 1; }

  void ChooseColumns();
  void FindUses();
  void FindNumbers();
  void FindFolded();
  void Add(const FusedMember& member, int index);
  void AddReduction(const Equation& eqn, FusedRole role, int index);
  void AddBroadcast(const Equation& eqn, FusedRole role);
  void AddElementwise(const Equation& eqn, ElementwiseFn fn, FusedRole role, int index);
  // Where an elementwise result goes, over an operand that is not read again if there is one.
  Location ElementwiseResult(const Equation& eqn, FusedRole role, int index);
  // An operand as it is read: an array, times numbers where products are folded.
  struct Factors {
    VarId array;
    absl::InlinedVector<VarId, 2> numbers = {};
  };
  Factors FactorsOf(VarId var) const;
  // Whether a sum or a difference reads it with its factors.
  bool FoldsOperands(const Equation& eqn) const;
  Instruction SumInstruction(const Equation& eqn, int64_t width) const;
  // The operand that is a number, of a binary operation with one.
  std::optional<size_t> NumberOperand(const Equation& eqn) const;
  // Of an operand with `width` elements in a row.
  Location LocationOf(VarId root, int64_t width, DType dtype) const;
  Location External(VarId root, int64_t row_bytes) const {
    const auto it = std::find(in_.begin(), in_.end(), root);
    AQT_CHECK(it != in_.end());
    return {Location::Where::kIn, it - in_.begin(), row_bytes};
  }
  // Where the result of member `index` goes.
  Location Result(const Equation& eqn, FusedRole role, bool once);
  void GiveBack(int index);
  // Notes which operands the result may overwrite: those that nobody reads from here on.
  void FindShared(const Equation& eqn, const Location& out, int index);

  const Program& program_;
  const absl::Span<const VarId> roots_;
  const FusedGroup& group_;
  const absl::Span<const VarId> in_, out_;
  int64_t columns_ = 1, rows_ = 0, piece_rows_ = 0;
  absl::flat_hash_map<VarId, Location> made_;                        // by members so far
  absl::flat_hash_map<VarId, int> last_;                             // the member that reads a variable last
  absl::flat_hash_map<VarId, std::pair<int64_t, int64_t>> scratch_;  // offset and bytes, of what is given back
  // Broadcasts of numbers, or of a number for each row, that are read where they are.
  struct Numbers {
    VarId source;
    bool per_row;
  };
  absl::flat_hash_map<VarId, Numbers> numbers_;
  absl::flat_hash_map<VarId, Factors> folded_;   // products with a number that only a sum reads, and their factors
  absl::flat_hash_map<VarId, bool> read_whole_;  // operands of which a piece reads other rows than its own
  ArenaLayout layout_, kept_;
  std::shared_ptr<Fused> fused_ = std::make_shared<Fused>();
  std::vector<std::pair<int, int>> may_share_;
};

// Whole periods of broadcast rows, if there is a choice: then they are copied only once.
void Builder::ChooseColumns() {
  columns_ = std::max<int64_t>(group_.columns, 1);
  if (group_.columns == 0) {
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
      if (std::holds_alternative<BroadcastOp>(eqn.op)) read_whole_[Root(var)] = true;
    }
  }
}

// Broadcasts of f32 numbers, or of a number for each row, that only binary operations with another array read.
void Builder::FindNumbers() {
  absl::flat_hash_set<VarId> made;  // by members so far
  for (const FusedMember& member : group_.members) {
    const Equation& eqn = EquationOf(member);
    const VarId source = Root(eqn.in.empty() ? eqn.out[0] : eqn.in[0]);
    if (!std::holds_alternative<BroadcastOp>(eqn.op)) {
      made.insert(eqn.out[0]);
      continue;
    }
    if (program_.aval(eqn.out[0]).dtype != DType::kF32) continue;
    if (std::find(out_.begin(), out_.end(), eqn.out[0]) != out_.end()) continue;
    const bool per_row = made.contains(source);
    const bool is_number = program_.aval(source).shape.num_elements() == 1 && !per_row;
    if (is_number || (per_row && member.role == FusedRole::kFull)) numbers_[eqn.out[0]] = {source, per_row};
  }
  for (const FusedMember& member : group_.members) {
    const Equation& eqn = EquationOf(member);
    const auto* binary = std::get_if<BinaryOp>(&eqn.op);
    const bool takes_one = binary != nullptr && kernels::TakesNumber(binary->kind) &&
                           numbers_.contains(Root(eqn.in[0])) != numbers_.contains(Root(eqn.in[1]));
    if (takes_one) continue;
    for (const VarId var : eqn.in) numbers_.erase(Root(var));
  }
  for (size_t i = 0; i < group_.members.size(); ++i) {
    for (const VarId var : EquationOf(group_.members[i]).in) {
      int& last = last_[ReadOf(var)];
      last = std::max(last, static_cast<int>(i));
    }
  }
}

// Products of a matrix and a number that only a sum or a difference of matrices reads, or another such product: the sum
// reads the matrix and up to two numbers, and the product is never stored.
void Builder::FindFolded() {
  absl::flat_hash_map<VarId, int> uses;
  absl::flat_hash_map<VarId, int> reader;
  for (size_t i = 0; i < group_.members.size(); ++i) {
    for (const VarId var : EquationOf(group_.members[i]).in) {
      ++uses[Root(var)];
      reader[Root(var)] = static_cast<int>(i);
    }
  }
  std::vector<int> sum(group_.members.size(), -1);   // the sum that reads a folded product; of a sum, itself
  std::vector<int> depth(group_.members.size(), 0);  // the number of products on the way to it
  for (int i = static_cast<int>(group_.members.size()) - 1; i >= 0; --i) {
    const FusedMember& member = group_.members[i];
    const Equation& eqn = EquationOf(member);
    const auto* binary = std::get_if<BinaryOp>(&eqn.op);
    if (binary == nullptr || program_.aval(eqn.out[0]).dtype != DType::kF32) continue;
    const std::optional<size_t> number = NumberOperand(eqn);
    if (!number.has_value()) {
      if (binary->kind == kernels::BinaryKind::kAdd || binary->kind == kernels::BinaryKind::kSub) sum[i] = i;
      continue;
    }
    const Numbers& numbers = numbers_.at(Root(eqn.in[*number]));
    if (numbers.per_row) continue;
    const VarId var = eqn.out[0];
    const bool is_read_once =
        uses.contains(var) && uses[var] == 1 && std::find(out_.begin(), out_.end(), var) == out_.end();
    if (binary->kind != kernels::BinaryKind::kMul || !is_read_once) continue;
    const int next = reader[var];
    if (sum[next] < 0 || depth[next] == 2 || group_.members[next].role != member.role) continue;
    sum[i] = sum[next];
    depth[i] = depth[next] + 1;
    const VarId array = Root(eqn.in[1 - *number]);
    folded_[var] = {array, {numbers.source}};
    last_[array] = std::max(last_[array], sum[i]);
  }
}

Builder::Factors Builder::FactorsOf(VarId var) const {
  Factors factors{ReadOf(var)};
  for (auto it = folded_.find(factors.array); it != folded_.end(); it = folded_.find(factors.array)) {
    factors.numbers.insert(factors.numbers.begin(), it->second.numbers[0]);
    factors.array = it->second.array;
  }
  return factors;
}

bool Builder::FoldsOperands(const Equation& eqn) const {
  return !folded_.contains(eqn.out[0]) &&
         std::any_of(eqn.in.begin(), eqn.in.end(), [&](VarId var) { return folded_.contains(Root(var)); });
}

Instruction Builder::SumInstruction(const Equation& eqn, int64_t width) const {
  Instruction instruction;
  size_t numbers[2];
  for (const size_t i : {0, 1}) {
    const Factors factors = FactorsOf(eqn.in[i]);
    numbers[i] = factors.numbers.size();
    instruction.in.push_back(LocationOf(factors.array, width, DType::kF32));
    for (const VarId number : factors.numbers) instruction.in.push_back(External(number, 0));
  }
  const bool subtract = std::get<BinaryOp>(eqn.op).kind == kernels::BinaryKind::kSub;
  instruction.run = [=, first = numbers[0], second = numbers[1]](const void* const* in, int64_t, int64_t rows,
                                                                 void* out) {
    const auto row = [](const void* const* from, size_t count) {
      const auto number = [&](size_t i) { return i < count ? *static_cast<const float*>(from[1 + i]) : 1.0f; };
      return kernels::ScaledRow{static_cast<const float*>(from[0]), number(0), number(1)};
    };
    kernels::SumOfScaled(row(in, first), row(in + 1 + first, second), subtract, rows * width, static_cast<float*>(out));
  };
  return instruction;
}

std::optional<size_t> Builder::NumberOperand(const Equation& eqn) const {
  for (size_t i = 0; i < eqn.in.size(); ++i) {
    if (numbers_.contains(Root(eqn.in[i]))) return i;
  }
  return std::nullopt;
}

Location Builder::LocationOf(VarId root, int64_t width, DType dtype) const {
  const auto it = made_.find(root);
  return it != made_.end() ? it->second : External(root, width * SizeOf(dtype));
}

Location Builder::Result(const Equation& eqn, FusedRole role, bool once) {
  const VarId var = eqn.out[0];
  const int64_t row_bytes = Width(role) * SizeOf(program_.aval(var).dtype);
  const auto it = std::find(out_.begin(), out_.end(), var);
  Location location;
  if (it != out_.end()) {
    location = {Location::Where::kOut, it - out_.begin(), row_bytes};
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
    const VarId array = FactorsOf(var).array;
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

Location Builder::ElementwiseResult(const Equation& eqn, FusedRole role, int index) {
  const int64_t bytes = piece_rows_ * Width(role) * SizeOf(program_.aval(eqn.out[0]).dtype);
  if (std::find(out_.begin(), out_.end(), eqn.out[0]) == out_.end() && !std::holds_alternative<CastOp>(eqn.op)) {
    for (const VarId var : eqn.in) {
      const VarId array = FactorsOf(var).array;
      const auto it = scratch_.find(array);
      if (it == scratch_.end() || last_[array] != index || it->second.second != bytes) continue;
      const Location out{Location::Where::kScratch, it->second.first, 0};
      scratch_.erase(it);
      scratch_[eqn.out[0]] = {out.offset, bytes};
      made_[eqn.out[0]] = out;
      return out;
    }
  }
  const Location out = Result(eqn, role, /*once=*/false);
  FindShared(eqn, out, index);
  return out;
}

void Builder::AddElementwise(const Equation& eqn, ElementwiseFn fn, FusedRole role, int index) {
  if (folded_.contains(eqn.out[0])) return;
  const int64_t width = Width(role);
  Instruction instruction;
  if (FoldsOperands(eqn)) {
    instruction = SumInstruction(eqn, width);
    instruction.out = ElementwiseResult(eqn, role, index);
    fused_->each.push_back(std::move(instruction));
    return;
  }
  for (const VarId var : eqn.in) {
    const bool is_number = numbers_.contains(Root(var));
    instruction.in.push_back(LocationOf(ReadOf(var), is_number ? 0 : width, program_.aval(var).dtype));
  }
  if (const std::optional<size_t> number = NumberOperand(eqn)) {
    const bool per_row = numbers_.at(Root(eqn.in[*number])).per_row;
    instruction.run = [kind = std::get<BinaryOp>(eqn.op).kind, at = *number, width, per_row](
                          const void* const* in, int64_t, int64_t rows, void* out) {
      kernels::BinaryWithNumbers(kind, static_cast<const float*>(in[1 - at]), static_cast<const float*>(in[at]),
                                 at == 0, per_row ? rows : 1, per_row ? width : rows * width, static_cast<float*>(out));
    };
  } else {
    instruction.run = [fn = std::move(fn), width](const void* const* in, int64_t, int64_t rows, void* out) {
      fn(in, rows * width, out);
    };
  }
  instruction.out = ElementwiseResult(eqn, role, index);
  fused_->each.push_back(std::move(instruction));
}

void Builder::AddBroadcast(const Equation& eqn, FusedRole role) {
  const Aval &from = program_.aval(eqn.in[0]), &to = program_.aval(eqn.out[0]);
  const int64_t width = Width(role), size = SizeOf(to.dtype);
  const VarId source = Root(eqn.in[0]);
  Instruction instruction;
  if (const auto it = made_.find(source); it != made_.end()) {  // an element of each row
    instruction.in = {it->second};
    instruction.run = [width, size](const void* const* in, int64_t, int64_t rows, void* out) {
      StridedCopy({rows, width}, {1, 0}, 0, size).Run(in[0], out);
    };
    instruction.out = Result(eqn, role, /*once=*/false);
    fused_->each.push_back(std::move(instruction));
    return;
  }
  StridedCopy copy = *StridedCopy::Of(eqn.op, from, to);
  const int64_t period = copy.period();
  const bool once = period > 0 && (piece_rows_ * width % period == 0 || piece_rows_ == rows_) &&
                    std::find(out_.begin(), out_.end(), eqn.out[0]) == out_.end();
  instruction.in = {External(source, 0)};
  instruction.run = [copy = std::move(copy), width](const void* const* in, int64_t first, int64_t rows, void* out) {
    copy.RunPart(in[0], first * width, rows * width, out);
  };
  instruction.out = Result(eqn, role, once);
  (once ? fused_->before : fused_->each).push_back(std::move(instruction));
}

void Builder::AddReduction(const Equation& eqn, FusedRole role, int index) {
  const kernels::ReduceKind kind = std::get<ReduceOp>(eqn.op).kind;
  const DType dtype = program_.aval(eqn.in[0]).dtype;
  const Location x = LocationOf(Root(eqn.in[0]), columns_, dtype);
  const int64_t columns = columns_;
  if (role == FusedRole::kReduceRows) {
    const Location out = Result(eqn, role, /*once=*/false);
    FindShared(eqn, out, index);
    fused_->each.push_back({[=](const void* const* in, int64_t, int64_t rows, void* to) {
                              kernels::ReduceRows(kind, dtype, in[0], rows, columns, to);
                            },
                            {x},
                            out});
    return;
  }
  const bool all = role == FusedRole::kReduceAll;
  const int64_t results = all ? 1 : columns;
  const Location lanes{Location::Where::kKept, kept_.Take(kernels::LaneBytes(dtype, results)), 0};
  fused_->before.push_back(
      {[=](const void* const*, int64_t, int64_t, void* to) { kernels::StartLanes(kind, dtype, results, to); },
       {},
       lanes});
  if (all) {
    fused_->each.push_back({[=](const void* const* in, int64_t first, int64_t rows, void* to) {
                              kernels::AddToRow(kind, dtype, in[0], first * columns, rows * columns, to);
                            },
                            {x},
                            lanes});
  } else {
    fused_->each.push_back({[=](const void* const* in, int64_t first, int64_t rows, void* to) {
                              kernels::AddToLanes(kind, dtype, in[0], columns, first, rows, columns, to);
                            },
                            {x},
                            lanes});
  }
  const auto out = std::find(out_.begin(), out_.end(), eqn.out[0]);
  AQT_CHECK(out != out_.end());
  fused_->after.push_back({[=](const void* const* in, int64_t, int64_t, void* to) {
                             kernels::FinishLanes(kind, dtype, results, const_cast<void*>(in[0]), to);
                           },
                           {lanes},
                           {Location::Where::kOut, out - out_.begin(), 0}});
}

void Builder::Add(const FusedMember& member, int index) {
  const Equation& eqn = EquationOf(member);
  if (ElementwiseFn fn = ElementwiseOf(eqn.op, OperandAvals(program_, eqn), program_.aval(eqn.out[0]))) {
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
  FindNumbers();
  FindFolded();
  for (size_t i = 0; i < group_.members.size(); ++i) Add(group_.members[i], static_cast<int>(i));
  fused_->rows = rows_;
  fused_->piece_rows = piece_rows_;
  fused_->kept_at = layout_.num_bytes();
  fused_->scratch_bytes = layout_.num_bytes() + kept_.num_bytes();
  return {.run = [fused = fused_](const KernelCall& call) { fused->Run(call); },
          .scratch_bytes = fused_->scratch_bytes,
          .may_share = std::move(may_share_)};
}

}  // namespace

OpKernel FusedKernel(const Program& program, absl::Span<const VarId> roots, const FusedGroup& group,
                     absl::Span<const VarId> in, absl::Span<const VarId> out) {
  return Builder(program, roots, group, in, out).Make();
}

}  // namespace aqt::internal
