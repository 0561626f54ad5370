#ifndef AQT_TESTS_GOLDEN_CHECK_RUN_CASE_H_
#define AQT_TESTS_GOLDEN_CHECK_RUN_CASE_H_

// Computes a recorded case with the library's public API.

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/semantics.h"
#include "tests/golden_check/golden_case.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {

// Recorded tensors that replace computed ones.
class Given {
 public:
  Given() = default;
  explicit Given(Tensors tensors) : tensors_(std::move(tensors)) {}

  // The tensor with this name, or `computed`.
  Array Or(absl::string_view name, const Array& computed);
  // Null if it is not given.
  const Array* Find(absl::string_view name);
  bool empty() const { return tensors_.empty(); }
  // Whether each of them has been used.
  bool AllUsed() const { return used_.size() == tensors_.size(); }

 private:
  Tensors tensors_;
  std::set<std::string> used_;
};

// The results of a run.
struct Computed {
  Computed() = default;
  Computed(Tensors tensors_in) : tensors(std::move(tensors_in)) {}

  Tensors tensors;  // by their names in the manifest; may include tensors that are not expected
  // Intended refusals of this way, with reasons, by tensor.
  std::map<std::string, std::string, std::less<>> refused = {};
};

// Runs the case in one of its ways (WaysOf). The errors of the library are passed on: Unimplemented means not
// supported.
absl::StatusOr<Computed> RunCase(const GoldenCase& golden_case, const Semantics& semantics, Given& given, Way way);

// ---- its parts

// Each has its own file: quantizers and numerics; calibrations with state; contractions; einsum; convolutions; ragged
// contractions; keys and noise; the hand-written product of AQT's README.
absl::StatusOr<Tensors> Run(const QuantizeConfig& config, const Tensors& inputs, const Semantics& semantics,
                            Given& given);
absl::StatusOr<Tensors> Run(const StatefulConfig& config, const Tensors& inputs, const Semantics& semantics);
absl::StatusOr<Tensors> Run(const NumericsConfig& config, const Tensors& inputs, const Semantics& semantics);
absl::StatusOr<Tensors> Run(const CeilToPo2Config& config, const Tensors& inputs, const Semantics& semantics);
absl::StatusOr<Tensors> Run(const RoundToFormatConfig& config, const Tensors& inputs);
absl::StatusOr<Tensors> Run(const DecodeConfig& config, const Tensors& inputs);
absl::StatusOr<Tensors> Run(const CastConfig& config, const Tensors& inputs);
absl::StatusOr<Tensors> Run(const DotConfig& config, const Tensors& inputs, const Semantics& semantics, Given& given);
absl::StatusOr<Tensors> Run(const EinsumConfig& config, const Tensors& inputs, const Semantics& semantics);
absl::StatusOr<Tensors> Run(const ConvGeneralConfig& config, const Tensors& inputs, const Semantics& semantics);
absl::StatusOr<Tensors> Run(const RaggedDotConfig& config, const Tensors& inputs, const Semantics& semantics);
absl::StatusOr<Tensors> Run(const RandomConfig& config, const GoldenCase& golden_case);
absl::StatusOr<Tensors> Run(const OperandKeysConfig& config, const Tensors& inputs, const Semantics& semantics);
absl::StatusOr<Tensors> Run(const HandWrittenMatMulConfig& config, const Tensors& inputs, const Semantics& semantics);
// Models, and served contractions.
absl::StatusOr<Tensors> Run(const MlpConfig& config, const Tensors& inputs, const Semantics& semantics, Way way);
absl::StatusOr<Tensors> Run(const ServingConfig& config, const Tensors& inputs, const Semantics& semantics,
                            Given& given, Way way);
absl::StatusOr<Tensors> Run(const ServedDotConfig& config, const Tensors& inputs, const Semantics& semantics, Way way);
absl::StatusOr<Tensors> Run(const TrainingConfig& config, const Tensors& inputs, const Semantics& semantics,
                            Given& given, Way way);

// A contraction of any kind as a program: trained, converted and served. `config` has the operands of the operation.
absl::StatusOr<Computed> RunAsProgram(const ContractionDims& dims, const DotGeneralConfig& config,
                                      const Tensors& inputs, const Semantics& semantics, Way way);
// The configuration with the operands of the equation.
absl::StatusOr<DotGeneralConfig> ConfigOfEquation(const EinsumConfig& config, const Aval& lhs, const Aval& rhs,
                                                  const Semantics& semantics);

// Keeps a copy of everything.
class Recorder final : public Observer {
 public:
  void OnTensor(absl::string_view name, const ArrayRef& value) override {
    tensors.insert_or_assign(std::string(name), Array::CopyOf(value));
  }
  Tensors tensors;
};

// "out", and an observer's values of pass fwd without that prefix. `observed` is the out of the observed call: both
// must have the same bits.
absl::StatusOr<Tensors> ForwardTensors(Array out, const Array& observed, Tensors intermediate);

// The input with this name, or InvalidArgument.
absl::StatusOr<Array> Input(const Tensors& inputs, absl::string_view name);
// x[i].
Array Part(const Array& x, int64_t i);
// The context of every call, with the key from the inputs if there is one (u32[2]).
absl::StatusOr<Context> MakeContext(const Tensors& inputs);
// u32[2].
Array KeyArray(const Key& key);
// Random words of `bits` 8, 16 or 32; 16 as u32.
absl::StatusOr<Array> RandomWords(int bits, const Key& key, const Shape& shape, PrngLayout layout);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_RUN_CASE_H_
