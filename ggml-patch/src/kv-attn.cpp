#include "kv-attn.h"

#include "ggml.h"

#include <cmath>

float kv_attn_ref(const float * q, const struct kv_attn_rows & rows, float scale, float * weight, float * out) {
    float max = -INFINITY;
    for (int i = 0; i < rows.n; ++i) {
        float dot = 0.0f;
        for (int d = 0; d < KV_ATTN_DIM; ++d) {
            dot += q[d]*ggml_fp16_to_fp32(rows.k[i*rows.stride + d]);
        }
        weight[i] = scale*dot + (rows.bias ? rows.bias[i] : 0.0f);
        max = weight[i] > max || std::isnan(weight[i]) ? weight[i] : max;
    }

    for (int d = 0; d < KV_ATTN_DIM; ++d) {
        out[d] = 0.0f;
    }

    if (max == -INFINITY) {
        for (int i = 0; i < rows.n; ++i) {
            weight[i] = 0.0f;
        }
        return 0.0f;
    }

    float sum = 0.0f;
    for (int i = 0; i < rows.n; ++i) {
        weight[i] = expf(weight[i] - max);
        sum += weight[i];
        for (int d = 0; d < KV_ATTN_DIM; ++d) {
            out[d] += weight[i]*ggml_fp16_to_fp32(rows.v[i*rows.stride + d]);
        }
    }

    for (int d = 0; d < KV_ATTN_DIM; ++d) {
        out[d] /= sum;
    }

    return 1.0f/sum;
}

kv_attn_fn kv_attn_best() {
#if defined(__x86_64__) && defined(__GNUC__)
    if (kv_attn_avx512 && __builtin_cpu_supports("avx512f")) {
        return kv_attn_avx512;
    }
    if (kv_attn_avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
        return kv_attn_avx2;
    }
#endif
    return kv_attn_ref;
}
