// Our own layout (aqt/native): weights of any rank, width, tiling and axes, described in the metadata.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/native/native_file.h"
#include "aqt/stored/stored_format.h"

namespace aqt::stored {
namespace {

// The weights of one checkpoint. Rows cannot be read alone, because a scale may be anywhere: the last weight is kept.
class Weights {
 public:
  explicit Weights(native::NativeReader reader) : reader_(std::move(reader)) {}

  const native::NativeReader& reader() const { return reader_; }

  // The weight in f32, in its untiled shape. Thread-safe.
  absl::StatusOr<Array> Read(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (last_name_ == name) return *last_;
    AQT_ASSIGN_OR_RETURN(const native::NativeWeight weight, reader_.ReadWeight(name));
    absl::StatusOr<Array> values = weight.tensor.Dequantize();
    if (!values.ok()) return absl::DataLossError(values.status().message());
    last_ = values->dtype() == DType::kF32 ? *values : Cast(*values, DType::kF32);
    last_name_ = name;
    return *last_;
  }

 private:
  const native::NativeReader reader_;
  std::mutex mutex_;
  std::optional<std::string> last_name_;  // guarded by mutex_, like last_
  std::optional<Array> last_;
};

class NativeMatrix final : public StoredWeight {
 public:
  NativeMatrix(std::string name, Shape shape, const io::TensorInfo* main, std::shared_ptr<Weights> weights)
      : StoredWeight(std::move(name), std::move(shape), main), weights_(std::move(weights)) {}

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    const absl::StatusOr<Array> values = weights_->Read(name());
    if (!values.ok()) return Annotate(values.status(), Describe(reader.source(), main()));
    std::copy_n(values->View<float>().data() + first * cols(), n * cols(), out);
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Weights> weights_;
};

class Format final : public StoredFormat {
 public:
  absl::string_view name() const override { return "AQT native"; }
  bool IsMethod(absl::string_view method) const override { return method == "aqt_native"; }
  bool IsShownBy(const io::TensorSource& source) const override { return native::IsNative(source); }
  // NativeReader refuses parts that belong to no weight.
  absl::Span<const absl::string_view> PartSuffixes() const override { return {}; }

  absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig&) const override {
    const io::TensorSource& source = reader.source();
    AQT_ASSIGN_OR_RETURN(native::NativeReader opened, native::NativeReader::Open(source));
    const auto weights = std::make_shared<Weights>(std::move(opened));
    StoredWeights found;
    for (const auto& [name, header] : weights->reader().weights()) {
      const Shape shape = header.UntiledShape();
      if (shape.rank() == 0) {
        return absl::UnimplementedError(absl::StrCat("'", io::PrintableLine(source.path()), "': the weight ",
                                                     io::Printable(name), " is a scalar, expected at least one axis"));
      }
      Parts parts(source, name);
      for (const std::string& part : native::TensorNamesOf(name, header))
        AQT_RETURN_IF_ERROR(parts.Need(part).status());
      found.Add(std::make_unique<NativeMatrix>(name, shape, parts.found()[0], weights), parts);
    }
    if (const io::TensorInfo* const program = source.Find(native::kProgramTensor); program != nullptr) {
      found.consumed.push_back(program);
      found.notes.push_back("the program in the file is left out");
    }
    return found;
  }
};

}  // namespace

const StoredFormat& Native() {
  static const auto* const format = new Format();
  return *format;
}

}  // namespace aqt::stored
