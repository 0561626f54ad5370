#include "serving/http/api/infer_request.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"

namespace aqt::serving {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::pair<const char*, DType> kDatatypes[] = {
    {"BOOL", DType::kBool}, {"INT8", DType::kS8},    {"UINT8", DType::kU8},  {"INT16", DType::kS16},
    {"INT32", DType::kS32}, {"UINT32", DType::kU32}, {"INT64", DType::kS64}, {"FP16", DType::kF16},
    {"BF16", DType::kBF16}, {"FP32", DType::kF32},   {"FP64", DType::kF64},
};
constexpr char kBytes[] = "BYTES";

absl::StatusOr<Array> NumbersOfBytes(absl::string_view bytes, DType dtype, const std::vector<int64_t>& shape,
                                     int64_t count, absl::string_view where) {
  const int64_t expected = count * SizeOf(dtype);
  if (static_cast<int64_t>(bytes.size()) != expected) {
    return absl::InvalidArgumentError(absl::StrCat(where, " has ", bytes.size(), " bytes, and ", DatatypeOf(dtype),
                                                   " of shape [", absl::StrJoin(shape, ","), "] has ", expected));
  }
  if (dtype == DType::kBool && absl::c_any_of(bytes, [](char c) { return c != 0 && c != 1; })) {
    return absl::InvalidArgumentError(absl::StrCat(where, " is BOOL, and has other bytes than 0 and 1"));
  }
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({dtype, Shape(shape)});
  if (expected > 0) std::memcpy(builder.data(), bytes.data(), bytes.size());
  return std::move(builder).Build();
}

absl::Status TooManyStrings(const InferLimits& limits) {
  return absl::InvalidArgumentError(absl::StrCat("the request has more than ", limits.strings, " strings"));
}

absl::StatusOr<std::vector<std::string>> StringsOfBytes(absl::string_view bytes, int64_t count,
                                                        absl::string_view where) {
  std::vector<std::string> strings;
  while (!bytes.empty()) {
    uint32_t size = 0;
    if (bytes.size() >= sizeof(size)) std::memcpy(&size, bytes.data(), sizeof(size));
    if (bytes.size() < sizeof(size) || bytes.size() - sizeof(size) < size) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": string ", strings.size(), " is not complete"));
    }
    if (static_cast<int64_t>(strings.size()) == count) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has more than the ", count, " strings of its shape"));
    }
    strings.emplace_back(bytes.substr(sizeof(size), size));
    bytes.remove_prefix(sizeof(size) + size);
  }
  if (static_cast<int64_t>(strings.size()) == count) return strings;
  return absl::InvalidArgumentError(
      absl::StrCat(where, " has ", strings.size(), " strings, and its shape has ", count));
}

}  // namespace

absl::Status CheckModelVersion(absl::string_view version) {
  if (version == kModelVersion) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("every model has only the version ", kModelVersion));
}

absl::string_view DatatypeOf(DType dtype) {
  for (const auto& [name, row] : kDatatypes) {
    if (row == dtype) return name;
  }
  return "";
}

absl::string_view DatatypeOf(const InferTensor& tensor) {
  return tensor.is_bytes ? kBytes : DatatypeOf(tensor.array.dtype());
}

absl::StatusOr<std::optional<DType>> ParseDatatype(absl::string_view datatype, absl::string_view where) {
  if (datatype == kBytes) return std::nullopt;
  for (const auto& [name, dtype] : kDatatypes) {
    if (name == datatype) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": the datatype ", io::Printable(datatype, 40), " is not supported"));
}

absl::StatusOr<int64_t> CountElements(const std::vector<int64_t>& shape, absl::string_view where) {
  int64_t count = 1;
  bool valid = shape.size() <= kMaxInferRank;
  for (size_t i = 0; i < shape.size() && valid; ++i) {
    valid = shape[i] >= 0 && shape[i] <= INT32_MAX && count * shape[i] <= INT32_MAX;
    if (valid) count *= shape[i];
  }
  if (valid) return count;
  return absl::InvalidArgumentError(absl::StrCat(where, ": \"shape\" is [",
                                                 io::Printable(absl::StrJoin(shape, ","), 40), "], expected up to ",
                                                 kMaxInferRank, " extents of 0 and more, and less than 2^31 elements"));
}

absl::Status SetBytes(absl::string_view bytes, std::optional<DType> dtype, const InferLimits& limits,
                      absl::string_view where, InferTensor& tensor) {
  AQT_ASSIGN_OR_RETURN(const int64_t count, CountElements(tensor.shape, where));
  tensor.is_bytes = !dtype.has_value();
  if (tensor.is_bytes) {
    // Four bytes of the body would become a string of 32.
    if (count > limits.strings) return TooManyStrings(limits);
    AQT_ASSIGN_OR_RETURN(tensor.strings, StringsOfBytes(bytes, count, where));
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(tensor.array, NumbersOfBytes(bytes, *dtype, tensor.shape, count, where));
  return absl::OkStatus();
}

std::string BytesOf(const InferTensor& tensor) {
  if (!tensor.is_bytes) {
    return std::string(static_cast<const char*>(tensor.array.data()), static_cast<size_t>(tensor.array.num_bytes()));
  }
  std::string bytes;
  for (const std::string& text : tensor.strings) {
    const uint32_t size = static_cast<uint32_t>(text.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes.append(text);
  }
  return bytes;
}

absl::Status AddInput(InferTensor tensor, const InferLimits& limits, InferRequest& request) {
  int64_t strings = static_cast<int64_t>(tensor.strings.size());
  for (const InferTensor& other : request.inputs) {
    strings += static_cast<int64_t>(other.strings.size());
    if (other.name == tensor.name) return absl::InvalidArgumentError(InputText(tensor.name) + " is given twice");
  }
  if (strings > limits.strings) return TooManyStrings(limits);
  for (const std::string& text : tensor.strings) {
    if (static_cast<int64_t>(text.size()) > limits.string_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(InputText(tensor.name), " has a string of ", text.size(),
                                                     " bytes, expected at most ", limits.string_bytes));
    }
  }
  request.inputs.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status AddOutput(InferRequest::Output output, InferRequest& request) {
  if (absl::c_any_of(request.outputs, [&](const auto& other) { return other.name == output.name; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("the output '", io::Printable(output.name, 60), "' is asked for twice"));
  }
  request.outputs.push_back(std::move(output));
  return absl::OkStatus();
}

std::string InputText(absl::string_view name) { return absl::StrCat("the input '", io::Printable(name, 60), "'"); }

}  // namespace aqt::serving
