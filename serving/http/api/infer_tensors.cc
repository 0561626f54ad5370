#include "serving/http/api/infer_tensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/http/api/json_body-inl.h"

namespace aqt::serving {
namespace {

// Nested lists and flat ones, as elements in row-major order. The lists have the tensor's shape, or are one flat list.
absl::Status Flatten(const BodyJson& data, const std::vector<int64_t>& shape, size_t depth, const std::string& where,
                     std::vector<const BodyJson*>* out) {
  const auto is_list = [](const BodyJson& value) { return value.is_array(); };
  const bool nested = absl::c_any_of(data, is_list);
  if (!nested && (depth == 0 || depth + 1 == shape.size())) {
    if (depth > 0 && static_cast<int64_t>(data.size()) != shape[depth]) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has a list of ", data.size(),
                                                     " in \"data\", and its shape has ", shape[depth], " there"));
    }
    for (const BodyJson& value : data) out->push_back(&value);
    return absl::OkStatus();
  }
  if (depth >= shape.size() || static_cast<int64_t>(data.size()) != shape[depth] || !absl::c_all_of(data, is_list)) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": \"data\" is nested, and its lists do not have the shape [",
                                                   absl::StrJoin(shape, ","), "]"));
  }
  for (const BodyJson& part : data) AQT_RETURN_IF_ERROR(Flatten(part, shape, depth + 1, where, out));
  return absl::OkStatus();
}

// A value for a message.
std::string Shown(const BodyJson& value) {
  return io::Printable(value.dump(-1, ' ', /*ensure_ascii=*/true, BodyJson::error_handler_t::replace), 40);
}

// The `count` elements of "data".
absl::Status ReadElements(const BodyJson& data, const std::vector<int64_t>& shape, int64_t count,
                          const std::string& where, std::vector<const BodyJson*>* out) {
  if (!data.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": \"data\" is ", TypeName(data), ", expected a list"));
  }
  AQT_RETURN_IF_ERROR(Flatten(data, shape, 0, where, out));
  if (static_cast<int64_t>(out->size()) == count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where, " has ", out->size(), " values in \"data\", and its shape [",
                                                 absl::StrJoin(shape, ","), "] has ", count));
}

// A number of JSON as T. False if T does not have it.
template <class T>
bool ReadNumber(const BodyJson& value, T* out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) return false;
    *out = value.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!value.is_number_integer()) return false;
    if (value.is_number_unsigned()) {
      const uint64_t x = value.get<uint64_t>();
      if (x > static_cast<uint64_t>(std::numeric_limits<T>::max())) return false;
      *out = static_cast<T>(x);
    } else {
      const int64_t x = value.get<int64_t>();
      if (x < static_cast<int64_t>(std::numeric_limits<T>::min())) return false;
      if (x > 0 && static_cast<uint64_t>(x) > static_cast<uint64_t>(std::numeric_limits<T>::max())) return false;
      *out = static_cast<T>(x);
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) return false;
    *out = static_cast<T>(value.get<double>());
    return std::isfinite(*out);
  } else {
    return false;
  }
  return true;
}

// `count` is the number of elements of `shape`. The array is only made when as many values are there.
absl::StatusOr<Array> ReadNumbers(const BodyJson& data, DType dtype, const std::vector<int64_t>& shape, int64_t count,
                                  const std::string& where) {
  if (dtype == DType::kF16 || dtype == DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is ", DatatypeOf(dtype), ", which JSON cannot hold; send it as binary data"));
  }
  std::vector<const BodyJson*> values;
  AQT_RETURN_IF_ERROR(ReadElements(data, shape, count, where, &values));
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({dtype, Shape(shape)});
  const size_t wrong = VisitDType(dtype, [&]<class T>() -> size_t {
    const absl::Span<T> out = builder.Mutable<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!ReadNumber(*values[i], &out[i])) return i;
    }
    return values.size();
  });
  if (wrong == values.size()) return std::move(builder).Build();
  return absl::InvalidArgumentError(absl::StrCat(where, ": value ", wrong, " of \"data\" is ", Shown(*values[wrong]),
                                                 ", expected ", DatatypeOf(dtype)));
}

