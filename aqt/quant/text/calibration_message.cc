#include "aqt/quant/text/calibration_message.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace aqt::internal {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The field of config::Quantizer that holds each calibration. Its message has the fields of the struct under the same
// names.
template <class C>
struct MessageField {
  int number;
};
constexpr std::tuple kMessageFields = {
    MessageField<AbsMax>{config::Quantizer::kAbsMaxFieldNumber},
    MessageField<AbsMean>{config::Quantizer::kAbsMeanFieldNumber},
    MessageField<Constant>{config::Quantizer::kConstantFieldNumber},
    MessageField<SnrSearch>{config::Quantizer::kSnrSearchFieldNumber},
    MessageField<Percentile>{config::Quantizer::kPercentileFieldNumber},
    MessageField<MeanOfAbsMax>{config::Quantizer::kMeanOfAbsMaxFieldNumber},
    MessageField<WeightedStats>{config::Quantizer::kWeightedStatsFieldNumber},
    MessageField<DelayedScaling>{config::Quantizer::kDelayedScalingFieldNumber},
};
static_assert(std::tuple_size_v<decltype(kMessageFields)> == std::variant_size_v<Calibration>);

// Written even if they have their default, so that a text is explicit.
constexpr absl::string_view kAlwaysWritten[] = {"p", "bound", "percentile", "amax_history_length"};

template <class C>
const FieldDescriptor* FieldOf() {
  return config::Quantizer::descriptor()->FindFieldByNumber(std::get<MessageField<C>>(kMessageFields).number);
}

const FieldDescriptor* FieldNamed(const Message& m, const char* name) {
  const FieldDescriptor* field = m.GetDescriptor()->FindFieldByName(name);
  AQT_CHECK(field != nullptr);  // the message's field differs from the struct's
  return field;
}

// ---- structs to messages

void Write(const ConstantValue& value, config::ConstantValue* out) {
  if (const double* number = std::get_if<double>(&value)) {
    out->set_number(*number);
    return;
  }
  const Array& array = std::get<ConstantArray>(value).array;
  config::ConstantArray* message = out->mutable_array();
  message->set_dtype(DTypeText(array.dtype()));
  message->mutable_shape()->Add(array.shape().begin(), array.shape().end());
  const Array doubles = Cast(array, DType::kF64);
  for (const double v : doubles.View<double>()) message->add_values(v);
}

void Set(double value, const FieldDescriptor* field, Message* m) { m->GetReflection()->SetDouble(m, field, value); }
void Set(bool value, const FieldDescriptor* field, Message* m) { m->GetReflection()->SetBool(m, field, value); }
void Set(int value, const FieldDescriptor* field, Message* m) { m->GetReflection()->SetInt32(m, field, value); }
void Set(int64_t value, const FieldDescriptor* field, Message* m) { m->GetReflection()->SetInt64(m, field, value); }
void Set(const std::vector<double>& values, const FieldDescriptor* field, Message* m) {
  for (const double value : values) m->GetReflection()->AddDouble(m, field, value);
}
void Set(const ConstantValue& value, const FieldDescriptor* field, Message* m) {
  Write(value, static_cast<config::ConstantValue*>(m->GetReflection()->MutableMessage(m, field)));
}
template <class T>
void Set(const std::optional<T>& value, const FieldDescriptor* field, Message* m) {
  if (value.has_value()) Set(*value, field, m);
}

// ---- messages to structs

absl::StatusOr<ConstantArray> Read(const config::ConstantArray& m, const ConfigPath& path) {
  AQT_ASSIGN_OR_RETURN(const std::optional<DType> dtype,
                       ReadDType(m.has_dtype() ? m.dtype() : DTypeText(std::nullopt), path.In(m, "dtype")));
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    return path.In(m, "dtype").Error("an array needs a dtype: f32, bf16 or f16");
  }
  const Shape shape(std::vector<int64_t>(m.shape().begin(), m.shape().end()));
  if (const absl::Status status = CheckShape(shape); !status.ok()) return path.In(m, "shape").At(status);
  if (shape.num_elements() != m.values_size()) {
    return path.In(m, "values")
        .Error(absl::StrCat("the shape ", shape.ToString(), " has ", shape.num_elements(), " elements, but there are ",
                            m.values_size(), " values"));
  }
  const ArrayRef values(m.values().data(), shape);
  return ConstantArray{Cast(values, *dtype)};
}

