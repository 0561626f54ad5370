#ifndef AQT_SERVING_FORMATS_WEIGHT_CODEC_H_
#define AQT_SERVING_FORMATS_WEIGHT_CODEC_H_

// Converts a weight, or a block of its rows, to and from the arrays that a checkpoint stores.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/executor.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/formats/scheme.h"
#include "serving/formats/weight_rules.h"

namespace aqt::serving {

// The minimum number of rows per block: AQT's rule divides differently if a weight has a single row.
int64_t MinRows(WeightRules rules);

// Encodes the rows starting at `first_row` of a weight of that shape, [o, i]; see WeightFormat::Encode. rows: [n, i],
// dense, without NaN and infinities. With kAqt the scheme must be of symmetric integers. `global_scale`: of the weight,
// for NVFP4. DataLoss if a scale overflows the dtype (the range of an asymmetric scheme, the power of two of MX).
absl::StatusOr<std::vector<StoredRows>> EncodeRows(const ArrayRef& rows, int64_t first_row, const Shape& shape,
                                                   const Scheme& scheme, WeightRules rules, float global_scale = 1,
                                                   Executor* executor = nullptr);

// Values, scale and zero point of the same rows, before the layout is applied; see QuantizedWeight.
absl::StatusOr<QuantizedWeight> QuantizeRows(const ArrayRef& rows, const Scheme& scheme, WeightRules rules,
                                             float global_scale = 1, Executor* executor = nullptr);

// Scale and zero point of a static input with values in [min, max], by the compressed-tensors rules in `dtype`; for
// NVFP4 the global scale.
struct EncodedInput {
  Array scale;                      // `dtype` [1]; for NVFP4 f32 [1]
  std::optional<Array> zero_point;  // s8 [1]
};
absl::StatusOr<EncodedInput> EncodeInputRange(const InputScheme& scheme, float min, float max, DType dtype);

// The stored weight of `module`, with the values that a server computes with. DataLoss, naming the tensor, if one is
// missing, has another dtype or shape than the scheme says, or holds a value outside the scheme's range.
struct DecodedWeight {
  Array q;            // [o, i]; s8 or e4m3fn
  Array scale;        // what q is multiplied by: as stored; f32 for MX and NVFP4
  Array dequantized;  // dtype of `scale`, [o, i]
};
absl::StatusOr<DecodedWeight> DecodeWeight(const io::TensorSource& source, absl::string_view module,
                                           const Scheme& scheme, const Shape& shape, Executor* executor = nullptr);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_WEIGHT_CODEC_H_
