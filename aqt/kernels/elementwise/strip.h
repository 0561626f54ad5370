#ifndef AQT_KERNELS_ELEMENTWISE_STRIP_H_
#define AQT_KERNELS_ELEMENTWISE_STRIP_H_

// Chains of elementwise operations on arrays of f32, bf16 and f16, computed strip by strip. A strip is eight vectors of
// f32. The result of a step stays in registers for the next step, and other intermediate values stay in the L1 cache.
// So a chain reads and writes memory once, however long it is. Each step has the bits of the corresponding kernel of
// elementwise.h: a bf16 or f16 value is computed in f32 and rounded.

#include <cstdint>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/elementwise.h"

namespace aqt::kernels {

// The inputs and outputs of a chain: rows x columns matrices, single-row arrays that all rows read, and numbers.
struct StripCall {
  const void* const* arrays;    // with the dtypes and rows given to StripBuilder
  const float* const* numbers;  // for a number per row: an array of them
  // With the dtypes of the values: bool for a Compare, and one number per row for SumRows. An output may alias an
  // array, or per-row numbers, that no later step reads.
  void* const* outputs;
  int64_t rows, columns;
  // Bit i, for the first 32: whole lines of output i, a float, bypass the caches. For outputs that are not read soon.
  // Call FinishStreams before another thread may read them.
  uint32_t streamed = 0;
  // Bit i, for the first 32: array i, of floats, is in memory and continues past these rows; it is prefetched.
  uint32_t fetched = 0;
  // Null, or a matrix of the same extents that will be read soon. This part of each of its strips is prefetched into
  // L2.
  const float* ahead = nullptr;
  struct Fraction {
    float begin = 0, end = 1;
  } ahead_part = {};
  // Elements between the starts of consecutive rows of a matrix; 0 if rows are dense.
  int64_t row_stride = 0;
};

// A chain made by StripBuilder. It runs on memory that is prepared once for many calls.
class StripFunction {
 public:
  // The size of the prepared memory.
  int64_t PreparedBytes(Target target = BestTarget()) const;
  // Fills PreparedBytes bytes, aligned to 64 bytes, for calls that differ from this one only in addresses, extents,
  // `ahead` and per-row numbers. Reads the other numbers, but no matrix elements.
  void Prepare(const StripCall& call, void* prepared, Target target = BestTarget()) const;
  // Runs the chain. Each prepared memory may be used by one thread at a time.
  static void Run(const StripCall& call, void* prepared);

  enum class Kind : uint8_t;
  struct Operand {
    enum class Where : uint8_t {
      kNone,
      kArray,  // f32, or an output
      kBf16Array,
      kF16Array,
      kBoolArray,
      kNumber,
      kSlot,
      kRowSum
    } where = Where::kNone;
    uint8_t index = 0;
    bool is_row = false;  // a single-row array
  };
  // accumulator = kind(accumulator, x), or also with y and z.
  struct Step {
    Kind kind;
    Operand x = {}, y = {}, z = {};
  };
  // A number, or one per row.
  struct Number {
    bool per_row;
  };

 private:
  friend class StripBuilder;
  std::vector<Step> steps_;
  std::vector<Number> numbers_;
  std::vector<int> row_sums_;  // indices of outputs
  int num_slots_ = 0;
};

// Call this after the last call on a thread that bypasses the caches: it completes those stores in memory.
void FinishStreams();

// Builds a StripFunction. Values are identified by the integers that these functions return.
class StripBuilder {
 public:
  // Limits of one chain: steps, plus f32 arrays and numbers. A bf16 or f16 step counts twice because it is rounded, and
  // a bf16 or f16 array once.
  static constexpr int kMaxSteps = 32;
  static constexpr int kMaxOperands = 3 * kMaxSteps;  // arrays; the same limit applies to numbers

  static bool Takes(UnaryKind kind);
  static bool Takes(BinaryKind kind);
  static bool Takes(DType dtype);  // f32, bf16, f16

  // The next entry of StripCall::arrays or numbers. `is_row`: a single row that all rows read. A number is used as
  // given in the call, so `dtype` must be able to represent it.
  int Array(DType dtype = DType::kF32, bool is_row = false);
  int BoolArray();  // a condition of Select
  int Number(bool per_row, DType dtype = DType::kF32);
  // A step. Its operands are values from above with the same dtype, which is also that of the result.
  int Unary(UnaryKind kind, int x);
  int Binary(BinaryKind kind, int x, int y);
  // A condition for Select.
  int Compare(CompareKind kind, int x, int y);
  int Select(int condition, int x, int y);
  int Cast(DType dtype, int x);
  // Makes the value of a step the next entry of StripCall::outputs; at most once per step.
  void Output(int value);
  // Makes the sum of each row of a step's value, an f32 with the bits of reduce.h, the next entry of
  // StripCall::outputs; at most once per step.
  void SumRows(int value);

  int num_steps() const { return num_steps_; }
  // The approximate time of the steps, in units of an addition.
  int Cost() const;
  StripFunction Build() &&;

 private:
  struct Node {
    StripFunction::Kind kind;
    int in[3] = {-1, -1, -1};          // for Select: condition, x, y
    StripFunction::Operand leaf = {};  // for an array or a number
    DType dtype = DType::kF32;         // bool for a condition
    int output = -1;
    int row_sum = -1;   // index into StripFunction::row_sums_
    int last_use = -1;  // the last node that uses it; set by Scheduler
    bool is_kept = false;
    bool is_leaf() const { return leaf.where != StripFunction::Operand::Where::kNone; }
  };
  class Sorter;
  class Scheduler;

  int Add(Node node);
  // The value with the precision of its dtype, which `value` does not have yet.
  int Rounded(int value);

  std::vector<Node> nodes_;
  std::vector<StripFunction::Number> numbers_;
  std::vector<int> row_sums_;  // indices of outputs
  int num_arrays_ = 0, num_outputs_ = 0, num_steps_ = 0;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_STRIP_H_
