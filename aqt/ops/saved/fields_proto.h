#ifndef AQT_OPS_SAVED_FIELDS_PROTO_H_
#define AQT_OPS_SAVED_FIELDS_PROTO_H_

// Structs of named fields (graph/composite_fields.h) to and from messages. Internal.
//
// A field of the struct and its field of the message have the same name. The C++ type determines how a value is
// written: numbers and texts as such, an enum as its number or its text, a struct as a message, a vector as a repeated
// field, a variant as a oneof, and configurations as messages of configs.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/core/check.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/program.h"
#include "aqt/ops/contraction/aqt_dot_fields.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/ops/saved/composite.pb.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/text/config_proto.h"
#include "aqt/quant/text/semantics_proto.h"
#include "configs/config_text.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace aqt {

template <>
struct FieldNames<Aval> {
  static constexpr const char* kNames[] = {"dtype", "shape"};
};
template <>
struct FieldNames<Slot> {
  static constexpr const char* kNames[] = {"kind", "path"};
};
template <>
struct FieldNames<DotDims> {
  static constexpr const char* kNames[] = {"lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch"};
};

}  // namespace aqt

namespace aqt::internal {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

template <class... Parts>
absl::Status Corrupt(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}

// ---- fields by name

inline const FieldDescriptor* FieldNamed(const Message& message, const std::string& name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  AQT_CHECK(field != nullptr);  // the message lacks a field of the struct
  return field;
}
inline const OneofDescriptor* OneofNamed(const Message& message, const std::string& name) {
  const OneofDescriptor* oneof = message.GetDescriptor()->FindOneofByName(name);
  AQT_CHECK(oneof != nullptr);  // the message lacks a variant of the struct
  return oneof;
}

// The field of a message to which a value is written, or from which it is read.
template <class M>
struct FieldAt {
  M& message;
  std::string name;
  const FieldDescriptor* field() const { return FieldNamed(message, name); }
  const Reflection& reflect() const { return *message.GetReflection(); }
};
using Out = FieldAt<Message>;
using In = FieldAt<const Message>;

inline Message* MutableMessage(const Out& out) { return out.reflect().MutableMessage(&out.message, out.field()); }
inline const Message& GetMessage(const In& in) { return in.reflect().GetMessage(in.message, in.field()); }

// A ConvDims in its saved form.
struct SplitConvDims {
  ConvPadding padding;
  Axes low, high;  // for explicit padding
  Axes window_strides, lhs_dilation, rhs_dilation;
  int64_t feature_group_count;
  static constexpr const char* kFieldNames[] = {
      "padding", "low", "high", "window_strides", "lhs_dilation", "rhs_dilation", "feature_group_count"};
};

template <class F>
void WriteFields(const F& fields, Message* out) {
  VisitFields(fields, [&](const char* name, const auto& value) { Write(value, Out{*out, name}); });
}

// DataLoss if the message has a field that the struct does not have.
inline absl::Status ExpectOnly(absl::Span<const std::string> names, const Message& message) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const OneofDescriptor* oneof = field->real_containing_oneof();
    const std::string name(oneof != nullptr ? oneof->name() : field->name());
    if (std::find(names.begin(), names.end(), name) == names.end())
      return Corrupt("\"", name, "\" is set, but this operation has no such field");
  }
  return absl::OkStatus();
}

// Errors name the field.
template <class F>
absl::Status ReadFields(const Message& in, F& fields) {
  absl::Status status;
  std::vector<std::string> names;
  VisitFields(fields, [&](const char* name, auto& value) {
    if (!status.ok()) return;
    names.push_back(name);
    status = Annotate(Read(In{in, name}, value), name);
  });
  return status.ok() ? ExpectOnly(names, in) : status;
}

// ---- enums

