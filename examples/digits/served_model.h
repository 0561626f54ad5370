#ifndef EXAMPLES_DIGITS_SERVED_MODEL_H_
#define EXAMPLES_DIGITS_SERVED_MODEL_H_

// A trained classifier ready to be served: kernels quantized once (frozen tensors), biases and float parameters
// unchanged.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"
#include "aqt/transforms/quantize/inject.h"
#include "examples/digits/classifier.h"

namespace digits {

struct ServedModel {
  Hidden hidden;
  aqt::InjectConfig config;
  aqt::SlotValues values;
};

// Quantizes the kernels as `config` does in training: Inject in mode CONVERT, then Fold.
absl::StatusOr<ServedModel> Freeze(const Hidden& hidden, const aqt::InjectConfig& config,
                                   const aqt::SlotValues& params);

// One safetensors file with everything for serving; its metadata are "hidden" and "inject" (the configuration as text).
// An existing file is replaced. ReadServedModel: DataLoss, naming the file, if these are missing or wrong, or if a
// tensor of the model is missing or has another dtype or shape.
absl::Status Write(const ServedModel& model, const aqt::io::FileSystem& fs, absl::string_view path);
absl::StatusOr<ServedModel> ReadServedModel(const aqt::io::FileSystem& fs, absl::string_view path);

// pixels -> logits for a number of rows: Inject in mode SERVE, without the inputs that are no longer used.
absl::StatusOr<aqt::Program> ServeProgram(const ServedModel& model, int64_t rows);
// The logits of the served program.
absl::StatusOr<aqt::Array> Serve(const ServedModel& model, const aqt::Array& pixels);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_SERVED_MODEL_H_
