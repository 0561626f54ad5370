#ifndef AQT_C_API_H_
#define AQT_C_API_H_

// The C interface: contractions, quantizers, saved programs, text encoders, and the conversion of checkpoints, for
// other languages. Plain C11. docs/c-api.md is the guide.
//
//   aqt_error* error = NULL;
//   aqt_dot_general* plan = NULL;
//   if (aqt_dot_general_make(config, &lhs_aval, &rhs_aval, &dims, NULL, &plan, &error) != AQT_OK) {
//     fprintf(stderr, "%s\n", aqt_error_message(error));
//     aqt_error_free(error);
//   }
//
// Errors: a function that can fail returns an aqt_code. If it is not AQT_OK and `error` is not NULL, *error receives an
// error that the caller frees; on success it receives NULL. After an error, handles that the function would have made
// are NULL, and memory that it would have written holds anything. No function throws, aborts or prints for a mistake of
// the caller that it can see: NULL, a handle of another kind, a struct of another size, dtypes and shapes that do not
// fit. It cannot see freed handles and memory that is smaller than its description.
//
// Handles: every aqt_..._make, _load, _open and _prepare gives a handle that the caller frees with the _free of its
// type. Freeing NULL does nothing. A handle keeps what it needs: handles may be freed in any order.
//
// Threads: functions may run at the same time on any threads. All handles but aqt_residuals are immutable, and several
// threads may use one; only one thread may use a residuals handle at a time, and none may use a handle while it is
// freed. Loading the library starts no threads and reads no files. Only an aqt_executor has threads, and a conversion,
// while it runs.
//
// fork: a child may use every handle but an aqt_executor that the parent made: its threads are not in the child. Do not
// fork while another thread is inside a function of this library.
//
// Versions: a library works for programs that were compiled with the header of its version or of an earlier one.
// Structs whose first member is struct_size may grow at their end: the caller sets it to sizeof. Zero in every other
// member is the default, and what AQT_..._INIT gives. Numbers of enumerations never change.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AQT_C_API_VERSION 1

// ---- the library

// AQT_C_API_VERSION of the library, at least that of the header if both fit.
uint32_t aqt_api_version(void);
// The version of AQT: "0.1.0".
const char* aqt_version(void);
// The instruction set that the kernels use here: "avx2". AQT_MAX_TARGET limits it. Results do not depend on it, except
// as docs/bits.md says.
const char* aqt_simd_target(void);
// All that this machine runs, separated by commas: "scalar,sse4,avx2".
const char* aqt_supported_targets(void);

// ---- errors

typedef int32_t aqt_code;
enum {  // the numbers of absl::StatusCode
  AQT_OK = 0,
  AQT_CANCELLED = 1,
  AQT_UNKNOWN = 2,
  AQT_INVALID_ARGUMENT = 3,
  AQT_DEADLINE_EXCEEDED = 4,
  AQT_NOT_FOUND = 5,
  AQT_ALREADY_EXISTS = 6,
  AQT_PERMISSION_DENIED = 7,
  AQT_RESOURCE_EXHAUSTED = 8,  // also: out of memory
  AQT_FAILED_PRECONDITION = 9,
  AQT_ABORTED = 10,
  AQT_OUT_OF_RANGE = 11,
  AQT_UNIMPLEMENTED = 12,
  AQT_INTERNAL = 13,
  AQT_UNAVAILABLE = 14,
  AQT_DATA_LOSS = 15,  // a damaged file
};
// "INVALID_ARGUMENT"; "UNKNOWN" for other numbers.
const char* aqt_code_name(aqt_code code);

typedef struct aqt_error aqt_error;
aqt_code aqt_error_code(const aqt_error* error);        // AQT_OK for NULL
const char* aqt_error_message(const aqt_error* error);  // "" for NULL; valid until the error is freed
void aqt_error_free(aqt_error* error);

// The values of AQT_MAX_TARGET and AQT_VERBOSE. INVALID_ARGUMENT, listing what they may be, if one is wrong. Other
// functions take a wrong value as if it were not set.
aqt_code aqt_check_environment(aqt_error** error);

