// kv-attn-simd: the body of the vector versions, included once by each kv-attn-<isa>.cpp
//
// The including file is compiled with the flags of its instruction set and defines
//   KV_LANES              floats in a vector: 8 or 16
//   kv_load_f16(p)        KV_LANES f16 values at p, as floats
// Everything else is written with the compiler's vector types.

#pragma once

#include "kv-attn.h"

#include <cmath> // INFINITY
#include <cstring>

typedef float   kv_vf __attribute__((vector_size(4*KV_LANES), aligned(4), may_alias));
typedef int32_t kv_vi __attribute__((vector_size(4*KV_LANES), aligned(4), may_alias));

#define KV_VECS (KV_ATTN_DIM/KV_LANES)

// Rows of the full cache lie a page or a quarter of one apart, where no hardware prefetcher follows.
#define KV_AHEAD 16

static inline void kv_prefetch(const uint16_t * row) {
    __builtin_prefetch(row);
    __builtin_prefetch(row + KV_ATTN_DIM/2);
}

static inline kv_vf kv_set1(float x) {
    return x - (kv_vf) {};
}

static inline float kv_sum(kv_vf x) {
    float sum = 0.0f;
    for (int i = 0; i < KV_LANES; ++i) {
        sum += x[i];
    }
    return sum;
}

// exp(x) for x <= 0, relative error below 3e-7; exactly 0 below -87; NaN stays NaN
// 2^n * p(r), x = n*ln2 + r, |r| <= ln2/2; n is rounded by adding 1.5 * 2^23, p is the Taylor polynomial of degree 7
static inline kv_vf kv_exp(kv_vf x) {
    const kv_vf magic = kv_set1(12582912.0f);

    const kv_vf shifted = x*1.44269504f + magic;
    const kv_vf n       = shifted - magic;
    const kv_vf r       = (x - n*0.693359375f) + n*2.12194440e-4f;

    kv_vf p = kv_set1(1.0f/5040.0f);
    p = p*r + 1.0f/720.0f;
    p = p*r + 1.0f/120.0f;
    p = p*r + 1.0f/24.0f;
    p = p*r + 1.0f/6.0f;
    p = p*r + 0.5f;
    p = p*r + 1.0f;
    p = p*r + 1.0f;

    const kv_vf y = (kv_vf) ((kv_vi) p + (((kv_vi) shifted - (kv_vi) magic) << 23));

    return x < -87.0f ? kv_set1(0.0f) : x == x ? y : x;
}

// scale*q.k + bias into weight[]; returns the largest
static inline float kv_logits(const float * q, const struct kv_attn_rows & rows, float scale, float * weight) {
    kv_vf qv[KV_VECS];
    for (int j = 0; j < KV_VECS; ++j) {
        qv[j] = *(const kv_vf *) (q + j*KV_LANES)*scale;
    }

    float max = -INFINITY;
    for (int i = 0; i < rows.n; ++i) {
        const uint16_t * k = rows.k + i*rows.stride;

        kv_prefetch(k + KV_AHEAD*rows.stride);

        kv_vf dot = qv[0]*kv_load_f16(k);
        for (int j = 1; j < KV_VECS; ++j) {
            dot += qv[j]*kv_load_f16(k + j*KV_LANES);
        }

        weight[i] = kv_sum(dot) + (rows.bias ? rows.bias[i] : 0.0f);
        max = weight[i] > max || weight[i] != weight[i] ? weight[i] : max;
    }

    return max;
}

// weight[i] = exp(weight[i] - max); returns their sum
static inline float kv_softmax(float * weight, int n, float max) {
    kv_vf sum = kv_set1(0.0f);

    int i = 0;
    for (; i + KV_LANES <= n; i += KV_LANES) {
        const kv_vf w = kv_exp(*(const kv_vf *) (weight + i) - max);
        *(kv_vf *) (weight + i) = w;
        sum += w;
    }

    // the rows that do not fill a vector
    kv_vf last = kv_set1(-INFINITY);
    for (int j = 0; i + j < n; ++j) {
        last[j] = weight[i + j] - max;
    }
    last = kv_exp(last);
    for (int j = 0; i + j < n; ++j) {
        weight[i + j] = last[j];
    }

    return kv_sum(sum + last);
}

static float kv_attn_simd(const float * q, const struct kv_attn_rows & rows, float scale, float * weight, float * out) {
    const float max = kv_logits(q, rows, scale, weight);

    if (max == -INFINITY) {
        memset(weight, 0, rows.n*sizeof(float));
        memset(out,    0, KV_ATTN_DIM*sizeof(float));
        return 0.0f;
    }

    const float inv = 1.0f/kv_softmax(weight, rows.n, max);

    // two rows at a time hide the latency of the multiply-add
    kv_vf acc0[KV_VECS] = {};
    kv_vf acc1[KV_VECS] = {};

    int i = 0;
    for (; i + 1 < rows.n; i += 2) {
        const uint16_t * v = rows.v + i*rows.stride;

        kv_prefetch(v +  KV_AHEAD     *rows.stride);
        kv_prefetch(v + (KV_AHEAD + 1)*rows.stride);

        for (int j = 0; j < KV_VECS; ++j) {
            acc0[j] += weight[i    ]*kv_load_f16(v +               j*KV_LANES);
            acc1[j] += weight[i + 1]*kv_load_f16(v + rows.stride + j*KV_LANES);
        }
    }
    if (i < rows.n) {
        for (int j = 0; j < KV_VECS; ++j) {
            acc0[j] += weight[i]*kv_load_f16(rows.v + i*rows.stride + j*KV_LANES);
        }
    }

    for (int j = 0; j < KV_VECS; ++j) {
        *(kv_vf *) (out + j*KV_LANES) = (acc0[j] + acc1[j])*inv;
    }

    return inv;
}
