#include "serving/engine/row_model.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/models/text/padded_length.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/runtime/arena_pool.h"
#include "aqt/runtime/packed_weights.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/transforms/quantize/serve.h"
#include "aqt/transforms/row_dependence.h"

namespace aqt::serving {
namespace {

// The arrays that compiled programs read.
class WeightBytes {
 public:
  void Add(const Program& program) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [var, array] : program.consts) {
      if (array.num_bytes() >= kSmall && counted_.insert(array.data()).second) bytes_ += array.num_bytes();
    }
  }
  int64_t bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }

 private:
  // Numbers that a program has for itself are not weights.
  static constexpr int64_t kSmall = 64;
  mutable std::mutex mutex_;
  absl::flat_hash_set<const void*> counted_;  // guarded by mutex_
  int64_t bytes_ = 0;                         // guarded by mutex_
};

absl::Status BadShape(const Slot& slot, absl::Span<const Aval> avals, absl::string_view expected) {
  const auto text = [](std::string* out, const Aval& aval) { out->append(aval.ToString()); };
  return absl::InvalidArgumentError(
      absl::StrCat(slot.ToString(), " is ", absl::StrJoin(avals, ", ", text), " in the programs, expected ", expected));
}

const Program::Port* FindPort(const std::vector<Program::Port>& ports, const Slot& slot) {
  const auto it =
      std::find_if(ports.begin(), ports.end(), [&](const Program::Port& port) { return port.slot == slot; });
  return it == ports.end() ? nullptr : &*it;
}

using Ports = std::vector<Program::Port> Program::*;

// The port of a row, from the same port of programs for two batches, and, if rows have a length, for another length.
absl::StatusOr<RowPort> RowPortOf(const Slot& slot, Ports ports, const Program& first, const Program& other_batch,
                                  const Program* other_length) {
  std::vector<Aval> avals;
  for (const Program* program : {&first, &other_batch, other_length}) {
    if (program == nullptr) continue;
    const Program::Port* port = FindPort(program->*ports, slot);
    if (port == nullptr) return absl::InvalidArgumentError(absl::StrCat(slot.ToString(), " is not in all programs"));
    avals.push_back(program->aval(port->var));
    if (avals.back().shape.rank() != avals[0].shape.rank() || avals.back().dtype != avals[0].dtype) {
      return BadShape(slot, avals, "one dtype and one number of axes");
    }
  }
  RowPort row = {slot, avals[0].dtype, {}, -1};
  for (int64_t axis = 0; axis < avals[0].shape.rank(); ++axis) {
    const int64_t extent = avals[0].shape[axis];
    const bool with_batch = avals[1].shape[axis] != extent;
    const bool with_length = avals.size() > 2 && avals[2].shape[axis] != extent;
    if (with_batch != (axis == 0)) return BadShape(slot, avals, "the batch as axis 0, and only there");
    if (axis == 0) continue;
    if (with_length && row.length_axis >= 0) return BadShape(slot, avals, "at most one axis with the length");
    if (with_length) row.length_axis = static_cast<int>(axis - 1);
    row.shape.push_back(with_length ? 0 : extent);
  }
  if (avals[0].shape.rank() == 0) return BadShape(slot, avals, "the batch as axis 0");
  return row;
}

absl::Status FindPorts(const Program& first, const Program& other_batch, const Program* other_length, RowFacts& facts) {
  for (const Program::Port& port : first.inputs) {
    if (port.slot.kind != SlotKind::kData) continue;
    AQT_ASSIGN_OR_RETURN(RowPort row, RowPortOf(port.slot, &Program::inputs, first, other_batch, other_length));
    facts.inputs.push_back(std::move(row));
  }
  for (const Program::Port& port : first.outputs) {
    AQT_ASSIGN_OR_RETURN(RowPort row, RowPortOf(port.slot, &Program::outputs, first, other_batch, other_length));
    facts.outputs.push_back(std::move(row));
  }
  return absl::OkStatus();
}

// All inputs that are left must come with a request.
absl::Status ExpectOnlyData(const Program& program) {
  for (const Program::Port& port : program.inputs) {
    if (port.slot.kind == SlotKind::kData) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the program reads ", port.slot.ToString(), " ", program.aval(port.var).ToString(),
                     ", which has no value; give it with the weights. An engine has no keys: a model that draws random "
                     "numbers cannot be served"));
  }
  return absl::OkStatus();
}

