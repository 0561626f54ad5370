// What archives that were compiled for executables, or for a later glibc, need in a shared library (shared_library.bzl).

#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#define HIDDEN __attribute__((visibility("hidden")))

// An executable has a copy of this variable of glibc; a shared library reads it through a pointer that such code does not
// use. So this library has a copy, too, which the loader sets: glibc's object of standard error has a name of its own.
struct _IO_FILE;
extern struct _IO_FILE _IO_2_1_stderr_;
HIDDEN struct _IO_FILE* stderr = &_IO_2_1_stderr_;

// std::random_device of libstdc++ calls it; glibc has it since 2.36.
HIDDEN uint32_t arc4random(void) {
  uint32_t word;
  if (getentropy(&word, sizeof(word)) != 0) abort();
  return word;
}
