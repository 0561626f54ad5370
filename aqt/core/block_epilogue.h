#ifndef AQT_CORE_BLOCK_EPILOGUE_H_
#define AQT_CORE_BLOCK_EPILOGUE_H_

// What goes on with the result of a product while it is in the caches: a bias, an activation, whatever is computed
// element by element.

#include <cstdint>

namespace aqt {

// A part of an output: its element (i, j) is element offset + i * row_stride + j of the output.
struct OutputBlock {
  int64_t offset, rows, columns, row_stride;
};

class BlockEpilogue {
 public:
  virtual ~BlockEpilogue() = default;
  // Called for each block of the output when it is stored, by the thread that has stored it; several threads may be in
  // it at the same time. Each element is in one block. May change the elements of the block.
  virtual void Run(const OutputBlock& block) = 0;
};

}  // namespace aqt

#endif  // AQT_CORE_BLOCK_EPILOGUE_H_
