// Quantized tensors and quantizers.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/c_api.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/quant/text/config_proto.h"
#include "serving/c/array.h"
#include "serving/c/call.h"
#include "serving/c/qtensor.h"

using aqt::Array;
using aqt::ArrayRef;
using aqt::capi::Call;
using aqt::capi::Check;
using aqt::capi::Make;
using aqt::capi::NotNull;

struct aqt_quantizer {
  static constexpr aqt::capi::Tag kTag = aqt::capi::Tag::kQuantizer;
  static constexpr char kName[] = "aqt_quantizer";
  struct Parts {
    aqt::Quantizer quantizer;
    aqt::Semantics semantics;
  };
  explicit aqt_quantizer(Parts made) : parts(std::move(made)) {}

  aqt::capi::Tag tag = kTag;
  const Parts parts;
};

namespace {

// Copies `count` arrays.
absl::Status CopyArrays(const aqt_array* arrays, size_t count, const char* name, std::vector<Array>* out) {
  if (count > AQT_MAX_RANK) {
    return absl::InvalidArgumentError(absl::StrCat("num_", name, " is ", count, ", expected at most ", AQT_MAX_RANK));
  }
  if (count > 0) AQT_RETURN_IF_ERROR(NotNull(arrays, name));
  for (size_t i = 0; i < count; ++i) {
    AQT_ASSIGN_OR_RETURN(const ArrayRef ref, aqt::capi::ToArrayRef(&arrays[i], absl::StrCat(name, "[", i, "]")));
    out->push_back(Array::CopyOf(ref));
  }
  return absl::OkStatus();
}

// InvalidArgument for a byte that is no value of s2 or s4.
absl::Status CheckNarrow(const Array& qvalue) {
  if (qvalue.dtype() != aqt::DType::kS2 && qvalue.dtype() != aqt::DType::kS4) return absl::OkStatus();
  const int64_t min = aqt::IntegerMin(qvalue.dtype()), max = aqt::IntegerMax(qvalue.dtype());
  const auto* bytes = static_cast<const int8_t*>(qvalue.data());
  for (int64_t i = 0; i < qvalue.num_elements(); ++i) {
    if (min <= bytes[i] && bytes[i] <= max) continue;
    return absl::InvalidArgumentError(absl::StrCat("qvalue: element ", i, " is ", bytes[i], ", expected ", min, " .. ",
                                                   max, " for ", aqt::ToString(qvalue.dtype())));
  }
  return absl::OkStatus();
}

absl::StatusOr<aqt::QTensor> MakeQTensor(const aqt_array* qvalue, const aqt_array* scales, size_t num_scales,
                                         const aqt_array* biases, size_t num_biases, aqt_dtype dequant_dtype) {
  aqt::QTensor qtensor;
  AQT_ASSIGN_OR_RETURN(qtensor.dequant_dtype, aqt::capi::ToDType(dequant_dtype, "dequant_dtype"));
  if (const aqt::DType dtype = qtensor.dequant_dtype;
      dtype != aqt::DType::kF32 && dtype != aqt::DType::kBF16 && dtype != aqt::DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("dequant_dtype is ", aqt::ToString(dtype), ", expected f32, bf16 or f16"));
  }
  if (qvalue != nullptr) {
    AQT_ASSIGN_OR_RETURN(const ArrayRef ref, aqt::capi::ToArrayRef(qvalue, "qvalue"));
    qtensor.qvalue = Array::CopyOf(ref);
    AQT_RETURN_IF_ERROR(CheckNarrow(*qtensor.qvalue));
  }
  AQT_RETURN_IF_ERROR(CopyArrays(scales, num_scales, "scales", &qtensor.scale));
  AQT_RETURN_IF_ERROR(CopyArrays(biases, num_biases, "biases", &qtensor.bias));
  if (qvalue == nullptr && num_scales == 0) {
    return absl::InvalidArgumentError("there is neither a qvalue nor a scale; give one of them");
  }
  return qtensor;
}

const std::vector<Array>* ListOf(const aqt_qtensor& qtensor, aqt_part part) {
  return part == AQT_SCALE ? &qtensor.qtensor.scale : part == AQT_BIAS ? &qtensor.qtensor.bias : nullptr;
}

size_t CountOf(const aqt_qtensor& qtensor, aqt_part part) {
  if (part == AQT_QVALUE) return qtensor.qtensor.IsFull() ? 1 : 0;
  const std::vector<Array>* list = ListOf(qtensor, part);
  return list != nullptr ? list->size() : 0;
}

}  // namespace

aqt_code aqt_qtensor_make(const aqt_array* qvalue, const aqt_array* scales, size_t num_scales, const aqt_array* biases,
                          size_t num_biases, aqt_dtype dequant_dtype, aqt_qtensor** qtensor, aqt_error** error) {
  return Make(qtensor, error,
              [&]() { return MakeQTensor(qvalue, scales, num_scales, biases, num_biases, dequant_dtype); });
}