// ---- text that the library returns

typedef struct aqt_string aqt_string;
const char* aqt_string_data(const aqt_string* string);  // UTF-8 with a terminating zero; "" for NULL
size_t aqt_string_size(const aqt_string* string);       // without the zero
void aqt_string_free(aqt_string* string);

// ---- arrays

typedef int32_t aqt_dtype;
enum {
  AQT_BOOL = 1,
  AQT_S2 = 2,  // one value per byte, sign extended, as for AQT_S4
  AQT_S4 = 3,
  AQT_S8 = 4,
  AQT_U8 = 5,
  AQT_S16 = 6,
  AQT_S32 = 7,
  AQT_U32 = 8,
  AQT_S64 = 9,
  AQT_E4M3FN = 10,
  AQT_E5M2 = 11,
  AQT_F16 = 12,
  AQT_BF16 = 13,
  AQT_F32 = 14,
  AQT_F64 = 15,
};
const char* aqt_dtype_name(aqt_dtype dtype);  // "bf16", as in configurations; NULL for other numbers
size_t aqt_dtype_size(aqt_dtype dtype);       // bytes per element; 0 for other numbers

#define AQT_MAX_RANK 64

// A dtype and a shape. Where the library fills one, `dims` is valid as long as the handle that it describes.
typedef struct aqt_aval {
  aqt_dtype dtype;
  int32_t rank;         // 0 .. AQT_MAX_RANK
  const int64_t* dims;  // `rank` of them; may be NULL for rank 0
} aqt_aval;

// Borrowed memory. Element (i0, i1, ...) is at data + i0 * strides[0] + i1 * strides[1] + ... The data must be aligned
// to the size of an element, and strides must be multiples of it. They may be zero or negative; the elements of an
// array that is written must not overlap. No copy is made unless a function says so. `data` may be NULL if there are no
// elements. Functions only write to arrays that they call outputs.
typedef struct aqt_array {
  void* data;
  aqt_dtype dtype;
  int32_t rank;
  const int64_t* dims;
  const int64_t* strides;  // in bytes; NULL: dense, row-major
} aqt_array;

// ---- threads

typedef struct aqt_executor aqt_executor;
// A pool of `threads` threads, 1 .. 4096, the calling thread included. Several calls may use it at a time. No call may
// be using it when it is freed.
aqt_code aqt_executor_make(int32_t threads, aqt_executor** executor, aqt_error** error);
// The threads that the system allowed.
int32_t aqt_executor_threads(const aqt_executor* executor);
void aqt_executor_free(aqt_executor* executor);

// ---- options of plans and calls

enum { AQT_PRNG_PARTITIONABLE = 0, AQT_PRNG_ORIGINAL = 1 };           // jax_threefry_partitionable on, off
enum { AQT_ARITHMETIC_XLA_COMPATIBLE = 0, AQT_ARITHMETIC_IEEE = 1 };  // aqt/quant/config/semantics.h
enum { AQT_WEIGHT_ONLY_DIGITS = 0, AQT_WEIGHT_ONLY_FLOAT = 1 };

// How a plan or a quantizer computes, besides its configuration.
typedef struct aqt_plan_options {
  size_t struct_size;
  int32_t forward_only;  // not 0: no gradients; the backward part of the configuration is not checked
  int32_t prng_layout;
  int32_t arithmetic;
  int32_t weight_only;
  // Fields of aqt.config.Compat to turn on, separated by commas; "original": all of AQT's; "qwix": all of Qwix's;
  // NULL: none.
  const char* compat;
  const char* target;  // as AQT_MAX_TARGET: "avx2"; NULL: aqt_simd_target()
} aqt_plan_options;
#define AQT_PLAN_OPTIONS_INIT \
  { sizeof(aqt_plan_options), 0, 0, 0, 0, NULL, NULL }

enum { AQT_MODE_TRAIN = 1, AQT_MODE_CALIBRATE = 2, AQT_MODE_CONVERT = 3, AQT_MODE_SERVE = 4 };

