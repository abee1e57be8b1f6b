// kv-attn: attention of one query over a list of rows, one head at a time
//
// Rows carry their position already (it was added before the encoder), so their order does not matter.
// The rows of a head may lie anywhere as long as they are evenly spaced: the full cache ([position][head][64]) and the
// ring buffer ([head][slot][64]) differ in the stride only.

#pragma once

#include <cstddef>
#include <cstdint>

#define KV_ATTN_DIM      64   // elements of a head: the same in every Whisper model
#define KV_ATTN_MAX_ROWS 1536 // most rows of one call

struct kv_attn_rows {
    const uint16_t * k;      // [n] keys,   f16, KV_ATTN_DIM contiguous elements each
    const uint16_t * v;      // [n] values, f16, the same
    size_t           stride; // elements from one row to the next
    int              n;      // rows, 0..KV_ATTN_MAX_ROWS
    const float    * bias;   // [n] added to the logits (0 = a row that stands for itself, -INFINITY = not there); may be NULL
};

// out[64] = softmax(scale*q.k + bias) * v, f32
// weight[n] receives exp(logit - max); the attention of row i is weight[i] times the returned value.
// Returns NaN and leaves out = NaN if the logits hold a NaN; returns 0 and out = 0 if no row is there.
typedef float (*kv_attn_fn)(const float * q, const struct kv_attn_rows & rows, float scale, float * weight, float * out);

// plain loops, the reference of every other version
float kv_attn_ref(const float * q, const struct kv_attn_rows & rows, float scale, float * weight, float * out);

// one version per instruction set, NULL where the compiler cannot build it
extern const kv_attn_fn kv_attn_avx2;
extern const kv_attn_fn kv_attn_avx512;

// the fastest version this CPU can run
kv_attn_fn kv_attn_best();
