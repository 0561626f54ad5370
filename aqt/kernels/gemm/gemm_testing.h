#ifndef AQT_KERNELS_GEMM_GEMM_TESTING_H_
#define AQT_KERNELS_GEMM_GEMM_TESTING_H_

// Data and packed operands for the tests and benchmarks of packing and of the matrix kernels.

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "aqt/core/block_epilogue.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// Bytes aligned to kPanelAlignment, filled with a nonzero pattern.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t size) : size_(size), data_(New(size)) { std::memset(data_.get(), 0x5a, size); }
  char* data() { return data_.get(); }
  const char* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  bool operator==(const AlignedBytes& other) const {
    return size_ == other.size_ && std::memcmp(data_.get(), other.data_.get(), size_) == 0;
  }

 private:
  static constexpr std::align_val_t kAlignment{kPanelAlignment};
  struct Delete {
    void operator()(char* p) const { ::operator delete(p, kAlignment); }
  };
  static char* New(int64_t size) { return static_cast<char*>(::operator new(size, kAlignment)); }

  int64_t size_;
  std::unique_ptr<char, Delete> data_;
};

// Random values from all of [-128, 127].
inline std::vector<int8_t> RandomS8(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int8_t> values(n);
  for (int8_t& v : values) v = static_cast<int8_t>(rng() >> 24);
  return values;
}

// Random multiples of 2^-23 in [-1, 1).
inline std::vector<float> RandomF32(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(static_cast<int32_t>(rng() >> 8) - (1 << 23)) * 0x1p-23f;
  return values;
}

inline AlignedBytes Packed(Target target, const PanelFormat& format, const Operand& src, Executor* executor = nullptr,
                           bool subnormals_are_zero = false) {
  AlignedBytes panels(src.batch.Count() * format.PackedBytes(src.rows.Count(), src.k.Count()));
  Pack(target, format, src, panels.data(), executor, subnormals_are_zero);
  return panels;
}

// A block epilogue that flips bits of each 4-byte element. Running it twice on an element, or before the element is
// finally stored, is detectable.
class FlipBits final : public BlockEpilogue {
 public:
  explicit FlipBits(void* out) : out_(static_cast<uint32_t*>(out)) {}
  void Run(const OutputBlock& block) override {
    for (int64_t i = 0; i < block.rows; ++i) Flip(out_ + block.offset + i * block.row_stride, block.columns);
  }
  static void Flip(uint32_t* elements, int64_t n) {
    for (int64_t i = 0; i < n; ++i) elements[i] ^= 0x5a5a5a5a;
  }

 private:
  uint32_t* const out_;
};

// Both operands of a product, packed by Pack.
struct PackedOperands {
  PackedOperands(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs, bool subnormals_are_zero = false)
      : lhs(Packed(kernel.target, kernel.lhs, lhs, nullptr, subnormals_are_zero)),
        rhs(Packed(kernel.target, kernel.rhs, rhs, nullptr, subnormals_are_zero)) {}

  GemmPanels Panels(const GemmKernel& kernel, const GemmProblem& problem) const {
    return {.lhs = lhs.data(),
            .rhs = rhs.data(),
            .lhs_batch_bytes = kernel.lhs.PackedBytes(problem.m, problem.k),
            .rhs_batch_bytes = kernel.rhs.PackedBytes(problem.n, problem.k)};
  }

  AlignedBytes lhs, rhs;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_GEMM_TESTING_H_