// How one call runs. A function reads only the members that it mentions.
typedef struct aqt_call_options {
  size_t struct_size;
  aqt_executor* executor;  // NULL: the calling thread
  int32_t has_key;         // not 0: `key` is set
  uint32_t key[2];         // a key of jax.random: PRNGKey(7) is {0, 7}
  int32_t mode;            // of calibrations with state: AQT_MODE_...; 0: train
  int32_t rhs_mode;        // of the right side; 0: as `mode`
  // Statistics of calibrations with state, in the order of aqt_dot_general_state. `new_state` is written; it may share
  // the memory of `old_state`, and may be NULL if the mode updates nothing. Dense arrays.
  const aqt_array* old_state;
  const aqt_array* new_state;
  size_t num_state;
} aqt_call_options;
#define AQT_CALL_OPTIONS_INIT \
  { sizeof(aqt_call_options), NULL, 0, {0, 0}, 0, 0, NULL, NULL, 0 }

// ---- quantized tensors and quantizers

// A quantized tensor: x ~ qvalue * scale[0] * scale[1] * ... - bias[0] - ...
typedef struct aqt_qtensor aqt_qtensor;
typedef int32_t aqt_part;
enum { AQT_QVALUE = 0, AQT_SCALE = 1, AQT_BIAS = 2 };

// Copies the arrays. `qvalue` may be NULL: only scales. Scales and biases are f32, bf16 or f16, with the rank of the
// qvalue, and 1 or its extent along each axis. `dequant_dtype`: f32, bf16 or f16.
aqt_code aqt_qtensor_make(const aqt_array* qvalue, const aqt_array* scales, size_t num_scales, const aqt_array* biases,
                          size_t num_biases, aqt_dtype dequant_dtype, aqt_qtensor** qtensor, aqt_error** error);
// The number of arrays of a part; 0 or 1 for AQT_QVALUE.
size_t aqt_qtensor_count(const aqt_qtensor* qtensor, aqt_part part);
// A dense array of the tensor, which must not be written. Valid as long as the handle. OUT_OF_RANGE if there is none.
aqt_code aqt_qtensor_part(const aqt_qtensor* qtensor, aqt_part part, size_t index, aqt_array* array, aqt_error** error);
// The dtype and shape of the dequantized tensor. FAILED_PRECONDITION without a qvalue.
aqt_code aqt_qtensor_aval(const aqt_qtensor* qtensor, aqt_aval* aval, aqt_error** error);
// Output: `out`. Each operation is rounded as aqt/quant/tensor/qtensor.h says.
aqt_code aqt_qtensor_dequantize(const aqt_qtensor* qtensor, const aqt_array* out, aqt_error** error);
void aqt_qtensor_free(aqt_qtensor* qtensor);

typedef struct aqt_quantizer aqt_quantizer;
// `config` is a textproto of aqt.config.Quantizer (configs/quant.proto): "int_symmetric { bits: 8 } abs_max {}". Of the
// options, prng_layout, arithmetic and compat are read; they may be NULL. INVALID_ARGUMENT with line and column.
aqt_code aqt_quantizer_make(const char* config, const aqt_plan_options* options, aqt_quantizer** quantizer,
                            aqt_error** error);
// Quantizes x (f32, bf16 or f16). Scales are shared along `axes`, unless the configuration has calib_shared_axes;
// without axes each element has its own. Reads the key, which is needed for stochastic rounding. `options` may be NULL.
aqt_code aqt_quantizer_quantize(const aqt_quantizer* quantizer, const aqt_array* x, const int64_t* axes,
                                size_t num_axes, const aqt_call_options* options, aqt_qtensor** qtensor,
                                aqt_error** error);
// The straight-through gradient: g, with zeros where x was clipped if the configuration has clip_gradient. `qtensor` is
// that of x, from this quantizer. Output: `dx`, of the dtype and shape of g. UNIMPLEMENTED for clip_gradient with the
// compat clip_gradient_at_bound, which "qwix" sets.
aqt_code aqt_quantizer_gradient(const aqt_quantizer* quantizer, const aqt_array* x, const aqt_qtensor* qtensor,
                                const aqt_array* g, const aqt_array* dx, aqt_error** error);
