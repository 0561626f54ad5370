#include "aqt/io/tensors/tensor_views.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

constexpr int64_t kScratchBytes = 96 << 10;
// A read costs as much as copying some thousands of bytes: smaller gaps between ranges are read, too.
constexpr int64_t kMaxGapBytes = 4 << 10;
// Columns that are transposed together, so that rows are written in whole cache lines.
constexpr int64_t kColumnUnit = 32;
constexpr int64_t kPanelBytes = 6 << 20;
// The part of a panel that a thread reads at a time.
constexpr int64_t kLoadBytes = 256 << 10;
// Columns of a panel that are transposed together: their lines, and those of the result, stay in a cache of 1 MiB.
constexpr int64_t kColumnTile = 256;
constexpr size_t kMaxPanels = 2;

template <class T>
using Vector __attribute__((vector_size(16))) = T;

// The lower (upper) halves of a and b in turn: a[0], b[0], a[1], ...
template <class T, size_t... kI>
Vector<T> LowerInTurn(Vector<T> a, Vector<T> b, std::index_sequence<kI...>) {
  return __builtin_shufflevector(a, b, (kI % 2 == 0 ? kI / 2 : sizeof...(kI) + kI / 2)...);
}
template <class T, size_t... kI>
Vector<T> UpperInTurn(Vector<T> a, Vector<T> b, std::index_sequence<kI...>) {
  constexpr size_t kHalf = sizeof...(kI) / 2;
  return __builtin_shufflevector(a, b, (kI % 2 == 0 ? kHalf + kI / 2 : sizeof...(kI) + kHalf + kI / 2)...);
}
// Every second element of a, then of b.
template <class T, size_t... kI>
Vector<T> EverySecond(Vector<T> a, Vector<T> b, std::index_sequence<kI...>) {
  return __builtin_shufflevector(a, b, (2 * kI)...);
}

// dst[r][c] = src[c][r * kStep] for a square block of elements; reads up to the end of the last step. Pitches in bytes.
template <class T, int kStep>
void TransposeBlock(const uint8_t* src, int64_t src_pitch, uint8_t* dst, int64_t dst_pitch) {
  constexpr int kN = 16 / sizeof(T);
  using All = std::make_index_sequence<kN>;
  Vector<T> a[kN], b[kN];
#pragma GCC unroll 16
  for (int c = 0; c < kN; ++c) {
    std::memcpy(&a[c], src + c * src_pitch, 16);
    if constexpr (kStep == 2) {
      std::memcpy(&b[c], src + c * src_pitch + 16, 16);
      a[c] = EverySecond<T>(a[c], b[c], All());
    }
  }
  // Shuffling the first half of the rows into the second one as often as halves can be halved transposes them.
#pragma GCC unroll 4
  for (int half = kN / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kN / 2; ++i) {
      b[2 * i] = LowerInTurn<T>(a[i], a[i + kN / 2], All());
      b[2 * i + 1] = UpperInTurn<T>(a[i], a[i + kN / 2], All());
    }
    std::memcpy(a, b, sizeof(a));
  }
#pragma GCC unroll 16
  for (int r = 0; r < kN; ++r) std::memcpy(dst + r * dst_pitch, &a[r], 16);
}

// dst[r][c] = src[c][r * step] for elements of one size. A row of `dst` has `dst_pitch` elements, one of `src`
// `src_pitch`. `src` has kSlack readable bytes past its end.
constexpr int64_t kSlack = 32;
template <class T>
void TransposeElements(const uint8_t* src, int64_t src_pitch, int64_t step, int64_t rows, int64_t cols, uint8_t* dst,
                       int64_t dst_pitch) {
  constexpr int64_t kSize = sizeof(T), kN = 16 / kSize;
  const int64_t from_pitch = src_pitch * kSize, to_pitch = dst_pitch * kSize;
  const int64_t whole_rows = step <= 2 ? rows / kN * kN : 0, whole_cols = cols / kN * kN;
  for (int64_t r = 0; r < whole_rows; r += kN) {
    for (int64_t c = 0; c < whole_cols; c += kN) {
      const uint8_t* const from = src + c * from_pitch + r * step * kSize;
      uint8_t* const to = dst + r * to_pitch + c * kSize;
      if (step == 1) TransposeBlock<T, 1>(from, from_pitch, to, to_pitch);
      else TransposeBlock<T, 2>(from, from_pitch, to, to_pitch);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < whole_rows ? whole_cols : 0; c < cols; ++c) {
      std::memcpy(dst + r * to_pitch + c * kSize, src + c * from_pitch + r * step * kSize, kSize);
    }
  }
}

