#include "aqt/ops/saved/composite_values_proto.h"

#include <utility>

#include "absl/types/span.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"

namespace aqt::internal {

void Save(const Shape& shape, SavedNumbers* out) { out->Add(shape.begin(), shape.end()); }
void Save(const Axes& axes, SavedNumbers* out) { out->Add(axes.begin(), axes.end()); }
Axes LoadAxes(const SavedNumbers& in) { return Axes(in.begin(), in.end()); }

absl::StatusOr<Shape> LoadShape(const SavedNumbers& in) {
  Shape shape(absl::MakeConstSpan(in.data(), in.size()));
  AQT_RETURN_IF_ERROR(CheckShape(shape));
  return shape;
}

void Save(const Aval& aval, saved::SavedAval* out) {
  out->set_dtype(std::string(ToString(aval.dtype)));
  Save(aval.shape, out->mutable_shape());
}

absl::StatusOr<Aval> LoadAval(const saved::SavedAval& in) {
  AQT_ASSIGN_OR_RETURN(const DType dtype, LoadDType(in.dtype()));
  AQT_ASSIGN_OR_RETURN(Shape shape, LoadShape(in.shape()));
  return Aval{dtype, std::move(shape)};
}

absl::StatusOr<DType> LoadDType(const std::string& in) {
  const std::optional<DType> dtype = DTypeFromString(in);
  if (dtype.has_value()) return *dtype;
  return Corrupt("\"", in, "\" is no dtype");
}

std::string SavedDType(std::optional<DType> dtype) {
  return dtype.has_value() ? std::string(ToString(*dtype)) : std::string();
}

absl::StatusOr<std::optional<DType>> LoadOptionalDType(const std::string& in) {
  if (in.empty()) return std::optional<DType>();
  AQT_ASSIGN_OR_RETURN(const DType dtype, LoadDType(in));
  return std::optional<DType>(dtype);
}

}  // namespace aqt::internal
