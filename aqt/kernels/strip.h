#ifndef AQT_KERNELS_STRIP_H_
#define AQT_KERNELS_STRIP_H_

// Chains of elementwise operations on f32 arrays, computed strip by strip. A strip is eight vectors; what one step
// computes stays in registers for the next, and other intermediate values stay in the L1 cache. So a chain reads and
// writes memory once, however long it is. Each step has the bits of the kernel of elementwise.h.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aqt/kernels/elementwise.h"
#include "aqt/kernels/target.h"

namespace aqt::kernels {

// What a chain reads and writes: dense rows x columns matrices, and numbers.
struct StripCall {
  const void* const* arrays;    // f32, or bool where StripBuilder says so
  const float* const* numbers;  // of a number per row: an array of them
  // f32; bool of a Compare; of SumRows a number for each row. May be arrays, or numbers for each row, that no later
  // step reads.
  void* const* outputs;
  int64_t rows, columns;
  // Bit i: whole lines of the f32 output i are written past the caches. For outputs that nobody reads soon.
  uint32_t streamed = 0;
  // Null, or a matrix of the same extents that will be read soon: it is fetched into the L2 cache meanwhile.
  const float* ahead = nullptr;
};

// A chain that StripBuilder has made.
class StripFunction {
 public:
  void Run(const StripCall& call, Target target = BestTarget()) const;
  size_t num_numbers() const { return numbers_.size(); }

  enum class Kind : uint8_t;
  struct Operand {
    enum class Where : uint8_t { kNone, kArray, kBoolArray, kNumber, kSlot, kRowSum } where = Where::kNone;
    uint8_t index = 0;
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
};

// Makes a StripFunction. Values are named by the integers that these functions return.
class StripBuilder {
 public:
  // Of one chain: steps, besides arrays and numbers.
  static constexpr int kMaxSteps = 32;
  static constexpr int kMaxOperands = 3 * kMaxSteps;  // arrays; likewise numbers

  static bool Takes(UnaryKind kind);
  static bool Takes(BinaryKind kind);

  // The next of StripCall::arrays, numbers.
  int Array();
  int BoolArray();  // a condition of Select
  int Number(bool per_row);
  // A step; its operands are values above.
  int Unary(UnaryKind kind, int x);
  int Binary(BinaryKind kind, int x, int y);
  // A condition of Select.
  int Compare(CompareKind kind, int x, int y);
  int Select(int condition, int x, int y);
  // The next of StripCall::outputs is a step's value; once for each step.
  void Output(int value);
  // The next of StripCall::outputs is the sum of each row of a step's value, with the bits of reduce.h; once for each
  // step.
  void SumRows(int value);

  int num_steps() const { return num_steps_; }
  StripFunction Build() &&;

 private:
  struct Node {
    StripFunction::Kind kind;
    int in[3] = {-1, -1, -1};          // of Select: condition, x, y
    StripFunction::Operand leaf = {};  // of an array or a number
    int output = -1;
    int row_sum = -1;   // index of StripFunction::row_sums_
    int last_use = -1;  // the node; Scheduler's
    bool is_kept = false;
    bool is_condition = false;
    bool is_leaf() const { return leaf.where != StripFunction::Operand::Where::kNone; }
  };
  class Sorter;
  class Scheduler;

  int Add(Node node);

  std::vector<Node> nodes_;
  std::vector<StripFunction::Number> numbers_;
  std::vector<int> row_sums_;  // outputs
  int num_arrays_ = 0, num_outputs_ = 0, num_steps_ = 0;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_STRIP_H_