class TracedRows final : public RowModel {
 public:
  explicit TracedRows(TracedModel model) : model_(std::move(model)) {}

  absl::Status Init() {
    if (model_.max_length < 0) {
      return absl::InvalidArgumentError(absl::StrCat("max_length is ", model_.max_length, ", expected at least 0"));
    }
    facts_.max_length = model_.max_length;
    const auto [length, other_length] = models::LengthsToCompare(model_.max_length);
    AQT_ASSIGN_OR_RETURN(const Program first, model_.trace(1, length));
    AQT_ASSIGN_OR_RETURN(frozen_, Freeze(first, model_.config, model_.weights));
    model_.weights.clear();
    std::vector<Program> batches;
    for (const int64_t batch : {1, 2, 3}) {
      AQT_ASSIGN_OR_RETURN(Program program, Served(batch, length));
      batches.push_back(std::move(program));
    }
    std::optional<Program> other_rows;  // of another length
    if (model_.max_length > 0) {
      AQT_ASSIGN_OR_RETURN(other_rows, Served(1, other_length));
    }
    AQT_RETURN_IF_ERROR(ExpectOnlyData(WithoutFrozen(batches[0])));
    AQT_RETURN_IF_ERROR(FindPorts(batches[0], batches[1], other_rows.has_value() ? &*other_rows : nullptr, facts_));
    AQT_ASSIGN_OR_RETURN(facts_.why_alone, WhyRowsDepend(batches));
    facts_.joins = facts_.why_alone.empty();
    if (other_rows.has_value() && model_.max_length > 1) {
      AQT_ASSIGN_OR_RETURN(facts_.why_exact, WhyPaddingCounts(batches[0], *other_rows));
    }
    facts_.pads = facts_.why_exact.empty();
    return PackWeights(batches[1], length);
  }

  absl::StatusOr<Executable> Compile(int64_t batch, int64_t length) const override {
    if (batch < 1 || (model_.max_length == 0 ? length != 0 : length < 1 || length > model_.max_length)) {
      return absl::InvalidArgumentError(absl::StrCat("there is no program for a batch of ", batch, " rows of length ",
                                                     length, "; rows have up to ", model_.max_length));
    }
    AQT_ASSIGN_OR_RETURN(const Program program, Served(batch, length));
    AQT_ASSIGN_OR_RETURN(const Program packed, packed_.WithPanels(program, frozen_));
    AQT_ASSIGN_OR_RETURN(const PreparedProgram served,
                         PreparedProgram::Make({packed}, frozen_, {.keep_values = false, .arenas = arenas_}));
    weights_.Add(served.program(0));
    return served.executable(0);
  }
  int64_t weight_bytes() const override { return weights_.bytes(); }

 private:
  absl::StatusOr<Program> Served(int64_t batch, int64_t length) const {
    AQT_ASSIGN_OR_RETURN(const Program program, model_.trace(batch, length));
    return ServeProgram(program, model_.config, frozen_);
  }
  // Packs the weights, and keeps only their panels if nothing else reads them. `several` has more than one row of
  // `length` positions. A program of one row and one position may read its weights in another way (docs/bits.md).
  absl::Status PackWeights(const Program& several, int64_t length) {
    AQT_RETURN_IF_ERROR(packed_.WithPanels(several, frozen_).status());
    AQT_ASSIGN_OR_RETURN(const Program one, Served(1, std::min<int64_t>(length, 1)));
    AQT_RETURN_IF_ERROR(packed_.WithPanels(one, frozen_).status());
    packed_.Release(frozen_);
    return absl::OkStatus();
  }
  Program WithoutFrozen(Program program) const {
    std::erase_if(program.inputs, [&](const Program::Port& port) { return frozen_.contains(port.slot); });
    return program;
  }

  TracedModel model_;             // without weights after Init
  SlotValues frozen_;             // without the data of weights that are only read packed
  mutable PackedWeights packed_;  // thread-safe
  std::shared_ptr<ArenaPool> arenas_ = std::make_shared<ArenaPool>();
  mutable WeightBytes weights_;
};

