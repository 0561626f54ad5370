#ifndef AQT_TESTING_ALLOCATION_COUNT_H_
#define AQT_TESTING_ALLOCATION_COUNT_H_

// For tests that check that nothing is allocated. A program that links this library has a counting operator new.

#include <cstdint>

namespace aqt::testing {

// Allocations of the whole program so far, on all threads. Includes AllocateAligned, whose shared_ptr allocates its
// control block with this operator new.
int64_t AllocationCount();

}  // namespace aqt::testing

#endif  // AQT_TESTING_ALLOCATION_COUNT_H_
