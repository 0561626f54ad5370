#include "serving/engine/ticket_state.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"

namespace aqt::serving {
namespace {

absl::Status WrongInput(const RowPort& port, const Aval& aval) {
  std::vector<std::string> extents;
  for (int64_t axis = 0; axis < port.shape.rank(); ++axis) {
    extents.push_back(axis == port.length_axis ? "length" : absl::StrCat(port.shape[axis]));
  }
  return absl::InvalidArgumentError(absl::StrCat("input ", port.slot.ToString(), " is ", aval.ToString(), ", expected ",
                                                 ToString(port.dtype), "[", absl::StrJoin(extents, ","), "]"));
}

// The row's own shape of an input, without a leading batch axis of 1. Sets `length`, or compares with it.
absl::StatusOr<Array> RowInput(const RowFacts& facts, const RowPort& port, const Array& array,
                               std::optional<int64_t>& length) {
  const Shape& shape = array.shape();
  const int64_t lead = shape.rank() - port.shape.rank();
  if (array.dtype() != port.dtype || lead < 0 || lead > (facts.has_batch ? 1 : 0) || (lead == 1 && shape[0] != 1)) {
    return WrongInput(port, array.aval());
  }
  Shape row;
  for (int64_t axis = 0; axis < port.shape.rank(); ++axis) {
    const int64_t extent = shape[axis + lead];
    row.push_back(extent);
    if (axis != port.length_axis) {
      if (extent != port.shape[axis]) return WrongInput(port, array.aval());
      continue;
    }
    if (length.value_or(extent) != extent) {
      return absl::InvalidArgumentError(absl::StrCat("input ", port.slot.ToString(), " has a length of ", extent,
                                                     ", and another input one of ", *length, "; give both one length"));
    }
    if (extent < 1 || extent > facts.max_length) {
      return absl::InvalidArgumentError(absl::StrCat("input ", port.slot.ToString(), " has a length of ", extent,
                                                     ", expected 1 to ", facts.max_length));
    }
    length = extent;
  }
  return Array(Aval{port.dtype, std::move(row)}, array.buffer());
}

}  // namespace

void Finish(Ticket::State& state, Answer answer) {
  state.answer = std::move(answer);
  if (state.done) state.done(state.answer);
  state.done = nullptr;
  state.answered.Set();
}

absl::Status ReadInputs(const RowFacts& facts, const SlotValues& given, Ticket::State& state) {
  std::optional<int64_t> length;
  for (const RowPort& port : facts.inputs) {
    const auto it = given.find(port.slot);
    if (it == given.end()) {
      return absl::InvalidArgumentError(absl::StrCat("input ", port.slot.ToString(), " is missing"));
    }
    AQT_ASSIGN_OR_RETURN(Array row, RowInput(facts, port, it->second, length));
    state.inputs.push_back(std::move(row));
  }
  if (given.size() != facts.inputs.size()) {
    for (const auto& [slot, array] : given) {
      const bool known = std::any_of(facts.inputs.begin(), facts.inputs.end(),
                                     [&, &slot = slot](const RowPort& port) { return port.slot == slot; });
      if (known) continue;
      const auto name = [](std::string* out, const RowPort& port) { out->append(port.slot.ToString()); };
      return absl::InvalidArgumentError(absl::StrCat("the model has no input ", slot.ToString(), "; it has ",
                                                     absl::StrJoin(facts.inputs, ", ", name)));
    }
  }
  state.length = length.value_or(std::min<int64_t>(1, facts.max_length));  // no input depends on the length
  state.program_length = facts.ProgramLength(state.length);
  return absl::OkStatus();
}

void ReserveOutputs(const RowFacts& facts, Ticket::State& state) {
  for (const RowPort& port : facts.outputs) {
    Shape shape;
    for (int64_t axis = 0; axis < port.shape.rank(); ++axis) {
      shape.push_back(axis == port.length_axis ? state.length : port.shape[axis]);
    }
    const Aval aval = {port.dtype, std::move(shape)};
    std::shared_ptr<void> memory = AllocateUninitialized(aval.num_bytes());
    state.output_memory.push_back(memory.get());
    state.outputs.emplace(port.slot, Array(aval, std::move(memory)));
  }
}

}  // namespace aqt::serving