class FixedRows final : public RowModel {
 public:
  absl::Status Init(std::vector<Program> programs, const InjectConfig& config, const SlotValues& state) {
    if (programs.empty()) return absl::InvalidArgumentError("there is no program, expected at least one");
    AQT_ASSIGN_OR_RETURN(const SlotValues frozen, nn::Frozen(programs[0], config, state));
    AQT_ASSIGN_OR_RETURN(const PreparedProgram served,
                         nn::Serve(programs, config, frozen, {.keep_values = false, .arenas = arenas_}));
    for (int i = 0; i < served.num_programs(); ++i) {
      AQT_RETURN_IF_ERROR(ExpectOnlyData(served.program(i)));
      weights_.Add(served.program(i));
    }
    if (programs.size() == 1) {
      executables_.push_back(served.executable(0));
      return InitWhole(served.program(0));
    }
    return InitBatches(programs, config, frozen, served);
  }

  absl::StatusOr<Executable> Compile(int64_t batch, int64_t length) const override {
    const size_t at = std::find(facts_.batches.begin(), facts_.batches.end(), batch) - facts_.batches.begin();
    if (at == facts_.batches.size() || length != 0) {
      return absl::InvalidArgumentError(absl::StrCat("there is no program for a batch of ", batch, "; there are ",
                                                     absl::StrJoin(facts_.batches, ", ")));
    }
    return executables_[at];
  }
  int64_t weight_bytes() const override { return weights_.bytes(); }

 private:
  absl::Status InitWhole(const Program& program) {
    facts_.has_batch = facts_.joins = false;
    facts_.why_alone = "there is one program, and a request is a whole call of it";
    facts_.batches = {1};
    for (const Program::Port& port : program.inputs) {
      facts_.inputs.push_back({port.slot, program.aval(port.var).dtype, program.aval(port.var).shape, -1});
    }
    for (const Program::Port& port : program.outputs) {
      facts_.outputs.push_back({port.slot, program.aval(port.var).dtype, program.aval(port.var).shape, -1});
    }
    return absl::OkStatus();
  }

  absl::Status InitBatches(const std::vector<Program>& programs, const InjectConfig& config, const SlotValues& frozen,
                           const PreparedProgram& served) {
    // By batch, ascending.
    std::vector<std::pair<int64_t, int>> order;
    for (int i = 0; i < served.num_programs(); ++i) {
      const Program& program = served.program(i);
      if (program.outputs.empty() || program.aval(program.outputs[0].var).shape.rank() == 0) {
        return absl::InvalidArgumentError("several programs need outputs with the batch as axis 0");
      }
      order.emplace_back(program.aval(program.outputs[0].var).shape[0], i);
    }
    std::sort(order.begin(), order.end());
    std::vector<Program> sorted;
    for (const auto& [batch, i] : order) {
      if (!facts_.batches.empty() && facts_.batches.back() == batch) {
        return absl::InvalidArgumentError(absl::StrCat("two programs have a batch of ", batch, ", expected one each"));
      }
      facts_.batches.push_back(batch);
      executables_.push_back(served.executable(i));
      AQT_ASSIGN_OR_RETURN(Program program, ServeProgram(programs[i], config, frozen));
      sorted.push_back(std::move(program));
    }
    for (size_t i = 1; i < sorted.size(); ++i) {
      RowFacts facts;
      AQT_RETURN_IF_ERROR(FindPorts(sorted[0], sorted[i], nullptr, facts));
      facts_.inputs = std::move(facts.inputs);
      facts_.outputs = std::move(facts.outputs);
    }
    AQT_ASSIGN_OR_RETURN(const std::string why, WhyRowsDepend(sorted));
    if (!why.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("rows depend on the others of a batch: ", why,
                                                     "; serve a single program, whose requests are whole batches"));
    }
    return absl::OkStatus();
  }

  std::vector<Executable> executables_;  // by facts_.batches
  std::shared_ptr<ArenaPool> arenas_ = std::make_shared<ArenaPool>();
  WeightBytes weights_;
};

}  // namespace

int64_t RowFacts::ProgramLength(int64_t length) const {
  return max_length == 0 || !pads ? length : models::PaddedLength(length, max_length);
}

absl::StatusOr<std::shared_ptr<const RowModel>> MakeRowModel(TracedModel model) {
  auto rows = std::make_shared<TracedRows>(std::move(model));
  AQT_RETURN_IF_ERROR(rows->Init());
  return rows;
}

absl::StatusOr<std::shared_ptr<const RowModel>> MakeRowModel(std::vector<Program> programs, const InjectConfig& config,
                                                             const SlotValues& state) {
  auto rows = std::make_shared<FixedRows>();
  AQT_RETURN_IF_ERROR(rows->Init(std::move(programs), config, state));
  return rows;
}

}  // namespace aqt::serving
