#include "kv-attn.h"

#include "ggml.h"

#include <algorithm>
#include <cmath>

static void attend(kv_attn_query & query, const kv_attn_rows & rows, float scale) {
    const uint16_t * k = rows.k + query.head*rows.head_stride;
    const uint16_t * v = rows.v + query.head*rows.head_stride;

    float max = -INFINITY;
    for (int i = 0; i < rows.n; ++i) {
        float dot = 0.0f;
        for (int d = 0; d < KV_ATTN_DIM; ++d) {
            dot += query.q[d]*ggml_fp16_to_fp32(k[i*rows.stride + d]);
        }
        query.weight[i] = scale*dot + (rows.bias ? rows.bias[i] : 0.0f);
        max = query.weight[i] > max || std::isnan(query.weight[i]) ? query.weight[i] : max;
    }

    std::fill_n(query.out, KV_ATTN_DIM, 0.0f);

    if (max == -INFINITY) {
        std::fill_n(query.weight, rows.n, 0.0f);
        query.inv = 0.0f;
        return;
    }

    float sum = 0.0f;
    for (int i = 0; i < rows.n; ++i) {
        query.weight[i] = expf(query.weight[i] - max);
        sum += query.weight[i];
        for (int d = 0; d < KV_ATTN_DIM; ++d) {
            query.out[d] += query.weight[i]*ggml_fp16_to_fp32(v[i*rows.stride + d]);
        }
    }

    query.inv = 1.0f/sum;
    for (int d = 0; d < KV_ATTN_DIM; ++d) {
        query.out[d] *= query.inv;
    }
}

void kv_attn_ref(kv_attn_query * queries, int n_queries, const kv_attn_rows & rows, float scale) {
    for (int i = 0; i < n_queries; ++i) {
        attend(queries[i], rows, scale);
    }
}

bool kv_attn_runs(kv_attn_fn attn) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (attn == kv_attn_avx512) {
        return attn && __builtin_cpu_supports("avx512f");
    }
    if (attn == kv_attn_avx2) {
        return attn && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    }
#endif
    return attn;
}

kv_attn_fn kv_attn_best() {
    for (const kv_attn_fn attn : { kv_attn_avx512, kv_attn_avx2, kv_attn_neon }) {
        if (kv_attn_runs(attn)) {
            return attn;
        }
    }
    return kv_attn_ref;
}
