#include "serving/cli/programs/program_json.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/op.h"
#include "serving/tools/report_json-inl.h"

namespace aqt::serving {
namespace {

class Writer {
 public:
  explicit Writer(const Program& program) : program_(program), number_(program.vars.size(), -1) {}

  ReportJson Write() {
    ReportJson inputs = ReportJson::array();
    for (const Program::Port& port : program_.inputs) {
      ReportJson input = Declare(port.var);
      AddSlot(port.slot, input);
      inputs.push_back(std::move(input));
    }
    ReportJson constants = ReportJson::array();
    for (const auto& [var, array] : program_.consts) {
      ReportJson constant = Declare(var);
      constant["value"] = ContentsText(array);
      constants.push_back(std::move(constant));
    }
    ReportJson equations = ReportJson::array();
    for (const Equation& eqn : program_.eqns) equations.push_back(WriteEquation(eqn));
    ReportJson outputs = ReportJson::array();
    for (const Program::Port& port : program_.outputs) {
      ReportJson output = {{"variable", number_[port.var]}};
      AddSlot(port.slot, output);
      outputs.push_back(std::move(output));
    }
    return {{"inputs", std::move(inputs)},
            {"constants", std::move(constants)},
            {"equations", std::move(equations)},
            {"outputs", std::move(outputs)}};
  }

 private:
  static void AddSlot(const Slot& slot, ReportJson& port) {
    port["kind"] = std::string(aqt::ToString(slot.kind));
    port["name"] = slot.path;
  }

  // A variable where it is bound: gives it the next number.
  ReportJson Declare(VarId var) {
    const Aval& aval = program_.aval(var);
    number_[var] = next_++;
    return {{"variable", number_[var]},
            {"dtype", std::string(aqt::ToString(aval.dtype))},
            {"shape", std::vector<int64_t>(aval.shape.begin(), aval.shape.end())}};
  }

  ReportJson WriteEquation(const Equation& eqn) {
    ReportJson inputs = ReportJson::array(), outputs = ReportJson::array();
    for (const VarId var : eqn.in) inputs.push_back(number_[var]);
    for (const VarId var : eqn.out) outputs.push_back(Declare(var));
    return {{"operation", OpName(eqn.op)},
            {"attributes", OpAttributes(eqn.op)},
            {"scope", program_.scope(eqn)},
            {"inputs", std::move(inputs)},
            {"outputs", std::move(outputs)}};
  }

  const Program& program_;
  std::vector<int> number_;  // by VarId
  int next_ = 0;
};

}  // namespace

std::string ProgramToJson(const Program& program, absl::string_view source) {
  ReportJson report = NewReport();
  report["source"] = std::string(source);
  report.update(Writer(program).Write());
  return ReportText(report);
}

}  // namespace aqt::serving
