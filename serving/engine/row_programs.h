#ifndef AQT_SERVING_ENGINE_ROW_PROGRAMS_H_
#define AQT_SERVING_ENGINE_ROW_PROGRAMS_H_

// The compiled programs of a model, by batch and length.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "serving/engine/batch_runner.h"
#include "serving/engine/row_model.h"

namespace aqt::serving {

// Thread-safe. Keeps `limit` programs; the one that was not used for the longest time goes first.
class RowPrograms {
 public:
  RowPrograms(std::shared_ptr<const RowModel> model, int64_t limit) : model_(std::move(model)), limit_(limit) {}

  // Compiles it if it is not kept. Other threads may compile others at the same time.
  absl::StatusOr<std::shared_ptr<const RowProgram>> Get(int64_t batch, int64_t length);
  int64_t size() const;

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const RowProgram> program;  // guarded by mutex
    int64_t last_use = 0;                       // guarded by RowPrograms::mutex_
  };

  std::shared_ptr<Entry> Find(int64_t batch, int64_t length);

  const std::shared_ptr<const RowModel> model_;
  const int64_t limit_;
  mutable std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<Entry>> entries_;  // by length, batch; guarded by mutex_
  int64_t uses_ = 0;                                                       // guarded by mutex_
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_ROW_PROGRAMS_H_
