// kv-attn-simd: the body of the vector versions, included once by each kv-attn-<isa>.cpp
//
// The including file is compiled with the flags of its instruction set and defines
//   KV_LANES              floats in a vector: 4, 8 or 16
//   kv_load_f16(p)        KV_LANES f16 values at p, as floats
// Everything else is written with the compiler's vector types, static, and without functions of the standard library: what
// the linker could merge across files would run on CPUs that lack the instructions.
//
// What limits it is how fast rows stream in. In the full cache the rows of all heads of a position lie side by side:
// read head after head, no hardware prefetcher follows. So a block of rows is read for all queries before the next one.
// All keys come before all values: whoever tracks the speech needs the weights of all rows anyway, and with them in
// memory, a running softmax would only add its corrections.

#pragma once

#include "kv-attn.h"

#include <cmath> // INFINITY
#include <utility>

typedef float   kv_vf __attribute__((vector_size(4*KV_LANES), aligned(4), may_alias));
typedef int32_t kv_vi __attribute__((vector_size(4*KV_LANES), aligned(4), may_alias));

#define KV_VECS  (KV_ATTN_DIM/KV_LANES)
#define KV_BLOCK 16 // rows; a multiple of KV_LANES
#define KV_AHEAD 16 // rows to prefetch

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

// lanes of a and b (which count on from a's), in the order given
template <int... lane>
static inline kv_vf kv_shuffle(kv_vf a, kv_vf b) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, lane...);
#else
    return __builtin_shuffle(a, b, (kv_vi) { lane... });
#endif
}

// Lane i of what adds up the halves of `n` groups of lanes that lie in two vectors: the first half's lane.
template <int n>
static constexpr int kv_half(int i) {
    const int width = KV_LANES/n;
    const int group = i/width;

    return (group < n/2 ? 0 : KV_LANES) + group%(n/2)*2*width + i%width;
}

// two vectors of n/2 groups of lanes to one of n groups, each half as wide and with the same sum
template <int n, int... i>
static inline kv_vf kv_fold(kv_vf a, kv_vf b, std::integer_sequence<int, i...>) {
    return kv_shuffle<kv_half<n>(i)...>(a, b) + kv_shuffle<kv_half<n>(i) + KV_LANES/n ...>(a, b);
}

// q.k of n rows, in n groups of lanes whose sums they are; in as many lanes for n = KV_LANES
template <int n>
static inline __attribute__((always_inline)) kv_vf kv_dots(const kv_vf * q, const uint16_t * k, size_t stride) {
    if constexpr (n == 1) {
        kv_prefetch(k + KV_AHEAD*stride);

        kv_vf dot = q[0]*kv_load_f16(k);
        for (int j = 1; j < KV_VECS; ++j) {
            dot += q[j]*kv_load_f16(k + j*KV_LANES);
        }
        return dot;
    } else {
        const kv_vf a = kv_dots<n/2>(q, k,              stride);
        const kv_vf b = kv_dots<n/2>(q, k + n/2*stride, stride);

        return kv_fold<n>(a, b, std::make_integer_sequence<int, KV_LANES>());
    }
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

// NaN once there is one
static inline float kv_larger(float max, float x) {
    return x > max || x != x ? x : max;
}

// scale*q.k + bias of rows [i0, i1) into the weights; returns the largest, or max if that is larger
static inline float kv_logits(const kv_attn_query & query, const kv_attn_rows & rows, float scale, int i0, int i1, float max) {
    const uint16_t * k = rows.k + query.head*rows.head_stride;

    kv_vf q[KV_VECS];
    for (int j = 0; j < KV_VECS; ++j) {
        q[j] = *(const kv_vf *) (query.q + j*KV_LANES)*scale;
    }

    kv_vf maxs = kv_set1(max);

    int i = i0;
    for (; i + KV_LANES <= i1; i += KV_LANES) {
        kv_vf logits = kv_dots<KV_LANES>(q, k + i*rows.stride, rows.stride);
        if (rows.bias) {
            logits += *(const kv_vf *) (rows.bias + i);
        }
        *(kv_vf *) (query.weight + i) = logits;
        maxs = logits > maxs ? logits : logits == logits ? maxs : logits;
    }
    for (; i < i1; ++i) {
        query.weight[i] = kv_sum(kv_dots<1>(q, k + i*rows.stride, rows.stride)) + (rows.bias ? rows.bias[i] : 0.0f);
        max = kv_larger(max, query.weight[i]);
    }

    for (int j = 0; j < KV_LANES; ++j) {
        max = kv_larger(max, maxs[j]);
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

// out += weight[i] * v of rows [i0, i1)
static inline void kv_add_values(const kv_attn_query & query, const kv_attn_rows & rows, int i0, int i1) {
    const uint16_t * v = rows.v + query.head*rows.head_stride;

    kv_vf acc[KV_VECS];
    for (int j = 0; j < KV_VECS; ++j) {
        acc[j] = *(const kv_vf *) (query.out + j*KV_LANES);
    }

    for (int i = i0; i < i1; ++i) {
        kv_prefetch(v + (i + KV_AHEAD)*rows.stride);

        for (int j = 0; j < KV_VECS; ++j) {
            acc[j] += query.weight[i]*kv_load_f16(v + i*rows.stride + j*KV_LANES);
        }
    }

    for (int j = 0; j < KV_VECS; ++j) {
        *(kv_vf *) (query.out + j*KV_LANES) = acc[j];
    }
}

static inline void kv_fill(float * x, int n, float value) {
    for (int i = 0; i < n; ++i) {
        x[i] = value;
    }
}

static inline int kv_block_end(int i0, int n_block, int n) {
    return i0 + n_block < n ? i0 + n_block : n;
}

static void kv_attn_simd(kv_attn_query * queries, int n_queries, const kv_attn_rows & rows, float scale) {
    // a head's rows that lie side by side are read to their end
    const int n_block = rows.stride == KV_ATTN_DIM ? rows.n : KV_BLOCK;

    float max[KV_ATTN_MAX_QUERIES];
    kv_fill(max, n_queries, -INFINITY);

    for (int i0 = 0; i0 < rows.n; i0 += n_block) {
        for (int iq = 0; iq < n_queries; ++iq) {
            max[iq] = kv_logits(queries[iq], rows, scale, i0, kv_block_end(i0, n_block, rows.n), max[iq]);
        }
    }

    for (int iq = 0; iq < n_queries; ++iq) {
        auto & query = queries[iq];

        kv_fill(query.out, KV_ATTN_DIM, 0.0f);

        if (max[iq] == -INFINITY) { // no row is there
            kv_fill(query.weight, rows.n, 0.0f);
            query.inv = 0.0f;
        } else {
            query.inv = 1.0f/kv_softmax(query.weight, rows.n, max[iq]);
        }
    }

    for (int i0 = 0; i0 < rows.n; i0 += n_block) {
        for (int iq = 0; iq < n_queries; ++iq) {
            kv_add_values(queries[iq], rows, i0, kv_block_end(i0, n_block, rows.n));
        }
    }

    for (int iq = 0; iq < n_queries; ++iq) {
        for (int d = 0; d < KV_ATTN_DIM; ++d) {
            queries[iq].out[d] *= queries[iq].inv;
        }
    }
}
