// Saved programs.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/c_api.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/runtime/executable.h"
#include "serving/c/array.h"
#include "serving/c/call.h"

using aqt::Array;
using aqt::MutableArrayRef;
using aqt::capi::Call;
using aqt::capi::Check;
using aqt::capi::NotNull;

struct aqt_program {
  static constexpr aqt::capi::Tag kTag = aqt::capi::Tag::kProgram;
  static constexpr char kName[] = "aqt_program";
  struct Port {
    std::string kind;
    std::string name;
    aqt::Aval aval;
  };
  struct Parts {
    aqt::Executable executable;
    std::vector<Port> inputs, outputs;
  };
  explicit aqt_program(Parts made) : parts(std::move(made)) {}

  aqt::capi::Tag tag = kTag;
  const Parts parts;
};

namespace {

absl::StatusOr<aqt_program::Parts> Load(const void* bytes, size_t size) {
  if (size > 0) AQT_RETURN_IF_ERROR(NotNull(bytes, "bytes"));
  const absl::string_view text(static_cast<const char*>(bytes), size);
  AQT_ASSIGN_OR_RETURN(const aqt::Program program, aqt::LoadProgram(text, aqt::ops::ProgramCodecs()));
  AQT_ASSIGN_OR_RETURN(aqt::Executable executable, aqt::Executable::Make(program));
  aqt_program::Parts parts{std::move(executable), {}, {}};
  const auto add = [&](const aqt::Program::Port& port, std::vector<aqt_program::Port>* out) {
    out->push_back({std::string(aqt::ToString(port.slot.kind)), port.slot.path, program.vars[port.var]});
  };
  for (const aqt::Program::Port& port : program.inputs) add(port, &parts.inputs);
  for (const aqt::Program::Port& port : program.outputs) add(port, &parts.outputs);
  return parts;
}

absl::StatusOr<const std::vector<aqt_program::Port>*> PortsOf(const aqt_program* program, aqt_port port) {
  AQT_RETURN_IF_ERROR(Check(program, "program"));
  if (port == AQT_INPUT) return &program->parts.inputs;
  if (port == AQT_OUTPUT) return &program->parts.outputs;
  return absl::InvalidArgumentError(absl::StrCat("port is ", port, ", expected AQT_INPUT or AQT_OUTPUT"));
}

std::string NameOf(const aqt_program::Port& port) { return absl::StrCat(port.kind, " \"", port.name, "\""); }

absl::Status CheckCount(size_t got, size_t want, const char* what) {
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the program has ", want, " ", what, ", and ", got, " are given"));
}

absl::Status RunProgram(const aqt_program* program, const aqt_array* arguments, size_t num_arguments,
                        const aqt_array* outputs, size_t num_outputs, const aqt_call_options* options) {
  AQT_RETURN_IF_ERROR(Check(program, "program"));
  const aqt_program::Parts& parts = program->parts;
  AQT_RETURN_IF_ERROR(CheckCount(num_arguments, parts.inputs.size(), "inputs"));
  AQT_RETURN_IF_ERROR(CheckCount(num_outputs, parts.outputs.size(), "outputs"));
  if (num_arguments > 0) AQT_RETURN_IF_ERROR(NotNull(arguments, "arguments"));
  if (num_outputs > 0) AQT_RETURN_IF_ERROR(NotNull(outputs, "outputs"));
  AQT_ASSIGN_OR_RETURN(const aqt::capi::CallOptions call, aqt::capi::ToCallOptions(options));

  std::vector<aqt::ArrayRef> given;
  std::vector<Array> args;
  for (size_t i = 0; i < num_arguments; ++i) {
    const std::string name = NameOf(parts.inputs[i]);
    AQT_ASSIGN_OR_RETURN(aqt::ArrayRef ref, aqt::capi::ToArrayRef(&arguments[i], name));
    AQT_RETURN_IF_ERROR(aqt::capi::CheckAval(ref.aval(), parts.inputs[i].aval, name));
    args.push_back(ref.IsDense() ? Array::Unowned(ref.aval(), ref.data) : Array::CopyOf(ref));
    given.push_back(std::move(ref));
  }
  std::vector<MutableArrayRef> wanted;
  bool dense = true;
  for (size_t i = 0; i < num_outputs; ++i) {
    const std::string name = NameOf(parts.outputs[i]);
    AQT_ASSIGN_OR_RETURN(MutableArrayRef ref, aqt::capi::ToMutableArrayRef(&outputs[i], name));
    AQT_RETURN_IF_ERROR(aqt::capi::CheckAval(ref.aval(), parts.outputs[i].aval, name));
    for (size_t j = 0; j < given.size(); ++j) {
      AQT_RETURN_IF_ERROR(aqt::capi::CheckApart(ref, name, given[j], NameOf(parts.inputs[j])));
    }
    for (size_t j = 0; j < i; ++j) {
      AQT_RETURN_IF_ERROR(aqt::capi::CheckApart(ref, name, wanted[j], NameOf(parts.outputs[j])));
    }
    dense = dense && ref.IsDense();
    wanted.push_back(std::move(ref));
  }
  const aqt::UseExecutor use(call.executor);
  if (dense) return parts.executable.RunInto(args, wanted);
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> results, parts.executable.Run(args));
  for (size_t i = 0; i < num_outputs; ++i) AQT_RETURN_IF_ERROR(aqt::CopyArray(results[i], wanted[i]));
  return absl::OkStatus();
}

}  // namespace

aqt_code aqt_program_load(const void* bytes, size_t size, aqt_program** program, aqt_error** error) {
  return aqt::capi::Make(program, error, [&]() { return Load(bytes, size); });
}

aqt_code aqt_program_count(const aqt_program* program, aqt_port port, size_t* count, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_ASSIGN_OR_RETURN(const auto* ports, PortsOf(program, port));
    AQT_RETURN_IF_ERROR(NotNull(count, "count"));
    *count = ports->size();
    return absl::OkStatus();
  });
}

aqt_code aqt_program_slot(const aqt_program* program, aqt_port port, size_t index, aqt_slot* slot, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_ASSIGN_OR_RETURN(const auto* ports, PortsOf(program, port));
    if (index >= ports->size()) {
      return absl::OutOfRangeError(absl::StrCat("the program has ", ports->size(), " of them, and index is ", index));
    }
    const aqt_program::Port& found = (*ports)[index];
    return aqt::capi::Write<aqt_slot>(
        {sizeof(aqt_slot), found.kind.c_str(), found.name.c_str(), aqt::capi::FromAval(found.aval)}, slot, "slot");
  });
}

aqt_code aqt_program_run(const aqt_program* program, const aqt_array* arguments, size_t num_arguments,
                         const aqt_array* outputs, size_t num_outputs, const aqt_call_options* options,
                         aqt_error** error) {
  return Call(error, [&]() { return RunProgram(program, arguments, num_arguments, outputs, num_outputs, options); });
}

void aqt_program_free(aqt_program* program) { aqt::capi::Free(program); }
