// Operations that read or write each number once: ranges, quantizers, packers, noise. Ours (the machine's best target),
// each lower target ("aqt:avx2"), and the plain version ("aqt:reference"). `roof` is the fraction of the bandwidth of a
// read or copy probe over the same number of bytes of floats; `gops` of noise are draws per nanosecond. A shape is
// ROWSxCOLUMNS: in L2 and in memory.
//
//   bazel run //tests/benchmarks:quantize [-- --filter quantize_row --shapes 64x1024]

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/reference.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/absmax_reference.h"
#include "aqt/kernels/quantize/quantize.h"
#include "aqt/kernels/quantize/quantize_reference.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/kernels/small_floats/e4m3.h"
#include "aqt/kernels/small_floats/e4m3_reference.h"
#include "aqt/kernels/small_floats/quantize_fp8.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "aqt/testing/random.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

using kernels::Target;
using Call = std::function<void()>;
constexpr int64_t kGroup = 32;

// A float matrix with buffers for the results.
struct Data {
  Data(DType dtype, int64_t rows, int64_t cols)
      : x(testing::RandomArray({dtype, {rows, cols}}, 1, -8, 8)),
        q(rows * cols),
        scales(rows * (cols / kGroup + 1), 0.0625f),
        floats(dtype, {rows, cols}) {}
  int64_t rows() const { return x.shape()[0]; }
  int64_t cols() const { return x.shape()[1]; }
  kernels::FloatMatrix matrix() const { return {x.data(), x.dtype(), rows(), cols(), cols(), 1}; }
  kernels::ScaleGrid grid(int64_t group) const {
    if (group == cols()) return {scales.data(), nullptr, 1, 0};
    return {scales.data(), nullptr, cols() / group, 1, 1, group};
  }

  Array x;
  std::vector<int8_t> q;
  std::vector<float> scales;
  ArrayBuilder floats;
};
using DataPtr = std::shared_ptr<Data>;

// `call`, which keeps `memory` alive.
Call Holding(std::vector<std::shared_ptr<void>> memory, Call call) {
  return [memory = std::move(memory), call = std::move(call)] { call(); };
}

// Calls of a kernel on a target, or of its plain version (null target).
using Make = std::function<Call(const DataPtr& data, const Target* target)>;

Make AbsMax(int64_t group) {
  return [=](const DataPtr& d, const Target* target) -> Call {
    const int64_t columns = group == 0 ? d->cols() : group;
    if (target == nullptr) {
      return [=] { kernels::reference::AbsMaxGroups(d->matrix(), columns, d->scales.data()); };
    }
    return [=, t = *target] { kernels::AbsMaxGroups(d->matrix(), columns, d->scales.data(), t); };
  };
}

Make Quantize(kernels::QuantizeRule rule, int64_t group) {
  return [=](const DataPtr& d, const Target* target) -> Call {
    kernels::QuantizeMatrixArgs args;
    args.x = d->matrix();
    args.rule = rule;
    args.grid = d->grid(group == 0 ? d->cols() : group);
    args.subnormals_are_zero = rule == kernels::QuantizeRule::kMultiplyByInverse;
    args.q = d->q.data();
    args.q_row_stride = d->cols();
    if (target == nullptr) return Holding({d}, [=] { kernels::reference::QuantizeMatrix(args); });
    return Holding({d}, [=, t = *target] { kernels::QuantizeMatrix(args, t); });
  };
}

Call Dequantize(const DataPtr& d, const Target* target) {
  kernels::DequantizeMatrixArgs args = {d->q.data(), d->rows(), d->cols(), d->cols(), 1, d->grid(d->cols())};
  args.x = d->floats.data();
  args.dtype = d->x.dtype();
  args.row_stride = d->cols();
  if (target == nullptr) return Holding({d}, [=] { kernels::reference::DequantizeMatrix(args); });
  return Holding({d}, [=, t = *target] { kernels::DequantizeMatrix(args, t); });
}

Call QuantizeE4M3(const DataPtr& d, const Target* target) {
  const kernels::QuantizeE4M3Args args = {d->matrix(), d->grid(d->cols()), reinterpret_cast<Float8E4M3FN*>(d->q.data()),
                                          d->cols()};
  if (target == nullptr) return Holding({d}, [=] { kernels::reference::QuantizeE4M3(args); });
  return Holding({d}, [=, t = *target] { kernels::QuantizeE4M3(args, t); });
}

// With AQT's rules, as in e4m3 contractions.
Call QuantizeFp8(const DataPtr& d, Executor*) {
  kernels::QuantizeFp8Args args;
  args.x = d->matrix();
  args.grid = d->grid(d->cols());
  args.subnormals_are_zero = true;
  args.q = reinterpret_cast<uint8_t*>(d->q.data());
  args.q_row_stride = d->cols();
  return Holding({d}, [=] { kernels::QuantizeFp8(args); });
}

Call DequantizeE4M3(const DataPtr& d, const Target* target) {
  kernels::DequantizeE4M3Args args = {
      reinterpret_cast<const Float8E4M3FN*>(d->q.data()), d->rows(), d->cols(), d->cols(), 1, d->grid(d->cols())};
  args.x = d->floats.data();
  args.dtype = d->x.dtype();
  args.row_stride = d->cols();
  if (target == nullptr) return Holding({d}, [=] { kernels::reference::DequantizeE4M3(args); });
  return Holding({d}, [=, t = *target] { kernels::DequantizeE4M3(args, t); });
}