void aqt_quantizer_free(aqt_quantizer* quantizer);

// ---- contractions

// Axes of jax.lax.dot_general: contracting and batch axes of both operands, paired by position. The result has the
// batch axes, then the remaining ones of lhs, then those of rhs.
typedef struct aqt_dot_dims {
  const int64_t* lhs_contracting;
  const int64_t* rhs_contracting;
  size_t num_contracting;
  const int64_t* lhs_batch;
  const int64_t* rhs_batch;
  size_t num_batch;
} aqt_dot_dims;

typedef int32_t aqt_side;
enum { AQT_LHS = 0, AQT_RHS = 1 };
typedef int32_t aqt_pass;
enum { AQT_FORWARD = 0, AQT_BACKWARD = 1 };

// A plan for a quantized contraction of two shapes and its gradients (aqt/quant/contraction/dot_general.h).
typedef struct aqt_dot_general aqt_dot_general;
// An operand that was quantized and packed ahead of time, such as a weight to serve.
typedef struct aqt_prepared aqt_prepared;
// What a forward call keeps for the gradients.
typedef struct aqt_residuals aqt_residuals;

// `config` is a textproto of aqt.config.DotGeneral: "schema: 1 base: \"config_v4\"". Operands have one dtype: f32, bf16
// or f16. `options` may be NULL. INVALID_ARGUMENT, with line and column for the text, if anything does not fit.
aqt_code aqt_dot_general_make(const char* config, const aqt_aval* lhs, const aqt_aval* rhs, const aqt_dot_dims* dims,
                              const aqt_plan_options* options, aqt_dot_general** plan, aqt_error** error);
void aqt_dot_general_free(aqt_dot_general* plan);
// The dtype and shape of the result.
aqt_code aqt_dot_general_out(const aqt_dot_general* plan, aqt_aval* aval, aqt_error** error);
// Whether the calls of a pass need a key: 1 or 0.
aqt_code aqt_dot_general_needs_key(const aqt_dot_general* plan, aqt_pass pass, int32_t* needs_key, aqt_error** error);
// The whole configuration, without a base, as a textproto.
aqt_code aqt_dot_general_config(const aqt_dot_general* plan, aqt_string** config, aqt_error** error);

// One array of statistics that the calls of a pass take and return.
typedef struct aqt_state {
  size_t struct_size;
  const char* operand;  // "fwd.lhs"
  const char* name;     // "amax_history"
  aqt_array initial;    // before the first update; not to be written
  int32_t updated_in_train;
} aqt_state;
#define AQT_STATE_INIT \
  { sizeof(aqt_state), NULL, NULL, {NULL, 0, 0, NULL, NULL}, 0 }
// 0 if no calibration has state.
aqt_code aqt_dot_general_num_state(const aqt_dot_general* plan, aqt_pass pass, size_t* count, aqt_error** error);
aqt_code aqt_dot_general_state(const aqt_dot_general* plan, aqt_pass pass, size_t index, aqt_state* state,
                               aqt_error** error);

// An operand of a forward call: an array; or a prepared operand with values, which replaces it; or an array and a
// prepared operand that has only scales. An array beside prepared values is read only by gradients.
typedef struct aqt_operand {
  const aqt_array* value;
  const aqt_prepared* prepared;
} aqt_operand;

// Output: `out`, which must not overlap the operands. `residuals`: NULL, or receives what the gradients need. Reads all
// options, which may be NULL. FAILED_PRECONDITION if a key or statistics are needed but missing.
aqt_code aqt_dot_general_forward(const aqt_dot_general* plan, const aqt_operand* lhs, const aqt_operand* rhs,
                                 const aqt_call_options* options, const aqt_array* out, aqt_residuals* residuals,
                                 aqt_error** error);
