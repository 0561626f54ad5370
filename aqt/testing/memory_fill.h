#ifndef AQT_TESTING_MEMORY_FILL_H_
#define AQT_TESTING_MEMORY_FILL_H_

// Sets the initial contents of new array memory, to reveal results that are not fully written.

#include <cstdint>

namespace aqt::testing {

// From now on, new blocks of aligned memory (AllocateUninitialized) are filled with this byte. Initially 0.
void FillNewMemoryWith(uint8_t byte);

}  // namespace aqt::testing

#endif  // AQT_TESTING_MEMORY_FILL_H_