absl::StatusOr<std::vector<std::string>> ReadStrings(const BodyJson& data, const std::vector<int64_t>& shape,
                                                     int64_t count, const std::string& where) {
  std::vector<const BodyJson*> values;
  AQT_RETURN_IF_ERROR(ReadElements(data, shape, count, where, &values));
  std::vector<std::string> strings;
  for (const BodyJson* value : values) {
    if (!value->is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " is BYTES, and \"data\" has ", Shown(*value), ", expected strings"));
    }
    strings.push_back(value->get_ref<const std::string&>());
  }
  return strings;
}

// Reads one request.
class Reader {
 public:
  Reader(absl::string_view binary, const InferLimits& limits) : binary_(binary), limits_(limits) {}

  absl::StatusOr<InferRequest> Read(const BodyJson& json);

 private:
  absl::StatusOr<InferTensor> ReadInput(const BodyJson& json, const std::string& where);
  absl::Status ReadData(FieldReader& fields, const std::string& path, const std::string& datatype, InferTensor& tensor);
  absl::StatusOr<absl::string_view> TakeBytes(int64_t size, const std::string& where);
  absl::Status ReadOutputs(const BodyJson& list, InferRequest& request);

  absl::string_view binary_;  // what is left
  const InferLimits& limits_;
};

absl::Status CheckObject(const BodyJson& json, const std::string& where) {
  if (json.is_object()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", where, "\" is ", TypeName(json), ", expected an object"));
}

// The object "parameters", or an empty one.
absl::StatusOr<BodyJson> Parameters(FieldReader& fields, const std::string& where) {
  const BodyJson* json = fields.Get("parameters");
  if (json == nullptr) return BodyJson(BodyJson::object());
  AQT_RETURN_IF_ERROR(CheckObject(*json, absl::StrCat(where, "parameters")));
  return *json;
}

absl::StatusOr<std::vector<int64_t>> ReadShape(FieldReader& fields, const std::string& where) {
  const BodyJson* json = fields.Get("shape");
  if (json == nullptr || !json->is_array() || json->size() > kMaxInferRank) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": \"shape\" is ",
                                                   json == nullptr ? "missing" : TypeName(*json),
                                                   ", expected a list of up to ", kMaxInferRank, " extents"));
  }
  std::vector<int64_t> shape;
  for (const BodyJson& extent : *json) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": \"shape\" is ", Shown(*json),
                                                     ", expected extents of 0 and more, and less than 2^31 elements"));
    }
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

absl::StatusOr<absl::string_view> Reader::TakeBytes(int64_t size, const std::string& where) {
  if (static_cast<int64_t>(binary_.size()) < size) {
    return absl::InvalidArgumentError(absl::StrCat(where, " has a binary_data_size of ", size, ", and ", binary_.size(),
                                                   " bytes are left in the body"));
  }
  const absl::string_view bytes = binary_.substr(0, static_cast<size_t>(size));
  binary_.remove_prefix(static_cast<size_t>(size));
  return bytes;
}

// `path` is that of the input, "inputs[0].".
absl::Status Reader::ReadData(FieldReader& fields, const std::string& path, const std::string& datatype,
                              InferTensor& tensor) {
  const std::string where = InputText(tensor.name);
  AQT_ASSIGN_OR_RETURN(const std::optional<DType> dtype, ParseDatatype(datatype, where));
  AQT_ASSIGN_OR_RETURN(tensor.shape, ReadShape(fields, where));
  AQT_ASSIGN_OR_RETURN(const int64_t count, CountElements(tensor.shape, where));
  AQT_ASSIGN_OR_RETURN(const BodyJson parameters, Parameters(fields, path));
  FieldReader parameter_fields(parameters, absl::StrCat(path, "parameters."));
  AQT_ASSIGN_OR_RETURN(const auto size, parameter_fields.Int("binary_data_size", 0, INT32_MAX));
  AQT_RETURN_IF_ERROR(parameter_fields.String("content_type").status());  // a hint of other clients: "str"
  AQT_RETURN_IF_ERROR(parameter_fields.CheckAllRead());
  const BodyJson* data = fields.Get("data");
  if ((data != nullptr) == size.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has ", size.has_value() ? "both" : "neither", " \"data\" and a binary_data_size"));
  }
  if (size.has_value()) {
    AQT_ASSIGN_OR_RETURN(const absl::string_view bytes, TakeBytes(*size, where));
    return SetBytes(bytes, dtype, limits_, where, tensor);
  }
  tensor.is_bytes = !dtype.has_value();
  if (tensor.is_bytes) {
    AQT_ASSIGN_OR_RETURN(tensor.strings, ReadStrings(*data, tensor.shape, count, where));
  } else {
    AQT_ASSIGN_OR_RETURN(tensor.array, ReadNumbers(*data, *dtype, tensor.shape, count, where));
  }
  return absl::OkStatus();
}

