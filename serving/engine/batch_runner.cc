#include "serving/engine/batch_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"

namespace aqt::serving {
namespace {

constexpr int64_t kAlignment = 64;

size_t IndexOf(const std::vector<RowPort>& ports, const Slot& slot) {
  const auto it = std::find_if(ports.begin(), ports.end(), [&](const RowPort& port) { return port.slot == slot; });
  AQT_CHECK(it != ports.end());
  return it - ports.begin();
}

// A row's memory as `pieces` pieces, each of `bytes` bytes for a position.
struct Pieces {
  int64_t pieces = 1, bytes = 1;
  explicit Pieces(const RowPort& port) : bytes(SizeOf(port.dtype)) {
    for (int64_t axis = 0; axis < port.shape.rank(); ++axis) {
      if (axis == port.length_axis) continue;
      (axis < port.length_axis ? pieces : bytes) *= port.shape[axis];
    }
    has_length = port.length_axis >= 0;
  }
  bool has_length = false;
  // The size of one piece.
  int64_t BytesOf(int64_t length) const { return has_length ? length * bytes : bytes; }
};

// The row at `from`, followed by zeros up to the length of the program.
void CopyIn(const Pieces& row, const void* from, int64_t length, int64_t program_length, char* to) {
  const int64_t filled = row.BytesOf(length), whole = row.BytesOf(program_length);
  for (int64_t i = 0; i < row.pieces; ++i) {
    if (filled > 0) std::memcpy(to + i * whole, static_cast<const char*>(from) + i * filled, filled);
    std::memset(to + i * whole + filled, 0, whole - filled);
  }
}

void CopyOut(const Pieces& row, const char* from, int64_t length, int64_t program_length, void* to) {
  const int64_t filled = row.BytesOf(length), whole = row.BytesOf(program_length);
  for (int64_t i = 0; i < row.pieces && filled > 0; ++i) {
    std::memcpy(static_cast<char*>(to) + i * filled, from + i * whole, filled);
  }
}

}  // namespace

RowProgram::RowProgram(Executable made, const RowFacts& facts, int64_t of_batch, int64_t of_length)
    : executable(std::move(made)), batch(of_batch), length(of_length) {
  for (const Program::Port& port : executable.program().inputs) {
    input_ports.push_back(IndexOf(facts.inputs, port.slot));
  }
  for (const Program::Port& port : executable.program().outputs) {
    output_ports.push_back(IndexOf(facts.outputs, port.slot));
  }
}

// Memory for all inputs and outputs.
void* BatchRunner::Reserve(const Program& program) {
  int64_t bytes = 0;
  for (const Program::Port& port : program.inputs) bytes += RoundUp(program.aval(port.var).num_bytes(), kAlignment);
  for (const Program::Port& port : program.outputs) bytes += RoundUp(program.aval(port.var).num_bytes(), kAlignment);
  if (bytes > bytes_ || memory_ == nullptr) {
    memory_ = nullptr;
    memory_ = AllocateUninitialized(bytes);
    bytes_ = bytes;
  }
  return memory_.get();
}

absl::Status BatchRunner::Run(const RowProgram& row_program, absl::Span<const RowMemory> rows) {
  const Program& program = row_program.executable.program();
  const int64_t length = row_program.length;
  AQT_CHECK(!rows.empty() && static_cast<int64_t>(rows.size()) <= row_program.batch);
  char* at = static_cast<char*>(Reserve(program));
  args_.clear();
  outputs_.clear();
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const Aval& aval = program.aval(program.inputs[i].var);
    const size_t port = row_program.input_ports[i];
    const Pieces row(facts_.inputs[port]);
    const int64_t row_bytes = row.pieces * row.BytesOf(length);
    for (size_t r = 0; r < rows.size(); ++r) {
      CopyIn(row, rows[r].inputs[port].data(), rows[r].length, length, at + r * row_bytes);
    }
    const int64_t filled = static_cast<int64_t>(rows.size()) * row_bytes;
    std::memset(at + filled, 0, aval.num_bytes() - filled);
    args_.push_back(Array::Unowned(aval, at));
    at += RoundUp(aval.num_bytes(), kAlignment);
  }
  const char* const first_output = at;
  for (const Program::Port& port : program.outputs) {
    const Aval& aval = program.aval(port.var);
    outputs_.emplace_back(aval.dtype, aval.shape, at);
    at += RoundUp(aval.num_bytes(), kAlignment);
  }
  if (absl::Status status = row_program.executable.RunInto(args_, outputs_); !status.ok()) return status;
  const char* from = first_output;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const size_t port = row_program.output_ports[i];
    const Pieces row(facts_.outputs[port]);
    const int64_t row_bytes = row.pieces * row.BytesOf(length);
    for (size_t r = 0; r < rows.size(); ++r) {
      CopyOut(row, from + r * row_bytes, rows[r].length, length, rows[r].outputs[port]);
    }
    from += RoundUp(program.aval(program.outputs[i].var).num_bytes(), kAlignment);
  }
  return absl::OkStatus();
}

}  // namespace aqt::serving
