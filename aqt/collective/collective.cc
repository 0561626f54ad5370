#include "aqt/collective/collective.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"

namespace aqt {
namespace {

// Bytes of an array reduced at once, and bytes above which a second round of messages pays off.
constexpr int64_t kPieceBytes = int64_t{64} << 20, kOneRoundBytes = 16 << 10;

template <class T>
T Larger(T a, T b) {
  if constexpr (!std::is_integral_v<T>) {
    if (a != a || b != b) return a + b;
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
}

template <class T>
T Reduced(AllReduceKind kind, T a, T b) {
  switch (kind) {
    case AllReduceKind::kSum:
      if constexpr (std::is_same_v<T, int32_t>) {
        return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
      } else {
        return a + b;
      }
    case AllReduceKind::kMax: return Larger(a, b);
    case AllReduceKind::kMin:
      if constexpr (std::is_integral_v<T>) return std::min(a, b);
      else return -Larger(-a, -b);
  }
  return a;
}

// out[i] = the reduction of element i of all blocks, in order.
template <class T>
void ReduceBlocks(AllReduceKind kind, const T* blocks, int64_t num_blocks, int64_t elements, T* out) {
  std::copy(blocks, blocks + elements, out);
  for (int64_t block = 1; block < num_blocks; ++block) {
    const T* const own = blocks + block * elements;
    for (int64_t i = 0; i < elements; ++i) out[i] = Reduced(kind, out[i], own[i]);
  }
}

// Small pieces: every process gathers everything and reduces it. Large pieces: every process reduces one block and
// gathers the other results.
template <class T>
absl::Status ReducePiece(Collective& collective, AllReduceKind kind, const T* in, int64_t elements, T* out) {
  const int64_t size = collective.size();
  constexpr int64_t kBytes = sizeof(T);
  std::vector<T> all;
  if (elements * kBytes <= kOneRoundBytes) {
    all.resize(size * elements);
    AQT_RETURN_IF_ERROR(collective.AllGather(in, elements * kBytes, all.data()));
    ReduceBlocks(kind, all.data(), size, elements, out);
    return absl::OkStatus();
  }
  const int64_t block = (elements + size - 1) / size;
  std::vector<T> mine(size * block), own(block);
  std::copy(in, in + elements, mine.begin());
  all.resize(size * block);
  AQT_RETURN_IF_ERROR(collective.AllToAll(mine.data(), block * kBytes, all.data()));
  ReduceBlocks(kind, all.data(), size, block, own.data());
  AQT_RETURN_IF_ERROR(collective.AllGather(own.data(), block * kBytes, all.data()));
  std::copy(all.begin(), all.begin() + elements, out);
  return absl::OkStatus();
}

template <class T>
absl::StatusOr<Array> ReduceAs(Collective& collective, AllReduceKind kind, const Array& x) {
  ArrayBuilder result = ArrayBuilder::ForOverwrite(x.aval());
  const T* const in = x.View<T>().data();
  T* const out = result.Mutable<T>().data();
  constexpr int64_t kPiece = kPieceBytes / sizeof(T);
  for (int64_t start = 0; start < x.num_elements(); start += kPiece) {
    const int64_t elements = std::min(kPiece, x.num_elements() - start);
    AQT_RETURN_IF_ERROR(ReducePiece(collective, kind, in + start, elements, out + start));
  }
  return std::move(result).Build();
}

}  // namespace

absl::Status OneProcess::AllGather(const void* in, int64_t bytes, void* out) {
  if (bytes > 0) std::memcpy(out, in, bytes);
  return absl::OkStatus();
}

absl::Status OneProcess::AllToAll(const void* in, int64_t bytes, void* out) { return AllGather(in, bytes, out); }

absl::Status OneProcess::Fail(const absl::Status& error) { return ProcessFailed(0, error.message()); }

absl::Status ProcessFailed(int rank, absl::string_view message) {
  return absl::AbortedError(absl::StrCat("process ", rank, " failed: ", message));
}

absl::StatusOr<std::unique_ptr<Collective>> OneProcess::Split(int color) {
  AQT_RETURN_IF_ERROR(CheckColor(color));
  return std::make_unique<OneProcess>();
}

absl::Status CheckColor(int color) {
  if (color >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Split: the color is ", color, ", expected 0 or more"));
}

absl::StatusOr<Array> AllReduce(Collective& collective, AllReduceKind kind, const Array& x) {
  switch (x.dtype()) {
    case DType::kF32: return ReduceAs<float>(collective, kind, x);
    case DType::kF64: return ReduceAs<double>(collective, kind, x);
    case DType::kS32: return ReduceAs<int32_t>(collective, kind, x);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("all_reduce takes f32, f64 and s32, not ", x.aval().ToString(), "; cast it"));
  }
}

absl::StatusOr<Array> AllGather(Collective& collective, const Array& x, int64_t axis) {
  if (axis < 0 || axis >= x.shape().rank()) {
    return absl::InvalidArgumentError(absl::StrCat("all_gather: ", x.aval().ToString(), " has no axis ", axis));
  }
  const int64_t size = collective.size();
  Shape shape = x.shape();
  shape[axis] *= size;
  ArrayBuilder result = ArrayBuilder::ForOverwrite({x.dtype(), shape});
  // The elements from `axis` on are contiguous.
  int64_t outer = 1;
  for (int64_t i = 0; i < axis; ++i) outer *= x.shape()[i];
  if (outer == 1 || x.num_bytes() == 0) {
    AQT_RETURN_IF_ERROR(collective.AllGather(x.data(), x.num_bytes(), result.data()));
    return std::move(result).Build();
  }
  std::vector<char> blocks(size * x.num_bytes());
  AQT_RETURN_IF_ERROR(collective.AllGather(x.data(), x.num_bytes(), blocks.data()));
  const int64_t run = x.num_bytes() / outer;
  char* out = static_cast<char*>(result.data());
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t rank = 0; rank < size; ++rank, out += run) {
      std::memcpy(out, blocks.data() + rank * x.num_bytes() + i * run, run);
    }
  }
  return std::move(result).Build();
}

absl::Status AgreeOn(Collective& collective, const absl::Status& status) {
  constexpr size_t kMessageBytes = 512;
  char mine[kMessageBytes] = {};
  if (!status.ok()) {
    const std::string text(status.message());
    mine[0] = 1;
    std::memcpy(mine + 1, text.data(), std::min(text.size(), kMessageBytes - 2));
  }
  std::vector<char> all(collective.size() * kMessageBytes);
  AQT_RETURN_IF_ERROR(collective.AllGather(mine, kMessageBytes, all.data()));
  AQT_RETURN_IF_ERROR(status);
  for (int rank = 0; rank < collective.size(); ++rank) {
    const char* const message = all.data() + rank * kMessageBytes;
    if (message[0] != 0) return ProcessFailed(rank, message + 1);
  }
  return absl::OkStatus();
}

}  // namespace aqt
