#ifndef AQT_KERNELS_ATTENTION_ATTENTION_H_
#define AQT_KERNELS_ATTENTION_ATTENTION_H_

// Attention by blocks of queries: the scores of a block against all keys stay in the L2 cache between the two products.
// The memory grows with the number of keys, not with its product with the number of queries.

#include <array>
#include <cstdint>
#include <optional>

#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"

namespace aqt::kernels {

struct AttentionShape {
  DType dtype = DType::kF32;  // of queries, keys, values and result: f32, bf16 or f16
  int64_t batch = 0, queries = 0, keys = 0, heads = 0;
  int64_t features = 0, out = 0;  // of a key, and of a value
  float divisor = 1;              // of the queries, a number of the dtype
  // Strides of the bias and of the mask along [batch, heads, queries, keys]: 0 where an axis is broadcast, and 1 or 0
  // for the keys. Null: there is none.
  using Strides4 = std::array<int64_t, 4>;
  std::optional<Strides4> bias = std::nullopt, mask = std::nullopt;
};

// Dense arrays: query [batch, queries, heads, features], key [batch, keys, heads, features], value [batch, keys, heads,
// out], result [batch, queries, heads, out].
struct AttentionCall {
  const void *query, *key, *value;
  const float* bias;
  const bool* mask;
  void* out;
};

// result = softmax(s) value over the keys, with s = mask ? (query / divisor) key + bias : the lowest f32. The bits are
// those of these steps one after the other on whole arrays: a division; Contract with an output of the dtype; the steps
// of SoftmaxRows (softmax_rows.h); Contract. They do not depend on the blocks or on the number of threads.
class AttentionPlan {
 public:
  // All extents are at least 1.
  explicit AttentionPlan(const AttentionShape& shape);

  // Size of Run's scratch memory, which is aligned to 64 bytes. Each further thread has its own, at most as large.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  void Run(const AttentionCall& call, void* scratch, Executor* executor) const;

 private:
  // A unit of work: some heads of some entries of the batch, and some queries of each.
  struct Unit {
    int64_t batch, batches, head, heads, row, rows;
    int64_t matrices() const { return batches * heads; }
  };
  // How the work is cut into units. More than one entry of the batch has all heads.
  struct Cuts {
    int64_t batches = 1, heads = 1, rows = 1;
  };
  // Offsets in the memory of a thread.
  struct Layout {
    int64_t keys = 0, values = 0, queries = 0, scores = 0, weights = 0, narrow = 0, buffer = 0, bytes = 0;
  };
  struct Panels {
    const void *keys, *values;
    int64_t matrices_before;  // of the unit
  };

  Cuts CutsFor(int64_t threads) const;
  Layout LayoutOf(const Cuts& cuts) const;
  // Floats of a row of the scores, and of a row that holds queries meanwhile.
  int64_t RowFloats() const;
  void PackKeys(const AttentionCall& call, const Unit& unit, void* keys, void* values, Executor* executor) const;
  void RunUnit(const AttentionCall& call, const Unit& unit, const Panels& panels, char* memory) const;
  void PackQueries(const AttentionCall& call, const Unit& unit, char* memory) const;
  void Softmax(const AttentionCall& call, const Unit& unit, char* memory) const;
  // From dense rows of f32 that the dtype can represent, `stride` floats apart.
  void PackNarrow(const float* from, int64_t stride, int64_t matrices, int64_t rows, int64_t k, void* narrow,
                  void* panels) const;
  // Zeros for the rows that fill up the last panel of each matrix.
  void FillUp(int64_t matrices, int64_t rows, int64_t k, void* panels) const;

  AttentionShape shape_;
  const GemmKernel* kernel_;
  bool is_wide_;                     // whether the panels of the lhs are f32
  int64_t key_bytes_, value_bytes_;  // of the panels of one matrix
  Cuts cuts_;                        // for one thread
  Layout layout_;
  int64_t shared_bytes_ = 0;  // of the panels of all keys and values, if they may be packed first
  int64_t scratch_bytes_;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ATTENTION_ATTENTION_H_
