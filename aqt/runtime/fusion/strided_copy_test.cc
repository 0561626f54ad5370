#include "aqt/runtime/fusion/strided_copy.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/graph/eval_op.h"
#include "aqt/testing/random.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

using testing::Random;

Array Bytes(const Aval& aval, Random& random) {
  ArrayBuilder builder(aval);
  for (int64_t i = 0; i < aval.num_bytes(); ++i) static_cast<uint8_t*>(builder.data())[i] = random.Next() & 1;
  return std::move(builder).Build();
}

// The full copy, and every part, equal those of EvalOp.
void ExpectCopies(const Op& op, const Array& x, Random& random) {
  const Array want = (*EvalOp(op, {x}))[0];
  const std::optional<StridedCopy> copy = StridedCopy::Of(op, x.aval(), want.aval());
  ASSERT_TRUE(copy.has_value());
  ASSERT_EQ(copy->num_elements(), want.num_elements());
  ArrayBuilder got(want.aval());
  copy->Run(x.data(), got.data());
  ASSERT_EQ(std::memcmp(got.data(), want.data(), want.num_bytes()), 0) << OpName(op) << " " << x.aval();
  if (copy->IsIdentity()) {
    ASSERT_EQ(std::memcmp(x.data(), want.data(), want.num_bytes()), 0);
  }
  const int64_t n = want.num_elements(), size = SizeOf(want.dtype());
  const int64_t shift = copy->period() * size;
  if (n > 0) {
    ASSERT_GE(shift, size);
    ASSERT_EQ(std::memcmp(got.data(), static_cast<const char*>(got.data()) + shift, n * size - shift), 0);
  }
  for (int i = 0; i < 5 && n > 0; ++i) {
    const int64_t first = random.Below(n), count = 1 + random.Below(n - first);
    std::vector<char> part(count * size);
    copy->RunPart(x.data(), first, count, part.data());
    ASSERT_EQ(std::memcmp(part.data(), static_cast<const char*>(want.data()) + first * size, part.size()), 0)
        << OpName(op) << " " << x.aval() << " from " << first;
  }
}

TEST(StridedCopyTest, CopiesWhatEvalDoes) {
  Random random(1);
  const DType dtypes[] = {DType::kBool, DType::kBF16, DType::kF32, DType::kF64};
  for (int i = 0; i < 400; ++i) {
    Aval aval{dtypes[random.Below(4)], {}};
    const int64_t rank = random.Below(5);
    for (int64_t axis = 0; axis < rank; ++axis) aval.shape.push_back(random.Below(8) == 0 ? 40 : 1 + random.Below(5));
    if (i % 20 == 19 && rank > 0) aval.shape[random.Below(rank)] = 0;
    const Array x = Bytes(aval, random);

    TransposeOp transpose;
    for (int64_t axis = 0; axis < rank; ++axis) transpose.permutation.push_back(axis);
    for (int64_t axis = rank; axis > 1; --axis) {
      std::swap(transpose.permutation[axis - 1], transpose.permutation[random.Below(axis)]);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectCopies(transpose, x, random));

    BroadcastOp broadcast;
    for (int64_t axis = 0; axis < rank; ++axis) {
      if (random.Below(3) == 0) broadcast.shape.push_back(1 + random.Below(4));
      broadcast.axes.push_back(broadcast.shape.rank());
      broadcast.shape.push_back(aval.shape[axis] == 1 ? 1 + random.Below(4) : aval.shape[axis]);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectCopies(broadcast, x, random));

    SliceOp slice;
    for (int64_t axis = 0; axis < rank; ++axis) {
      slice.start.push_back(random.Below(aval.shape[axis] + 1));
      slice.limit.push_back(slice.start[axis] + random.Below(aval.shape[axis] - slice.start[axis] + 1));
      slice.stride.push_back(1 + random.Below(3));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectCopies(slice, x, random));
  }
}

// Arrays large enough for several threads: transposed matrices, whose rows are not multiples of a band, and rows.
TEST(StridedCopyTest, ThreadsWriteTheSameBytes) {
  Random random(2);
  kernels::ThreadPool pool(3);
  const Array x = Bytes({DType::kF32, {5, 203, 310}}, random);
  for (const Op& op : {Op(TransposeOp{{0, 2, 1}}), Op(TransposeOp{{2, 1, 0}}), Op(TransposeOp{{1, 0, 2}}),
                       Op(SliceOp{{0, 1, 3}, {5, 203, 310}, {1, 1, 1}}), Op(BroadcastOp{{5, 203, 310}, {0, 1, 2}})}) {
    const Array want = (*EvalOp(op, {x}))[0];
    ArrayBuilder got(want.aval());
    StridedCopy::Of(op, x.aval(), want.aval())->Run(x.data(), got.data(), &pool);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.num_bytes()), 0) << OpName(op);
  }
}

}  // namespace
}  // namespace aqt::internal