// An enum that is saved as a number: its first and last value and the number of the first. Their order never changes.
template <class E>
struct Numbers {
  E first, last;
  int number;
  const char* what;
};
template <class E>
constexpr Numbers<E> kNumbers = {};
template <>
inline constexpr Numbers<QuantMode> kNumbers<QuantMode> = {QuantMode::kTrain, QuantMode::kServe, 1, "mode"};
template <>
inline constexpr Numbers<PrngLayout> kNumbers<PrngLayout> = {PrngLayout::kPartitionable, PrngLayout::kOriginal, 1,
                                                             "layout of keys"};
template <>  // without the forms that are only for one machine
inline constexpr Numbers<OperandForm> kNumbers<OperandForm> = {OperandForm::kFloat, OperandForm::kQvalueWithScale, 0,
                                                               "form of an operand"};
template <>
inline constexpr Numbers<Side> kNumbers<Side> = {Side::kLhs, Side::kRhs, 0, "side"};
template <>
inline constexpr Numbers<KeyRole> kNumbers<KeyRole> = {KeyRole::kFwdLhs, KeyRole::kConvRhs, 0, "role of an operand"};
template <>
inline constexpr Numbers<ScalingKind> kNumbers<ScalingKind> = {ScalingKind::kSetScaling, ScalingKind::kGetScale, 0,
                                                               "kind of scaling"};

template <class E>
void WriteNumber(E value, const Out& out) {
  constexpr Numbers<E> kOwn = kNumbers<E>;
  AQT_CHECK(kOwn.first <= value && value <= kOwn.last);
  const int number = static_cast<int>(value) - static_cast<int>(kOwn.first) + kOwn.number;
  switch (out.field()->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return out.reflect().SetBool(&out.message, out.field(), number != 0);
    case FieldDescriptor::CPPTYPE_ENUM: return out.reflect().SetEnumValue(&out.message, out.field(), number);
    default: return out.reflect().SetInt32(&out.message, out.field(), number);
  }
}
inline int NumberIn(const In& in) {
  switch (in.field()->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return in.reflect().GetBool(in.message, in.field()) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_ENUM: return in.reflect().GetEnumValue(in.message, in.field());
    default: return in.reflect().GetInt32(in.message, in.field());
  }
}
template <class E>
absl::Status ReadNumber(const In& in, E& value) {
  constexpr Numbers<E> kOwn = kNumbers<E>;
  const int number = NumberIn(in);
  const int64_t index = int64_t{number} - kOwn.number;
  if (index < 0 || index > static_cast<int>(kOwn.last) - static_cast<int>(kOwn.first)) {
    return Corrupt(number, " is no ", kOwn.what);
  }
  value = static_cast<E>(static_cast<int>(kOwn.first) + index);
  return absl::OkStatus();
}

// ---- values of any type without an overload below

template <class T>
void Write(const T& value, const Out& out) {
  const FieldDescriptor* const field = out.field();
  if constexpr (std::is_same_v<T, bool>) out.reflect().SetBool(&out.message, field, value);
  else if constexpr (std::is_same_v<T, int>) out.reflect().SetInt32(&out.message, field, value);
  else if constexpr (std::is_same_v<T, uint32_t>) out.reflect().SetUInt32(&out.message, field, value);
  else if constexpr (std::is_same_v<T, int64_t>) out.reflect().SetInt64(&out.message, field, value);
  else if constexpr (std::is_same_v<T, std::string>) out.reflect().SetString(&out.message, field, value);
  else if constexpr (std::is_enum_v<T>) WriteNumber(value, out);
  else WriteFields(value, MutableMessage(out));
}
template <class T>
absl::Status Read(const In& in, T& value) {
  const FieldDescriptor* const field = in.field();
  if constexpr (std::is_same_v<T, bool>) value = in.reflect().GetBool(in.message, field);
  else if constexpr (std::is_same_v<T, int>) value = in.reflect().GetInt32(in.message, field);
  else if constexpr (std::is_same_v<T, uint32_t>) value = in.reflect().GetUInt32(in.message, field);
  else if constexpr (std::is_same_v<T, int64_t>) value = in.reflect().GetInt64(in.message, field);
  else if constexpr (std::is_same_v<T, std::string>) value = in.reflect().GetString(in.message, field);
  else if constexpr (std::is_enum_v<T>) return ReadNumber(in, value);
  else return ReadFields(GetMessage(in), value);
  return absl::OkStatus();
}