void TransposeInto(int64_t size, const uint8_t* src, int64_t src_pitch, int64_t step, int64_t rows, int64_t cols,
                   uint8_t* dst, int64_t dst_pitch) {
  switch (size) {
    case 1: return TransposeElements<uint8_t>(src, src_pitch, step, rows, cols, dst, dst_pitch);
    case 2: return TransposeElements<uint16_t>(src, src_pitch, step, rows, cols, dst, dst_pitch);
    case 4: return TransposeElements<uint32_t>(src, src_pitch, step, rows, cols, dst, dst_pitch);
    default: return TransposeElements<uint64_t>(src, src_pitch, step, rows, cols, dst, dst_pitch);
  }
}

// dst[i] = src[i * step] for elements of one size. `src` has kSlack readable bytes past its end.
template <class T>
void TakeElements(const uint8_t* src, int64_t step, int64_t n, uint8_t* dst) {
  constexpr int64_t kSize = sizeof(T), kN = 16 / kSize;
  int64_t i = 0;
  for (; step == 2 && i + kN <= n; i += kN) {
    Vector<T> a, b;
    std::memcpy(&a, src + 2 * i * kSize, 16);
    std::memcpy(&b, src + 2 * i * kSize + 16, 16);
    a = EverySecond<T>(a, b, std::make_index_sequence<kN>());
    std::memcpy(dst + i * kSize, &a, 16);
  }
  for (; i < n; ++i) std::memcpy(dst + i * kSize, src + i * step * kSize, kSize);
}

void TakeInto(int64_t size, const uint8_t* src, int64_t step, int64_t n, uint8_t* dst) {
  if (step == 1) {
    std::memcpy(dst, src, static_cast<size_t>(n * size));
    return;
  }
  switch (size) {
    case 1: return TakeElements<uint8_t>(src, step, n, dst);
    case 2: return TakeElements<uint16_t>(src, step, n, dst);
    case 4: return TakeElements<uint32_t>(src, step, n, dst);
    default: return TakeElements<uint64_t>(src, step, n, dst);
  }
}

// Memory that is not set to zero first.
std::unique_ptr<uint8_t[]> Scratch(int64_t bytes) {
  return std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(bytes + kSlack));
}

// Overflow-free for a view inside its tensor: `elements` bounds every product.
bool IsInside(const TensorView& view, int64_t elements) {
  const int64_t rank = view.shape.rank();
  if (rank < 1 || rank > 2 || view.first < 0 || view.row_step < 1 || view.col_step < 1) return false;
  const int64_t rows = rank == 2 ? view.shape[0] : 1, cols = view.shape[rank - 1];
  if (rows < 0 || cols < 0) return false;
  if (rows == 0 || cols == 0) return view.first <= elements;
  int64_t left = elements - 1 - view.first;
  if (left < 0 || (rows - 1) > left / view.row_step) return false;
  left -= (rows - 1) * view.row_step;
  return (cols - 1) <= left / view.col_step;
}

// The rows of a panel; 0 if not even one fits.
int64_t PanelRows(int64_t cols, int64_t size) { return kPanelBytes / std::max<int64_t>(1, cols * size); }

// Columns of this size that fit into the scratch memory, at least one.
int64_t ColumnsAtOnce(int64_t bytes) {
  const int64_t fit = std::max<int64_t>(1, kScratchBytes / bytes);
  return fit < kColumnUnit ? fit : fit / kColumnUnit * kColumnUnit;
}

}  // namespace

// Whether ranges of `span` elements, one in each column, are read together with what is between them.
bool ViewSource::ReadsThroughGaps(const View& view, int64_t span) {
  return (view.col_step - span) * view.size <= kMaxGapBytes;
}

// Rows [row, row + rows) and columns [col, col + cols) of a view.
struct ViewSource::Box {
  int64_t row, rows, col, cols;
};

// The memory of panels. There is only so much: a new panel waits until nobody uses the one that it replaces.
class ViewSource::Buffers {
 public:
  std::unique_ptr<uint8_t[]> Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    given_.wait(lock, [&] { return !free_.empty() || made_ < kMaxPanels; });
    if (free_.empty()) {
      ++made_;
      return Scratch(kPanelBytes);
    }
    std::unique_ptr<uint8_t[]> buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  void Give(std::unique_ptr<uint8_t[]> buffer) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      free_.push_back(std::move(buffer));
    }
    given_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable given_;
  std::vector<std::unique_ptr<uint8_t[]>> free_;
  size_t made_ = 0;
};