absl::StatusOr<InferTensor> Reader::ReadInput(const BodyJson& json, const std::string& where) {
  AQT_RETURN_IF_ERROR(CheckObject(json, where));
  const std::string path = absl::StrCat(where, ".");
  FieldReader fields(json, path);
  InferTensor tensor;
  AQT_ASSIGN_OR_RETURN(tensor.name, fields.RequiredString("name"));
  AQT_ASSIGN_OR_RETURN(const std::string datatype, fields.RequiredString("datatype"));
  AQT_RETURN_IF_ERROR(ReadData(fields, path, datatype, tensor));
  AQT_RETURN_IF_ERROR(fields.CheckAllRead());
  return tensor;
}

absl::Status Reader::ReadOutputs(const BodyJson& list, InferRequest& request) {
  if (!list.is_array() || static_cast<int64_t>(list.size()) > limits_.tensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"outputs\" is ", TypeName(list), ", expected a list of up to ", limits_.tensors, " outputs"));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = absl::StrCat("outputs[", i, "]");
    AQT_RETURN_IF_ERROR(CheckObject(list[i], where));
    FieldReader fields(list[i], absl::StrCat(where, "."));
    InferRequest::Output output;
    AQT_ASSIGN_OR_RETURN(output.name, fields.RequiredString("name"));
    AQT_ASSIGN_OR_RETURN(const BodyJson parameters, Parameters(fields, absl::StrCat(where, ".")));
    AQT_RETURN_IF_ERROR(fields.CheckAllRead());
    FieldReader parameter_fields(parameters, absl::StrCat(where, ".parameters."));
    AQT_ASSIGN_OR_RETURN(const auto wanted, parameter_fields.Bool("binary_data"));
    AQT_RETURN_IF_ERROR(parameter_fields.CheckAllRead());
    output.binary = wanted.value_or(request.binary_outputs);
    AQT_RETURN_IF_ERROR(AddOutput(std::move(output), request));
  }
  return absl::OkStatus();
}

absl::StatusOr<InferRequest> Reader::Read(const BodyJson& json) {
  FieldReader fields(json);
  InferRequest request;
  AQT_ASSIGN_OR_RETURN(const auto id, fields.String("id"));
  request.id = id.value_or("");
  AQT_ASSIGN_OR_RETURN(request.model_name, fields.String("model_name"));
  AQT_ASSIGN_OR_RETURN(request.model_version, fields.String("model_version"));
  AQT_ASSIGN_OR_RETURN(const BodyJson parameters, Parameters(fields, ""));
  FieldReader parameter_fields(parameters, "parameters.");
  AQT_ASSIGN_OR_RETURN(const auto binary, parameter_fields.Bool("binary_data_output"));
  AQT_RETURN_IF_ERROR(parameter_fields.CheckAllRead());
  request.binary_outputs = binary.value_or(false);
  const BodyJson* inputs = fields.Get("inputs");
  if (inputs == nullptr || !inputs->is_array() || static_cast<int64_t>(inputs->size()) > limits_.tensors) {
    return fields.Error("inputs", absl::StrCat("is ", inputs == nullptr ? "missing" : TypeName(*inputs),
                                               ", expected a list of up to ", limits_.tensors, " tensors"));
  }
  for (size_t i = 0; i < inputs->size(); ++i) {
    AQT_ASSIGN_OR_RETURN(InferTensor tensor, ReadInput((*inputs)[i], absl::StrCat("inputs[", i, "]")));
    AQT_RETURN_IF_ERROR(AddInput(std::move(tensor), limits_, request));
  }
  if (const BodyJson* outputs = fields.Get("outputs"); outputs != nullptr) {
    AQT_RETURN_IF_ERROR(ReadOutputs(*outputs, request));
  }
  AQT_RETURN_IF_ERROR(fields.CheckAllRead());
  if (binary_.empty()) return request;
  return absl::InvalidArgumentError(absl::StrCat(binary_.size(), " bytes at the end of the body belong to no input"));
}

