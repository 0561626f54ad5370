#include "aqt/runtime/profile.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/machine/verbose.h"

namespace aqt {
namespace {

constexpr size_t kMaxEvents = 100000;
constexpr size_t kMaxLines = 40;  // in the table by step

double Micros(Profile::Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

struct Sum {
  double micros = 0;
  int64_t calls = 0, bytes = 0;
};

// Lines sorted by time, with the share of the total and the rate at which bytes are moved.
std::string Lines(const std::string& title, std::vector<std::pair<std::string, Sum>> sums, double total) {
  std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.second.micros > b.second.micros; });
  std::string text = absl::StrFormat("%10s %6s %9s %8s  %s\n", "us/call", "share", "KiB", "GB/s", title);
  for (size_t i = 0; i < sums.size() && i < kMaxLines; ++i) {
    const auto& [name, sum] = sums[i];
    const double micros = sum.micros / static_cast<double>(std::max<int64_t>(sum.calls, 1));
    const double bytes = static_cast<double>(sum.bytes);
    absl::StrAppendFormat(&text, "%10.1f %5.1f%% %9.1f %8.2f  %s\n", micros, 100 * sum.micros / total, bytes / 1024,
                          micros > 0 ? bytes / micros / 1000 : 0.0, name);
  }
  return text;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) absl::StrAppendFormat(&out, "\\u%04x", static_cast<int>(c));
    else out += c;
  }
  return out + "\"";
}

}  // namespace

struct Profile::Impl {
  struct Event {
    int step;
    size_t thread;
    Clock::time_point start;
    double micros;
  };
  mutable std::mutex mutex;
  // Guarded by mutex:
  std::map<int64_t, int> first_step;  // by owner
  std::vector<Step> steps;
  std::vector<Sum> sums;  // by step
  std::vector<Event> events;
};

Profile::Profile() : impl_(std::make_unique<Impl>()) {}
Profile::~Profile() = default;

int64_t Profile::NewOwner() {
  static std::atomic<int64_t> next = 0;
  return next++;
}

int Profile::Register(int64_t owner, absl::Span<const Step> steps) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  const auto [it, is_new] = impl_->first_step.try_emplace(owner, static_cast<int>(impl_->steps.size()));
  if (is_new) {
    impl_->steps.insert(impl_->steps.end(), steps.begin(), steps.end());
    impl_->sums.resize(impl_->steps.size());
  }
  return it->second;
}

void Profile::Add(int step, Clock::time_point start, Clock::time_point end) {
  const double micros = Micros(end - start);
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->sums[step].micros += micros;
  ++impl_->sums[step].calls;
  if (impl_->events.size() == kMaxEvents) return;
  impl_->events.push_back({step, std::hash<std::thread::id>()(std::this_thread::get_id()) % 100000, start, micros});
}

std::string Profile::Table() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  std::map<std::string, Sum> kinds, scopes;
  std::vector<std::pair<std::string, Sum>> steps;
  double total = 0;
  for (size_t i = 0; i < impl_->steps.size(); ++i) {
    const Step& step = impl_->steps[i];
    Sum sum = impl_->sums[i];
    sum.bytes = step.bytes;
    total += sum.micros;
    steps.emplace_back(absl::StrCat(step.name, step.scope.empty() ? "" : " @", step.scope), sum);
    for (Sum* of_all : {&kinds[step.kind], &scopes[step.scope]}) {
      of_all->micros += sum.micros;
      of_all->bytes += sum.bytes;
      of_all->calls = std::max(of_all->calls, sum.calls);
    }
  }
  total = std::max(total, 1e-9);
  return absl::StrCat(Lines("kind", {kinds.begin(), kinds.end()}, total),
                      Lines("scope", {scopes.begin(), scopes.end()}, total), Lines("step", std::move(steps), total));
}

std::string Profile::Trace() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  std::string text = "{\"traceEvents\":[";
  for (size_t i = 0; i < impl_->events.size(); ++i) {
    const Impl::Event& event = impl_->events[i];
    const Step& step = impl_->steps[event.step];
    absl::StrAppend(&text, i == 0 ? "\n" : ",\n", "{\"name\":", Quoted(step.name), ",\"cat\":", Quoted(step.kind));
    absl::StrAppendFormat(&text, ",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", event.thread,
                          Micros(event.start - impl_->events[0].start), event.micros);
    absl::StrAppend(&text, ",\"args\":{\"scope\":", Quoted(step.scope), ",\"bytes\":", step.bytes, "}}");
  }
  return text + "\n]}\n";
}

Profile* Profile::OfProcess() {
  static Profile* const profile = [] {
    const absl::StatusOr<kernels::Verbosity> verbosity = kernels::VerbosityFromEnvironment();
    if (!verbosity.ok() || *verbosity != kernels::Verbosity::kProfile) return static_cast<Profile*>(nullptr);
    static Profile* const made = new Profile();  // its table is written when the process ends
    std::atexit([] {
      std::fputs(made->Table().c_str(), stderr);
      const char* const path = std::getenv("AQT_PROFILE_TRACE");
      if (path == nullptr || *path == '\0') return;
      std::FILE* const file = std::fopen(path, "w");
      const bool written = file != nullptr && std::fputs(made->Trace().c_str(), file) >= 0;
      if (file == nullptr || std::fclose(file) != 0 || !written) {
        std::fprintf(stderr, "aqt: cannot write AQT_PROFILE_TRACE=%s\n", path);
      }
    });
    return made;
  }();
  return profile;
}

}  // namespace aqt