// The gradients, given that of the result, `g`. Outputs: `dlhs` and `drhs`; each may be NULL if it is not wanted.
// `residuals` are those of a forward call of this plan. Reads all options, which may be NULL.
aqt_code aqt_dot_general_backward(const aqt_dot_general* plan, const aqt_array* g, const aqt_residuals* residuals,
                                  const aqt_call_options* options, const aqt_array* dlhs, const aqt_array* drhs,
                                  aqt_error** error);

// borrow, not 0: operands are not copied: they stay valid and unchanged until the last backward call.
aqt_code aqt_residuals_make(int32_t borrow, aqt_residuals** residuals, aqt_error** error);
int64_t aqt_residuals_bytes(const aqt_residuals* residuals);
void aqt_residuals_free(aqt_residuals* residuals);

// Quantizes and packs an operand once, as each forward call would. Reads executor, key and modes.
aqt_code aqt_dot_general_prepare(const aqt_dot_general* plan, aqt_side side, const aqt_array* value,
                                 const aqt_call_options* options, aqt_prepared** prepared, aqt_error** error);
// The same from a quantized tensor of the dtypes and shapes that this plan would compute; without a qvalue only its
// scales are used. Reads the executor.
aqt_code aqt_dot_general_prepare_qtensor(const aqt_dot_general* plan, aqt_side side, const aqt_qtensor* qtensor,
                                         const aqt_call_options* options, aqt_prepared** prepared, aqt_error** error);
// The quantized tensor of a prepared operand: what to store.
aqt_code aqt_prepared_qtensor(const aqt_prepared* prepared, aqt_qtensor** qtensor, aqt_error** error);
// Only the packed form and the scales, in half the memory: for forward calls without residuals.
aqt_code aqt_prepared_without_values(const aqt_prepared* prepared, aqt_prepared** smaller, aqt_error** error);
// The bytes of the packed form.
int64_t aqt_prepared_panel_bytes(const aqt_prepared* prepared);
void aqt_prepared_free(aqt_prepared* prepared);

// ---- saved programs

// A program that is compiled to run many times (docs/runtime.md).
typedef struct aqt_program aqt_program;
typedef int32_t aqt_port;
enum { AQT_INPUT = 0, AQT_OUTPUT = 1 };

// The bytes of a file of aqt::SaveProgram. They are not needed afterwards. DATA_LOSS if they are damaged.
aqt_code aqt_program_load(const void* bytes, size_t size, aqt_program** program, aqt_error** error);
// The number of inputs or outputs.
aqt_code aqt_program_count(const aqt_program* program, aqt_port port, size_t* count, aqt_error** error);
// An input or output. Its kind is "param", "stat", "frozen", "key" or "data"; its name is unique with its kind.
typedef struct aqt_slot {
  size_t struct_size;
  const char* kind;
  const char* name;  // "mlp/fc1/kernel"
  aqt_aval aval;
} aqt_slot;
#define AQT_SLOT_INIT                            \
  {                                              \
    sizeof(aqt_slot), NULL, NULL, { 0, 0, NULL } \
  }
aqt_code aqt_program_slot(const aqt_program* program, aqt_port port, size_t index, aqt_slot* slot, aqt_error** error);
// One call. An argument that is not dense is copied. Outputs: `outputs`, which overlap neither each other nor the
// arguments. Reads the executor. `options` may be NULL.
aqt_code aqt_program_run(const aqt_program* program, const aqt_array* arguments, size_t num_arguments,
                         const aqt_array* outputs, size_t num_outputs, const aqt_call_options* options,
                         aqt_error** error);
void aqt_program_free(aqt_program* program);

// ---- text encoders

// From texts to embeddings, from a model's folder (docs/models.md).
typedef struct aqt_embedder aqt_embedder;
typedef struct aqt_embedder_options {
  size_t struct_size;
  // A preset of configs/presets/convert ("w8a8_dynamic") quantizes weights as `aqt convert` does; one of
  // configs/presets/inject ("int8_all") quantizes products.
  const char* preset;
  const char* config;       // or a textproto of aqt.config.Inject; neither: as the folder stores its weights
  const char* calibration;  // the path of a file of ranges, for presets of `aqt convert` with static ones; NULL: none
} aqt_embedder_options;
#define AQT_EMBEDDER_OPTIONS_INIT \
  { sizeof(aqt_embedder_options), NULL, NULL, NULL }
