// kv-attn: time of one layer's heads over the full cache and over rings of several sizes
// Versions are interleaved; the median of n rounds is printed, next to the rate at which rows stream in.

#include "kv-attn.h"

#include "ggml.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#define N_HEAD   8
#define N_LAYER  6
#define N_CTX    1536
#define N_ROUNDS 51

struct arm {
    const char * name;
    kv_attn_fn   attn;
    int          n_rows;
    bool         ring; // head-major

    std::vector<double> us;
};

static double run(const arm & a, const std::vector<uint16_t> & k, const std::vector<uint16_t> & v, const float * q) {
    float weight[KV_ATTN_MAX_ROWS], out[KV_ATTN_DIM];

    const int64_t t0 = ggml_time_us();
    for (int il = 0; il < N_LAYER; ++il) {
        for (int h = 0; h < N_HEAD; ++h) {
            const size_t offset = (size_t) il*N_CTX*N_HEAD*KV_ATTN_DIM + h*KV_ATTN_DIM*(a.ring ? a.n_rows : 1);
            const size_t stride = a.ring ? KV_ATTN_DIM : N_HEAD*KV_ATTN_DIM;
            a.attn(q, { &k[offset], &v[offset], stride, a.n_rows, nullptr }, 0.125f, weight, out);
        }
    }
    return ggml_time_us() - t0;
}

int main() {
    ggml_time_init();

    const size_t n = (size_t) N_LAYER*N_CTX*N_HEAD*KV_ATTN_DIM;

    std::vector<uint16_t> k(n), v(n);
    for (size_t i = 0; i < n; ++i) {
        k[i] = ggml_fp32_to_fp16(((i*2654435761u >> 8) % 1000)/1000.0f - 0.5f);
        v[i] = k[i];
    }
    std::vector<float> q(KV_ATTN_DIM, 0.5f);

    std::vector<arm> arms;
    for (const bool best : { false, true }) {
        const kv_attn_fn attn = best ? kv_attn_best() : kv_attn_ref;
        arms.push_back({ best ? "best, full cache" : "ref,  full cache", attn, 1500, false, {} });
        for (const int n_rows : { 384, 192, 96 }) {
            arms.push_back({ best ? "best, ring" : "ref,  ring", attn, n_rows, true, {} });
        }
    }

    for (int round = 0; round < N_ROUNDS; ++round) {
        for (auto & a : arms) {
            a.us.push_back(run(a, k, v, q.data()));
        }
    }

    printf("kv-attn: %d layers of %d heads, one token, one thread, median of %d interleaved rounds\n", N_LAYER, N_HEAD, N_ROUNDS);
    for (auto & a : arms) {
        std::sort(a.us.begin(), a.us.end());
        const double us    = a.us[a.us.size()/2];
        const double bytes = 2.0*sizeof(uint16_t)*N_LAYER*N_HEAD*KV_ATTN_DIM*a.n_rows;
        printf("  %-16s %5d rows  %9.1f us (quartiles %.1f .. %.1f)  %6.1f GB/s\n", a.name, a.n_rows, us,
                a.us[a.us.size()/4], a.us[a.us.size()*3/4], bytes/us/1e3);
    }

    return 0;
}
