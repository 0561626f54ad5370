#include "aqt/stored/stored_weight.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"

namespace aqt::stored {
namespace {

constexpr char kRemedy[] = "download the checkpoint again, or ask those who made it for a complete one";

std::string Text(io::FileDType dtype) {
  const absl::string_view text = io::ToString(dtype);
  return std::string(text.data(), text.size());
}

std::string OneOf(const std::vector<std::string>& texts) { return absl::StrJoin(texts, " or "); }

}  // namespace

StoredWeight::StoredWeight(std::string name, Shape shape, const io::TensorInfo* main)
    : name_(std::move(name)), shape_(std::move(shape)), main_(main), rows_(1) {
  AQT_CHECK(shape_.rank() > 0);
  for (int64_t axis = 0; axis + 1 < shape_.rank(); ++axis) rows_ *= shape_[axis];
}

absl::StatusOr<WeightCodes> StoredWeight::ReadCodes(const PartReader&) const {
  return absl::UnimplementedError(absl::StrCat(io::Printable(name_), " has no codes: ", WhyNoCodes()));
}

std::string Describe(const io::TensorSource& source, const io::TensorInfo& tensor) {
  return absl::StrCat("'", io::PrintableLine(source.path()), "', tensor ", io::Printable(tensor.name), " ",
                      io::ToString(tensor.dtype), tensor.shape.ToString());
}

const io::TensorInfo* Parts::Optional(absl::string_view name) {
  const io::TensorInfo* const tensor = source_.Find(name);
  if (tensor != nullptr) found_.push_back(tensor);
  return tensor;
}

absl::StatusOr<const io::TensorInfo*> Parts::Need(absl::string_view name) {
  const io::TensorInfo* const tensor = Optional(name);
  if (tensor != nullptr) return tensor;
  return absl::DataLossError(absl::StrCat("'", io::PrintableLine(source_.path()), "': the quantized weight ",
                                          io::Printable(weight_), " is incomplete: the tensor ", io::Printable(name),
                                          " is missing; ", kRemedy));
}

absl::Status Parts::Wrong(const io::TensorInfo& tensor, absl::string_view expected) const {
  return absl::DataLossError(absl::StrCat(Describe(source_, tensor), ", a part of the quantized weight ",
                                          io::Printable(weight_), ": expected ", expected, "; ", kRemedy));
}

absl::Status Parts::CheckDType(const io::TensorInfo& tensor, absl::Span<const io::FileDType> dtypes) const {
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) != dtypes.end()) return absl::OkStatus();
  std::vector<std::string> texts;
  for (const io::FileDType dtype : dtypes) texts.push_back(Text(dtype));
  return Wrong(tensor, OneOf(texts));
}

absl::Status Parts::Check(const io::TensorInfo& tensor, absl::Span<const io::FileDType> dtypes,
                          absl::Span<const Shape> shapes) const {
  AQT_RETURN_IF_ERROR(CheckDType(tensor, dtypes));
  if (std::find(shapes.begin(), shapes.end(), tensor.shape) != shapes.end()) return absl::OkStatus();
  std::vector<std::string> texts;
  for (const Shape& shape : shapes) texts.push_back(shape.ToString());
  return Wrong(tensor, absl::StrCat("the shape ", OneOf(texts)));
}

absl::StatusOr<const io::TensorInfo*> Parts::Need(absl::string_view name, absl::Span<const io::FileDType> dtypes,
                                                  absl::Span<const Shape> shapes) {
  AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const tensor, Need(name));
  AQT_RETURN_IF_ERROR(Check(*tensor, dtypes, shapes));
  return tensor;
}

}  // namespace aqt::stored