aqt_code aqt_embedder_open(const char* folder, const aqt_embedder_options* options, aqt_embedder** embedder,
                           aqt_error** error);
int64_t aqt_embedder_width(const aqt_embedder* embedder);       // values of an embedding; 0 for NULL
int64_t aqt_embedder_max_length(const aqt_embedder* embedder);  // of a text, in tokens; 0 for NULL
// What the user should know of how the folder was read: a line each.
aqt_code aqt_embedder_notes(const aqt_embedder* embedder, aqt_string** notes, aqt_error** error);
typedef struct aqt_text_info {
  int64_t tokens;     // that were read, special ones included
  int64_t truncated;  // that were cut off, because the text is longer than the model reads
} aqt_text_info;
// The embeddings of `count` texts: texts[i] has sizes[i] bytes of UTF-8, or ends with a zero if `sizes` is NULL.
// Output: `out`, f32 [count, width]. `infos`: NULL, or receives `count` of them. Reads the executor. An error names the
// text, by its number from 1. The bits of an embedding do not depend on the other texts.
aqt_code aqt_embedder_embed(const aqt_embedder* embedder, const char* const* texts, const size_t* sizes, size_t count,
                            const aqt_call_options* options, const aqt_array* out, aqt_text_info* infos,
                            aqt_error** error);
void aqt_embedder_free(aqt_embedder* embedder);

// ---- checkpoints

// Called between blocks of rows with the bytes that were read of `total`, and the tensor's name. A result other than 0
// ends the work with CANCELLED. With several jobs any of their threads may call it, but one at a time.
typedef int32_t (*aqt_progress)(void* user, int64_t done, int64_t total, const char* tensor);

// As the arguments of `aqt convert` and `aqt dequantize` (docs/converting.md).
typedef struct aqt_convert_options {
  size_t struct_size;
  // Exactly one of the three for aqt_convert, none for aqt_dequantize.
  const char* preset;       // of configs/presets/convert: "w8a8_dynamic"
  const char* config;       // a textproto of aqt.config.Convert
  const char* scheme_from;  // the path of a config.json, or of a folder with one
  const char* calibration;  // the path of a file of ranges; NULL: none
  int32_t jobs;             // threads, 1 .. 64; 0: 1
  int32_t force;            // not 0: an existing output is replaced
  int32_t allow_requantize;
  int32_t strict;              // a rule without effect is an error
  const char* rules;           // "compressed_tensors" or "aqt"; NULL: as the configuration says, also below
  const char* non_finite;      // "error" or "keep"
  const char* experts;         // "auto", "split" or "keep"
  const char* const* exclude;  // patterns of files that are not copied
  size_t num_exclude;
  int64_t max_shard_bytes;  // 0: the files of the input
  aqt_progress progress;    // NULL: none
  void* user;               // for `progress`
} aqt_convert_options;
#define AQT_CONVERT_OPTIONS_INIT \
  { sizeof(aqt_convert_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL }

// Converts a checkpoint, a file or a folder, as `aqt convert INPUT OUTPUT`. `report`: NULL, or receives the JSON object
// of `aqt convert --json`. After an error there is no new output.
aqt_code aqt_convert(const char* input, const char* output, const aqt_convert_options* options, aqt_string** report,
                     aqt_error** error);
// Writes the weights of a quantized checkpoint in `dtype` (f32, bf16 or f16), as `aqt dequantize`. `options` may be
// NULL.
aqt_code aqt_dequantize(const char* input, const char* output, aqt_dtype dtype, const aqt_convert_options* options,
                        aqt_string** report, aqt_error** error);

#ifdef __cplusplus
}
#endif

#endif  // AQT_C_API_H_
