#include "aqt/runtime/prepared_program.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/interpret/split.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/runtime/executable.h"
#include "aqt/runtime/packed_weights.h"

namespace aqt {
namespace {

// What the values determine becomes constants. Inputs that the rest does not read are left out.
absl::StatusOr<Program> Precomputed(const Program& program, const SlotValues& values) {
  AQT_ASSIGN_OR_RETURN(Split split, SplitProgram(program, values));
  Program rest = std::move(split.rest);
  for (Split::Evaluated& evaluated : split.evaluated) rest.consts.emplace(evaluated.var, std::move(evaluated.value));
  std::vector<bool> is_read(rest.vars.size());
  for (const Program::Port& port : rest.outputs) is_read[port.var] = true;
  for (const Equation& eqn : rest.eqns) {
    for (const VarId var : eqn.in) is_read[var] = true;
  }
  std::erase_if(rest.inputs, [&](const Program::Port& port) {
    const auto it = values.find(port.slot);
    if (it != values.end()) rest.consts.emplace(port.var, it->second);
    return it != values.end() || !is_read[port.var];
  });
  AQT_RETURN_IF_ERROR(Check(rest));
  return rest;
}

std::string Describe(const Program& program) {
  return absl::StrJoin(program.inputs, ", ", [&](std::string* text, const Program::Port& port) {
    absl::StrAppend(text, port.slot.ToString(), " ", program.aval(port.var).ToString());
  });
}

}  // namespace

struct PreparedProgram::Impl {
  struct Variant {
    Program whole;
    Executable rest;
  };
  // An array of Make, which is not owned.
  struct Given {
    Aval aval;
    const void* data;
    std::weak_ptr<const void> buffer;
    bool Is(const Array& array) const { return !buffer.expired() && array.aval() == aval && array.data() == data; }
  };
  std::vector<Variant> variants;
  absl::btree_map<Slot, Given> given;
  SlotValues kept;
  int64_t num_bytes = 0;

  // Whether `inputs` has another array for an input that got a value in Make.
  bool IsOverridden(const SlotValues& inputs) const {
    return std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) {
      const auto it = given.find(input.first);
      return it != given.end() && !it->second.Is(input.second);
    });
  }
  absl::StatusOr<const Variant*> Find(const SlotValues& inputs) const;
  absl::StatusOr<SlotValues> EvalWhole(const Variant& variant, const SlotValues& inputs, const EvalHooks& hooks) const;
};

absl::StatusOr<const PreparedProgram::Impl::Variant*> PreparedProgram::Impl::Find(const SlotValues& inputs) const {
  if (variants.size() == 1) return &variants[0];  // it reports itself what does not fit
  for (const Variant& variant : variants) {
    const auto fits = [&](const Program::Port& port) {
      const auto it = inputs.find(port.slot);
      return it != inputs.end() && it->second.aval() == variant.rest.program().aval(port.var);
    };
    if (std::all_of(variant.rest.program().inputs.begin(), variant.rest.program().inputs.end(), fits)) return &variant;
  }
  const auto describe = [](std::string* text, const Variant& variant) { *text += Describe(variant.rest.program()); };
  SlotValues open = inputs;
  for (const auto& [slot, given_array] : given) open.erase(slot);
  const auto describe_input = [](std::string* text, const auto& input) {
    absl::StrAppend(text, input.first.ToString(), " ", input.second.aval().ToString());
  };
  return absl::InvalidArgumentError(absl::StrCat("no program is prepared for the inputs ",
                                                 absl::StrJoin(open, ", ", describe_input), "; there are programs for ",
                                                 absl::StrJoin(variants, "; ", describe)));
}

absl::StatusOr<SlotValues> PreparedProgram::Impl::EvalWhole(const Variant& variant, const SlotValues& inputs,
                                                            const EvalHooks& hooks) const {
  SlotValues values = inputs;
  values.insert(kept.begin(), kept.end());
  for (const Program::Port& port : variant.whole.inputs) {
    if (values.contains(port.slot) || !given.contains(port.slot)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("another array than the prepared one is given for an input, and then ", port.slot.ToString(),
                     " is needed, too; give it, or prepare with keep_values"));
  }
  return EvalSlots(variant.whole, values, hooks);
}

absl::StatusOr<PreparedProgram> PreparedProgram::Make(absl::Span<const Program> programs, const SlotValues& values,
                                                      const PrepareOptions& options) {
  if (programs.empty()) return absl::InvalidArgumentError("prepare: there is no program");
  Impl impl;
  absl::flat_hash_set<const void*> counted;
  for (const Program& program : programs) {
    for (const Program::Port& port : program.inputs) {
      const auto it = values.find(port.slot);
      if (it == values.end()) continue;
      const Array& array = it->second;
      if (array.aval() != program.aval(port.var)) {
        return absl::InvalidArgumentError(absl::StrCat("prepare: input ", port.slot.ToString(), " is ",
                                                       program.aval(port.var).ToString(), ", the value is ",
                                                       array.aval().ToString()));
      }
      impl.given.insert({port.slot, {array.aval(), array.data(), array.buffer()}});
      if (options.keep_values) impl.kept.insert(*it);
    }
    AQT_ASSIGN_OR_RETURN(const Program packed, internal::WithPackedOperands(program, values));
    AQT_ASSIGN_OR_RETURN(const Program shared, WithSharedOperands(packed));
    AQT_ASSIGN_OR_RETURN(Program rest, Precomputed(shared, values));
    for (const auto& [var, array] : rest.consts) {
      if (counted.insert(array.data()).second) impl.num_bytes += array.num_bytes();
    }
    AQT_ASSIGN_OR_RETURN(Executable executable, Executable::Make(rest, {.arenas = options.arenas}));
    impl.variants.push_back({program, std::move(executable)});
  }
  return PreparedProgram(std::make_shared<const Impl>(std::move(impl)));
}

absl::StatusOr<SlotValues> PreparedProgram::Eval(const SlotValues& inputs, const EvalHooks& hooks) const {
  AQT_ASSIGN_OR_RETURN(const Impl::Variant* variant, impl_->Find(inputs));
  if (impl_->IsOverridden(inputs)) return impl_->EvalWhole(*variant, inputs, hooks);
  return hooks.any() ? EvalSlots(variant->rest.program(), inputs, hooks) : variant->rest.RunSlots(inputs);
}

int PreparedProgram::num_programs() const { return static_cast<int>(impl_->variants.size()); }
const Program& PreparedProgram::program(int index) const { return impl_->variants[index].rest.program(); }
const Executable& PreparedProgram::executable(int index) const { return impl_->variants[index].rest; }
int64_t PreparedProgram::num_bytes() const { return impl_->num_bytes; }

}  // namespace aqt
