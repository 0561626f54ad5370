#include "aqt/jax/fake_xla.h"

#include <cstddef>
#include <memory>
#include <thread>

#include "aqt/core/check.h"

namespace aqt::jax {

struct FakeXla::State {
  abi::Api api = {};
  Pool pool = Pool::kNone;
  int64_t num_threads = 1;
  std::string error;
  std::vector<abi::ScheduleArguments> queue;
  std::vector<std::thread> threads;
};

namespace {

FakeXla::State& StateOf(abi::ExecutionContext* context) { return *reinterpret_cast<FakeXla::State*>(context); }

// An error is a message on the heap.
abi::Error* MakeError(std::string message) {
  return reinterpret_cast<abi::Error*>(new std::string(std::move(message)));
}

abi::Error* CreateError(abi::CreateErrorArguments* arguments) { return MakeError(arguments->message); }

void DestroyError(abi::DestroyErrorArguments* arguments) { delete reinterpret_cast<std::string*>(arguments->error); }

abi::Error* Schedule(abi::ScheduleArguments* arguments) {
  FakeXla::State& state = StateOf(arguments->context);
  switch (state.pool) {
    case Pool::kNone: return MakeError("no thread pool");
    case Pool::kInCaller: arguments->task(arguments->data); break;
    case Pool::kNever: state.queue.push_back(*arguments); break;
    case Pool::kThreads: state.threads.emplace_back(arguments->task, arguments->data); break;
  }
  return nullptr;
}

abi::Error* NumThreads(abi::NumThreadsArguments* arguments) {
  const FakeXla::State& state = StateOf(arguments->context);
  if (state.pool == Pool::kNone) return MakeError("no thread pool");
  *arguments->num_threads = state.num_threads;
  return nullptr;
}

int32_t ToXla(DType dtype) {
  switch (dtype) {
    case DType::kS8: return abi::kS8;
    case DType::kU8: return abi::kU8;
    case DType::kS32: return abi::kS32;
    case DType::kU32: return abi::kU32;
    case DType::kF16: return abi::kF16;
    case DType::kBF16: return abi::kBF16;
    case DType::kF32: return abi::kF32;
    default: return abi::kU64;  // which handlers refuse
  }
}

}  // namespace

FakeXla::FakeXla(Pool pool, int64_t num_threads) : state_(new State()) {
  state_->pool = pool;
  state_->num_threads = num_threads;
  abi::Api& api = state_->api;
  api.struct_size = sizeof(abi::Api);
  api.create_error = CreateError;
  api.destroy_error = DestroyError;
  api.schedule = Schedule;
  api.num_threads = NumThreads;
}

FakeXla::~FakeXla() {
  for (const abi::ScheduleArguments& late : state_->queue) late.task(late.data);
  for (std::thread& thread : state_->threads) thread.join();
  delete state_;
}

void FakeXla::AddArgument(const Array& array) { arguments_.push_back(array); }

size_t FakeXla::AddResult(const Aval& aval) {
  results_.push_back(Array::Zeros(aval.dtype, aval.shape));
  return results_.size() - 1;
}

void FakeXla::SetText(std::string name, std::string value) { texts_.emplace_back(std::move(name), std::move(value)); }

void FakeXla::Append(const Aval& aval, void* data, std::vector<abi::Buffer>& buffers,
                     std::deque<std::vector<int64_t>>& dims) {
  dims.emplace_back(aval.shape.begin(), aval.shape.end());
  buffers.push_back({.struct_size = sizeof(abi::Buffer),
                     .extensions = nullptr,
                     .dtype = ToXla(aval.dtype),
                     .data = data,
                     .rank = aval.shape.rank(),
                     .dims = dims.back().data()});
}

abi::CallFrame& FakeXla::Frame() {
  AQT_CHECK(argument_buffers_.empty() && result_buffers_.empty());  // once
  for (const Array& array : arguments_) {
    Append(array.aval(), const_cast<void*>(array.data()), argument_buffers_, dims_);
  }
  for (const Array& array : results_) Append(array.aval(), const_cast<void*>(array.data()), result_buffers_, dims_);
  for (abi::Buffer& buffer : argument_buffers_) argument_pointers_.push_back(&buffer);
  for (abi::Buffer& buffer : result_buffers_) result_pointers_.push_back(&buffer);
  argument_types_.assign(arguments_.size(), abi::kBufferArgument);
  result_types_.assign(results_.size(), abi::kBufferArgument);
  for (const auto& [name, value] : texts_) {
    bytes_.push_back({name.data(), name.size()});
    names_.push_back(&bytes_.back());
    bytes_.push_back({value.data(), value.size()});
    text_pointers_.push_back(&bytes_.back());
  }
  text_types_.assign(texts_.size(), abi::kStringAttribute);
  const auto size = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  frame_ = {
      .struct_size = sizeof(abi::CallFrame),
      .extensions = nullptr,
      .api = &state_->api,
      .context = reinterpret_cast<abi::ExecutionContext*>(state_),
      .stage = abi::kExecuteStage,
      .arguments = {sizeof(abi::Buffers), nullptr, size(arguments_), argument_types_.data(), argument_pointers_.data()},
      .results = {sizeof(abi::Buffers), nullptr, size(results_), result_types_.data(), result_pointers_.data()},
      .attributes = {sizeof(abi::Attributes), nullptr, size(texts_), text_types_.data(), names_.data(),
                     text_pointers_.data()},
      .future = nullptr};
  return frame_;
}

std::string FakeXla::Run(abi::Error* (*handler)(abi::CallFrame*)) {
  const std::unique_ptr<std::string> error(reinterpret_cast<std::string*>(handler(&Frame())));
  return error == nullptr ? "" : *error;
}

}  // namespace aqt::jax