// Rows of a transposed view, in the order of its tensor: column by column. A read transposes what it asks for, into
// memory that is smaller than a panel and stays in cache. Several threads may load a panel together: each takes the
// next range of columns.
struct ViewSource::Panel {
  Panel(const View& of, int64_t first, int64_t n, bool whole, Buffers& from)
      : view(of), first_row(first), rows(n), reads_whole(whole), buffers(from), bytes(from.Take()) {}
  ~Panel() { buffers.Give(std::move(bytes)); }

  const View& view;
  const int64_t first_row, rows;
  const bool reads_whole;  // reads what is between its columns as well
  Buffers& buffers;
  std::unique_ptr<uint8_t[]> bytes;  // kPanelBytes
  std::mutex mutex;
  std::condition_variable changed;
  int64_t next_col = 0;  // these are guarded by mutex
  int64_t cols_done = 0;
  absl::Status status;
};

ViewSource::ViewSource(const TensorSource& base) : base_(base), buffers_(std::make_unique<Buffers>()) {}
ViewSource::~ViewSource() = default;

absl::StatusOr<std::unique_ptr<ViewSource>> ViewSource::Create(const TensorSource& base, std::vector<Views> views) {
  std::unique_ptr<ViewSource> source(new ViewSource(base));
  AQT_RETURN_IF_ERROR(source->SetTensors(std::move(views)));
  return source;
}

absl::Status ViewSource::SetTensors(std::vector<Views> views) {
  num_viewed_ = static_cast<int64_t>(views.size());
  std::map<const TensorInfo*, std::vector<TensorView>> views_of;
  for (auto& [tensor, of_tensor] : views) views_of[tensor] = std::move(of_tensor);
  std::vector<TensorInfo> tensors;
  for (const TensorInfo& tensor : base_.tensors()) {
    const auto found = views_of.find(&tensor);
    if (found == views_of.end()) {
      tensors.push_back(tensor);
      views_.push_back({});
      continue;
    }
    const int64_t bits = BitWidth(tensor.dtype), size = bits / 8;
    for (TensorView& view : found->second) {
      if (bits % 8 != 0 || !IsInside(view, tensor.num_bytes() / size)) {
        return absl::InvalidArgumentError(absl::StrCat("'", base_.path(), "', tensor ", QuoteForMessage(tensor.name),
                                                       ": ", QuoteForMessage(view.name), " ", view.shape.ToString(),
                                                       " is not a part of it"));
      }
      TensorInfo info;
      info.name = std::move(view.name);
      info.dtype = tensor.dtype;
      info.shape = view.shape;
      info.shard = tensor.shard;
      AQT_ASSIGN_OR_RETURN(info.end, TensorBytes(info.dtype, info.shape));
      tensors.push_back(std::move(info));
      const int64_t rank = view.shape.rank();
      views_.push_back({&tensor, size, rank == 2 ? view.shape[0] : 1, view.shape[rank - 1], view.first, view.row_step,
                        view.col_step});
      ++num_views_;
    }
  }
  const std::vector<int32_t> by_name = SortByName(tensors);
  for (size_t i = 1; i < by_name.size(); ++i) {
    const std::string& name = tensors[by_name[i]].name;
    if (name != tensors[by_name[i - 1]].name) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", base_.path(), "' would have two tensors ", QuoteForMessage(name)));
  }
  SetContents(base_.path(), base_.shards(), std::move(tensors), base_.warnings());
  return absl::OkStatus();
}

const ViewSource::View* ViewSource::FindView(absl::string_view name) const {
  const TensorInfo* const tensor = Find(name);
  if (tensor == nullptr) return nullptr;
  const View& view = views_[static_cast<size_t>(tensor - tensors().data())];
  return view.tensor == nullptr ? nullptr : &view;
}

const TensorInfo* ViewSource::ViewedBy(absl::string_view name) const {
  const View* const view = FindView(name);
  return view == nullptr ? nullptr : view->tensor;
}

absl::Status ViewSource::ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  const View* const found = FindView(tensor.name);
  if (found == nullptr) return base_.Read(tensor, offset, dst);
  const View& view = *found;
  const int64_t size = view.size, bytes = static_cast<int64_t>(dst.size());
  const int64_t begin = offset / size, end = (offset + bytes + size - 1) / size;
  if (begin * size == offset && end * size == offset + bytes) return ReadElements(view, begin, end, dst.data());
  std::vector<uint8_t> whole(static_cast<size_t>((end - begin) * size));
  AQT_RETURN_IF_ERROR(ReadElements(view, begin, end, whole.data()));
  std::memcpy(dst.data(), whole.data() + offset - begin * size, dst.size());
  return absl::OkStatus();
}

