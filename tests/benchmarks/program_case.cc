#include "tests/benchmarks/program_case.h"

#include <cstring>
#include <utility>

#include "aqt/core/check.h"

namespace aqt::benchmarks {

int64_t ProgramCase::bytes() const {
  int64_t bytes = 0;
  for (const Array& arg : args) bytes += arg.num_bytes();
  for (const Program::Port& port : program.outputs) bytes += program.aval(port.var).num_bytes();
  return bytes;
}

PreparedCase::PreparedCase(ProgramCase source, const ExecutableOptions& options)
    : source_(std::move(source)), executable_(*Executable::Make(source_.program, options)) {
  for (const Program::Port& port : source_.program.outputs) outputs_.emplace_back(source_.program.aval(port.var));
  for (ArrayBuilder& output : outputs_) memory_.push_back(output.ref());
  for (int i = 0; i < source_.updated; ++i) {
    Array& arg = source_.args[i];
    std::memcpy(memory_[i].data, arg.data(), arg.num_bytes());
    arg = Array::Unowned(arg.aval(), memory_[i].data);
  }
}

void PreparedCase::Run() { AQT_CHECK(executable_.RunInto(source_.args, memory_).ok()); }

}  // namespace aqt::benchmarks
