#include "serving/grpc/infer_messages.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/message.h"
#include "google/protobuf/reflection.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/wire_format_lite.h"

namespace aqt::serving {
namespace {

using Contents = inference::InferTensorContents;
using Parameters = google::protobuf::Map<std::string, inference::InferParameter>;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

absl::Status NoMessage() {
  return absl::InvalidArgumentError("the request is not a ModelInferRequest: its bytes are not a message");
}

// ---- counting before parsing

// Goes over the fields of messages without making them.
class Counter {
 public:
  explicit Counter(const InferLimits& limits) : limits_(limits) {}

  absl::Status Request(absl::string_view bytes) {
    return EachField(bytes, [this](int number, int, absl::string_view value) {
      if (number == 4 || number == 7) return Count("parameters or raw contents", parameters_, limits_.tensors);
      if (number != 5 && number != 6) return absl::OkStatus();
      AQT_RETURN_IF_ERROR(Count("inputs and outputs", tensors_, 2 * limits_.tensors));
      return EachField(value, [&, number](int inner, int, absl::string_view part) {
        if (inner == (number == 5 ? 4 : 2)) return Count("parameters or raw contents", parameters_, limits_.tensors);
        if (number == 5 && inner == 3) return Numbers(part);
        return number == 5 && inner == 5 ? InContents(part) : absl::OkStatus();
      });
    });
  }

 private:
  absl::Status InContents(absl::string_view bytes) {
    return EachField(bytes, [this](int number, int wire, absl::string_view value) {
      if (number == Contents::kBytesContentsFieldNumber) return Count("strings", strings_, limits_.strings);
      const int64_t size = number == Contents::kFp32ContentsFieldNumber   ? 4
                           : number == Contents::kFp64ContentsFieldNumber ? 8
                                                                          : 1;
      if (wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED && size > 1) {
        return Count("numbers", numbers_, limits_.values, static_cast<int64_t>(value.size()) / size);
      }
      return Numbers(value);
    });
  }

  // Varints in a packed list; a single one has no bytes here.
  absl::Status Numbers(absl::string_view packed) {
    const auto ends = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    return Count("numbers", numbers_, limits_.values,
                 std::max<int64_t>(1, std::count_if(packed.begin(), packed.end(), ends)));
  }

  static absl::Status Count(absl::string_view what, int64_t& total, int64_t limit, int64_t n = 1) {
    total += n;
    if (total <= limit) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the request has more than ", limit, " ", what,
                                                   what == "numbers" ? "; send tensors in raw_input_contents" : ""));
  }

  // `visit` gets the number of each field, its wire type, and its bytes if they have a length.
  template <class Visit>
  static absl::Status EachField(absl::string_view bytes, const Visit& visit) {
    CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
    while (in.CurrentPosition() < static_cast<int>(bytes.size())) {
      const uint32_t tag = in.ReadTagNoLastTag();
      const int wire = WireFormatLite::GetTagWireType(tag);
      absl::string_view value;
      bool whole = WireFormatLite::GetTagFieldNumber(tag) > 0;
      if (whole && wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        uint32_t size = 0;
        whole = in.ReadVarint32(&size) && size <= bytes.size() - static_cast<size_t>(in.CurrentPosition());
        if (whole) {
          value = bytes.substr(static_cast<size_t>(in.CurrentPosition()), size);
          whole = in.Skip(static_cast<int>(size));
        }
      } else if (whole) {
        whole = WireFormatLite::SkipField(&in, tag);
      }
      if (!whole) return NoMessage();
      AQT_RETURN_IF_ERROR(visit(WireFormatLite::GetTagFieldNumber(tag), wire, value));
    }
    return absl::OkStatus();
  }

  const InferLimits& limits_;
  int64_t tensors_ = 0, parameters_ = 0, strings_ = 0, numbers_ = 0;
};

// ---- requests

absl::Status CheckKnown(const google::protobuf::Message& message, absl::string_view where) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, " has a field with the number ", unknown.field(0).number(), ", which is not known"));
}