// A part of a row, whole rows, a part of a row.
absl::Status ViewSource::ReadElements(const View& view, int64_t begin, int64_t end, uint8_t* dst) const {
  while (begin < end) {
    const int64_t row = begin / view.cols, col = begin % view.cols;
    const bool whole = col == 0 && end - begin >= view.cols;
    const Box box = whole ? Box{row, (end - begin) / view.cols, 0, view.cols}
                          : Box{row, 1, col, std::min(end - begin, view.cols - col)};
    AQT_RETURN_IF_ERROR(!view.transposed()                    ? ReadRows(view, box, dst)
                        : PanelRows(view.cols, view.size) > 0 ? ReadPanels(view, box, dst)
                                                              : ReadTransposed(view, box, box.cols, dst));
    begin += box.rows * box.cols;
    dst += box.rows * box.cols * view.size;
  }
  return absl::OkStatus();
}

absl::Status ViewSource::ReadRows(const View& view, const Box& box, uint8_t* dst) const {
  const int64_t size = view.size;
  const auto read = [&](int64_t element, uint8_t* to, int64_t count) {
    return base_.Read(*view.tensor, element * size, absl::MakeSpan(to, static_cast<size_t>(count * size)));
  };
  const int64_t first = view.first + box.row * view.row_step + box.col * view.col_step;
  if (view.col_step == 1 && (box.rows == 1 || view.row_step == box.cols)) return read(first, dst, box.rows * box.cols);
  const int64_t at_once = std::max<int64_t>(1, kScratchBytes / size / view.col_step);
  const std::unique_ptr<uint8_t[]> scratch = view.col_step == 1 ? nullptr : Scratch(at_once * view.col_step * size);
  for (int64_t r = 0; r < box.rows; ++r) {
    const int64_t start = first + r * view.row_step;
    uint8_t* const row = dst + r * box.cols * size;
    if (view.col_step == 1) {
      AQT_RETURN_IF_ERROR(read(start, row, box.cols));
      continue;
    }
    for (int64_t c = 0; c < box.cols; c += at_once) {
      const int64_t n = std::min(at_once, box.cols - c), span = (n - 1) * view.col_step + 1;
      AQT_RETURN_IF_ERROR(read(start + c * view.col_step, scratch.get(), span));
      TransposeInto(size, scratch.get(), view.col_step, 1, 1, n, row + c * size, n);
    }
  }
  return absl::OkStatus();
}

// Each column of the view is a range of its tensor. A row of `dst` has `pitch` elements.
absl::Status ViewSource::ReadTransposed(const View& view, const Box& box, int64_t pitch, uint8_t* dst) const {
  const int64_t size = view.size, span = (box.rows - 1) * view.row_step + 1;
  // Neighbouring columns are read together if the gap between them is small.
  const bool adjacent = ReadsThroughGaps(view, span);
  const int64_t distance = adjacent ? view.col_step : span;
  const int64_t first = view.first + box.row * view.row_step + box.col * view.col_step;
  const int64_t at_once = std::min(ColumnsAtOnce(distance * size), box.cols);
  const std::unique_ptr<uint8_t[]> scratch = Scratch(((at_once - 1) * distance + span) * size);
  for (int64_t c = 0; c < box.cols; c += at_once) {
    const int64_t n = std::min(at_once, box.cols - c);
    const int64_t reads = adjacent ? 1 : n, elements = adjacent ? (n - 1) * distance + span : span;
    for (int64_t i = 0; i < reads; ++i) {
      AQT_RETURN_IF_ERROR(
          base_.Read(*view.tensor, (first + (c + i) * view.col_step) * size,
                     absl::MakeSpan(scratch.get() + i * span * size, static_cast<size_t>(elements * size))));
    }
    TransposeInto(size, scratch.get(), distance, view.row_step, box.rows, n, dst + c * size, pitch);
  }
  return absl::OkStatus();
}

absl::Status ViewSource::ReadPanels(const View& view, const Box& box, uint8_t* dst) const {
  const int64_t of_panel = PanelRows(view.cols, view.size), row_bytes = box.cols * view.size;
  for (int64_t row = box.row; row < box.row + box.rows;) {
    const int64_t first = row / of_panel * of_panel, rows = std::min(of_panel, view.rows - first);
    const int64_t end = std::min(box.row + box.rows, first + rows);
    if (box.cols == view.cols && end - row == rows) {  // nothing of the panel is left for another call
      AQT_RETURN_IF_ERROR(ReadTransposed(view, {first, rows, 0, view.cols}, view.cols, dst));
    } else {
      const std::shared_ptr<Panel> panel = FindPanel(view, first, rows);
      AQT_RETURN_IF_ERROR(LoadPanel(*panel));
      for (int64_t c = 0; c < box.cols; c += kColumnTile) {
        TransposeInto(view.size, panel->bytes.get() + ((box.col + c) * rows + row - first) * view.size, rows, 1,
                      end - row, std::min(kColumnTile, box.cols - c), dst + c * view.size, box.cols);
      }
    }
    dst += (end - row) * row_bytes;
    row = end;
  }
  return absl::OkStatus();
}

