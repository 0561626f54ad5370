#include "tests/golden_check/run_case.h"

#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/semantics.h"

namespace aqt::golden {

const Array* Given::Find(absl::string_view name) {
  const auto it = tensors_.find(std::string(name));
  if (it == tensors_.end()) return nullptr;
  used_.insert(it->first);
  return &it->second;
}

Array Given::Or(absl::string_view name, const Array& computed) {
  const Array* given = Find(name);
  return given == nullptr ? computed : *given;
}

absl::StatusOr<Array> Input(const Tensors& inputs, absl::string_view name) {
  const auto it = inputs.find(std::string(name));
  if (it == inputs.end()) return absl::InvalidArgumentError(absl::StrCat("the case has no input ", name));
  return it->second;
}

Array Part(const Array& x, int64_t i) {
  Shape shape(x.shape().extents().subspan(1));
  const int64_t bytes = Aval{x.dtype(), shape}.num_bytes();
  return Array::CopyOf(ArrayRef(x.dtype(), std::move(shape), static_cast<const char*>(x.data()) + i * bytes));
}

absl::StatusOr<Context> MakeContext(const Tensors& inputs) {
  Context context;
  const auto key = inputs.find("key");
  if (key == inputs.end()) return context;
  if (key->second.aval() != Aval{DType::kU32, {2}}) {
    return absl::InvalidArgumentError(
        absl::StrCat("input key is ", key->second.aval().ToString(), ", expected u32[2]"));
  }
  const absl::Span<const uint32_t> words = key->second.View<uint32_t>();
  context.key = Key{words[0], words[1]};
  return context;
}

Array KeyArray(const Key& key) { return Array::Of<uint32_t>({key.hi, key.lo}, {2}); }

absl::StatusOr<Array> RandomWords(int bits, const Key& key, const Shape& shape, PrngLayout layout) {
  const RandomBits random(key, shape.num_elements(), layout);
  ArrayBuilder builder(bits == 8 ? DType::kU8 : DType::kU32, shape);
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    switch (bits) {
      case 8: builder.Mutable<uint8_t>()[i] = random.Bits8(i); break;
      case 16: builder.Mutable<uint32_t>()[i] = random.Bits16(i); break;
      case 32: builder.Mutable<uint32_t>()[i] = random.Bits32(i); break;
      default: return absl::UnimplementedError(absl::StrCat("no public API for random words of ", bits, " bits"));
    }
  }
  return std::move(builder).Build();
}

namespace {

absl::StatusOr<Computed> RunContraction(const DotConfig& config, const Tensors& inputs, const Semantics& semantics,
                                        Way way) {
  return RunAsProgram(config.dims, config.config, inputs, semantics, way);
}
absl::StatusOr<Computed> RunContraction(const EinsumConfig& config, const Tensors& inputs, const Semantics& semantics,
                                        Way way) {
  AQT_ASSIGN_OR_RETURN(const Array lhs, Input(inputs, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Array rhs, Input(inputs, "rhs"));
  AQT_ASSIGN_OR_RETURN(const DotGeneralConfig sides, ConfigOfEquation(config, lhs.aval(), rhs.aval(), semantics));
  return RunAsProgram(EinsumDims{config.equation}, sides, inputs, semantics, way);
}
absl::StatusOr<Computed> RunContraction(const ConvGeneralConfig& config, const Tensors& inputs,
                                        const Semantics& semantics, Way way) {
  return RunAsProgram(config.dims, {.fwd = config.config}, inputs, semantics, way);
}
absl::StatusOr<Computed> RunContraction(const RaggedDotConfig& config, const Tensors& inputs,
                                        const Semantics& semantics, Way way) {
  return RunAsProgram(RaggedDims(), {.fwd = config.config}, inputs, semantics, way);
}

}  // namespace

absl::StatusOr<Computed> RunCase(const GoldenCase& golden_case, const Semantics& semantics, Given& given, Way way) {
  AQT_RETURN_IF_ERROR(golden_case.config.status());
  const Tensors& inputs = golden_case.inputs;
  return std::visit(
      [&](const auto& config) -> absl::StatusOr<Computed> {
        using Config = std::decay_t<decltype(config)>;
        if constexpr (std::is_same_v<Config, ServingConfig> || std::is_same_v<Config, TrainingConfig>) {
          return Run(config, inputs, semantics, given, way);
        } else if constexpr (std::is_same_v<Config, MlpConfig> || std::is_same_v<Config, ServedDotConfig>) {
          return Run(config, inputs, semantics, way);
        } else if constexpr (std::is_same_v<Config, DotConfig>) {
          if (way != Way::kPlan) return RunContraction(config, inputs, semantics, way);
          return Run(config, inputs, semantics, given);
        } else if constexpr (std::is_same_v<Config, EinsumConfig> || std::is_same_v<Config, ConvGeneralConfig> ||
                             std::is_same_v<Config, RaggedDotConfig>) {
          if (way != Way::kPlan) return RunContraction(config, inputs, semantics, way);
          return Run(config, inputs, semantics);
        } else if constexpr (std::is_same_v<Config, QuantizeConfig>) {
          return Run(config, inputs, semantics, given);
        } else if constexpr (std::is_same_v<Config, RandomConfig>) {
          return Run(config, golden_case);
        } else if constexpr (std::is_same_v<Config, RoundToFormatConfig> || std::is_same_v<Config, DecodeConfig> ||
                             std::is_same_v<Config, CastConfig>) {
          return Run(config, inputs);
        } else {
          return Run(config, inputs, semantics);
        }
      },
      *golden_case.config);
}

}  // namespace aqt::golden
