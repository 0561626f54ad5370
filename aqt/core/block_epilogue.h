#ifndef AQT_CORE_BLOCK_EPILOGUE_H_
#define AQT_CORE_BLOCK_EPILOGUE_H_

// Work fused onto the output of a product while it is still in cache: a bias, an activation, or any other elementwise
// computation.

#include <cstdint>

namespace aqt {

// A block of an output. Its element (i, j) is element offset + i * row_stride + j of the output.
struct OutputBlock {
  int64_t offset, rows, columns, row_stride;
};

// Callback that receives each finished block of an output.
class BlockEpilogue {
 public:
  virtual ~BlockEpilogue() = default;
  // Called once for each block, by the thread that just stored it; several threads may call it at the same time. The
  // blocks are disjoint and cover the output. Run may change the elements of its block.
  virtual void Run(const OutputBlock& block) = 0;
};

}  // namespace aqt

#endif  // AQT_CORE_BLOCK_EPILOGUE_H_
