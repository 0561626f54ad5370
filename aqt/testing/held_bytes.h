#ifndef AQT_TESTING_HELD_BYTES_H_
#define AQT_TESTING_HELD_BYTES_H_

// For tests of how much memory an object holds: a program that links this library has an operator new that counts, also
// under a sanitizer. Not beside allocation_count.h or memory_fill.h, which replace operator new, too.

#include <cstdint>

namespace aqt::testing {

// Bytes that the whole program holds now, from operator new with or without an alignment.
int64_t HeldBytes();

}  // namespace aqt::testing

#endif  // AQT_TESTING_HELD_BYTES_H_
