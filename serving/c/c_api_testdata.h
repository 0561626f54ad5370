#ifndef AQT_SERVING_C_C_API_TESTDATA_H_
#define AQT_SERVING_C_C_API_TESTDATA_H_

// What the tests in C cannot make themselves.

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// A saved program: data "x", f32 [2,3], times param "w", f32 [3,2], gives data "y".
const char* TestProgramBytes(size_t* size);

#ifdef __cplusplus
}
#endif

#endif  // AQT_SERVING_C_C_API_TESTDATA_H_
