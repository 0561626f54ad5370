#ifndef AQT_TESTING_ALLOCATION_COUNT_H_
#define AQT_TESTING_ALLOCATION_COUNT_H_

// For tests that nothing is allocated. A program that links this has an operator new that counts.

#include <cstdint>

namespace aqt::testing {

// Allocations of the whole program so far, by all threads. AllocateAligned counts, too: it allocates the control block
// of its shared_ptr so.
int64_t AllocationCount();

}  // namespace aqt::testing

#endif  // AQT_TESTING_ALLOCATION_COUNT_H_