// Absmax of each row, scale, round, pack for the product: the steps of a dynamic int8 contraction for its activations.
Call QuantizePack(const DataPtr& d, Executor* executor) {
  const kernels::GemmKernel& kernel = kernels::ChooseGemm({}, kernels::BestTarget(), d->rows());
  const std::shared_ptr<void> panels = AllocateAligned(kernel.lhs.PackedBytes(d->rows(), d->cols()));
  kernels::QuantizeArgs args;
  args.src = kernels::Operand::Dense(d->x.data(), d->x.dtype(), d->rows(), d->cols());
  args.scale = d->scales.data();
  args.panels = panels.get();
  return Holding({d, panels}, [=, &kernel] {
    kernels::QuantizePack(kernel.target, kernel.lhs, args, kernels::AbsMaxScale(), executor);
  });
}

// The converter's steps for a weight: int4 in groups of 128, packed into words.
Call ConvertInt4(const DataPtr& d, Executor* executor) {
  const compressed_tensors::WeightScheme scheme = {
      .num_bits = 4, .strategy = compressed_tensors::Strategy::kGroup, .group_size = 128};
  return
      [=] { AQT_CHECK(compressed_tensors::QuantizeWeight(d->x, scheme, {.executor = executor, .packed = true}).ok()); };
}

Call Noise(int64_t n, const kernels::RandomNumbers& numbers) {
  const auto noise = std::make_shared<std::vector<float>>(n);
  return [=] { kernels::FillNoise(numbers, 0, 1, n, noise->data()); };
}

absl::Status Add(const std::string& shape, std::vector<Row>& rows) {
  int64_t r = 0, c = 0;
  int end = 0;
  const int read = std::sscanf(shape.c_str(), "%ldx%ld%n", &r, &c, &end);
  if (read != 2 || end != static_cast<int>(shape.size()) || r < 1 || c < 1 || c % 128 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape, " is not a shape; expected ROWSxCOLUMNS, columns a multiple of 128, as in 64x1024"));
  }
  // Whether the floats are only read, or read and written.
  enum class Bytes { kRead, kCopied };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::string name(ToString(dtype));
    const int64_t bytes = r * c * SizeOf(dtype);
    const auto add = [&](const std::string& cls, const std::string& who, Bytes kind, auto make) {
      Work work;
      (kind == Bytes::kRead ? work.reads : work.copies) = bytes;
      // These run on one thread, unless they take the executor.
      rows.push_back({"", cls, shape, name, who, work, [=](Executor* executor) -> absl::StatusOr<Call> {
                        return make(std::make_shared<Data>(dtype, r, c), executor);
                      }});
    };
    const auto targets = [&](const std::string& cls, Bytes kind, const Make& make) {
      const auto one_thread = [&](const std::string& who, const Target* target) {
        add(cls, who, kind, [=](const DataPtr& d, Executor* executor) -> absl::StatusOr<Call> {
          if (executor != nullptr) return absl::UnavailableError("takes one thread");
          return make(d, target);
        });
      };
      static const Target best = kernels::BestTarget();
      one_thread("aqt", &best);
      for (const Target& target : kernels::SupportedTargets()) {
        if (!(target == best)) one_thread(absl::StrCat("aqt:", std::string(kernels::ToString(target))), &target);
      }
      if (bytes < 1 << 20) one_thread("aqt:reference", nullptr);
    };
    targets("absmax_row", Bytes::kRead, AbsMax(0));
    targets("absmax_group32", Bytes::kRead, AbsMax(kGroup));
    targets("quantize_row", Bytes::kCopied, Quantize(kernels::QuantizeRule::kMultiplyByInverse, 0));
    targets("quantize_divide_row", Bytes::kCopied, Quantize(kernels::QuantizeRule::kDivideByScale, 0));
    targets("quantize_divide_group32", Bytes::kCopied, Quantize(kernels::QuantizeRule::kDivideByScale, kGroup));
    targets("dequantize_row", Bytes::kCopied, Dequantize);
    targets("quantize_e4m3_row", Bytes::kCopied, QuantizeE4M3);
    targets("dequantize_e4m3_row", Bytes::kCopied, DequantizeE4M3);
    add("quantize_fp8_row", "aqt", Bytes::kCopied, QuantizeFp8);
    add("quantize_pack", "aqt", Bytes::kCopied, QuantizePack);
    add("convert_int4_g128", "aqt", Bytes::kRead, ConvertInt4);
  }
  const auto add_noise = [&](const std::string& name, const kernels::RandomNumbers& numbers) {
    rows.push_back({"",
                    "noise",
                    shape,
                    name,
                    "aqt",
                    {.ops = static_cast<double>(r * c)},
                    [=](Executor* executor) -> absl::StatusOr<Call> {
                      if (executor != nullptr) return absl::UnavailableError("takes one thread");
                      return Noise(r * c, numbers);
                    }});
  };
  using kernels::RandomNumbers;
  const Key key = MakeKey(1);
  add_noise("threefry_partitionable", RandomNumbers::Bits32(RandomBits(key, r * c, PrngLayout::kPartitionable)));
  add_noise("threefry_original", RandomNumbers::Bits32(RandomBits(key, r * c, PrngLayout::kOriginal)));
  add_noise("custom_1", RandomNumbers::Bits16(RandomBits(key, r * c)));
  add_noise("fast", RandomNumbers::Fast(key));
  return absl::OkStatus();
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) {
  return aqt::benchmarks::SuiteMain(argc, argv, {"64x1024", "16384x1024"}, aqt::benchmarks::Add);
}
