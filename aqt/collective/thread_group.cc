#include "aqt/collective/thread_group.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"

namespace aqt {
namespace {

// The data that one thread offers to the others in a call.
struct Offer {
  const char* call = "";
  const void* data = nullptr;
  int64_t bytes = 0;
  int root = 0;
};
constexpr char kFail[] = "Fail";  // the data are text of that many bytes

class Group {
 public:
  explicit Group(int size) : offers_(size) {}
  int size() const { return static_cast<int>(offers_.size()); }

  // Returns when all threads have called it.
  absl::Status Meet() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++meetings_;
      met_.notify_all();
      return broken_;
    }
    const int64_t meeting = meetings_;
    met_.wait(lock, [&] { return !broken_.ok() || meetings_ != meeting; });
    return meetings_ != meeting ? absl::OkStatus() : broken_;
  }

  // From now on no thread waits, here and in the groups split from this one: calls fail with `error`.
  void Break(const absl::Status& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (broken_.ok()) broken_ = error;
    met_.notify_all();
    for (const auto& [key, part] : parts_) part->Break(error);
  }

  // The group of `color` of split number `split`; the first caller creates it.
  std::shared_ptr<Group> Part(int64_t split, int color, int size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Group>& part = parts_[{split, color}];
    if (part == nullptr) {
      part = std::make_shared<Group>(size);
      if (!broken_.ok()) part->Break(broken_);
    }
    return part;
  }

  // Shows `mine` to all threads, calls `copy`, which reads the offers of the others, and waits until all are done.
  absl::Status Exchange(int rank, const Offer& mine, absl::FunctionRef<void(const std::vector<Offer>&)> copy) {
    offers_[rank] = mine;
    AQT_RETURN_IF_ERROR(Meet());
    const absl::Status same = CheckSame(rank, mine);
    if (same.ok()) copy(offers_);
    AQT_RETURN_IF_ERROR(Meet());
    return same;
  }

 private:
  absl::Status CheckSame(int rank, const Offer& mine) const {
    for (int other = 0; other < size(); ++other) {
      const Offer& theirs = offers_[other];
      if (std::strcmp(theirs.call, kFail) != 0) continue;
      return ProcessFailed(other, {static_cast<const char*>(theirs.data), static_cast<size_t>(theirs.bytes)});
    }
    for (int other = 0; other < size(); ++other) {
      const Offer& theirs = offers_[other];
      if (std::strcmp(theirs.call, mine.call) == 0 && theirs.bytes == mine.bytes && theirs.root == mine.root) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(Text(rank, mine), ", ", Text(other, theirs), "; all processes must make the same calls"));
    }
    return absl::OkStatus();
  }
  static std::string Text(int rank, const Offer& offer) {
    return absl::StrCat("process ", rank, " calls ", offer.call, " of ", offer.bytes, " bytes from root ", offer.root);
  }

  std::mutex mutex_;
  std::condition_variable met_;
  int arrived_ = 0;  // guarded by mutex_, as are the next three
  int64_t meetings_ = 0;
  absl::Status broken_;
  std::map<std::pair<int64_t, int>, std::shared_ptr<Group>> parts_;  // by split and color
  std::vector<Offer> offers_;  // by rank; each is written before a meeting and read after it
};

class Member final : public Collective {
 public:
  Member(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    return group_->Exchange(rank_, {"AllGather", in, bytes}, [&](const std::vector<Offer>& offers) {
      for (size_t i = 0; i < offers.size(); ++i) Copy(offers[i].data, 0, bytes, out, i);
    });
  }
  absl::Status AllToAll(const void* in, int64_t bytes, void* out) override {
    return group_->Exchange(rank_, {"AllToAll", in, bytes}, [&](const std::vector<Offer>& offers) {
      for (size_t i = 0; i < offers.size(); ++i) Copy(offers[i].data, rank_, bytes, out, i);
    });
  }
  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    return group_->Exchange(rank_, {"Broadcast", data, bytes, root}, [&](const std::vector<Offer>& offers) {
      if (rank_ != root) Copy(offers[root].data, 0, bytes, data, 0);
    });
  }
  absl::StatusOr<std::unique_ptr<Collective>> Split(int color) override {
    AQT_RETURN_IF_ERROR(CheckColor(color));
    std::vector<int> colors(size());
    AQT_RETURN_IF_ERROR(AllGather(&color, sizeof(color), colors.data()));
    const auto same = [&](int end) { return std::count(colors.begin(), colors.begin() + end, color); };
    return std::make_unique<Member>(group_->Part(splits_++, color, static_cast<int>(same(size()))),
                                    static_cast<int>(same(rank_)));
  }
  absl::Status Fail(const absl::Status& error) override {
    const absl::string_view text = error.message();
    return group_->Exchange(rank_, {kFail, text.data(), static_cast<int64_t>(text.size())},
                            [](const std::vector<Offer>&) {});
  }

 private:
  static void Copy(const void* from, int64_t from_block, int64_t bytes, void* to, int64_t to_block) {
    if (bytes == 0) return;
    std::memcpy(static_cast<char*>(to) + to_block * bytes, static_cast<const char*>(from) + from_block * bytes, bytes);
  }

  const std::shared_ptr<Group> group_;
  const int rank_;
  int64_t splits_ = 0;  // number of Split calls of this process
};

}  // namespace

absl::Status RunOnThreads(int size, absl::FunctionRef<absl::Status(Collective&)> body) {
  if (size < 1) return absl::InvalidArgumentError(absl::StrCat("a group of ", size, " threads; expected 1 or more"));
  const auto group = std::make_shared<Group>(size);
  std::vector<absl::Status> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Member member(group, rank);
      results[rank] = body(member);
      if (!results[rank].ok()) group->Break(ProcessFailed(rank, results[rank].message()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status first;
  for (const absl::Status& status : results) {
    if (!status.ok() && !absl::IsAborted(status)) return status;
    first.Update(status);
  }
  return first;
}

}  // namespace aqt
