// Input: the file of a trainer's state. An accepted file is unchanged when written and read again. A trainer that
// accepts it continues from it; a trainer that refuses it is unchanged.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/nn/train/trainer.h"

namespace {

using aqt::Slot;
using aqt::SlotKind;
using aqt::Value;
using aqt::nn::Trainer;

// One file in memory, for any path.
class OneFile final : public aqt::io::FileSystem {
 public:
  explicit OneFile(std::string content = "") : content_(std::move(content)) {}
  const std::string& content() const { return content_; }

  absl::StatusOr<std::unique_ptr<aqt::io::RandomAccessFile>> OpenForReading(absl::string_view) const override {
    return std::make_unique<Reading>(content_);
  }
  absl::StatusOr<std::unique_ptr<aqt::io::OutputFile>> CreateOutput(absl::string_view,
                                                                    const aqt::io::OutputOptions&) const override {
    return std::make_unique<Writing>(&content_);
  }
  absl::StatusOr<aqt::io::FileInfo> Stat(absl::string_view) const override {
    return aqt::io::FileInfo{.size = static_cast<int64_t>(content_.size())};
  }
  absl::StatusOr<aqt::io::FileInfo> LStat(absl::string_view path) const override { return Stat(path); }
  absl::StatusOr<std::string> RealPath(absl::string_view) const override { return None(); }
  absl::StatusOr<bool> IsMountPoint(absl::string_view) const override { return None(); }
  absl::StatusOr<std::optional<int64_t>> FreeBytes(absl::string_view) const override { return None(); }
  absl::StatusOr<std::vector<std::string>> List(absl::string_view) const override { return None(); }
  absl::Status CreateFolder(absl::string_view) const override { return None(); }
  absl::Status Remove(absl::string_view) const override { return None(); }
  absl::Status Rename(absl::string_view, absl::string_view) const override { return None(); }
  absl::Status Exchange(absl::string_view, absl::string_view) const override { return None(); }
  absl::Status SyncFolder(absl::string_view) const override { return None(); }
  absl::StatusOr<std::unique_ptr<aqt::io::FileLock>> Lock(absl::string_view) const override { return None(); }

 private:
  class Reading final : public aqt::io::RandomAccessFile {
   public:
    explicit Reading(const std::string& content)
        : content_(content), info_{.size = static_cast<int64_t>(content.size())} {}
    const std::string& path() const override { return path_; }
    const aqt::io::FileInfo& info() const override { return info_; }
    absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override {
      AQT_CHECK(offset >= 0 && offset <= size() && static_cast<int64_t>(dst.size()) <= size() - offset);
      std::copy_n(content_.begin() + offset, dst.size(), dst.begin());
      return absl::OkStatus();
    }

   private:
    const std::string path_ = "file", content_;
    const aqt::io::FileInfo info_;
  };
  class Writing final : public aqt::io::OutputFile {
   public:
    explicit Writing(std::string* content) : content_(content) {}
    const std::string& path() const override { return path_; }
    absl::Status Reserve(int64_t bytes) override {
      written_.resize(bytes);
      return absl::OkStatus();
    }
    absl::Status Write(int64_t offset, absl::Span<const uint8_t> data) override {
      written_.resize(std::max(written_.size(), static_cast<size_t>(offset) + data.size()));
      std::copy(data.begin(), data.end(), written_.begin() + offset);
      return absl::OkStatus();
    }
    absl::Status Commit() override {
      *content_ = written_;
      return absl::OkStatus();
    }

   private:
    const std::string path_ = "file";
    std::string* content_;
    std::string written_;
  };

  static absl::Status None() { return absl::UnimplementedError("no folders"); }
  mutable std::string content_;
};

const Slot kX{SlotKind::kData, "x"}, kKernel{SlotKind::kParam, "w"}, kLargest{SlotKind::kStat, "largest"};

// A loss with a parameter and a statistic.
std::vector<Value> Loss(absl::Span<const Value> in) {
  aqt::WriteSlot(kLargest, aqt::ops::Max(in[2], aqt::ops::ReduceMax(in[0])));
  return {aqt::ops::ReduceSum(aqt::ops::MatMul(in[0], in[1]) * in[2])};
}

Trainer MakeTrainer() {
  const aqt::Program loss = *aqt::Trace(
      Loss,
      {{kX, {aqt::DType::kF32, {1, 2}}}, {kKernel, {aqt::DType::kF32, {2, 3}}}, {kLargest, {aqt::DType::kF32, {}}}});
  return *Trainer::Make(
      loss, aqt::nn::Sgd{.learning_rate = 0.5},
      {{kKernel, aqt::Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3})}, {kLargest, aqt::Array::Scalar(0.0f)}},
      aqt::MakeKey(1));
}

std::string Saved(const Trainer& trainer) {
  const OneFile file;
  AQT_CHECK(trainer.Save(file, "file").ok());
  return file.content();
}

void CheckWrittenAgain(const aqt::nn::StateFile& state) {
  const OneFile file;
  AQT_CHECK(aqt::nn::SaveState(file, "file", state).ok());
  const absl::StatusOr<aqt::nn::StateFile> again = aqt::nn::LoadState(file, "file");
  AQT_CHECK(again.ok() && again->metadata == state.metadata && again->state.size() == state.state.size());
  for (const auto& [slot, array] : state.state) {
    const auto it = again->state.find(slot);
    AQT_CHECK(it != again->state.end() && aqt::BitEqual(it->second, array));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const OneFile file(std::string(reinterpret_cast<const char*>(data), size));
  const absl::StatusOr<aqt::nn::StateFile> state = aqt::nn::LoadState(file, "file");
  if (state.ok()) CheckWrittenAgain(*state);

  static const Trainer* const fresh = new Trainer(MakeTrainer());
  static const std::string* const before = new std::string(Saved(*fresh));
  Trainer trainer = *fresh;
  if (!trainer.Restore(file, "file").ok()) {
    AQT_CHECK(Saved(trainer) == *before);
    return 0;
  }
  AQT_CHECK(state.ok() && trainer.steps() >= 0);
  Trainer other = *fresh;
  AQT_CHECK(other.Restore(OneFile(Saved(trainer)), "file").ok());
  AQT_CHECK(Saved(other) == Saved(trainer));
  const aqt::SlotValues batch = {{kX, aqt::Array::Of<float>({1, 2}, {1, 2})}};
  const absl::StatusOr<aqt::SlotValues> mine = trainer.Step(batch), its = other.Step(batch);
  AQT_CHECK(mine.ok() == its.ok() && Saved(other) == Saved(trainer));
  return 0;
}