absl::StatusOr<ConstantValue> Read(const config::ConstantValue& m, const ConfigPath& path) {
  switch (m.value_case()) {
    case config::ConstantValue::kNumber: return ConstantValue(m.number());
    case config::ConstantValue::kArray: {
      AQT_ASSIGN_OR_RETURN(ConstantArray array, Read(m.array(), path.In(m, "array")));
      return ConstantValue(std::move(array));
    }
    case config::ConstantValue::VALUE_NOT_SET: break;
  }
  return path.Error("needs number or array");
}

absl::Status Get(const Message& m, const FieldDescriptor* field, const ConfigPath&, double& value) {
  value = m.GetReflection()->GetDouble(m, field);
  return absl::OkStatus();
}
absl::Status Get(const Message& m, const FieldDescriptor* field, const ConfigPath&, bool& value) {
  value = m.GetReflection()->GetBool(m, field);
  return absl::OkStatus();
}
absl::Status Get(const Message& m, const FieldDescriptor* field, const ConfigPath&, int& value) {
  value = m.GetReflection()->GetInt32(m, field);
  return absl::OkStatus();
}
absl::Status Get(const Message& m, const FieldDescriptor* field, const ConfigPath&, int64_t& value) {
  value = m.GetReflection()->GetInt64(m, field);
  return absl::OkStatus();
}
absl::Status Get(const Message& m, const FieldDescriptor* field, const ConfigPath&, std::vector<double>& values) {
  for (int i = 0; i < m.GetReflection()->FieldSize(m, field); ++i) {
    values.push_back(m.GetReflection()->GetRepeatedDouble(m, field, i));
  }
  return absl::OkStatus();
}
absl::Status Get(const Message& m, const FieldDescriptor* field, const ConfigPath& path, ConstantValue& value) {
  AQT_ASSIGN_OR_RETURN(value,
                       Read(static_cast<const config::ConstantValue&>(m.GetReflection()->GetMessage(m, field)), path));
  return absl::OkStatus();
}
template <class T>
absl::Status Get(const Message& m, const FieldDescriptor* field, const ConfigPath& path, std::optional<T>& value) {
  return Get(m, field, path, value.emplace());
}

bool IsSet(const Message& m, const FieldDescriptor* field) {
  return field->is_repeated() ? m.GetReflection()->FieldSize(m, field) > 0 : m.GetReflection()->HasField(m, field);
}

// Fields that are not set keep their default.
template <class C>
absl::StatusOr<std::optional<Calibration>> ReadAs(const Message& m, const ConfigPath& path) {
  C c;
  absl::Status status;
  int num_fields = 0;
  CalibrationTraits<C>::VisitFields(c, [&](const char* name, auto& value) {
    ++num_fields;
    const FieldDescriptor* field = FieldNamed(m, name);
    if (status.ok() && IsSet(m, field)) status = Get(m, field, path.In(m, name), value);
  });
  AQT_CHECK(num_fields == m.GetDescriptor()->field_count());  // else the struct lacks a field of the message
  AQT_RETURN_IF_ERROR(status);
  return std::optional<Calibration>(std::move(c));
}

}  // namespace

void WriteCalibration(const Calibration& calibration, config::Quantizer* out) {
  std::visit(
      [&]<class C>(const C& c) {
        Message* m = out->GetReflection()->MutableMessage(out, FieldOf<C>());
        CalibrationTraits<C>::VisitFields(c, [&](const char* name, const auto& value) {
          const bool always = std::count(std::begin(kAlwaysWritten), std::end(kAlwaysWritten), name) > 0;
          if (always || !IsDefault<C>(name, value)) Set(value, FieldNamed(*m, name), m);
        });
      },
      calibration);
}

absl::StatusOr<std::optional<Calibration>> ReadCalibration(const config::Quantizer& m, const ConfigPath& path) {
  if (m.calibration_case() == config::Quantizer::CALIBRATION_NOT_SET) return std::optional<Calibration>();
  absl::StatusOr<std::optional<Calibration>> calibration;
  const auto read_if_set = [&]<class C>(const MessageField<C>& entry) {
    if (entry.number != m.calibration_case()) return false;
    const FieldDescriptor* field = FieldOf<C>();
    calibration = ReadAs<C>(m.GetReflection()->GetMessage(m, field), path.In(m, std::string(field->name()).c_str()));
    return true;
  };
  const bool found = std::apply([&](const auto&... entry) { return (read_if_set(entry) || ...); }, kMessageFields);
  AQT_CHECK(found);  // else kMessageFields lacks a calibration of the proto
  return calibration;
}

}  // namespace aqt::internal
