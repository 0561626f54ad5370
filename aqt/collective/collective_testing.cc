#include "aqt/collective/collective_testing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"

namespace aqt::testing {
namespace {

absl::Status Expect(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : absl::InternalError(absl::StrCat(what, " gave a wrong result"));
}

// A number for element i of a process; sums of several round in f32 and overflow in s32.
template <class T>
T Element(int rank, int64_t i) {
  const auto mixed = static_cast<uint32_t>((i + 1) * 2654435761u ^ (rank + 1) * 40503u * 65537u);
  if constexpr (std::is_same_v<T, int32_t>) return static_cast<int32_t>(mixed);
  else return std::ldexp(static_cast<T>(static_cast<int32_t>(mixed)), static_cast<int>(mixed % 7) - 40);
}

template <class T>
Array Own(int rank, const Shape& shape) {
  std::vector<T> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = Element<T>(rank, static_cast<int64_t>(i));
  return Array::FromSpan(absl::MakeConstSpan(values), shape);
}

// The reduction by its definition.
template <class T>
Array Reduced(AllReduceKind kind, int size, const Shape& shape) {
  std::vector<T> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) {
    T value = Element<T>(0, static_cast<int64_t>(i));
    for (int rank = 1; rank < size; ++rank) {
      const T next = Element<T>(rank, static_cast<int64_t>(i));
      if (kind == AllReduceKind::kMax) value = std::max(value, next);
      else if (kind == AllReduceKind::kMin) value = std::min(value, next);
      else if constexpr (std::is_same_v<T, int32_t>) value = static_cast<T>(int64_t{value} + next);
      else value += next;
    }
    values[i] = value;
  }
  return Array::FromSpan(absl::MakeConstSpan(values), shape);
}

template <class T>
absl::Status CheckAllReduce(Collective& collective) {
  // An empty array; one round of messages; two rounds, of blocks that do not divide the elements.
  for (const Shape& shape : {Shape{0}, Shape{}, Shape{3, 5}, Shape{4097, 3}}) {
    for (const AllReduceKind kind : {AllReduceKind::kSum, AllReduceKind::kMax, AllReduceKind::kMin}) {
      AQT_ASSIGN_OR_RETURN(const Array got, AllReduce(collective, kind, Own<T>(collective.rank(), shape)));
      AQT_RETURN_IF_ERROR(Expect(BitEqual(got, Reduced<T>(kind, collective.size(), shape)),
                                 absl::StrCat("all_reduce of ", got.aval().ToString())));
    }
  }
  return absl::OkStatus();
}

// The last process has a NaN, and the others zeros of both signs.
absl::Status CheckSpecialFloats(Collective& collective) {
  const bool last = collective.rank() == collective.size() - 1;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Array x = Array::Of<float>({last ? nan : 1.0f, last ? -0.0f : 0.0f, last ? 0.0f : -0.0f}, {3});
  AQT_ASSIGN_OR_RETURN(const Array max, AllReduce(collective, AllReduceKind::kMax, x));
  AQT_ASSIGN_OR_RETURN(const Array min, AllReduce(collective, AllReduceKind::kMin, x));
  AQT_RETURN_IF_ERROR(Expect(std::isnan(max.View<float>()[0]) && std::isnan(min.View<float>()[0]), "a NaN"));
  if (collective.size() == 1) return absl::OkStatus();
  return Expect(!std::signbit(max.View<float>()[1]) && !std::signbit(max.View<float>()[2]) &&
                    std::signbit(min.View<float>()[1]) && std::signbit(min.View<float>()[2]),
                "a maximum or minimum of zeros");
}

absl::Status CheckAllGather(Collective& collective) {
  const int64_t size = collective.size();
  for (const int64_t axis : {0, 1, 2}) {
    const Shape shape{2, 3, 4};
    AQT_ASSIGN_OR_RETURN(const Array got, AllGather(collective, Own<float>(collective.rank(), shape), axis));
    Shape expected = shape;
    expected[axis] *= size;
    AQT_RETURN_IF_ERROR(Expect(got.shape() == expected, "the shape of all_gather"));
    for (int64_t i = 0; i < got.num_elements(); ++i) {
      int64_t index[3] = {i / (expected[1] * expected[2]), i / expected[2] % expected[1], i % expected[2]};
      const int rank = static_cast<int>(index[axis] / shape[axis]);
      index[axis] %= shape[axis];
      const int64_t own = (index[0] * shape[1] + index[1]) * shape[2] + index[2];
      AQT_RETURN_IF_ERROR(
          Expect(got.View<float>()[i] == Element<float>(rank, own), absl::StrCat("all_gather along axis ", axis)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBroadcast(Collective& collective) {
  for (int root = 0; root < collective.size(); ++root) {
    std::vector<int32_t> data(1000, collective.rank());
    AQT_RETURN_IF_ERROR(collective.Broadcast(data.data(), static_cast<int64_t>(data.size() * sizeof(int32_t)), root));
    AQT_RETURN_IF_ERROR(
        Expect(std::all_of(data.begin(), data.end(), [&](int32_t x) { return x == root; }), "broadcast"));
  }
  return absl::OkStatus();
}

// Splits into even and odd ranks, then splits those groups again; all groups work concurrently.
absl::Status CheckSplit(Collective& collective) {
  const int rank = collective.rank(), size = collective.size(), parity = rank % 2;
  AQT_RETURN_IF_ERROR(Expect(absl::IsInvalidArgument(collective.Split(-1).status()), "a split by a negative color"));
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<Collective> half, collective.Split(parity));
  AQT_RETURN_IF_ERROR(
      Expect(half->rank() == rank / 2 && half->size() == (size + 1 - parity) / 2, "the place in a part"));
  std::vector<int> ranks(half->size());
  AQT_RETURN_IF_ERROR(half->AllGather(&rank, sizeof(rank), ranks.data()));
  for (size_t i = 0; i < ranks.size(); ++i) {
    AQT_RETURN_IF_ERROR(Expect(ranks[i] == 2 * static_cast<int>(i) + parity, "all_gather in a part"));
  }
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<Collective> alone, half->Split(half->rank()));
  AQT_RETURN_IF_ERROR(Expect(alone->rank() == 0 && alone->size() == 1, "a part of one process"));
  AQT_RETURN_IF_ERROR(CheckAllReduce<float>(*half));
  AQT_RETURN_IF_ERROR(CheckBroadcast(*alone));
  return CheckAllReduce<int32_t>(collective);
}

absl::Status CheckAgreement(Collective& collective) {
  AQT_RETURN_IF_ERROR(AgreeOn(collective, absl::OkStatus()));
  const bool last = collective.rank() == collective.size() - 1;
  const absl::Status agreed = AgreeOn(collective, last ? absl::NotFoundError("no such file") : absl::OkStatus());
  return Expect(last ? absl::IsNotFound(agreed)
                     : absl::IsAborted(agreed) &&
                           agreed.message() == absl::StrCat("process ", collective.size() - 1, " failed: no such file"),
                "an agreement on an error");
}

}  // namespace

// All processes but the first call Fail: the error names the second, or the first if it is alone. The group then
// continues.
absl::Status CheckFail(Collective& collective) {
  const int rank = collective.rank(), size = collective.size(), named = size > 1 ? 1 : 0;
  std::vector<int32_t> all(size);
  const absl::Status first = rank >= named ? collective.Fail(absl::DataLossError(absl::StrCat("file ", rank)))
                                           : collective.AllGather(&rank, sizeof(rank), all.data());
  const std::string message = absl::StrCat("process ", named, " failed: file ", named);
  AQT_RETURN_IF_ERROR(Expect(absl::IsAborted(first) && first.message() == message, first.ToString()));
  AQT_RETURN_IF_ERROR(collective.AllGather(&rank, sizeof(rank), all.data()));
  return Expect(all[size - 1] == size - 1, "AllGather after Fail");
}

absl::Status CheckCollective(Collective& collective) {
  AQT_RETURN_IF_ERROR(CheckAllReduce<float>(collective));
  AQT_RETURN_IF_ERROR(CheckAllReduce<double>(collective));
  AQT_RETURN_IF_ERROR(CheckAllReduce<int32_t>(collective));
  AQT_RETURN_IF_ERROR(CheckSpecialFloats(collective));
  AQT_RETURN_IF_ERROR(CheckAllGather(collective));
  AQT_RETURN_IF_ERROR(CheckBroadcast(collective));
  AQT_RETURN_IF_ERROR(CheckSplit(collective));
  AQT_RETURN_IF_ERROR(CheckAgreement(collective));
  return CheckFail(collective);
}

}  // namespace aqt::testing