// Enums as their text.
inline void Write(DType value, const Out& out) { Write(std::string(ToString(value)), out); }
inline void Write(SlotKind value, const Out& out) { Write(std::string(ToString(value)), out); }
inline void Write(ConvPadding value, const Out& out) { Write(std::string(ToString(value)), out); }

template <class E>
absl::Status ReadText(const In& in, std::optional<E> (*parse)(absl::string_view), const char* what, E& value) {
  const std::string text = in.reflect().GetString(in.message, in.field());
  const std::optional<E> parsed = parse(text);
  if (!parsed.has_value()) return Corrupt("\"", text, "\" is no ", what);
  value = *parsed;
  return absl::OkStatus();
}
inline std::optional<ConvPadding> PaddingFromString(absl::string_view text) {
  for (const ConvPadding padding : {ConvPadding::kValid, ConvPadding::kSame, ConvPadding::kExplicit}) {
    if (text == ToString(padding)) return padding;
  }
  return std::nullopt;
}
inline absl::Status Read(const In& in, DType& value) { return ReadText(in, &DTypeFromString, "dtype", value); }
inline absl::Status Read(const In& in, SlotKind& value) {
  return ReadText(in, &SlotKindFromString, "kind of slot", value);
}
inline absl::Status Read(const In& in, ConvPadding& value) {
  return ReadText(in, &PaddingFromString, "padding", value);
}

// ---- configurations

inline config::Quantizer* MutableQuantizer(const Out& out) {
  return static_cast<config::Quantizer*>(MutableMessage(out));
}

inline void Write(const Quantizer& value, const Out& out) { *MutableQuantizer(out) = ToProto(value); }
// Inside a quantizer, which needs a calibration to be legal.
inline void Write(const Numerics& value, const Out& out) {
  *MutableQuantizer(out) = ToProto(Quantizer{.numerics = value, .calibration = AbsMax()});
}
inline void Write(const Noise& value, const Out& out) { Write(Numerics(IntSymmetric{.noise = value}), out); }
inline void Write(const DotGeneralConfig& value, const Out& out) {
  *static_cast<config::DotGeneral*>(MutableMessage(out)) = ToProto(value);
}
inline void Write(const Semantics& value, const Out& out) {
  WriteSemantics(value, static_cast<saved::SavedSemantics*>(MutableMessage(out)));
}

inline absl::Status Read(const In& in, Quantizer& value) {
  AQT_ASSIGN_OR_RETURN(value, FromProto(static_cast<const config::Quantizer&>(GetMessage(in))));
  return IsQuantized(value.numerics) ? absl::OkStatus() : Corrupt("the quantizer quantizes nothing");
}
inline absl::Status Read(const In& in, Numerics& value) {
  Quantizer quantizer;
  AQT_RETURN_IF_ERROR(Read(in, quantizer));
  value = std::move(quantizer.numerics);
  return absl::OkStatus();
}
inline absl::Status Read(const In& in, Noise& value) {
  Numerics numerics;
  AQT_RETURN_IF_ERROR(Read(in, numerics));
  const IntSymmetric* integers = std::get_if<IntSymmetric>(&numerics);
  if (integers == nullptr || !integers->noise.has_value()) return Corrupt("there is no noise");
  value = *integers->noise;
  return absl::OkStatus();
}
inline absl::Status Read(const In& in, DotGeneralConfig& value) {
  AQT_ASSIGN_OR_RETURN(value, PlannedFromProto(static_cast<const config::DotGeneral&>(GetMessage(in))));
  return absl::OkStatus();
}
inline absl::Status Read(const In& in, Semantics& value) {
  return ReadSemantics(static_cast<const saved::SavedSemantics&>(GetMessage(in)), config::Place(), &value);
}

// ---- several values