size_t aqt_qtensor_count(const aqt_qtensor* qtensor, aqt_part part) {
  return Check(qtensor, "qtensor").ok() ? CountOf(*qtensor, part) : 0;
}

aqt_code aqt_qtensor_part(const aqt_qtensor* qtensor, aqt_part part, size_t index, aqt_array* array,
                          aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(Check(qtensor, "qtensor"));
    AQT_RETURN_IF_ERROR(NotNull(array, "array"));
    if (index >= CountOf(*qtensor, part)) {
      return absl::OutOfRangeError(
          absl::StrCat("part ", part, " of the tensor has ", CountOf(*qtensor, part), " arrays, and index is ", index));
    }
    *array = aqt::capi::FromArray(part == AQT_QVALUE ? *qtensor->qtensor.qvalue : (*ListOf(*qtensor, part))[index]);
    return absl::OkStatus();
  });
}

aqt_code aqt_qtensor_aval(const aqt_qtensor* qtensor, aqt_aval* aval, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(Check(qtensor, "qtensor"));
    AQT_RETURN_IF_ERROR(NotNull(aval, "aval"));
    if (!qtensor->qtensor.IsFull()) return absl::FailedPreconditionError("the tensor has no qvalue, only scales");
    *aval = aqt::capi::FromAval(qtensor->dequantized);
    return absl::OkStatus();
  });
}

aqt_code aqt_qtensor_dequantize(const aqt_qtensor* qtensor, const aqt_array* out, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(Check(qtensor, "qtensor"));
    AQT_ASSIGN_OR_RETURN(const aqt::MutableArrayRef to, aqt::capi::ToMutableArrayRef(out, "out"));
    AQT_ASSIGN_OR_RETURN(const Array values, qtensor->qtensor.Dequantize());
    AQT_RETURN_IF_ERROR(aqt::capi::CheckAval(to.aval(), values.aval(), "out"));
    return aqt::CopyArray(values, to);
  });
}

void aqt_qtensor_free(aqt_qtensor* qtensor) { aqt::capi::Free(qtensor); }

aqt_code aqt_quantizer_make(const char* config, const aqt_plan_options* options, aqt_quantizer** quantizer,
                            aqt_error** error) {
  return Make(quantizer, error, [&]() -> absl::StatusOr<aqt_quantizer::Parts> {
    AQT_RETURN_IF_ERROR(NotNull(config, "config"));
    aqt_quantizer::Parts parts;
    AQT_ASSIGN_OR_RETURN(const aqt::PlanOptions plan_options, aqt::capi::ToPlanOptions(options));
    parts.semantics = plan_options.semantics;
    AQT_ASSIGN_OR_RETURN(parts.quantizer, aqt::QuantizerFromText(config));
    return parts;
  });
}

aqt_code aqt_quantizer_quantize(const aqt_quantizer* quantizer, const aqt_array* x, const int64_t* axes,
                                size_t num_axes, const aqt_call_options* options, aqt_qtensor** qtensor,
                                aqt_error** error) {
  return Make(qtensor, error, [&]() -> absl::StatusOr<aqt::QTensor> {
    AQT_RETURN_IF_ERROR(Check(quantizer, "quantizer"));
    AQT_ASSIGN_OR_RETURN(const ArrayRef value, aqt::capi::ToArrayRef(x, "x"));
    AQT_ASSIGN_OR_RETURN(const aqt::Axes shared, aqt::capi::ToAxes(axes, num_axes, "axes"));
    AQT_ASSIGN_OR_RETURN(const aqt::capi::CallOptions call, aqt::capi::ToCallOptions(options));
    return aqt::Quantize(quantizer->parts.quantizer, value, shared, call.context, quantizer->parts.semantics);
  });
}

aqt_code aqt_quantizer_gradient(const aqt_quantizer* quantizer, const aqt_array* x, const aqt_qtensor* qtensor,
                                const aqt_array* g, const aqt_array* dx, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(Check(quantizer, "quantizer"));
    AQT_RETURN_IF_ERROR(Check(qtensor, "qtensor"));
    AQT_ASSIGN_OR_RETURN(const ArrayRef value, aqt::capi::ToArrayRef(x, "x"));
    AQT_ASSIGN_OR_RETURN(const ArrayRef gradient, aqt::capi::ToArrayRef(g, "g"));
    AQT_ASSIGN_OR_RETURN(const aqt::MutableArrayRef to, aqt::capi::ToMutableArrayRef(dx, "dx"));
    AQT_RETURN_IF_ERROR(aqt::capi::CheckAval(to.aval(), gradient.aval(), "dx"));
    AQT_ASSIGN_OR_RETURN(const Array result, aqt::QuantizeGradient(quantizer->parts.quantizer, value, qtensor->qtensor,
                                                                   gradient, quantizer->parts.semantics));
    return aqt::CopyArray(result, to);
  });
}

void aqt_quantizer_free(aqt_quantizer* quantizer) { aqt::capi::Free(quantizer); }
