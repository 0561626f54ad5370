#include "serving/formats/weight_formats.h"

#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "serving/formats/microscaled_quantized.h"
#include "serving/formats/pack_quantized.h"
#include "serving/formats/plain_quantized.h"

namespace aqt::serving {

absl::Span<const WeightFormat* const> WeightFormats() {
  static const WeightFormat* const formats[] = {&MxFp4Quantized(), &MxFp6Quantized(), &MxFp8Quantized(),
                                                &NvFp4Quantized(), &IntQuantized(),   &PackQuantized(),
                                                &FloatQuantized(), &NaiveQuantized()};
  return formats;
}

const WeightFormat* FindWeightFormat(absl::string_view name) {
  for (const WeightFormat* format : WeightFormats()) {
    if (format->name() == name) return format;
  }
  return nullptr;
}

const WeightFormat* DefaultFormat(const WeightScheme& weights, bool quantized_activations) {
  for (const WeightFormat* format : WeightFormats()) {
    if (format->IsDefaultFor(weights, quantized_activations)) return format;
  }
  AQT_CHECK(false);
}

std::string WeightFormatNames() {
  std::string names;
  const absl::Span<const WeightFormat* const> formats = WeightFormats();
  for (size_t i = 0; i < formats.size(); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : i + 1 < formats.size() ? ", " : " and ", "\"", formats[i]->name(), "\"");
  }
  return names;
}

}  // namespace aqt::serving
