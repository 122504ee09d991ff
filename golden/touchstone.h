/* Touchstone from C, and from every language that calls C: the operators of DeepSeek-V4.1-Flash to the bit,
 * and comparison of their results. Library libtouchstone.
 *
 * Every function may be called from any thread, also at the same time. None throws or ends the process for
 * what it is given, with one exception: where memory is exhausted inside the OpenMP runtime, which starts the
 * threads, that ends the process (libgomp: "Out of memory allocating .. bytes", "Thread creation failed").
 * Pointers must be null or valid. Nothing is kept of the caller's buffers after a call. Numbers are
 * little-endian, tensors row-major. */
#ifndef TOUCHSTONE_H
#define TOUCHSTONE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when something is added; nothing is taken away or changes its meaning below the next
 * TOUCHSTONE_API_MAJOR, which is also in the library's soname. */
#define TOUCHSTONE_API_MAJOR 1
#define TOUCHSTONE_API_VERSION 1

#define TOUCHSTONE_API __attribute__((visibility("default")))

/* What functions return; where it is not touchstone_ok or touchstone_differs, touchstone_last_error says
 * why. The same numbers as the program's exit codes. */
typedef enum touchstone_status {
    touchstone_ok = 0,
    touchstone_differs = 1,      /* compared, and outside the tolerance */
    touchstone_bad_argument = 2, /* null, an unknown name, another type, shape or size, not enough memory */
    touchstone_internal = 4      /* a mistake of the library's */
} touchstone_status;

/* A tensor of the caller's, or one of a touchstone_tensors. */
typedef struct touchstone_tensor {
    const char* name;
    const char* type; /* as safetensors writes it: "F32", "BF16", "F8_E4M3", "F8_E8M0", "U8", "I32", .. */
    int64_t rank;     /* 0 to 8 */
    const int64_t* extents; /* rank of them */
    void* data;             /* not read or written where bytes is 0 */
    size_t bytes;           /* the product of the extents times the size of an element */
} touchstone_tensor;

/* Tensors that the library made; freed by touchstone_tensors_free. */
typedef struct touchstone_tensors touchstone_tensors;

/* TOUCHSTONE_API_VERSION of the library, to be compared with that of the header. */
TOUCHSTONE_API int32_t touchstone_api_version(void);
/* "0.1.0"; stays valid. */
TOUCHSTONE_API const char* touchstone_version(void);
/* Why the last call of this thread failed: what, where, what was expected, what to do; "" after one that did
 * not. In UTF-8: of what the caller gave, U+FFFD stands for every byte that is none. Valid until the thread's
 * next call. */
TOUCHSTONE_API const char* touchstone_last_error(void);

/* Operators, in the order of the model. */
TOUCHSTONE_API int64_t touchstone_operator_count(void);
/* Null for an index that is not 0 .. count - 1; stays valid. */
TOUCHSTONE_API const char* touchstone_operator_name(int64_t index);
/* A JSON object (schema touchstone.operator/1): purpose, equation, parameters, inputs, outputs, profiles,
 * cases. Null for an unknown operator; stays valid. */
TOUCHSTONE_API const char* touchstone_operator_json(const char* name);

/* The inputs of a case, e.g. "rms_norm(rows=2,width=64,seed=7)"; parameters that are left out have their
 * defaults. `*inputs` is null where it fails. */
TOUCHSTONE_API touchstone_status touchstone_make_inputs(const char* case_text, touchstone_tensors** inputs);
/* Makes a case's inputs and runs it. `arithmetic`: "exact", "hopper", "released_hopper": bits; "truth",
 * "ideal": in double, F64 outputs. `*outputs` is null where it fails. */
TOUCHSTONE_API touchstone_status touchstone_run_case(const char* case_text, const char* arithmetic,
                                                     touchstone_tensors** outputs);

/* Runs an operator on the caller's inputs, into the caller's outputs: of those that are given, each by its
 * name, type and shape. `parameters`: a case whose parameters are no extent of a tensor, e.g.
 * "rms_norm(eps=1e-6)"; null: defaults. Where it fails no output is written. */
TOUCHSTONE_API touchstone_status touchstone_run(const char* operator_name, const char* arithmetic,
                                                const char* parameters, const touchstone_tensor* inputs,
                                                int64_t input_count, const touchstone_tensor* outputs,
                                                int64_t output_count);
/* The outputs that touchstone_run would fill, every byte 0xFF: their names, types and shapes. */
TOUCHSTONE_API touchstone_status touchstone_declare_outputs(const char* operator_name, const char* parameters,
                                                            const touchstone_tensor* inputs,
                                                            int64_t input_count,
                                                            touchstone_tensors** outputs);

/* 0 for null. */
TOUCHSTONE_API int64_t touchstone_tensors_count(const touchstone_tensors* tensors);
/* Tensor `index`, whose pointers are valid until touchstone_tensors_free. Its data may be written to. */
TOUCHSTONE_API touchstone_status touchstone_tensors_get(const touchstone_tensors* tensors, int64_t index,
                                                        touchstone_tensor* tensor);
/* Nothing for null. */
TOUCHSTONE_API void touchstone_tensors_free(touchstone_tensors* tensors);

/* What touchstone_compare found. */
typedef struct touchstone_comparison {
    size_t struct_bytes; /* sizeof(touchstone_comparison), set by the caller: no more is written */
    int64_t elements;
    int64_t identical; /* the same bits, or two NaN */
    int64_t outside;   /* elements that the tolerance does not let pass */
    int64_t first;     /* row-major index of the first that is not identical; -1: none */
    int64_t worst;     /* farthest outside the tolerance, or where all pass, in units of the rms; -1: none */
    int64_t largest_ulp; /* in the tensors' own type, of finite pairs, as the next three */
    double largest_absolute;
    double largest_relative;
    double largest_of_rms; /* in units of the rms of the expected row, the last extent */
    double cosine;         /* 1 - 2 sum(eg) / sum(e^2 + g^2) */
} touchstone_comparison;

/* Compares two tensors of one type and shape; their names do not matter. `tolerance`: a class, "bit",
 * "bf16_step", "fp32_row", .., or limits such as "ulp=1,share=0.01". Integers and BOOL, which are ids, codes
 * and indices, are compared bit for bit whatever it is. touchstone_ok: within it; touchstone_differs: not.
 * `comparison` may be null. */
TOUCHSTONE_API touchstone_status touchstone_compare(const touchstone_tensor* expected,
                                                    const touchstone_tensor* got, const char* tolerance,
                                                    touchstone_comparison* comparison);

#ifdef __cplusplus
}
#endif

#endif