// Refuses parameters other than `known`, which say nothing that matters here.
absl::Status CheckParameters(const Parameters& parameters, std::initializer_list<absl::string_view> known,
                             absl::string_view where) {
  for (const auto& [name, value] : parameters) {
    if (absl::c_linear_search(known, name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has the parameter '", io::Printable(name, 60), "', which is not supported"));
  }
  return absl::OkStatus();
}

// The list of InferTensorContents that has elements of T: its number, and the type of its elements.
template <class T>
constexpr int NumberOf() {
  if constexpr (std::is_same_v<T, bool>) return Contents::kBoolContentsFieldNumber;
  if constexpr (std::is_same_v<T, int64_t>) return Contents::kInt64ContentsFieldNumber;
  if constexpr (std::is_same_v<T, float>) return Contents::kFp32ContentsFieldNumber;
  if constexpr (std::is_same_v<T, double>) return Contents::kFp64ContentsFieldNumber;
  if constexpr (std::is_integral_v<T>) {
    return std::is_signed_v<T> ? Contents::kIntContentsFieldNumber : Contents::kUintContentsFieldNumber;
  }
  return 0;  // none
}
template <class T>
using Stored = std::conditional_t<std::is_integral_v<T> && sizeof(T) <= 4 && !std::is_same_v<T, bool>,
                                  std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>, T>;

// FP16 and BF16.
bool HasContents(DType dtype) {
  return VisitDType(dtype, []<class T>() { return NumberOf<T>() != 0; });
}

const google::protobuf::FieldDescriptor* Field(int number) { return Contents::descriptor()->FindFieldByNumber(number); }

// Only the list `number` may have elements, `count` of them.
absl::Status CheckLists(const Contents& contents, int number, int64_t count, absl::string_view datatype,
                        absl::string_view where) {
  for (int i = 0; i < Contents::descriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = Contents::descriptor()->field(i);
    const int64_t size = contents.GetReflection()->FieldSize(contents, field);
    if (size == (field->number() == number ? count : 0)) continue;
    if (field->number() == number) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " has ", size, " values in ", field->name(), ", and its shape has ", count));
    }
    return absl::InvalidArgumentError(absl::StrCat(where, " is ", datatype, ", whose values belong in ",
                                                   Field(number)->name(), ", and it has ", field->name()));
  }
  return absl::OkStatus();
}

template <class T>
absl::StatusOr<Array> NumbersOf(const Contents& contents, const std::vector<int64_t>& shape, absl::string_view where) {
  const auto list = contents.GetReflection()->GetRepeatedFieldRef<Stored<T>>(contents, Field(NumberOf<T>()));
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({kDTypeOf<T>, Shape(shape)});
  const absl::Span<T> out = builder.Mutable<T>();
  for (int i = 0; i < list.size(); ++i) {
    const Stored<T> value = list.Get(i);
    out[static_cast<size_t>(i)] = static_cast<T>(value);
    if (static_cast<Stored<T>>(out[static_cast<size_t>(i)]) == value || !std::is_integral_v<T>) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": value ", i, " is ", value, ", expected ", DatatypeOf(kDTypeOf<T>)));
  }
  return std::move(builder).Build();
}

absl::Status SetContents(const Contents& contents, std::optional<DType> dtype, absl::string_view datatype,
                         absl::string_view where, InferTensor& tensor) {
  AQT_ASSIGN_OR_RETURN(const int64_t count, CountElements(tensor.shape, where));
  tensor.is_bytes = !dtype.has_value();
  if (tensor.is_bytes) {
    AQT_RETURN_IF_ERROR(CheckLists(contents, Contents::kBytesContentsFieldNumber, count, datatype, where));
    tensor.strings.assign(contents.bytes_contents().begin(), contents.bytes_contents().end());
    return absl::OkStatus();
  }
  if (!HasContents(*dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is ", datatype, ", which has no contents; send it in raw_input_contents"));
  }
  return VisitDType(*dtype, [&]<class T>() -> absl::Status {
    if constexpr (NumberOf<T>() != 0) {
      AQT_RETURN_IF_ERROR(CheckLists(contents, NumberOf<T>(), count, datatype, where));
      AQT_ASSIGN_OR_RETURN(tensor.array, NumbersOf<T>(contents, tensor.shape, where));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<InferTensor> InputOf(const inference::ModelInferRequest::InferInputTensor& message,
                                    const std::string* raw, const InferLimits& limits) {
  InferTensor tensor;
  tensor.name = message.name();
  const std::string where = InputText(tensor.name);
  AQT_RETURN_IF_ERROR(CheckKnown(message, where));
  AQT_RETURN_IF_ERROR(CheckKnown(message.contents(), where));
  AQT_RETURN_IF_ERROR(CheckParameters(message.parameters(), {"binary_data_size", "content_type"}, where));
  // KServe's client sends it as in REST.
  if (const auto size = message.parameters().find("binary_data_size"); size != message.parameters().end()) {
    const int64_t bytes = raw == nullptr ? 0 : static_cast<int64_t>(raw->size());
    if (size->second.int64_param() != bytes) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has a binary_data_size of ", size->second.int64_param(),
                                                     ", and ", bytes, " bytes in raw_input_contents"));
    }
  }
  AQT_ASSIGN_OR_RETURN(const std::optional<DType> dtype, ParseDatatype(message.datatype(), where));
  tensor.shape.assign(message.shape().begin(), message.shape().end());
  if (raw == nullptr) {
    AQT_RETURN_IF_ERROR(SetContents(message.contents(), dtype, message.datatype(), where, tensor));
  } else if (message.has_contents()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " has contents, and the request has raw_input_contents"));
  } else {
    AQT_RETURN_IF_ERROR(SetBytes(*raw, dtype, limits, where, tensor));
  }
  return tensor;
}

