#include "aqt/graph/composite.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"

namespace aqt {
namespace {

// Runs Eval and copies its results, which may be operands or owned elsewhere.
class EvalKernel {
 public:
  EvalKernel(std::shared_ptr<const Composite> op, absl::Span<const KernelInput> operands, std::vector<Aval> outputs,
             absl::Span<const bool> needed)
      : op_(std::move(op)),
        operands_(AvalsOf(operands)),
        outputs_(std::move(outputs)),
        needed_(needed.begin(), needed.end()) {}

  int64_t array_bytes() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < outputs_.size(); ++i) bytes += needed_[i] ? outputs_[i].num_bytes() : 0;
    return bytes;
  }

  absl::Status Run(const KernelCall& call) const {
    const SuspendTrace suspend;
    absl::InlinedVector<Array, 4> in;
    for (size_t i = 0; i < operands_.size(); ++i) in.push_back(Array::Unowned(operands_[i], call.in[i]));
    AQT_ASSIGN_OR_RETURN(const std::vector<Array> results, op_->Eval(in, needed_));
    if (results.size() != outputs_.size()) return WrongOutputs();
    for (size_t i = 0; i < results.size(); ++i) {
      if (!needed_[i]) continue;
      if (results[i].aval() != outputs_[i]) return WrongOutputs();
      if (const size_t bytes = results[i].num_bytes(); bytes > 0) std::memcpy(call.out[i], results[i].data(), bytes);
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status WrongOutputs() { return absl::InternalError("evaluation gave other outputs than were inferred"); }

  const std::shared_ptr<const Composite> op_;
  const std::vector<Aval> operands_, outputs_;
  const absl::InlinedVector<bool, 4> needed_;
};

}  // namespace

std::vector<std::optional<Value>> Composite::GradBackward(absl::Span<const Value>, absl::Span<const Value>) const {
  AQT_CHECK(!"a composite with has_gradient() defines GradBackward");
}

absl::StatusOr<OpKernel> Composite::MakeKernel(absl::Span<const KernelInput> operands,
                                               absl::Span<const bool> needed) const {
  AQT_ASSIGN_OR_RETURN(std::vector<Aval> outputs, Infer(AvalsOf(operands)));
  const auto kernel = std::make_shared<const EvalKernel>(shared_from_this(), operands, std::move(outputs), needed);
  return OpKernel{.run = [kernel](const KernelCall& call) { return kernel->Run(call); },
                  .array_bytes = kernel->array_bytes()};
}

absl::StatusOr<std::vector<Array>> Composite::EvalByKernel(absl::Span<const Array> operands,
                                                           absl::Span<const bool> needed) const {
  const absl::InlinedVector<bool, 4> all(needed.size(), true);
  // A kernel has at least one output, and errors appear even if no output is needed.
  if (std::find(needed.begin(), needed.end(), true) == needed.end()) needed = all;
  std::vector<KernelInput> given;
  std::vector<const void*> in;
  for (const Array& operand : operands) {
    given.push_back({operand.aval(), operand});
    in.push_back(operand.data());
  }
  AQT_ASSIGN_OR_RETURN(const OpKernel kernel, MakeKernel(given, needed));
  AQT_ASSIGN_OR_RETURN(const std::vector<Aval> outputs, Infer(AvalsOf(given)));
  std::vector<Array> results(outputs.size());
  std::vector<bool> is_operand(outputs.size(), false);
  for (const auto& [operand, output] : kernel.same) {
    results[output] = Array(outputs[output], operands[operand].buffer());
    is_operand[output] = true;
  }
  std::vector<void*> out(outputs.size(), nullptr);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!needed[i] || is_operand[i]) continue;
    std::shared_ptr<void> memory = AllocateUninitialized(outputs[i].num_bytes());
    out[i] = memory.get();
    results[i] = Array(outputs[i], std::move(memory));
  }
  const std::shared_ptr<void> scratch = AllocateUninitialized(kernel.scratch_bytes);
  AQT_RETURN_IF_ERROR(kernel.run({in.data(), out.data(), scratch.get(), CurrentExecutor()}));
  return results;
}

}  // namespace aqt
