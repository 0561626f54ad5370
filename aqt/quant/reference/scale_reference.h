#ifndef AQT_QUANT_REFERENCE_SCALE_REFERENCE_H_
#define AQT_QUANT_REFERENCE_SCALE_REFERENCE_H_

// Scales and qvalues of one tensor, element by element: the oracle for calibrations without state and for numerics. It
// shares only scalar operations and random bits with the quantizer.

#include <cstdint>
#include <optional>

#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/reference/reference_value.h"

namespace aqt::reference {

// The random numbers of a tensor: one per index of `shape`.
struct TensorBits {
  RandomBits bits;
  Value numbers;  // only its shape is used
  int64_t Number(const Index& index) const { return static_cast<int64_t>(numbers.Position(index)); }
};

TensorBits MakeTensorBits(const Numerics& numerics, Index shape, const std::optional<Key>& key, PrngLayout layout);

// The qvalue of one scaled value y of `dtype`, before its conversion to the container. `number` is the index of its
// random bits.
float QuantizeOne(const Numerics& numerics, const Compat& compat, DType dtype, float y, const RandomBits* bits,
                  int64_t number);

// x^p, rounded once.
float PowerOf(DType dtype, float x, double p);

// y / scale, with one or several scales for a tensor, in `dtype`, that of the result. `scale_dtype` is its own.
float ScaleOne(const Semantics& semantics, DType dtype, float y, DType scale_dtype, float scale,
               bool each_has_its_own_scale);

// The bounds of x, shared along the axes `shared`, in the dtype of the scale; not for SnrSearch.
Value MakeBounds(const Quantizer& quantizer, const Value& x, const Index& shared, const TensorBits& bits,
                 const Semantics& semantics);

// The scale of x, shared along the axes `shared`, in its dtype.
Value MakeScale(const Quantizer& quantizer, const Value& x, const Index& shared, const TensorBits& bits,
                const Semantics& semantics);

}  // namespace aqt::reference

#endif  // AQT_QUANT_REFERENCE_SCALE_REFERENCE_H_
