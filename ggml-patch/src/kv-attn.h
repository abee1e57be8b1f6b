// kv-attn: attention over a list of rows, for several queries at once
//
// Rows carry their position already (it was added before the encoder), so their order does not matter.
// The rows of a head may lie anywhere as long as they are evenly spaced: the full cache ([position][head][64]) and the
// ring buffer ([head][slot][64]) differ in their strides only.

#pragma once

#include <cstddef>
#include <cstdint>

#define KV_ATTN_DIM         64   // elements of a head: the same in every Whisper model
#define KV_ATTN_MAX_ROWS    1536 // most rows of one call
#define KV_ATTN_MAX_QUERIES 16   // most queries of one call

struct kv_attn_rows {
    const uint16_t * k;           // keys,   f16: row i of head h begins at k + h*head_stride + i*stride
    const uint16_t * v;           // values, f16: the same
    size_t           stride;      // elements from one row to the next
    size_t           head_stride; // elements from one head to the next
    int              n;           // rows, 0..KV_ATTN_MAX_ROWS
    const float    * bias;        // [n] added to the logits (0 = a row that stands for itself, -INFINITY = not there); may be NULL
};

// one token in one head
struct kv_attn_query {
    int           head;
    const float * q;      // [KV_ATTN_DIM]
    float       * weight; // [n] receives exp(logit - largest logit)
    float       * out;    // [KV_ATTN_DIM] receives the attention's output
    float         inv;    // receives what weight[i] times is the attention on row i: they sum to 1 then
};

// For each query: out = softmax(scale*q.k + bias) * v. n_queries: 0..KV_ATTN_MAX_QUERIES.
// A NaN among the logits makes inv and out NaN; where no row is there, they are 0.
typedef void (*kv_attn_fn)(struct kv_attn_query * queries, int n_queries, const struct kv_attn_rows & rows, float scale);

// plain loops, the reference of every other version
void kv_attn_ref(struct kv_attn_query * queries, int n_queries, const struct kv_attn_rows & rows, float scale);

// one version per instruction set, NULL where the compiler cannot build it
extern const kv_attn_fn kv_attn_avx2;
extern const kv_attn_fn kv_attn_avx512;
extern const kv_attn_fn kv_attn_neon;

// can this CPU run it?
bool kv_attn_runs(kv_attn_fn attn);

// the fastest version this CPU can run
kv_attn_fn kv_attn_best();
