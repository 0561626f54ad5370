#ifndef AQT_SERVING_FORMATS_WEIGHT_FORMATS_H_
#define AQT_SERVING_FORMATS_WEIGHT_FORMATS_H_

// The table of all stored layouts.

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "serving/formats/weight_format.h"

namespace aqt::serving {

// In the order in which the compressed-tensors package searches for a suitable layout.
absl::Span<const WeightFormat* const> WeightFormats();

// Null if no layout has that name.
const WeightFormat* FindWeightFormat(absl::string_view name);

// The layout that the compressed-tensors package would choose.
const WeightFormat* DefaultFormat(const WeightScheme& weights, bool quantized_activations);

// "\"a\", \"b\" and \"c\"", for messages.
std::string WeightFormatNames();

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_WEIGHT_FORMATS_H_
