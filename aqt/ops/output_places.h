#ifndef AQT_OPS_OUTPUT_PLACES_H_
#define AQT_OPS_OUTPUT_PLACES_H_

// Where a kernel writes what it computes. Internal.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/ceil_div.h"
#include "aqt/graph/op_kernel.h"

namespace aqt::internal {

// Outputs that are not needed are written to scratch memory.
class OutputPlaces {
 public:
  // This part of the scratch memory follows the first `scratch_bytes`. `needed` has an entry for each output.
  OutputPlaces(absl::Span<const Aval> outputs, absl::Span<const bool> needed, int64_t scratch_bytes)
      : scratch_bytes_(RoundUp(scratch_bytes, 64)) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs_.emplace_back(outputs[i].dtype, outputs[i].shape, nullptr);
      offsets_.push_back(needed[i] ? -1 : scratch_bytes_);
      if (!needed[i]) scratch_bytes_ += RoundUp(outputs[i].num_bytes(), 64);
    }
  }

  // All of the scratch memory.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  void* memory(size_t i, const KernelCall& call) const {
    return offsets_[i] < 0 ? call.out[i] : static_cast<char*>(call.scratch) + offsets_[i];
  }
  MutableArrayRef At(size_t i, const KernelCall& call) const {
    MutableArrayRef output = outputs_[i];
    output.data = memory(i, call);
    return output;
  }

 private:
  std::vector<MutableArrayRef> outputs_;  // without data
  std::vector<int64_t> offsets_;          // in the scratch memory; -1: in KernelCall::out
  int64_t scratch_bytes_;
};

}  // namespace aqt::internal

#endif  // AQT_OPS_OUTPUT_PLACES_H_
