#include "serving/formats/scheme.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"

namespace aqt::serving {
namespace {

// Activations with scales of 8 bits, as the weights of that kind.
absl::Status CheckMicroscaledInput(const InputScheme& input) {
  WeightScheme same;
  same.type = input.type;
  same.num_bits = input.num_bits;
  same.symmetric = input.symmetric;
  same.strategy = input.strategy == InputStrategy::kGroup ? WeightStrategy::kGroup : WeightStrategy::kChannel;
  same.group_size = input.group_size;
  same.scale_type = input.scale_type;
  AQT_RETURN_IF_ERROR(Annotate(compressed_tensors::Validate(same), "input_activations"));
  if (input.dynamic) return absl::OkStatus();
  return absl::UnimplementedError(
      "input_activations: static scales of 8 bits are not supported; dynamic ones (MX) or \"local\" ones (NVFP4) are");
}

absl::Status CheckInput(const InputScheme& input) {
  if (input.scale_type != ScaleType::kWeight) return CheckMicroscaledInput(input);
  if (input.type == ValueType::kFloat && input.num_bits != 8) {
    return absl::UnimplementedError(
        absl::StrCat("input_activations: floats of ", input.num_bits, " bits are not supported; 8 bits are"));
  }
  if (input.type == ValueType::kFloat && !input.symmetric) {
    return absl::UnimplementedError("input_activations: asymmetric floats are not supported; symmetric ones are");
  }
  if (input.num_bits < 2 || input.num_bits > 8) {
    return absl::UnimplementedError(
        absl::StrCat("input_activations.num_bits = ", input.num_bits, " is not supported; 2 to 8 are"));
  }
  if ((input.strategy == InputStrategy::kGroup) != (input.group_size > 0) || input.group_size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("input_activations: group_size = ", input.group_size,
                                                   " with strategy \"", ToString(input.strategy),
                                                   "\"; \"group\" needs a positive size, and the others take none"));
  }
  if (!input.dynamic && input.strategy == InputStrategy::kToken) {
    return absl::InvalidArgumentError(
        "input_activations: strategy \"token\" cannot be static; make it dynamic or use strategy \"tensor\"");
  }
  if (!input.dynamic && input.strategy != InputStrategy::kTensor) {
    return absl::UnimplementedError(absl::StrCat("input_activations: static with strategy \"", ToString(input.strategy),
                                                 "\" is not supported; \"tensor\" is"));
  }
  return absl::OkStatus();
}

// Divisors of n near `wanted`, to suggest for a group size that does not fit.
std::string DivisorsNear(int64_t n, int64_t wanted) {
  wanted = std::min(wanted, n);
  std::vector<int64_t> divisors;
  for (int64_t d = std::max<int64_t>(2, wanted / 4); d <= std::min(n, wanted * 4); ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  if (divisors.empty()) return "";
  if (divisors.size() > 6) {
    std::sort(divisors.begin(), divisors.end(), [wanted](int64_t a, int64_t b) {
      return std::abs(a - wanted) != std::abs(b - wanted) ? std::abs(a - wanted) < std::abs(b - wanted) : a < b;
    });
    divisors.resize(6);
    std::sort(divisors.begin(), divisors.end());
  }
  return absl::StrCat("a group size of ", absl::StrJoin(divisors, ", "), ", ");
}

// OK if groups of that size fill a row of the weight, [o, columns].
absl::Status CheckGroups(absl::string_view of, int64_t group_size, int64_t columns, absl::string_view otherwise) {
  if (columns % group_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(of, "group size ", group_size,
                                                 group_size > columns ? " exceeds " : " does not divide ", columns,
                                                 " (axis 1); use ", DivisorsNear(columns, group_size), otherwise));
}

// The same for a type that has only one group size.
absl::Status CheckFixedGroups(absl::string_view type, int64_t group_size, int64_t columns) {
  if (columns % group_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(type, " has groups of ", group_size, ", which ",
                                                 group_size > columns ? "exceed " : "do not fill ", columns,
                                                 " columns (axis 1); use another scheme, or keep this weight in "
                                                 "floating point"));
}

// "int8", "fp8", "mxfp4", "nvfp4".
std::string Numbers(ValueType type, int num_bits, ScaleType scale_type) {
  return absl::StrCat(scale_type == ScaleType::kE8M0   ? "mx"
                      : scale_type == ScaleType::kE4M3 ? "nv"
                                                       : "",
                      type == ValueType::kFloat ? "fp" : "int", num_bits);
}

}  // namespace

absl::string_view ToString(InputStrategy strategy) {
  switch (strategy) {
    case InputStrategy::kToken: return "token";
    case InputStrategy::kTensor: return "tensor";
    case InputStrategy::kGroup: return "group";
  }
  return "?";
}

absl::Status Validate(const Scheme& scheme) {
  AQT_RETURN_IF_ERROR(Annotate(compressed_tensors::Validate(scheme.weights), "weights"));
  AQT_RETURN_IF_ERROR(scheme.format->Validate(scheme.weights));
  if (!scheme.input.has_value()) return absl::OkStatus();
  // W4AFP8.
  const bool floats_for_integers = scheme.weights.type == ValueType::kInt && scheme.input->type == ValueType::kFloat &&
                                   scheme.input->scale_type == ScaleType::kWeight;
  if (scheme.input->type != scheme.weights.type && !floats_for_integers) {
    return absl::UnimplementedError(absl::StrCat("weights of type ", ToString(scheme.weights.type),
                                                 " with input_activations of type ", ToString(scheme.input->type),
                                                 " are not supported; equal types, and integer weights with 8-bit "
                                                 "floats, are"));
  }
  return CheckInput(*scheme.input);
}

std::string Describe(const Scheme& scheme) {
  const WeightScheme& w = scheme.weights;
  std::string text =
      absl::StrCat(Numbers(w.type, w.num_bits, w.scale_type), " ",
                   w.strategy == WeightStrategy::kGroup   ? absl::StrCat("g", w.group_size)
                   : w.strategy == WeightStrategy::kBlock ? absl::StrCat("per ", w.block[0], "x", w.block[1], " block")
                                                          : absl::StrCat("per ", ToString(w.strategy)),
                   w.symmetric ? "" : " asymmetric");
  if (scheme.input.has_value()) {
    const InputScheme& a = *scheme.input;
    absl::StrAppend(&text, ", input ", Numbers(a.type, a.num_bits, a.scale_type), " ",
                    a.strategy == InputStrategy::kGroup ? absl::StrCat("g", a.group_size)
                                                        : absl::StrCat("per ", ToString(a.strategy)),
                    a.scale_type == ScaleType::kE4M3 ? " local"
                    : a.dynamic                      ? " dynamic"
                                                     : " static",
                    a.symmetric ? "" : " asymmetric");
  }
  return absl::StrCat(text, ", ", scheme.format->name());
}

std::optional<absl::string_view> ModuleOf(absl::string_view tensor) {
  const absl::string_view kSuffix = kWeight;  // not constexpr: g++ 12 refuses that under ubsan
  if (!absl::EndsWith(tensor, kSuffix) || tensor.size() == kSuffix.size()) return std::nullopt;
  return tensor.substr(0, tensor.size() - kSuffix.size());
}

absl::Status CheckApplicable(const Scheme& scheme, io::FileDType dtype, const Shape& shape) {
  if (shape.rank() != 2) {
    return absl::UnimplementedError(absl::StrCat(
        "only weights of rank 2 [out, in] can be quantized; this one has rank ", shape.rank(),
        shape.rank() == 3 ? "; experts stored in one tensor must be split into one weight per expert first" : ""));
  }
  if (dtype != io::FileDType::kF32 && dtype != io::FileDType::kBF16 && dtype != io::FileDType::kF16) {
    return absl::UnimplementedError(
        absl::StrCat("weights of dtype ", io::ToString(dtype), " cannot be quantized; F32, BF16 and F16 can"));
  }
  if (shape.num_elements() == 0) return absl::UnimplementedError("the weight has no elements");
  const WeightScheme& w = scheme.weights;
  if (w.strategy == WeightStrategy::kGroup) {
    AQT_RETURN_IF_ERROR(
        w.scale_type == ScaleType::kWeight
            ? CheckGroups("", w.group_size, shape[1], "one scale per channel, or keep this weight in floating point")
            : CheckFixedGroups(Numbers(w.type, w.num_bits, w.scale_type), w.group_size, shape[1]));
  }
  return absl::OkStatus();
}

absl::Status CheckInputGroups(const Scheme& scheme, const Shape& shape) {
  if (!scheme.input.has_value() || scheme.input->strategy != InputStrategy::kGroup) return absl::OkStatus();
  const InputScheme& input = *scheme.input;
  if (input.scale_type != ScaleType::kWeight) {
    return CheckFixedGroups(absl::StrCat("input_activations: ", Numbers(input.type, input.num_bits, input.scale_type)),
                            input.group_size, shape[1]);
  }
  return CheckGroups("input_activations: ", input.group_size, shape[1],
                     "one scale per token, or keep this weight in floating point");
}

std::vector<io::TensorSpec> OutputTensors(const Scheme& scheme, absl::string_view module, io::FileDType dtype,
                                          const Shape& shape) {
  std::vector<io::TensorSpec> out = scheme.format->Outputs(scheme.weights, shape, dtype);
  if (scheme.input.has_value() && scheme.input->scale_type == ScaleType::kE4M3) {
    out.push_back({kInputGlobalScale, io::FileDType::kF32, {1}});
  } else if (scheme.HasStaticInput()) {
    out.push_back({kInputScale, dtype, {1}});
    if (!scheme.input->symmetric) out.push_back({kInputZeroPoint, io::FileDType::kI8, {1}});
  }
  for (io::TensorSpec& tensor : out) tensor.name = absl::StrCat(module, tensor.name);
  return out;
}

}  // namespace aqt::serving