std::shared_ptr<ViewSource::Panel> ViewSource::FindPanel(const View& view, int64_t first_row, int64_t rows) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(panels_.begin(), panels_.end(), [&](const std::shared_ptr<Panel>& panel) {
    return &panel->view == &view && panel->first_row == first_row;
  });
  if (found != panels_.end()) {
    panels_.splice(panels_.begin(), panels_, found);
  } else {
    if (panels_.size() == kMaxPanels) panels_.pop_back();
    // The first panel of a matrix reads all of it, in its order, so that the system has it in its cache: the others
    // read small pieces, which would be slow on a disk.
    const std::pair<const TensorInfo*, int64_t> matrix(view.tensor, view.first / view.col_step);
    const bool whole = matrix != last_read_ || ReadsThroughGaps(view, (rows - 1) * view.row_step + 1);
    last_read_ = matrix;
    panels_.push_front(std::make_shared<Panel>(view, first_row, rows, whole, *buffers_));
  }
  return panels_.front();
}

// Columns [col, col + cols).
absl::Status ViewSource::ReadColumns(const Panel& panel, int64_t col, int64_t cols) const {
  const View& view = panel.view;
  const int64_t size = view.size, step = view.row_step, span = (panel.rows - 1) * step + 1;
  const int64_t first = view.first + panel.first_row * step;
  const auto read = [&](int64_t element, uint8_t* to, int64_t count) {
    return base_.Read(*view.tensor, element * size, absl::MakeSpan(to, static_cast<size_t>(count * size)));
  };
  const auto place = [&](int64_t c) { return panel.bytes.get() + c * panel.rows * size; };
  const int64_t of_scratch = kScratchBytes / size / step * step;  // elements
  const std::unique_ptr<uint8_t[]> scratch = panel.reads_whole || step > 1 ? Scratch(kScratchBytes) : nullptr;
  // Several columns at a time, with what is between them.
  const int64_t at_once = panel.reads_whole ? of_scratch / view.col_step : 0;
  for (int64_t c = col; at_once > 1 && c < col + cols; c += at_once) {
    const int64_t n = std::min(at_once, col + cols - c);
    AQT_RETURN_IF_ERROR(read(first + c * view.col_step, scratch.get(), (n - 1) * view.col_step + span));
    for (int64_t i = 0; i < n; ++i) {
      TakeInto(size, scratch.get() + i * view.col_step * size, step, panel.rows, place(c + i));
    }
  }
  if (at_once > 1) return absl::OkStatus();
  // A column at a time, in parts.
  for (int64_t c = col; c < col + cols; ++c) {
    const int64_t begin = first + c * view.col_step;
    if (scratch == nullptr) {
      AQT_RETURN_IF_ERROR(read(begin, place(c), span));
      continue;
    }
    const int64_t end = panel.reads_whole && c + 1 < view.cols ? view.col_step : span;
    for (int64_t at = 0; at < end; at += of_scratch) {
      const int64_t n = std::min(of_scratch, end - at), row = at / step;
      AQT_RETURN_IF_ERROR(read(begin + at, scratch.get(), n));
      const int64_t rows = std::min((n + step - 1) / step, panel.rows - row);
      if (rows > 0) TakeInto(size, scratch.get(), step, rows, place(c) + row * size);
    }
  }
  return absl::OkStatus();
}

absl::Status ViewSource::LoadPanel(Panel& panel) const {
  const View& view = panel.view;
  const int64_t at_once = std::max<int64_t>(1, kLoadBytes / (panel.rows * view.size));
  std::unique_lock<std::mutex> lock(panel.mutex);
  while (panel.status.ok() && panel.next_col < view.cols) {
    const int64_t col = panel.next_col, n = std::min(at_once, view.cols - col);
    panel.next_col += n;
    lock.unlock();
    const absl::Status status = ReadColumns(panel, col, n);
    lock.lock();
    panel.status.Update(status);
    panel.cols_done += n;
    panel.changed.notify_all();
  }
  panel.changed.wait(lock, [&] { return !panel.status.ok() || panel.cols_done == view.cols; });
  return panel.status;
}

}  // namespace aqt::io
