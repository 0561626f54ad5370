#ifndef AQT_KERNELS_ATTENTION_SOFTMAX_ROWS_H_
#define AQT_KERNELS_ATTENTION_SOFTMAX_ROWS_H_

// The steps of attention between its two products, on rows that are in cache. All targets give the same bits.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// Rows are written in groups of 16 elements; the last group of a row is filled up.
inline constexpr int64_t kRowGroup = 16;

// Where rows are written: group g of row r at data + r / width * panel + r % width * 16 + g * step floats. With these
// strides a matrix is either dense or a panel of row steps (panels/panel_format.h).
struct RowPlaces {
  float* data = nullptr;
  int64_t width = 1, panel = 0, step = kRowGroup;

  float* Row(int64_t r) const { return data + r / width * panel + r % width * kRowGroup; }
};

// A matrix that is added to scores, or selects them. It has the rows of the scores; a stride of 0 repeats an element.
template <class T>
struct ScoreOperand {
  const T* data = nullptr;                    // null: none
  int64_t row_stride = 0, column_stride = 1;  // the latter is 0 or 1
};

struct SoftmaxCall {
  float* scores = nullptr;  // [rows, columns], `stride` floats apart; overwritten
  int64_t rows = 0, columns = 0;
  int64_t stride = 0;  // columns, rounded up to whole groups
  ScoreOperand<float> bias = {};
  ScoreOperand<bool> mask = {};
  DType dtype = DType::kF32;  // f32, bf16 or f16: results are rounded to it
  RowPlaces out = {};         // may be the scores
  void* buffer = nullptr;     // SoftmaxBufferBytes(columns), aligned to 64 bytes
};
int64_t SoftmaxBufferBytes(int64_t columns);

// out = softmax(s) of each row, where s = mask ? scores + bias : -3.4e38 (the lowest f32). The bits are those of these
// kernels, one after the other: Binary(kAdd), Select, Reduce(kMax) over a row, Binary(kSub), Unary(kExp), Reduce(kSum),
// Binary(kDiv), and a conversion to dtype. What fills up the last group is zero, or NaN in a row of NaN.
void SoftmaxRows(const SoftmaxCall& call, Target target = BestTarget());

struct DivideCall {
  const void* x = nullptr;  // [rows, columns] of dtype, `stride` elements apart
  DType dtype = DType::kF32;
  int64_t rows = 0, columns = 0, stride = 0;
  float divisor = 1;
  RowPlaces out = {};
};
// out = x / divisor, computed in f32 and rounded to the dtype of x, as f32. The last group is filled up with zeros.
void DivideRows(const DivideCall& call, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ATTENTION_SOFTMAX_ROWS_H_
