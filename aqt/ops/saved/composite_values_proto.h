#ifndef AQT_OPS_SAVED_COMPOSITE_VALUES_PROTO_H_
#define AQT_OPS_SAVED_COMPOSITE_VALUES_PROTO_H_

// Values that occur in the messages of many composites (composite_proto.h). Loading gives DataLoss for an illegal
// value. Internal.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/saved/program.pb.h"
#include "google/protobuf/repeated_field.h"

namespace aqt::internal {

// The result of loading a composite.
using MadeComposite = absl::StatusOr<std::shared_ptr<const Composite>>;
using SavedNumbers = google::protobuf::RepeatedField<int64_t>;

template <class... Parts>
absl::Status Corrupt(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}

void Save(const Shape& shape, SavedNumbers* out);
absl::StatusOr<Shape> LoadShape(const SavedNumbers& in);

void Save(const Axes& axes, SavedNumbers* out);
Axes LoadAxes(const SavedNumbers& in);

void Save(const Aval& aval, saved::SavedAval* out);
absl::StatusOr<Aval> LoadAval(const saved::SavedAval& in);

// A dtype is saved by its name, null as "".
absl::StatusOr<DType> LoadDType(const std::string& in);
std::string SavedDType(std::optional<DType> dtype);
absl::StatusOr<std::optional<DType>> LoadOptionalDType(const std::string& in);

}  // namespace aqt::internal

#endif  // AQT_OPS_SAVED_COMPOSITE_VALUES_PROTO_H_
