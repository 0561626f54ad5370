// The C interface from C: every function, every error that it can see, and results that are known. Results of computations
// are compared with the C++ interface in c_api_equality_test.cc.

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aqt/c_api.h"
#include "serving/c/c_api_testdata.h"

// ---- checks

static int g_failures = 0;

static void Fail(int line, const char* format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "serving/c/c_api_test.c:%d: ", line);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  ++g_failures;
}

#define CHECK(condition) \
  do {                   \
    if (!(condition)) Fail(__LINE__, "not true: %s", #condition); \
  } while (0)

static aqt_error* g_error = NULL;

static void ExpectOk(int line, const char* call, aqt_code code) {
  if (code != AQT_OK) Fail(line, "%s: %s: %s", call, aqt_code_name(code), aqt_error_message(g_error));
  if (code == AQT_OK && g_error != NULL) Fail(line, "%s: an error was left", call);
  aqt_error_free(g_error);
  g_error = NULL;
}
#define OK(call) ExpectOk(__LINE__, #call, call)

static void ExpectError(int line, const char* call, aqt_code got, aqt_code want, const char* text) {
  if (got != want) Fail(line, "%s: %s, expected %s", call, aqt_code_name(got), aqt_code_name(want));
  if (aqt_error_code(g_error) != got) Fail(line, "%s: the error has the code %d", call, aqt_error_code(g_error));
  if (strstr(aqt_error_message(g_error), text) == NULL) {
    Fail(line, "%s: \"%s\" does not contain \"%s\"", call, aqt_error_message(g_error), text);
  }
  aqt_error_free(g_error);
  g_error = NULL;
}
#define FAILS(code, text, call) ExpectError(__LINE__, #call, call, code, text)
#define INVALID(text, call) FAILS(AQT_INVALID_ARGUMENT, text, call)

// ---- arrays

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const int64_t k23[] = {2, 3}, k32[] = {3, 2}, k22[] = {2, 2};

static aqt_array F32(float* data, const int64_t* dims) {
  const aqt_array array = {data, AQT_F32, 2, dims, NULL};
  return array;
}
static aqt_aval Aval(const int64_t* dims) {
  const aqt_aval aval = {AQT_F32, 2, dims};
  return aval;
}

static const int64_t kOne[] = {1}, kZero[] = {0};
static const aqt_dot_dims kMatMul = {kOne, kZero, 1, NULL, NULL, 0};
static const char kFloat[] = "schema: 1";
static const char kInt8[] = "schema: 1 base: 'fully_quantized_int8'";

static aqt_dot_general* MakePlan(const char* config) {
  const aqt_aval lhs = Aval(k23), rhs = Aval(k32);
  aqt_dot_general* plan = NULL;
  OK(aqt_dot_general_make(config, &lhs, &rhs, &kMatMul, NULL, &plan, &g_error));
  return plan;
}

// ---- tests

static void TestLibrary(void) {
  CHECK(aqt_api_version() == AQT_C_API_VERSION);
  CHECK(strlen(aqt_version()) >= 5 && strchr(aqt_version(), '.') != NULL);
  CHECK(strncmp(aqt_supported_targets(), "scalar", 6) == 0);
  CHECK(strlen(aqt_simd_target()) > 0);
  OK(aqt_check_environment(&g_error));
  CHECK(strcmp(aqt_code_name(AQT_OK), "OK") == 0 && strcmp(aqt_code_name(AQT_DATA_LOSS), "DATA_LOSS") == 0);
  CHECK(strcmp(aqt_code_name(AQT_INVALID_ARGUMENT), "INVALID_ARGUMENT") == 0);
  CHECK(strcmp(aqt_code_name(-1), "UNKNOWN") == 0 && strcmp(aqt_code_name(16), "UNKNOWN") == 0);
  CHECK(aqt_error_code(NULL) == AQT_OK && strcmp(aqt_error_message(NULL), "") == 0);
  CHECK(aqt_string_size(NULL) == 0 && strcmp(aqt_string_data(NULL), "") == 0);
}

static void TestDTypes(void) {
  static const struct {
    aqt_dtype dtype;
    const char* name;
    size_t size;
  } kDTypes[] = {{AQT_BOOL, "bool", 1},     {AQT_S2, "s2", 1},     {AQT_S4, "s4", 1},   {AQT_S8, "s8", 1},
                 {AQT_U8, "u8", 1},         {AQT_S16, "s16", 2},   {AQT_S32, "s32", 4}, {AQT_U32, "u32", 4},
                 {AQT_S64, "s64", 8},       {AQT_E4M3FN, "e4m3fn", 1}, {AQT_E5M2, "e5m2", 1}, {AQT_F16, "f16", 2},
                 {AQT_BF16, "bf16", 2},     {AQT_F32, "f32", 4},   {AQT_F64, "f64", 8}};
  for (size_t i = 0; i < COUNT(kDTypes); ++i) {
    CHECK(kDTypes[i].dtype == (aqt_dtype)i + 1);  // the numbers never change
    CHECK(strcmp(aqt_dtype_name(kDTypes[i].dtype), kDTypes[i].name) == 0);
    CHECK(aqt_dtype_size(kDTypes[i].dtype) == kDTypes[i].size);
  }
  CHECK(aqt_dtype_name(0) == NULL && aqt_dtype_name(16) == NULL && aqt_dtype_size(0) == 0 && aqt_dtype_size(-1) == 0);
}

static void TestFreeingNull(void) {
  aqt_error_free(NULL);
  aqt_string_free(NULL);
  aqt_executor_free(NULL);
  aqt_qtensor_free(NULL);
  aqt_quantizer_free(NULL);
  aqt_dot_general_free(NULL);
  aqt_prepared_free(NULL);
  aqt_residuals_free(NULL);
  aqt_program_free(NULL);
  aqt_embedder_free(NULL);
}

static void TestExecutor(void) {
  aqt_executor* executor = NULL;
  OK(aqt_executor_make(2, &executor, &g_error));
  CHECK(aqt_executor_threads(executor) == 2);
  aqt_executor_free(executor);
  CHECK(aqt_executor_threads(NULL) == 0);
  executor = (aqt_executor*)&g_failures;  // is replaced by NULL
  INVALID("threads is 0, expected 1 .. 4096", aqt_executor_make(0, &executor, &g_error));
  CHECK(executor == NULL);
  INVALID("threads is 4097", aqt_executor_make(4097, &executor, &g_error));
  INVALID("the pointer that receives the handle is NULL", aqt_executor_make(1, NULL, &g_error));
  CHECK(aqt_executor_make(0, &executor, NULL) == AQT_INVALID_ARGUMENT);  // without an error object
}

static void TestFloatProduct(void) {
  float lhs[] = {1, 2, 3, 4, 5, 6}, rhs[] = {7, 8, 9, 10, 11, 12}, out[4];
  aqt_dot_general* plan = MakePlan(kFloat);
  const aqt_array l = F32(lhs, k23), r = F32(rhs, k32), o = F32(out, k22);
  const aqt_operand left = {&l, NULL}, right = {&r, NULL};
  OK(aqt_dot_general_forward(plan, &left, &right, NULL, &o, NULL, &g_error));
  CHECK(out[0] == 58 && out[1] == 64 && out[2] == 139 && out[3] == 154);

  // Strides in bytes: rhs is transposed, lhs has its rows backwards, and out its columns.
  float rhs_t[] = {7, 9, 11, 8, 10, 12}, wide[8] = {0};
  const int64_t t[] = {sizeof(float), 3 * sizeof(float)}, up[] = {-3 * (int64_t)sizeof(float), sizeof(float)};
  const int64_t back[] = {4 * sizeof(float), -(int64_t)sizeof(float)};
  const aqt_array r2 = {rhs_t, AQT_F32, 2, k32, t}, l2 = {lhs + 3, AQT_F32, 2, k23, up};
  const aqt_array o2 = {wide + 2, AQT_F32, 2, k22, back};
  const aqt_operand left2 = {&l2, NULL}, right2 = {&r2, NULL};
  OK(aqt_dot_general_forward(plan, &left2, &right2, NULL, &o2, NULL, &g_error));
  CHECK(wide[2] == 139 && wide[1] == 154 && wide[6] == 58 && wide[5] == 64);
  CHECK(wide[0] == 0 && wide[3] == 0 && wide[4] == 0 && wide[7] == 0);

  aqt_aval aval;
  OK(aqt_dot_general_out(plan, &aval, &g_error));
  CHECK(aval.dtype == AQT_F32 && aval.rank == 2 && aval.dims[0] == 2 && aval.dims[1] == 2);
  int32_t needs = 7;
  OK(aqt_dot_general_needs_key(plan, AQT_FORWARD, &needs, &g_error));
  CHECK(needs == 0);
  size_t count = 7;
  OK(aqt_dot_general_num_state(plan, AQT_BACKWARD, &count, &g_error));
  CHECK(count == 0);
  aqt_dot_general_free(plan);
}

static void TestNoElements(void) {
  static const int64_t k03[] = {0, 3}, k02[] = {0, 2};
  const aqt_aval lhs = Aval(k03), rhs = Aval(k32);
  aqt_dot_general* plan = NULL;
  OK(aqt_dot_general_make(kFloat, &lhs, &rhs, &kMatMul, NULL, &plan, &g_error));
  float values[6] = {0};
  const aqt_array l = F32(NULL, k03), r = F32(values, k32), o = F32(NULL, k02);
  const aqt_operand left = {&l, NULL}, right = {&r, NULL};
  OK(aqt_dot_general_forward(plan, &left, &right, NULL, &o, NULL, &g_error));
  aqt_dot_general_free(plan);
}

static void TestGradients(void) {
  float lhs[] = {1, 2, 3, 4, 5, 6}, rhs[] = {7, 8, 9, 10, 11, 12}, out[4], g[] = {1, 2, 3, 4}, dlhs[6], drhs[6];
  aqt_dot_general* plan = MakePlan(kFloat);
  const aqt_array l = F32(lhs, k23), r = F32(rhs, k32), o = F32(out, k22), dout = F32(g, k22);
  const aqt_array dl = F32(dlhs, k23), dr = F32(drhs, k32);
  const aqt_operand left = {&l, NULL}, right = {&r, NULL};
  for (int borrow = 0; borrow < 2; ++borrow) {
    aqt_residuals* residuals = NULL;
    OK(aqt_residuals_make(borrow, &residuals, &g_error));
    OK(aqt_dot_general_forward(plan, &left, &right, NULL, &o, residuals, &g_error));
    CHECK((aqt_residuals_bytes(residuals) == 0) == (borrow == 1));
    OK(aqt_dot_general_backward(plan, &dout, residuals, NULL, &dl, &dr, &g_error));
    CHECK(dlhs[0] == 1 * 7 + 2 * 8 && dlhs[5] == 3 * 11 + 4 * 12);
    CHECK(drhs[0] == 1 * 1 + 4 * 3 && drhs[5] == 3 * 2 + 6 * 4);
    dlhs[0] = 0;
    OK(aqt_dot_general_backward(plan, &dout, residuals, NULL, &dl, NULL, &g_error));
    CHECK(dlhs[0] == 23);
    OK(aqt_dot_general_backward(plan, &dout, residuals, NULL, NULL, NULL, &g_error));
    INVALID("dlhs and g overlap in memory", aqt_dot_general_backward(plan, &dout, residuals, NULL, &dout, NULL, &g_error));
    INVALID("dlhs and drhs overlap in memory", aqt_dot_general_backward(plan, &dout, residuals, NULL, &dl, &dl, &g_error));
    INVALID("g is NULL", aqt_dot_general_backward(plan, NULL, residuals, NULL, &dl, NULL, &g_error));
    INVALID("", aqt_dot_general_backward(plan, &dout, residuals, NULL, &o, NULL, &g_error));  // another shape
    aqt_residuals_free(residuals);
  }
  INVALID("residuals is NULL", aqt_dot_general_backward(plan, &dout, NULL, NULL, &dl, NULL, &g_error));
  aqt_residuals* empty = NULL;
  OK(aqt_residuals_make(0, &empty, &g_error));
  CHECK(aqt_dot_general_backward(plan, &dout, empty, NULL, &dl, NULL, &g_error) != AQT_OK);
  aqt_error_free(g_error);
  g_error = NULL;
  aqt_residuals_free(empty);
  CHECK(aqt_residuals_bytes(NULL) == 0);
  INVALID("handle is NULL", aqt_residuals_make(0, NULL, &g_error));
  aqt_dot_general_free(plan);
}

static void TestKeys(void) {
  float lhs[] = {1, 2, 3, 4, 5, 6}, rhs[] = {7, 8, 9, 10, 11, 12}, out[4], g[] = {1, 2, 3, 4}, d[2][6];
  aqt_dot_general* plan = MakePlan(kInt8);
  int32_t needs[2];
  OK(aqt_dot_general_needs_key(plan, AQT_FORWARD, &needs[0], &g_error));
  OK(aqt_dot_general_needs_key(plan, AQT_BACKWARD, &needs[1], &g_error));
  CHECK(needs[0] == 0 && needs[1] == 1);
  INVALID("pass is 2, expected", aqt_dot_general_needs_key(plan, 2, needs, &g_error));
  INVALID("needs_key is NULL", aqt_dot_general_needs_key(plan, 0, NULL, &g_error));
  const aqt_array l = F32(lhs, k23), r = F32(rhs, k32), o = F32(out, k22), dout = F32(g, k22);
  const aqt_operand left = {&l, NULL}, right = {&r, NULL};
  aqt_residuals* residuals = NULL;
  OK(aqt_residuals_make(0, &residuals, &g_error));
  aqt_executor* executor = NULL;
  OK(aqt_executor_make(3, &executor, &g_error));
  aqt_call_options options = AQT_CALL_OPTIONS_INIT;
  OK(aqt_dot_general_forward(plan, &left, &right, &options, &o, residuals, &g_error));
  const aqt_array none = F32(d[0], k23);
  FAILS(AQT_FAILED_PRECONDITION, "key",
        aqt_dot_general_backward(plan, &dout, residuals, &options, &none, NULL, &g_error));
  options.has_key = 1;
  options.key[1] = 7;
  for (int i = 0; i < 2; ++i) {  // the same key, with and without threads
    const aqt_array dl = F32(d[i], k23);
    OK(aqt_dot_general_backward(plan, &dout, residuals, &options, &dl, NULL, &g_error));
    options.executor = executor;
  }
  CHECK(memcmp(d[0], d[1], sizeof(d[0])) == 0);
  aqt_executor_free(executor);
  aqt_residuals_free(residuals);
  aqt_dot_general_free(plan);
}

static void TestPrepared(void) {
  float lhs[] = {1, 2, 3, 4, 5, 6}, rhs[] = {7, 8, 9, 10, 11, 12}, want[4], out[4];
  aqt_dot_general* plan = MakePlan(kInt8);
  const aqt_array l = F32(lhs, k23), r = F32(rhs, k32), w = F32(want, k22), o = F32(out, k22);
  const aqt_operand left = {&l, NULL}, right = {&r, NULL};
  OK(aqt_dot_general_forward(plan, &left, &right, NULL, &w, NULL, &g_error));

  aqt_prepared* prepared = NULL;
  OK(aqt_dot_general_prepare(plan, AQT_RHS, &r, NULL, &prepared, &g_error));
  const aqt_operand served = {NULL, prepared};
  OK(aqt_dot_general_forward(plan, &left, &served, NULL, &o, NULL, &g_error));
  CHECK(memcmp(out, want, sizeof(out)) == 0);

  // Stored and read again.
  aqt_qtensor* stored = NULL;
  OK(aqt_prepared_qtensor(prepared, &stored, &g_error));
  aqt_array parts[2];
  OK(aqt_qtensor_part(stored, AQT_QVALUE, 0, &parts[0], &g_error));
  OK(aqt_qtensor_part(stored, AQT_SCALE, 0, &parts[1], &g_error));
  CHECK(parts[0].dtype == AQT_S8 && parts[0].rank == 2 && parts[0].dims[0] == 3 && parts[0].strides == NULL);
  CHECK(((const int8_t*)parts[0].data)[4] == 127);  // the largest of its column
  aqt_qtensor* read = NULL;
  OK(aqt_qtensor_make(&parts[0], &parts[1], 1, NULL, 0, AQT_F32, &read, &g_error));
  aqt_prepared* again = NULL;
  OK(aqt_dot_general_prepare_qtensor(plan, AQT_RHS, read, NULL, &again, &g_error));
  CHECK(aqt_prepared_panel_bytes(again) == aqt_prepared_panel_bytes(prepared));
  aqt_prepared* smaller = NULL;
  OK(aqt_prepared_without_values(again, &smaller, &g_error));
  // Handles keep what they need.
  aqt_prepared_free(prepared);
  aqt_prepared_free(again);
  aqt_qtensor_free(stored);
  aqt_qtensor_free(read);
  const aqt_operand small = {NULL, smaller};
  memset(out, 0, sizeof(out));
  OK(aqt_dot_general_forward(plan, &left, &small, NULL, &o, NULL, &g_error));
  CHECK(memcmp(out, want, sizeof(out)) == 0);
  if (aqt_prepared_panel_bytes(smaller) > 0) {
    aqt_residuals* residuals = NULL;
    OK(aqt_residuals_make(0, &residuals, &g_error));
    FAILS(AQT_FAILED_PRECONDITION, "", aqt_dot_general_forward(plan, &left, &small, NULL, &o, residuals, &g_error));
    aqt_residuals_free(residuals);
  }
  aqt_prepared_free(smaller);

  aqt_prepared* none = NULL;
  INVALID("side is 2, expected AQT_LHS or AQT_RHS", aqt_dot_general_prepare(plan, 2, &r, NULL, &none, &g_error));
  INVALID("value is NULL", aqt_dot_general_prepare(plan, AQT_RHS, NULL, NULL, &none, &g_error));
  INVALID("", aqt_dot_general_prepare(plan, AQT_RHS, &l, NULL, &none, &g_error));  // another shape
  INVALID("qtensor is NULL", aqt_dot_general_prepare_qtensor(plan, AQT_RHS, NULL, NULL, &none, &g_error));
  INVALID("prepared is NULL", aqt_prepared_without_values(NULL, &none, &g_error));
  CHECK(none == NULL);
  aqt_qtensor* no_tensor = NULL;
  INVALID("prepared is NULL", aqt_prepared_qtensor(NULL, &no_tensor, &g_error));
  CHECK(aqt_prepared_panel_bytes(NULL) == 0);
  aqt_dot_general_free(plan);
}

static void TestStatistics(void) {
  aqt_dot_general* plan = MakePlan("schema: 1 base: 'fp8_delayed'");
  size_t count = 0;
  OK(aqt_dot_general_num_state(plan, AQT_FORWARD, &count, &g_error));
  CHECK(count >= 2 && count <= 8);
  aqt_array old[8], updated[8];
  for (size_t i = 0; i < count; ++i) {
    aqt_state state = AQT_STATE_INIT;
    OK(aqt_dot_general_state(plan, AQT_FORWARD, i, &state, &g_error));
    CHECK(strncmp(state.operand, "fwd.", 4) == 0 && strlen(state.name) > 0 && state.initial.data != NULL);
    size_t bytes = aqt_dtype_size(state.initial.dtype);
    for (int axis = 0; axis < state.initial.rank; ++axis) bytes *= (size_t)state.initial.dims[axis];
    old[i] = updated[i] = state.initial;
    updated[i].data = malloc(bytes);
    memset(updated[i].data, 0, bytes);
  }
  float lhs[] = {1, 2, 3, 4, 5, 6}, rhs[] = {7, 8, 9, 10, 11, 12}, out[4];
  const aqt_array l = F32(lhs, k23), r = F32(rhs, k32), o = F32(out, k22);
  const aqt_operand left = {&l, NULL}, right = {&r, NULL};
  aqt_call_options options = AQT_CALL_OPTIONS_INIT;
  FAILS(AQT_FAILED_PRECONDITION, "state",
        aqt_dot_general_forward(plan, &left, &right, &options, &o, NULL, &g_error));
  options.old_state = old;
  options.new_state = updated;
  options.num_state = count;
  OK(aqt_dot_general_forward(plan, &left, &right, &options, &o, NULL, &g_error));
  options.old_state = updated;  // of the first batch; updated in place
  OK(aqt_dot_general_forward(plan, &left, &right, &options, &o, NULL, &g_error));
  CHECK(fabsf(out[0] - 58) < 58 * 0.14f);  // e4m3fn rounds each factor by at most 1/16 of it
  float largest = 0;
  for (size_t i = 0; i < count; ++i) {
    if (updated[i].dtype == AQT_F32 && updated[i].rank > 0) {
      for (int64_t j = 0; j < updated[i].dims[0]; ++j) largest = fmaxf(largest, ((float*)updated[i].data)[j]);
    }
  }
  CHECK(largest >= 6);  // the histories hold the largest values
  options.num_state = 1000;
  INVALID("options.num_state is 1000", aqt_dot_general_forward(plan, &left, &right, &options, &o, NULL, &g_error));
  options.num_state = count;
  options.old_state = NULL;
  INVALID("options.old_state is NULL", aqt_dot_general_forward(plan, &left, &right, &options, &o, NULL, &g_error));
  for (size_t i = 0; i < count; ++i) free(updated[i].data);

  aqt_state state = AQT_STATE_INIT;
  FAILS(AQT_OUT_OF_RANGE, "and index is 8", aqt_dot_general_state(plan, AQT_FORWARD, 8, &state, &g_error));
  INVALID("state is NULL", aqt_dot_general_state(plan, AQT_FORWARD, 0, NULL, &g_error));
  INVALID("pass is -1", aqt_dot_general_state(plan, -1, 0, &state, &g_error));
  INVALID("pass is 2", aqt_dot_general_num_state(plan, 2, &count, &g_error));
  INVALID("count is NULL", aqt_dot_general_num_state(plan, 0, NULL, &g_error));
  state.struct_size = 1;
  INVALID("state.struct_size is 1, expected at least", aqt_dot_general_state(plan, AQT_FORWARD, 0, &state, &g_error));
  aqt_dot_general_free(plan);
}

static void TestPlanErrors(void) {
  const aqt_aval lhs = Aval(k23), rhs = Aval(k32);
  aqt_dot_general* plan = NULL;
  INVALID("config is NULL", aqt_dot_general_make(NULL, &lhs, &rhs, &kMatMul, NULL, &plan, &g_error));
  INVALID("config:1:19: ", aqt_dot_general_make("schema: 1 nonsense: 2", &lhs, &rhs, &kMatMul, NULL, &plan, &g_error));
  INVALID("lhs is NULL", aqt_dot_general_make(kFloat, NULL, &rhs, &kMatMul, NULL, &plan, &g_error));
  INVALID("rhs is NULL", aqt_dot_general_make(kFloat, &lhs, NULL, &kMatMul, NULL, &plan, &g_error));
  INVALID("dims is NULL", aqt_dot_general_make(kFloat, &lhs, &rhs, NULL, NULL, &plan, &g_error));
  INVALID("handle is NULL", aqt_dot_general_make(kFloat, &lhs, &rhs, &kMatMul, NULL, NULL, &g_error));
  INVALID("", aqt_dot_general_make(kFloat, &lhs, &lhs, &kMatMul, NULL, &plan, &g_error));
  aqt_aval bad = lhs;
  bad.dtype = 99;
  INVALID("lhs: 99 is no dtype, expected 1 .. 15", aqt_dot_general_make(kFloat, &bad, &rhs, &kMatMul, NULL, &plan, &g_error));
  bad = lhs;
  bad.rank = AQT_MAX_RANK + 1;
  INVALID("lhs: the rank is 65", aqt_dot_general_make(kFloat, &bad, &rhs, &kMatMul, NULL, &plan, &g_error));
  bad.rank = -1;
  INVALID("lhs: the rank is -1", aqt_dot_general_make(kFloat, &bad, &rhs, &kMatMul, NULL, &plan, &g_error));
  bad = lhs;
  bad.dims = NULL;
  INVALID("lhs: dims is NULL", aqt_dot_general_make(kFloat, &bad, &rhs, &kMatMul, NULL, &plan, &g_error));
  static const int64_t kNegative[] = {2, -3}, kHuge[] = {INT64_MAX, 3};
  bad = Aval(kNegative);
  INVALID("negative", aqt_dot_general_make(kFloat, &bad, &rhs, &kMatMul, NULL, &plan, &g_error));
  bad = Aval(kHuge);
  INVALID("more elements", aqt_dot_general_make(kFloat, &bad, &rhs, &kMatMul, NULL, &plan, &g_error));
  aqt_dot_dims dims = kMatMul;
  dims.rhs_contracting = NULL;
  INVALID("dims.rhs_contracting is NULL", aqt_dot_general_make(kFloat, &lhs, &rhs, &dims, NULL, &plan, &g_error));
  dims = kMatMul;
  dims.num_batch = 1000;
  INVALID("1000 axes", aqt_dot_general_make(kFloat, &lhs, &rhs, &dims, NULL, &plan, &g_error));
  CHECK(plan == NULL);
}

static void TestPlanOptions(void) {
  const aqt_aval lhs = Aval(k23), rhs = Aval(k32);
  aqt_dot_general* plan = NULL;
  aqt_plan_options options = AQT_PLAN_OPTIONS_INIT;
  options.forward_only = 1;
  options.prng_layout = AQT_PRNG_ORIGINAL;
  options.arithmetic = AQT_ARITHMETIC_IEEE;
  options.weight_only = AQT_WEIGHT_ONLY_FLOAT;
  options.compat = "read_unseen_calibration,einsum_sums_in_dtype";
  options.target = "scalar";
  OK(aqt_dot_general_make(kInt8, &lhs, &rhs, &kMatMul, &options, &plan, &g_error));
  float lhs_data[6] = {0}, rhs_data[6] = {0}, out[4];
  const aqt_array l = F32(lhs_data, k23), r = F32(rhs_data, k32), o = F32(out, k22);
  const aqt_operand left = {&l, NULL}, right = {&r, NULL};
  aqt_residuals* residuals = NULL;
  OK(aqt_residuals_make(0, &residuals, &g_error));
  FAILS(AQT_FAILED_PRECONDITION, "", aqt_dot_general_forward(plan, &left, &right, NULL, &o, residuals, &g_error));
  aqt_residuals_free(residuals);
  aqt_dot_general_free(plan);
  plan = NULL;
  options.compat = "original";
  OK(aqt_dot_general_make(kInt8, &lhs, &rhs, &kMatMul, &options, &plan, &g_error));
  aqt_dot_general_free(plan);
  plan = NULL;
  options.compat = "nonsense";
  INVALID("options.compat has no field \"nonsense\"; expected \"original\", \"qwix\", or some of mid_scales_on_original_operands",
          aqt_dot_general_make(kInt8, &lhs, &rhs, &kMatMul, &options, &plan, &g_error));
  options.compat = NULL;
  options.target = "z80";
  INVALID("options.target: ", aqt_dot_general_make(kInt8, &lhs, &rhs, &kMatMul, &options, &plan, &g_error));
  options.target = NULL;
  options.weight_only = 2;
  INVALID("options.weight_only is 2, expected 0 .. 1",
          aqt_dot_general_make(kInt8, &lhs, &rhs, &kMatMul, &options, &plan, &g_error));
  options.weight_only = 0;
  options.arithmetic = -1;
  INVALID("options.arithmetic is -1", aqt_dot_general_make(kInt8, &lhs, &rhs, &kMatMul, &options, &plan, &g_error));
  options.arithmetic = 0;
  options.prng_layout = 2;
  INVALID("options.prng_layout is 2", aqt_dot_general_make(kInt8, &lhs, &rhs, &kMatMul, &options, &plan, &g_error));
  CHECK(plan == NULL);
}

// Structs of a caller that was compiled with a later header, or with none.
static void TestStructSizes(void) {
  const aqt_aval lhs = Aval(k23), rhs = Aval(k32);
  aqt_dot_general* plan = NULL;
  struct {
    aqt_plan_options options;
    char later[16];
  } grown = {AQT_PLAN_OPTIONS_INIT, {0}};
  grown.options.struct_size = sizeof(grown);
  OK(aqt_dot_general_make(kFloat, &lhs, &rhs, &kMatMul, &grown.options, &plan, &g_error));
  aqt_dot_general_free(plan);
  plan = NULL;
  grown.later[5] = 1;
  FAILS(AQT_UNIMPLEMENTED, "options has a member at byte",
        aqt_dot_general_make(kFloat, &lhs, &rhs, &kMatMul, &grown.options, &plan, &g_error));
  grown.options.struct_size = 0;
  INVALID("options.struct_size is 0, expected at least",
          aqt_dot_general_make(kFloat, &lhs, &rhs, &kMatMul, &grown.options, &plan, &g_error));
  grown.options.struct_size = (size_t)-1;
  INVALID("options.struct_size is", aqt_dot_general_make(kFloat, &lhs, &rhs, &kMatMul, &grown.options, &plan, &g_error));
  CHECK(plan == NULL);
}

static aqt_code Forward(const aqt_dot_general* plan, const aqt_operand* lhs, const aqt_operand* rhs,
                        const aqt_array* out) {
  return aqt_dot_general_forward(plan, lhs, rhs, NULL, out, NULL, &g_error);
}

// Arrays that cannot be used, and handles of another kind.
static void TestCallErrors(void) {
  float lhs[7] = {1, 2, 3, 4, 5, 6, 0}, rhs[] = {7, 8, 9, 10, 11, 12}, out[4];
  aqt_dot_general* plan = MakePlan(kFloat);
  const aqt_array l = F32(lhs, k23), r = F32(rhs, k32), o = F32(out, k22);
  const aqt_operand left = {&l, NULL}, right = {&r, NULL}, nothing = {NULL, NULL};
  INVALID("lhs is NULL", Forward(plan, NULL, &right, &o));
  INVALID("rhs is NULL", Forward(plan, &left, NULL, &o));
  INVALID("out is NULL", Forward(plan, &left, &right, NULL));
  INVALID("lhs has neither a value nor a prepared operand", Forward(plan, &nothing, &right, &o));
  INVALID("out and lhs overlap in memory", Forward(plan, &left, &right, &(aqt_array){lhs + 5, AQT_F32, 2, k22, NULL}));
  INVALID("", Forward(plan, &right, &right, &o));
  aqt_array bad = l;
  const aqt_operand wrong = {&bad, NULL};
  bad.data = NULL;
  INVALID("lhs: data is NULL", Forward(plan, &wrong, &right, &o));
  bad.data = (char*)lhs + 1;
  INVALID("lhs: data is not aligned to 4 bytes, the size of f32; copy the array", Forward(plan, &wrong, &right, &o));
  bad = l;
  const int64_t odd[] = {12, 3}, far[] = {INT64_MAX - 3, 4}, same[] = {4, 4}, zero[] = {0, 4};
  bad.strides = odd;
  INVALID("lhs: stride 3 of axis 1 is not a multiple of 4", Forward(plan, &wrong, &right, &o));
  bad.strides = far;
  INVALID("lhs: stride", Forward(plan, &wrong, &right, &o));
  bad.strides = zero;  // an input may repeat
  OK(Forward(plan, &wrong, &right, &o));
  CHECK(out[0] == 58 && out[2] == 58);
  INVALID("out: two elements may share memory", Forward(plan, &left, &right, &(aqt_array){out, AQT_F32, 2, k22, same}));
  INVALID("out: two elements may share memory", Forward(plan, &left, &right, &(aqt_array){out, AQT_F32, 2, k22, zero}));
  double wide[4];
  INVALID("f64", Forward(plan, &left, &right, &(aqt_array){wide, AQT_F64, 2, k22, NULL}));
  INVALID("out: 0 is no dtype", Forward(plan, &left, &right, &(aqt_array){out, 0, 2, k22, NULL}));

  aqt_residuals* residuals = NULL;
  OK(aqt_residuals_make(0, &residuals, &g_error));
  INVALID("plan is NULL", aqt_dot_general_forward(NULL, &left, &right, NULL, &o, NULL, &g_error));
  INVALID("plan is no handle of aqt_dot_general", aqt_dot_general_forward((const aqt_dot_general*)(const void*)residuals,
                                                                           &left, &right, NULL, &o, NULL, &g_error));
  INVALID("residuals is no handle of aqt_residuals",
          aqt_dot_general_forward(plan, &left, &right, NULL, &o, (aqt_residuals*)(void*)plan, &g_error));
  const aqt_operand confused = {NULL, (const aqt_prepared*)(const void*)plan};
  INVALID("rhs.prepared is no handle of aqt_prepared",
          aqt_dot_general_forward(plan, &left, &confused, NULL, &o, NULL, &g_error));
  aqt_call_options options = AQT_CALL_OPTIONS_INIT;
  options.executor = (aqt_executor*)(void*)plan;
  INVALID("options.executor is no handle of aqt_executor",
          aqt_dot_general_forward(plan, &left, &right, &options, &o, NULL, &g_error));
  options.executor = NULL;
  options.mode = 5;
  INVALID("options.mode is 5", aqt_dot_general_forward(plan, &left, &right, &options, &o, NULL, &g_error));
  options.mode = AQT_MODE_SERVE;
  options.rhs_mode = -1;
  INVALID("options.rhs_mode is -1", aqt_dot_general_forward(plan, &left, &right, &options, &o, NULL, &g_error));
  aqt_dot_general_free((aqt_dot_general*)(void*)residuals);  // does nothing
  CHECK(aqt_residuals_bytes(residuals) == 0);
  aqt_residuals_free(residuals);

  aqt_aval aval;
  INVALID("plan is NULL", aqt_dot_general_out(NULL, &aval, &g_error));
  INVALID("aval is NULL", aqt_dot_general_out(plan, NULL, &g_error));
  aqt_string* config = NULL;
  OK(aqt_dot_general_config(plan, &config, &g_error));
  CHECK(strncmp(aqt_string_data(config), "schema: 1", 9) == 0);
  CHECK(aqt_string_size(config) == strlen(aqt_string_data(config)));
  aqt_string_free(config);
  INVALID("text is NULL", aqt_dot_general_config(plan, NULL, &g_error));
  INVALID("plan is NULL", aqt_dot_general_config(NULL, &config, &g_error));
  CHECK(config == NULL);
  aqt_dot_general_free(plan);
}

// 889 / 7 is 127, the clip bound, and 889 * R(1 / 7) is above it.
static void TestGradientOfAClippedQuotient(void) {
  static const char* const kCompat[] = {NULL, "divide_by_scale"};
  const char* const config = "int_symmetric { preserve_max_val: true clip_gradient: true } constant { bound { number: 889 } }";
  float x[] = {889, -889, 890, 14, 0, 7}, g[] = {1, 2, 3, 4, 5, 6}, dx[6];
  const aqt_array array = F32(x, k23), gradient = F32(g, k23), to = F32(dx, k23);
  for (int divides = 0; divides < 2; ++divides) {
    aqt_plan_options options = AQT_PLAN_OPTIONS_INIT;
    options.arithmetic = AQT_ARITHMETIC_IEEE;
    options.compat = kCompat[divides];
    aqt_quantizer* quantizer = NULL;
    aqt_qtensor* qtensor = NULL;
    OK(aqt_quantizer_make(config, &options, &quantizer, &g_error));
    OK(aqt_quantizer_quantize(quantizer, &array, kOne, 1, NULL, &qtensor, &g_error));
    OK(aqt_quantizer_gradient(quantizer, &array, qtensor, &gradient, &to, &g_error));
    CHECK(dx[0] == divides && dx[1] == 2 * divides && dx[2] == 0 && dx[3] == 4 && dx[4] == 5 && dx[5] == 6);
    aqt_qtensor_free(qtensor);
    aqt_quantizer_free(quantizer);
  }
}

static void TestQuantizer(void) {
  float x[] = {1, -2, 127, 4, 5.4f, -254}, values[6], dx[6], g[] = {1, 2, 3, 4, 5, 6};
  const aqt_array array = F32(x, k23), out = F32(values, k23), gradient = F32(g, k23), to = F32(dx, k23);
  aqt_quantizer* quantizer = NULL;
  OK(aqt_quantizer_make("int_symmetric { bits: 8 preserve_max_val: true } abs_max {}", NULL, &quantizer, &g_error));
  aqt_qtensor* qtensor = NULL;
  OK(aqt_quantizer_quantize(quantizer, &array, kOne, 1, NULL, &qtensor, &g_error));
  CHECK(aqt_qtensor_count(qtensor, AQT_QVALUE) == 1 && aqt_qtensor_count(qtensor, AQT_SCALE) == 1);
  CHECK(aqt_qtensor_count(qtensor, AQT_BIAS) == 0 && aqt_qtensor_count(qtensor, 9) == 0);
  aqt_array qvalue, scale;
  OK(aqt_qtensor_part(qtensor, AQT_QVALUE, 0, &qvalue, &g_error));
  OK(aqt_qtensor_part(qtensor, AQT_SCALE, 0, &scale, &g_error));
  CHECK(scale.dtype == AQT_F32 && scale.dims[0] == 2 && scale.dims[1] == 1);
  const float* s = scale.data;
  CHECK(s[0] == 1 && s[1] == 2);  // 127 / 127 and 254 / 127
  const int8_t* q = qvalue.data;
  CHECK(q[0] == 1 && q[1] == -2 && q[2] == 127 && q[3] == 2 && q[4] == 3 && q[5] == -127);
  aqt_aval aval;
  OK(aqt_qtensor_aval(qtensor, &aval, &g_error));
  CHECK(aval.dtype == AQT_F32 && aval.rank == 2 && aval.dims[0] == 2 && aval.dims[1] == 3);
  OK(aqt_qtensor_dequantize(qtensor, &out, &g_error));
  CHECK(values[0] == 1 && values[2] == 127 && values[4] == 6 && values[5] == -254);
  OK(aqt_quantizer_gradient(quantizer, &array, qtensor, &gradient, &to, &g_error));
  CHECK(memcmp(dx, g, sizeof(g)) == 0);
  TestGradientOfAClippedQuotient();

  aqt_qtensor* none = qtensor;
  INVALID("x is NULL", aqt_quantizer_quantize(quantizer, NULL, kOne, 1, NULL, &none, &g_error));
  CHECK(none == NULL);
  INVALID("out is f32[2,2], expected f32[2,3]",
          aqt_qtensor_dequantize(qtensor, &(aqt_array){values, AQT_F32, 2, k22, NULL}, &g_error));
  INVALID("out is NULL", aqt_qtensor_dequantize(qtensor, NULL, &g_error));
  INVALID("qtensor is NULL", aqt_qtensor_dequantize(NULL, &out, &g_error));
  INVALID("aval is NULL", aqt_qtensor_aval(qtensor, NULL, &g_error));
  INVALID("qtensor is NULL", aqt_qtensor_aval(NULL, &aval, &g_error));
  FAILS(AQT_OUT_OF_RANGE, "part 1 of the tensor has 1 arrays, and index is 1",
        aqt_qtensor_part(qtensor, AQT_SCALE, 1, &scale, &g_error));
  FAILS(AQT_OUT_OF_RANGE, "part 7", aqt_qtensor_part(qtensor, 7, 0, &scale, &g_error));
  INVALID("array is NULL", aqt_qtensor_part(qtensor, AQT_SCALE, 0, NULL, &g_error));
  INVALID("qtensor is NULL", aqt_qtensor_part(NULL, AQT_SCALE, 0, &scale, &g_error));
  CHECK(aqt_qtensor_count(NULL, AQT_SCALE) == 0);
  INVALID("dx is f32[2,2]", aqt_quantizer_gradient(quantizer, &array, qtensor, &gradient,
                                                    &(aqt_array){dx, AQT_F32, 2, k22, NULL}, &g_error));
  INVALID("g is NULL", aqt_quantizer_gradient(quantizer, &array, qtensor, NULL, &to, &g_error));
  INVALID("x is NULL", aqt_quantizer_gradient(quantizer, NULL, qtensor, &gradient, &to, &g_error));
  INVALID("qtensor is NULL", aqt_quantizer_gradient(quantizer, &array, NULL, &gradient, &to, &g_error));
  INVALID("quantizer is NULL", aqt_quantizer_gradient(NULL, &array, qtensor, &gradient, &to, &g_error));
  aqt_qtensor_free(qtensor);
  INVALID("quantizer is NULL", aqt_quantizer_quantize(NULL, &array, kOne, 1, NULL, &qtensor, &g_error));
  INVALID("axes is NULL, expected 2 axes", aqt_quantizer_quantize(quantizer, &array, NULL, 2, NULL, &qtensor, &g_error));
  const int64_t seven[] = {7};
  INVALID("7", aqt_quantizer_quantize(quantizer, &array, seven, 1, NULL, &qtensor, &g_error));
  aqt_quantizer_free(quantizer);
  INVALID("config is NULL", aqt_quantizer_make(NULL, NULL, &quantizer, &g_error));
  INVALID("config:1:1: IntSymmetric: bits = 99", aqt_quantizer_make("int_symmetric { bits: 99 } abs_max {}", NULL, &quantizer, &g_error));
  CHECK(quantizer == NULL);
}

static void TestQTensor(void) {
  float data[] = {1, 2, 3, 4, 5, 6}, half[] = {0.5f};
  const int64_t k11[] = {1, 1};
  const aqt_array qvalue = F32(data, k23), scale = F32(half, k11);
  aqt_qtensor* qtensor = NULL;
  OK(aqt_qtensor_make(NULL, &scale, 1, NULL, 0, AQT_BF16, &qtensor, &g_error));  // only a scale
  aqt_aval aval;
  FAILS(AQT_FAILED_PRECONDITION, "no qvalue", aqt_qtensor_aval(qtensor, &aval, &g_error));
  FAILS(AQT_FAILED_PRECONDITION, "", aqt_qtensor_dequantize(qtensor, &qvalue, &g_error));
  aqt_qtensor_free(qtensor);
  OK(aqt_qtensor_make(&qvalue, &scale, 1, &scale, 1, AQT_F32, &qtensor, &g_error));
  CHECK(aqt_qtensor_count(qtensor, AQT_BIAS) == 1);
  data[0] = 100;  // was copied
  float out[6];
  const aqt_array to = F32(out, k23);
  OK(aqt_qtensor_dequantize(qtensor, &to, &g_error));
  CHECK(out[0] == 1 * 0.5f - 0.5f && out[5] == 6 * 0.5f - 0.5f);
  aqt_qtensor_free(qtensor);
  int8_t narrow[] = {-8, 7, 0, 0, 8, 0};
  const aqt_array s4 = {narrow, AQT_S4, 2, k23, NULL};
  INVALID("qvalue: element 4 is 8, expected -8 .. 7 for s4",
          aqt_qtensor_make(&s4, NULL, 0, NULL, 0, AQT_F32, &qtensor, &g_error));
  narrow[4] = -1;
  OK(aqt_qtensor_make(&s4, NULL, 0, NULL, 0, AQT_F32, &qtensor, &g_error));
  OK(aqt_qtensor_dequantize(qtensor, &to, &g_error));
  CHECK(out[0] == -8 && out[4] == -1);
  aqt_qtensor_free(qtensor);
  INVALID("neither a qvalue nor a scale", aqt_qtensor_make(NULL, NULL, 0, NULL, 0, AQT_F32, &qtensor, &g_error));
  INVALID("scales is NULL", aqt_qtensor_make(&qvalue, NULL, 1, NULL, 0, AQT_F32, &qtensor, &g_error));
  INVALID("num_biases is 1000", aqt_qtensor_make(&qvalue, NULL, 0, &scale, 1000, AQT_F32, &qtensor, &g_error));
  INVALID("dequant_dtype is s8", aqt_qtensor_make(&qvalue, NULL, 0, NULL, 0, AQT_S8, &qtensor, &g_error));
  INVALID("dequant_dtype: 0 is no dtype", aqt_qtensor_make(&qvalue, NULL, 0, NULL, 0, 0, &qtensor, &g_error));
  CHECK(qtensor == NULL);
}

static void TestProgram(void) {
  size_t size = 0;
  const char* bytes = TestProgramBytes(&size);  // y = x * w, and its sum
  aqt_program* program = NULL;
  OK(aqt_program_load(bytes, size, &program, &g_error));
  size_t inputs = 0, outputs = 0;
  OK(aqt_program_count(program, AQT_INPUT, &inputs, &g_error));
  OK(aqt_program_count(program, AQT_OUTPUT, &outputs, &g_error));
  CHECK(inputs == 2 && outputs == 1);
  aqt_slot slot = AQT_SLOT_INIT;
  OK(aqt_program_slot(program, AQT_INPUT, 1, &slot, &g_error));
  CHECK(strcmp(slot.kind, "param") == 0 && strcmp(slot.name, "w") == 0);
  CHECK(slot.aval.dtype == AQT_F32 && slot.aval.rank == 2 && slot.aval.dims[0] == 3 && slot.aval.dims[1] == 2);
  float x[] = {1, 2, 3, 4, 5, 6}, w[] = {7, 8, 9, 10, 11, 12}, wt[] = {7, 9, 11, 8, 10, 12}, y[4], yt[4];
  const aqt_array args[] = {F32(x, k23), F32(w, k32)}, out = F32(y, k22);
  OK(aqt_program_run(program, args, 2, &out, 1, NULL, &g_error));
  CHECK(y[0] == 58 && y[1] == 64 && y[2] == 139 && y[3] == 154);
  const int64_t t3[] = {4, 12}, t2[] = {4, 8};
  const aqt_array strided[] = {F32(x, k23), {wt, AQT_F32, 2, k32, t3}}, out_t = {yt, AQT_F32, 2, k22, t2};
  aqt_executor* executor = NULL;
  OK(aqt_executor_make(2, &executor, &g_error));
  aqt_call_options options = AQT_CALL_OPTIONS_INIT;
  options.executor = executor;
  OK(aqt_program_run(program, strided, 2, &out_t, 1, &options, &g_error));
  CHECK(yt[0] == 58 && yt[2] == 64 && yt[1] == 139 && yt[3] == 154);
  aqt_executor_free(executor);

  INVALID("the program has 2 inputs, and 1 are given", aqt_program_run(program, args, 1, &out, 1, NULL, &g_error));
  INVALID("the program has 1 outputs, and 0 are given", aqt_program_run(program, args, 2, &out, 0, NULL, &g_error));
  INVALID("arguments is NULL", aqt_program_run(program, NULL, 2, &out, 1, NULL, &g_error));
  INVALID("outputs is NULL", aqt_program_run(program, args, 2, NULL, 1, NULL, &g_error));
  const aqt_array swapped[] = {args[1], args[0]};
  INVALID("data \"x\" is f32[3,2], expected f32[2,3]", aqt_program_run(program, swapped, 2, &out, 1, NULL, &g_error));
  INVALID("data \"y\" is f32[2,3], expected f32[2,2]", aqt_program_run(program, args, 2, args, 1, NULL, &g_error));
  const aqt_array inside = F32(x, k22);
  INVALID("overlap in memory", aqt_program_run(program, args, 2, &inside, 1, NULL, &g_error));
  INVALID("program is NULL", aqt_program_run(NULL, args, 2, &out, 1, NULL, &g_error));
  INVALID("port is 2", aqt_program_count(program, 2, &inputs, &g_error));
  INVALID("count is NULL", aqt_program_count(program, 0, NULL, &g_error));
  FAILS(AQT_OUT_OF_RANGE, "index is 2", aqt_program_slot(program, AQT_INPUT, 2, &slot, &g_error));
  INVALID("slot is NULL", aqt_program_slot(program, AQT_INPUT, 0, NULL, &g_error));
  INVALID("program is NULL", aqt_program_slot(NULL, AQT_INPUT, 0, &slot, &g_error));
  aqt_program_free(program);
  FAILS(AQT_DATA_LOSS, "byte ", aqt_program_load(bytes, size - 1, &program, &g_error));
  FAILS(AQT_DATA_LOSS, "byte 0", aqt_program_load("nonsense", 8, &program, &g_error));
  FAILS(AQT_DATA_LOSS, "", aqt_program_load(NULL, 0, &program, &g_error));
  INVALID("bytes is NULL", aqt_program_load(NULL, 5, &program, &g_error));
  CHECK(program == NULL);
}

static void TestEmbedder(void) {
  const char* folder = "tests/golden/models/bert";
  aqt_embedder* embedder = NULL;
  OK(aqt_embedder_open(folder, NULL, &embedder, &g_error));
  CHECK(aqt_embedder_width(embedder) == 24 && aqt_embedder_max_length(embedder) == 12);
  aqt_string* notes = NULL;
  OK(aqt_embedder_notes(embedder, &notes, &g_error));
  aqt_string_free(notes);
  const char* texts[] = {"w7 w8", "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16"};
  const size_t sizes[] = {2, 5};  // "w7" and "w5 w6"
  float out[2][24], apart[72 * 2] = {0};
  aqt_text_info infos[2];
  const int64_t dims[] = {2, 24}, strides[] = {72 * sizeof(float), 3 * sizeof(float)};
  const aqt_array dense = F32(out[0], dims), spread = {apart, AQT_F32, 2, dims, strides};
  OK(aqt_embedder_embed(embedder, texts, NULL, 2, NULL, &dense, infos, &g_error));
  CHECK(infos[0].tokens == 4 && infos[0].truncated == 0 && infos[1].tokens == 12 && infos[1].truncated == 2);
  double square = 0;
  for (int i = 0; i < 24; ++i) square += (double)out[1][i] * out[1][i];
  CHECK(fabs(square - 1) < 1e-5);  // the model normalizes
  OK(aqt_embedder_embed(embedder, texts, NULL, 2, NULL, &spread, NULL, &g_error));
  for (int i = 0; i < 24; ++i) CHECK(apart[3 * i] == out[0][i] && apart[72 + 3 * i] == out[1][i]);
  float first[24];
  memcpy(first, out[0], sizeof(first));
  OK(aqt_embedder_embed(embedder, texts, sizes, 2, NULL, &dense, infos, &g_error));
  CHECK(infos[0].tokens == 3 && memcmp(first, out[0], sizeof(first)) != 0);
  const int64_t none[] = {0, 24};
  OK(aqt_embedder_embed(embedder, NULL, NULL, 0, NULL, &(aqt_array){NULL, AQT_F32, 2, none, NULL}, NULL, &g_error));

  INVALID("texts is NULL", aqt_embedder_embed(embedder, NULL, NULL, 2, NULL, &dense, NULL, &g_error));
  const char* missing[] = {"w7", NULL};
  INVALID("text 2 is NULL", aqt_embedder_embed(embedder, missing, NULL, 2, NULL, &dense, NULL, &g_error));
  INVALID("out is f32[2,24], expected f32[1,24]",
          aqt_embedder_embed(embedder, texts, NULL, 1, NULL, &dense, NULL, &g_error));
  INVALID("out is NULL", aqt_embedder_embed(embedder, texts, NULL, 2, NULL, NULL, NULL, &g_error));
  INVALID("embedder is NULL", aqt_embedder_embed(NULL, texts, NULL, 2, NULL, &dense, NULL, &g_error));
  INVALID("embedder is NULL", aqt_embedder_notes(NULL, &notes, &g_error));
  INVALID("text is NULL", aqt_embedder_notes(embedder, NULL, &g_error));
  CHECK(aqt_embedder_width(NULL) == 0 && aqt_embedder_max_length(NULL) == 0);
  aqt_embedder_free(embedder);

  aqt_embedder_options options = AQT_EMBEDDER_OPTIONS_INIT;
  options.preset = "int8_all";
  OK(aqt_embedder_open(folder, &options, &embedder, &g_error));
  OK(aqt_embedder_embed(embedder, texts, NULL, 2, NULL, &dense, NULL, &g_error));
  CHECK(memcmp(first, out[0], sizeof(first)) != 0);  // quantized
  aqt_embedder_free(embedder);
  options.preset = "w8a16";  // of aqt convert
  float of_all[24];
  memcpy(of_all, out[0], sizeof(of_all));
  OK(aqt_embedder_open(folder, &options, &embedder, &g_error));
  OK(aqt_embedder_embed(embedder, texts, NULL, 2, NULL, &dense, NULL, &g_error));
  CHECK(memcmp(first, out[0], sizeof(first)) != 0 && memcmp(of_all, out[0], sizeof(of_all)) != 0);
  aqt_embedder_free(embedder);
  options.preset = "w8a8_static";
  INVALID("calibration", aqt_embedder_open(folder, &options, &embedder, &g_error));
  options.preset = "nonsense";
  INVALID("int8_all", aqt_embedder_open(folder, &options, &embedder, &g_error));
  options.preset = "int8_all";
  options.calibration = "ranges.safetensors";
  INVALID("calibration is for presets of `aqt convert`", aqt_embedder_open(folder, &options, &embedder, &g_error));
  options.calibration = NULL;
  options.config = "schema: 1";
  INVALID("both a preset and a config", aqt_embedder_open(folder, &options, &embedder, &g_error));
  options.preset = NULL;
  options.config = "schema: 1 nonsense: 1";
  INVALID("config:1:", aqt_embedder_open(folder, &options, &embedder, &g_error));
  INVALID("folder is NULL", aqt_embedder_open(NULL, NULL, &embedder, &g_error));
  FAILS(AQT_NOT_FOUND, "no/such/folder", aqt_embedder_open("no/such/folder", NULL, &embedder, &g_error));
  CHECK(embedder == NULL);
}

// A caller that was compiled with the first header, whose options end before `calibration`.
static void TestEmbedderOptionsOfTheFirstVersion(void) {
  const char* folder = "tests/golden/models/bert";
  aqt_embedder* embedder = NULL;
  aqt_embedder_options options = AQT_EMBEDDER_OPTIONS_INIT;
  options.struct_size = offsetof(aqt_embedder_options, calibration);
  options.preset = "int8_all";
  options.calibration = "memory beyond the struct";
  OK(aqt_embedder_open(folder, &options, &embedder, &g_error));
  aqt_embedder_free(embedder);
  embedder = NULL;
  options.struct_size = offsetof(aqt_embedder_options, config);
  INVALID("options.struct_size is 16, expected at least 24", aqt_embedder_open(folder, &options, &embedder, &g_error));
  CHECK(embedder == NULL);
}

// ---- checkpoints

static const char* At(char* buffer, const char* name) {
  const char* folder = getenv("TEST_TMPDIR");
  snprintf(buffer, 512, "%s/%s", folder != NULL ? folder : "/tmp", name);
  return buffer;
}

// A file with one weight, f32 [8, 64].
static void WriteCheckpoint(const char* path) {
  const char* header = "{\"fc.weight\":{\"dtype\":\"F32\",\"shape\":[8,64],\"data_offsets\":[0,2048]}}";
  const uint64_t size = strlen(header);
  FILE* file = fopen(path, "wb");
  CHECK(file != NULL);
  if (file == NULL) return;
  fwrite(&size, 8, 1, file);
  fwrite(header, 1, size, file);
  for (int i = 0; i < 512; ++i) {
    const float value = (float)(i % 37 - 18) / 16;
    fwrite(&value, sizeof(value), 1, file);
  }
  fclose(file);
}

static long FileSize(const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return -1;
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  fclose(file);
  return size;
}

struct Seen {
  int64_t done, total, calls;
  int32_t answer;
};
static int32_t OnProgress(void* user, int64_t done, int64_t total, const char* tensor) {
  struct Seen* seen = user;
  CHECK(strcmp(tensor, "fc.weight") == 0 && done > seen->done && done <= total);
  seen->done = done;
  seen->total = total;
  ++seen->calls;
  return seen->answer;
}

static void TestConvert(void) {
  char in[512], out[512], back[512];
  WriteCheckpoint(At(in, "in.safetensors"));
  At(out, "out.safetensors");
  At(back, "back.safetensors");
  struct Seen seen = {0, 0, 0, 0};
  aqt_convert_options options = AQT_CONVERT_OPTIONS_INIT;
  options.preset = "w8a16";
  options.progress = OnProgress;
  options.user = &seen;
  aqt_string* report = NULL;
  OK(aqt_convert(in, out, &options, &report, &g_error));
  CHECK(strstr(aqt_string_data(report), "\"num_quantized\": 1") != NULL);
  aqt_string_free(report);
  CHECK(seen.calls >= 1 && seen.done == 2048 && seen.total == 2048);
  CHECK(FileSize(out) > 512 && FileSize(out) < 2048);
  FAILS(AQT_ALREADY_EXISTS, "out.safetensors", aqt_convert(in, out, &options, NULL, &g_error));
  options.force = 1;
  memset(&seen, 0, sizeof(seen));
  OK(aqt_convert(in, out, &options, NULL, &g_error));

  OK(aqt_dequantize(out, back, AQT_BF16, NULL, &report, &g_error));
  CHECK(strstr(aqt_string_data(report), "\"num_dequantized\": 1") != NULL);
  aqt_string_free(report);
  CHECK(FileSize(back) > 1024);

  // Stopped, with nothing left behind.
  char stopped[512];
  At(stopped, "stopped.safetensors");
  memset(&seen, 0, sizeof(seen));
  seen.answer = 1;
  FAILS(AQT_CANCELLED, "", aqt_convert(in, stopped, &options, &report, &g_error));
  CHECK(seen.calls == 1 && FileSize(stopped) == -1 && report == NULL);
  options.progress = NULL;

  options.preset = NULL;
  options.config = "schema: 1 base: 'w4a16_g32' ignore: 'nothing'";
  const long before = FileSize(out);
  OK(aqt_convert(in, out, &options, NULL, &g_error));
  CHECK(FileSize(out) > 0 && FileSize(out) < before);  // 4 bits instead of 8
  options.config = "schema: 1 nonsense: 2";
  INVALID("config:1:", aqt_convert(in, out, &options, NULL, &g_error));
  options.preset = "w8a16";
  INVALID("options has 2 of preset, config and scheme_from", aqt_convert(in, out, &options, NULL, &g_error));
  options.config = NULL;
  options.preset = "nonsense";
  INVALID("nonsense", aqt_convert(in, out, &options, NULL, &g_error));
  INVALID("options has 0 of preset, config and scheme_from, expected exactly one",
          aqt_convert(in, out, NULL, NULL, &g_error));
  options.preset = "w8a16";
  FAILS(AQT_NOT_FOUND, "missing.safetensors", aqt_convert(At(back, "missing.safetensors"), out, &options, NULL, &g_error));
  INVALID("input is NULL", aqt_convert(NULL, out, &options, NULL, &g_error));
  INVALID("output is NULL", aqt_convert(in, NULL, &options, NULL, &g_error));
  INVALID("input is empty", aqt_convert("", out, &options, NULL, &g_error));
}

static void TestConvertOptions(void) {
  char in[512], out[512];
  WriteCheckpoint(At(in, "in.safetensors"));
  At(out, "other.safetensors");
  aqt_convert_options options = AQT_CONVERT_OPTIONS_INIT;
  options.preset = "w8a16";
  options.jobs = 65;
  INVALID("options.jobs is 65, expected 1 .. 64", aqt_convert(in, out, &options, NULL, &g_error));
  options.jobs = 2;
  options.max_shard_bytes = -1;
  INVALID("options.max_shard_bytes is -1", aqt_convert(in, out, &options, NULL, &g_error));
  options.max_shard_bytes = 0;
  options.rules = "nonsense";
  INVALID("options.rules is \"nonsense\", expected compressed_tensors, aqt", aqt_convert(in, out, &options, NULL, &g_error));
  options.rules = "aqt";
  options.experts = "maybe";
  INVALID("options.experts is \"maybe\"", aqt_convert(in, out, &options, NULL, &g_error));
  options.experts = "keep";
  options.non_finite = "yes";
  INVALID("options.non_finite is \"yes\"", aqt_convert(in, out, &options, NULL, &g_error));
  options.non_finite = "keep";
  options.num_exclude = 1;
  INVALID("options.exclude is NULL", aqt_convert(in, out, &options, NULL, &g_error));
  const char* exclude[] = {NULL};
  options.exclude = exclude;
  INVALID("options.exclude[0] is NULL", aqt_convert(in, out, &options, NULL, &g_error));
  exclude[0] = "*.pt";
  OK(aqt_convert(in, out, &options, NULL, &g_error));
  char gguf[512];
  INVALID("have no meaning for a GGUF file as output", aqt_convert(in, At(gguf, "out.gguf"), &options, NULL, &g_error));
  options.struct_size = 3;
  INVALID("options.struct_size is 3", aqt_convert(in, out, &options, NULL, &g_error));

  aqt_convert_options only = AQT_CONVERT_OPTIONS_INIT;
  INVALID("dtype is s8, expected f32, bf16 or f16", aqt_dequantize(out, gguf, AQT_S8, &only, NULL, &g_error));
  INVALID("dtype: 0 is no dtype", aqt_dequantize(out, gguf, 0, &only, NULL, &g_error));
  INVALID("is not quantized", aqt_dequantize(in, At(gguf, "back2.safetensors"), AQT_F32, &only, NULL, &g_error));
  only.preset = "w8a16";
  INVALID("only for aqt_convert", aqt_dequantize(out, gguf, AQT_F32, &only, NULL, &g_error));
}

int main(void) {
  TestLibrary();
  TestDTypes();
  TestFreeingNull();
  TestExecutor();
  TestFloatProduct();
  TestNoElements();
  TestGradients();
  TestKeys();
  TestPrepared();
  TestStatistics();
  TestPlanErrors();
  TestPlanOptions();
  TestStructSizes();
  TestCallErrors();
  TestQuantizer();
  TestQTensor();
  TestProgram();
  TestEmbedder();
  TestEmbedderOptionsOfTheFirstVersion();
  TestConvert();
  TestConvertOptions();
  if (g_failures == 0) puts("passed");
  return g_failures == 0 ? 0 : 1;
}