// ---- answers

// Appends the elements as JSON. False for a value that is not finite.
bool AppendNumbers(const Array& array, std::string* out) {
  return VisitDType(array.dtype(), [&]<class T>() {
    bool first = true;
    for (const T x : array.View<T>()) {
      if (!std::exchange(first, false)) out->push_back(',');
      if constexpr (std::is_same_v<T, bool>) {
        out->append(x ? "true" : "false");
      } else if constexpr (std::is_integral_v<T>) {
        absl::StrAppend(out, static_cast<int64_t>(x));
      } else if constexpr (std::is_same_v<T, double>) {
        if (!std::isfinite(x)) return false;
        char text[32];
        out->append(text, std::to_chars(text, text + sizeof(text), x).ptr);
      } else {
        const float value = ConvertElement<float>(x);
        if (!std::isfinite(value)) return false;
        AppendFloat(value, out);
      }
    }
    return true;
  });
}

absl::StatusOr<std::string> DataJson(const InferTensor& tensor) {
  std::string text = "[";
  if (tensor.is_bytes) {
    for (const std::string& value : tensor.strings) {
      absl::StrAppend(&text, text.size() > 1 ? "," : "", AnswerText(AnswerJson(value)));
    }
  } else if (!AppendNumbers(tensor.array, &text)) {
    return absl::InvalidArgumentError(absl::StrCat("the output '", tensor.name,
                                                   "' has a value that is not finite, which ",
                                                   "JSON cannot tell; ask for it with binary_data"));
  }
  text.push_back(']');
  return text;
}

}  // namespace

absl::StatusOr<InferRequest> ParseInfer(absl::string_view body, std::optional<int64_t> json_bytes,
                                        const InferLimits& limits) {
  const int64_t size = json_bytes.value_or(static_cast<int64_t>(body.size()));
  if (size < 0 || size > static_cast<int64_t>(body.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("Inference-Header-Content-Length is ", size, ", and the body has ", body.size(), " bytes"));
  }
  AQT_ASSIGN_OR_RETURN(const BodyJson json, ParseBody(body.substr(0, static_cast<size_t>(size)),
                                                      {.depth = 3 + kMaxInferRank, .values = limits.values}));
  return Reader(body.substr(static_cast<size_t>(size)), limits).Read(json);
}

absl::StatusOr<InferAnswer> InferAnswerOf(absl::string_view model, const InferRequest& request,
                                          const std::vector<InferTensor>& outputs) {
  std::string text =
      absl::StrCat("{\"model_name\":", AnswerText(AnswerJson(std::string(model))), ",\"model_version\":\"1\"");
  if (!request.id.empty()) absl::StrAppend(&text, ",\"id\":", AnswerText(AnswerJson(request.id)));
  text.append(",\"outputs\":[");
  std::string binary;
  bool any_binary = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const InferTensor& tensor = outputs[i];
    const auto named = absl::c_find_if(request.outputs, [&](const auto& o) { return o.name == tensor.name; });
    const bool is_binary = named == request.outputs.end() ? request.binary_outputs : named->binary;
    absl::StrAppend(&text, i > 0 ? "," : "", "{\"name\":", AnswerText(AnswerJson(tensor.name)), ",\"datatype\":\"",
                    DatatypeOf(tensor), "\",\"shape\":[", absl::StrJoin(tensor.shape, ","), "],");
    if (is_binary) {
      const std::string bytes = BytesOf(tensor);
      absl::StrAppend(&text, "\"parameters\":{\"binary_data_size\":", bytes.size(), "}}");
      binary.append(bytes);
      any_binary = true;
    } else {
      AQT_ASSIGN_OR_RETURN(const std::string data, DataJson(tensor));
      absl::StrAppend(&text, "\"data\":", data, "}");
    }
  }
  text.append("]}");
  InferAnswer answer;
  if (any_binary) answer.json_bytes = static_cast<int64_t>(text.size());
  answer.body = std::move(text);
  answer.body.append(binary);
  return answer;
}

}  // namespace aqt::serving