// ---- responses

void SetContents(const InferTensor& tensor, Contents& contents) {
  for (const std::string& text : tensor.strings) contents.add_bytes_contents(text);
  if (tensor.is_bytes) return;
  VisitDType(tensor.array.dtype(), [&]<class T>() {
    if constexpr (NumberOf<T>() != 0) {
      const auto list =
          contents.GetReflection()->GetMutableRepeatedFieldRef<Stored<T>>(&contents, Field(NumberOf<T>()));
      for (const T value : tensor.array.View<T>()) list.Add(static_cast<Stored<T>>(value));
    }
  });
}

}  // namespace

absl::StatusOr<inference::ModelInferRequest> ParseInferMessage(absl::string_view bytes, const InferLimits& limits) {
  AQT_RETURN_IF_ERROR(Counter(limits).Request(bytes));
  inference::ModelInferRequest message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return NoMessage();
  return message;
}

absl::StatusOr<InferRequest> InferRequestOf(const inference::ModelInferRequest& message, const InferLimits& limits) {
  AQT_RETURN_IF_ERROR(CheckKnown(message, "the request"));
  AQT_RETURN_IF_ERROR(CheckParameters(message.parameters(), {"binary_data_output"}, "the request"));
  InferRequest request;
  request.id = message.id();
  const int raw = message.raw_input_contents_size();
  if (raw != 0 && raw != message.inputs_size()) {
    return absl::InvalidArgumentError(absl::StrCat("the request has ", message.inputs_size(), " inputs, and ", raw,
                                                   " entries in raw_input_contents; expected one for each, or none"));
  }
  for (int i = 0; i < message.inputs_size(); ++i) {
    AQT_ASSIGN_OR_RETURN(InferTensor tensor,
                         InputOf(message.inputs(i), raw > 0 ? &message.raw_input_contents(i) : nullptr, limits));
    AQT_RETURN_IF_ERROR(AddInput(std::move(tensor), limits, request));
  }
  for (const auto& output : message.outputs()) {
    const std::string where = absl::StrCat("the output '", io::Printable(output.name(), 60), "'");
    AQT_RETURN_IF_ERROR(CheckKnown(output, where));
    AQT_RETURN_IF_ERROR(CheckParameters(output.parameters(), {"binary_data"}, where));
    AQT_RETURN_IF_ERROR(AddOutput({.name = output.name()}, request));
  }
  return request;
}

inference::ModelInferResponse InferResponseOf(const inference::ModelInferRequest& request,
                                              const std::vector<InferTensor>& outputs) {
  inference::ModelInferResponse response;
  response.set_model_name(request.model_name());
  response.set_model_version(kModelVersion);
  response.set_id(request.id());
  const bool raw = request.raw_input_contents_size() > 0 ||
                   std::any_of(outputs.begin(), outputs.end(), [](const InferTensor& tensor) {
                     return !tensor.is_bytes && !HasContents(tensor.array.dtype());
                   });
  for (const InferTensor& tensor : outputs) {
    auto& output = *response.add_outputs();
    output.set_name(tensor.name);
    output.set_datatype(std::string(DatatypeOf(tensor)));
    for (const int64_t extent : tensor.shape) output.add_shape(extent);
    if (raw) {
      response.add_raw_output_contents(BytesOf(tensor));
    } else {
      SetContents(tensor, *output.mutable_contents());
    }
  }
  return response;
}

}  // namespace aqt::serving
