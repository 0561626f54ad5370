#ifndef AQT_TESTING_OWN_MEMORY_H_
#define AQT_TESTING_OWN_MEMORY_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "aqt/core/array.h"
#include "gtest/gtest.h"

namespace aqt::testing {

// Fails if the memory, of `bytes` bytes from AllocateUninitialized, was freed: then others get it, and its contents
// change.
inline void ExpectKeepsItsContents(void* memory, int64_t bytes) {
  std::memset(memory, 1, bytes);
  std::vector<std::shared_ptr<void>> others;
  for (int i = 0; i < 100; ++i) {
    others.push_back(AllocateUninitialized(bytes));
    std::memset(others.back().get(), 2, bytes);
  }
  EXPECT_EQ(std::string(static_cast<const char*>(memory), bytes), std::string(bytes, 1));
}

}  // namespace aqt::testing

#endif  // AQT_TESTING_OWN_MEMORY_H_
