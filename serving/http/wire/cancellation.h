#ifndef AQT_SERVING_HTTP_WIRE_CANCELLATION_H_
#define AQT_SERVING_HTTP_WIRE_CANCELLATION_H_

// Tells a request in progress that nobody waits for its answer any more.

#include <functional>
#include <mutex>
#include <utility>

namespace aqt::serving {

// Thread-safe.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  void Cancel() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(cancelled_, true) || hook_ == nullptr) return;
    hook_();
  }
  bool cancelled() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cancelled_;
  }
  // Cancel calls `hook`, once; if Cancel was before, it is called now. A null hook ends that: the old one does not run
  // any more after the call. The hook must not use this object.
  void SetHook(std::function<void()> hook) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hook_ = std::move(hook);
    if (cancelled_ && hook_ != nullptr) hook_();
  }

 private:
  mutable std::mutex mutex_;
  bool cancelled_ = false;
  std::function<void()> hook_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_WIRE_CANCELLATION_H_
