#ifndef AQT_KERNELS_ELEMENTWISE_STRIP_H_
#define AQT_KERNELS_ELEMENTWISE_STRIP_H_

// Chains of elementwise operations on arrays of f32, bf16 and f16, computed strip by strip. A strip is eight vectors
// of f32; what one step computes stays in registers for the next, and other intermediate values stay in the L1 cache.
// So a chain reads and writes memory once, however long it is. Each step has the bits of the kernel of elementwise.h:
// a value of bf16 or f16 is computed in f32 and rounded.

#include <cstdint>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/elementwise.h"

namespace aqt::kernels {

// What a chain reads and writes: rows x columns matrices, arrays of one row that all rows read, and numbers.
struct StripCall {
  const void* const* arrays;    // of the dtypes and rows that StripBuilder was told
  const float* const* numbers;  // of a number per row: an array of them
  // Of the dtypes of the values: bool of a Compare; of SumRows a number for each row. May be arrays, or numbers for
  // each row, that no later step reads.
  void* const* outputs;
  int64_t rows, columns;
  // Bit i, of the first 32: whole lines of output i, a float, are written past the caches. For outputs that nobody
  // reads soon; call FinishStreams before another thread may.
  uint32_t streamed = 0;
  // Bit i, of the first 32: array i, of floats, lies in memory and goes on behind these rows: it is fetched ahead.
  uint32_t fetched = 0;
  // Null, or a matrix of the same extents that will be read soon: of each strip of it, this part is fetched into the L2
  // cache meanwhile.
  const float* ahead = nullptr;
  struct Fraction {
    float begin = 0, end = 1;
  } ahead_part = {};
  // Elements from a row of a matrix to the next; 0 if the rows are dense.
  int64_t row_stride = 0;
};

// A chain that StripBuilder has made. It runs on memory that is prepared once, for many calls.
class StripFunction {
 public:
  int64_t PreparedBytes(Target target = BestTarget()) const;
  // Fills so many bytes, aligned to 64 bytes, for calls that differ from this one only in their addresses, in their
  // extents, in `ahead`, and in numbers for each row. Reads the other numbers, and nothing of the matrices.
  void Prepare(const StripCall& call, void* prepared, Target target = BestTarget()) const;
  // For one thread at a time.
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
    bool is_row = false;  // an array of one row
  };
  // accumulator = kind(accumulator, x), or with y and z, too.
  struct Step {
    Kind kind;
    Operand x = {}, y = {}, z = {};
  };
  // A number, or one for each row.
  struct Number {
    bool per_row;
  };

 private:
  friend class StripBuilder;
  std::vector<Step> steps_;
  std::vector<Number> numbers_;
  std::vector<int> row_sums_;  // outputs
  int num_slots_ = 0;
};

// After the last call of a thread that writes past the caches: its lines are in memory before it goes on.
void FinishStreams();

// Makes a StripFunction. Values are named by the integers that these functions return.
class StripBuilder {
 public:
  // Of one chain: steps, besides f32 arrays and numbers. A step of bf16 or f16 counts twice, as it is rounded, and an
  // array of them once.
  static constexpr int kMaxSteps = 32;
  static constexpr int kMaxOperands = 3 * kMaxSteps;  // arrays; likewise numbers

  static bool Takes(UnaryKind kind);
  static bool Takes(BinaryKind kind);
  static bool Takes(DType dtype);  // f32, bf16, f16

  // The next of StripCall::arrays, numbers. `is_row`: of one row, which all rows read. A number is that of the call, so
  // `dtype` must be able to represent it.
  int Array(DType dtype = DType::kF32, bool is_row = false);
  int BoolArray();  // a condition of Select
  int Number(bool per_row, DType dtype = DType::kF32);
  // A step; its operands are values above, of one dtype, which is that of the result.
  int Unary(UnaryKind kind, int x);
  int Binary(BinaryKind kind, int x, int y);
  // A condition of Select.
  int Compare(CompareKind kind, int x, int y);
  int Select(int condition, int x, int y);
  int Cast(DType dtype, int x);
  // The next of StripCall::outputs is a step's value; once for each step.
  void Output(int value);
  // The next of StripCall::outputs is the sum of each row of a step's value, f32, with the bits of reduce.h; once for
  // each step.
  void SumRows(int value);

  int num_steps() const { return num_steps_; }
  // How long the steps take, roughly, as a multiple of an addition's time.
  int Cost() const;
  StripFunction Build() &&;

 private:
  struct Node {
    StripFunction::Kind kind;
    int in[3] = {-1, -1, -1};          // of Select: condition, x, y
    StripFunction::Operand leaf = {};  // of an array or a number
    DType dtype = DType::kF32;         // bool of a condition
    int output = -1;
    int row_sum = -1;   // index of StripFunction::row_sums_
    int last_use = -1;  // the node; Scheduler's
    bool is_kept = false;
    bool is_leaf() const { return leaf.where != StripFunction::Operand::Where::kNone; }
  };
  class Sorter;
  class Scheduler;

  int Add(Node node);
  // The value that has this dtype, but not yet its precision.
  int Rounded(int value);

  std::vector<Node> nodes_;
  std::vector<StripFunction::Number> numbers_;
  std::vector<int> row_sums_;  // outputs
  int num_arrays_ = 0, num_outputs_ = 0, num_steps_ = 0;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_STRIP_H_