inline void WriteNumbers(absl::Span<const int64_t> values, const Out& out) {
  for (const int64_t value : values) out.reflect().AddInt64(&out.message, out.field(), value);
}
inline void Write(const Axes& value, const Out& out) { WriteNumbers(value, out); }
inline void Write(const Shape& value, const Out& out) { WriteNumbers(value.extents(), out); }

inline absl::Status Read(const In& in, Axes& value) {
  for (int i = 0, n = in.reflect().FieldSize(in.message, in.field()); i < n; ++i) {
    value.push_back(in.reflect().GetRepeatedInt64(in.message, in.field(), i));
  }
  return absl::OkStatus();
}
inline absl::Status Read(const In& in, Shape& value) {
  Axes extents;
  AQT_RETURN_IF_ERROR(Read(in, extents));
  value = Shape(extents);
  return CheckShape(value);
}

// Null: the field is not set.
template <class T>
void Write(const std::optional<T>& value, const Out& out) {
  if (value.has_value()) Write(*value, out);
}
template <class T>
absl::Status Read(const In& in, std::optional<T>& value) {
  return in.reflect().HasField(in.message, in.field()) ? Read(in, value.emplace()) : absl::OkStatus();
}

// Structs.
template <class T>
void Write(const std::vector<T>& values, const Out& out) {
  for (const T& value : values) WriteFields(value, out.reflect().AddMessage(&out.message, out.field()));
}
template <class T>
absl::Status Read(const In& in, std::vector<T>& values) {
  for (int i = 0, n = in.reflect().FieldSize(in.message, in.field()); i < n; ++i) {
    AQT_RETURN_IF_ERROR(ReadFields(in.reflect().GetRepeatedMessage(in.message, in.field(), i), values.emplace_back()));
  }
  return absl::OkStatus();
}

inline void Write(const RaggedDims&, const Out& out) { MutableMessage(out); }
inline absl::Status Read(const In&, RaggedDims&) { return absl::OkStatus(); }

inline void Write(const ConvDims& value, const Out& out) {
  SplitConvDims split{
      value.padding, {}, {}, value.window_strides, value.lhs_dilation, value.rhs_dilation, value.feature_group_count};
  for (const auto& [low, high] : value.explicit_padding) {
    split.low.push_back(low);
    split.high.push_back(high);
  }
  Write(split, out);
}
inline absl::Status Read(const In& in, ConvDims& value) {
  SplitConvDims split;
  AQT_RETURN_IF_ERROR(Read(in, split));
  if (split.low.size() != split.high.size()) {
    return Corrupt("padding has ", split.low.size(), " low, ", split.high.size(), " high");
  }
  value = {.window_strides = split.window_strides,
           .padding = split.padding,
           .lhs_dilation = split.lhs_dilation,
           .rhs_dilation = split.rhs_dilation,
           .feature_group_count = split.feature_group_count};
  for (size_t i = 0; i < split.low.size(); ++i) value.explicit_padding.emplace_back(split.low[i], split.high[i]);
  return absl::OkStatus();
}

// A oneof with the alternatives in the same order.
template <class... T>
void Write(const std::variant<T...>& value, const Out& out) {
  const OneofDescriptor* oneof = OneofNamed(out.message, out.name);
  AQT_CHECK(oneof->field_count() == sizeof...(T));
  const std::string name(oneof->field(static_cast<int>(value.index()))->name());
  std::visit([&](const auto& own) { Write(own, Out{out.message, name}); }, value);
}
template <class... T>
absl::Status Read(const In& in, std::variant<T...>& value) {
  const FieldDescriptor* field = in.reflect().GetOneofFieldDescriptor(in.message, OneofNamed(in.message, in.name));
  if (field == nullptr) return Corrupt("nothing is set");
  absl::Status status;
  int index = 0;
  const auto attempt = [&]<class U>(U own) {
    if (index++ != field->index_in_oneof()) return;
    status = Annotate(Read(In{in.message, std::string(field->name())}, own), field->name());
    value = std::move(own);
  };
  (attempt(T()), ...);
  return status;
}

}  // namespace aqt::internal

#endif  // AQT_OPS_SAVED_FIELDS_PROTO_H_
