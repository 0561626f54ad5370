#ifndef AQT_IO_TENSORS_TENSOR_VIEWS_H_
#define AQT_IO_TENSORS_TENSOR_VIEWS_H_

// Parts of tensors as tensors of their own: a range of rows, a transposed matrix, every second column.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

// Element [r, c] is the element first + r * row_step + c * col_step of another tensor. Steps are positive.
struct TensorView {
  std::string name = {};
  Shape shape = {};  // [rows, cols], or [cols]
  int64_t first = 0;
  int64_t row_step = 1;
  int64_t col_step = 1;
};

// A source whose views replace the tensors that they are parts of; all other tensors are those of `base`.
//
// A range of a view is read from the range of its tensor that it covers; of a transposed one, panels of rows are kept
// for the next call, because each of their columns is a read of its own. Memory: 12 MiB for these, and 96 KiB for each
// thread.
class ViewSource final : public TensorSource {
 public:
  // A tensor of `base` and its views, which may be none.
  using Views = std::pair<const TensorInfo*, std::vector<TensorView>>;

  // `base` must outlive the result. InvalidArgument, with names, if a view is not inside its tensor, the elements of a
  // tensor are not of whole bytes, or two tensors of the result would have the same name.
  static absl::StatusOr<std::unique_ptr<ViewSource>> Create(const TensorSource& base, std::vector<Views> views);
  ~ViewSource() override;

  // The tensor that the one of this name is a view of; null for a tensor of the base.
  const TensorInfo* ViewedBy(absl::string_view name) const;
  int64_t num_viewed() const { return num_viewed_; }
  int64_t num_views() const { return num_views_; }

 private:
  // The view that a tensor of this source is; without `tensor` if it is one of the base.
  struct View {
    const TensorInfo* tensor = nullptr;
    int64_t size = 0;  // bytes of an element
    int64_t rows = 0, cols = 0;
    int64_t first = 0, row_step = 1, col_step = 1;
    // A step along a column is shorter than one along a row: a row of the view is a column of the tensor.
    bool transposed() const { return rows > 1 && row_step < col_step; }
  };
  struct Box;
  struct Panel;
  class Buffers;

  explicit ViewSource(const TensorSource& base);
  absl::Status SetTensors(std::vector<Views> views);
  // Null for a tensor of the base.
  const View* FindView(absl::string_view name) const;
  absl::Status ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override;
  absl::Status ReadElements(const View& view, int64_t begin, int64_t end, uint8_t* dst) const;
  absl::Status ReadRows(const View& view, const Box& box, uint8_t* dst) const;
  absl::Status ReadTransposed(const View& view, const Box& box, int64_t pitch, uint8_t* dst) const;
  absl::Status ReadPanels(const View& view, const Box& box, uint8_t* dst) const;
  absl::Status LoadPanel(Panel& panel) const;
  absl::Status ReadColumns(const Panel& panel, int64_t col, int64_t cols) const;
  static bool ReadsThroughGaps(const View& view, int64_t span);
  std::shared_ptr<Panel> FindPanel(const View& view, int64_t first_row, int64_t rows) const;

  const TensorSource& base_;
  std::vector<View> views_;  // of each of tensors()
  int64_t num_viewed_ = 0, num_views_ = 0;
  const std::unique_ptr<Buffers> buffers_;
  mutable std::mutex mutex_;
  mutable std::list<std::shared_ptr<Panel>> panels_;         // the latest first; guarded by mutex_
  mutable std::pair<const TensorInfo*, int64_t> last_read_;  // the matrix of the latest panel; guarded by mutex_
};

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_TENSOR_VIEWS_H_
