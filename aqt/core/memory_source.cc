#include "aqt/core/memory_source.h"

namespace aqt {
namespace {

thread_local MemorySource* current = nullptr;

}  // namespace

UseMemorySource::UseMemorySource(MemorySource* source) : before_(current) { current = source; }
UseMemorySource::~UseMemorySource() { current = before_; }

MemorySource* UseMemorySource::Current() { return current; }

}  // namespace aqt
