// kv-attn: time of a decoder step's cross-attention, over the full cache and over rings of several sizes
// As in a decoder, a layer's rows are out of the core's caches when their turn comes again: other memory is read in
// between, untimed. Versions are interleaved; the median of n rounds is printed, next to the rate at which rows stream
// in and to that of a plain loop that only reads the same bytes.

#include "kv-attn.h"

#include "ggml.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#define N_HEAD   8
#define N_LAYER  6
#define N_CTX    1536
#define N_ROUNDS 51
#define N_OTHER  (8 << 20) // bytes read between two layers

struct arm {
    std::string              name;
    int                      n_rows;
    std::function<void(int)> layer; // il

    std::vector<double> us;
};

struct memory {
    std::vector<uint16_t> k, v;
    std::vector<float>    q;
    std::vector<char>     other;

    std::vector<float> weight, out;

    volatile long sum = 0; // of what was only read
};

static memory make_memory() {
    const size_t n = (size_t) N_LAYER*N_CTX*N_HEAD*KV_ATTN_DIM;

    memory m = { std::vector<uint16_t>(n), {}, {}, std::vector<char>(N_OTHER, 1), {}, {} };

    for (size_t i = 0; i < n; ++i) {
        m.k[i] = ggml_fp32_to_fp16(((i*2654435761u >> 8) % 1000)/1000.0f - 0.5f);
    }
    m.v = m.k;
    m.q     .assign(N_HEAD*KV_ATTN_DIM, 0.5f);
    m.weight.assign(N_HEAD*KV_ATTN_MAX_ROWS, 0.0f);
    m.out   .assign(N_HEAD*KV_ATTN_DIM, 0.0f);

    return m;
}

static void attend(memory & m, kv_attn_fn attn, int il, int n_rows, bool ring) {
    const size_t layer       = (size_t) il*N_CTX*N_HEAD*KV_ATTN_DIM;
    const size_t stride      = (size_t) KV_ATTN_DIM*(ring ? 1 : N_HEAD);
    const size_t head_stride = (size_t) KV_ATTN_DIM*(ring ? n_rows : 1);

    kv_attn_query queries[N_HEAD];
    for (int h = 0; h < N_HEAD; ++h) {
        queries[h] = { h, &m.q[h*KV_ATTN_DIM], &m.weight[h*KV_ATTN_MAX_ROWS], &m.out[h*KV_ATTN_DIM], 0.0f };
    }

    attn(queries, N_HEAD, { &m.k[layer], &m.v[layer], stride, head_stride, n_rows, nullptr }, 0.125f);
}

static void read_only(memory & m, int il, int n_rows) {
    const size_t layer = (size_t) il*N_CTX*N_HEAD*KV_ATTN_DIM;

    for (const auto * x : { &m.k, &m.v }) {
        const auto * words = (const uint64_t *) &(*x)[layer];
        m.sum = m.sum + std::accumulate(words, words + (size_t) n_rows*N_HEAD*KV_ATTN_DIM/4, uint64_t(0));
    }
}

static double time_step(memory & m, const arm & a) {
    double us = 0.0;
    for (int il = 0; il < N_LAYER; ++il) {
        m.sum = m.sum + std::accumulate(m.other.begin(), m.other.end(), 0L);

        const int64_t t0 = ggml_time_us();
        a.layer(il);
        us += ggml_time_us() - t0;
    }
    return us;
}

int main() {
    ggml_time_init();

    memory m = make_memory();

    const struct { const char * name; kv_attn_fn attn; } versions[] = {
        { "ref", kv_attn_ref }, { "avx2", kv_attn_avx2 }, { "avx512", kv_attn_avx512 }, { "neon", kv_attn_neon },
    };

    std::vector<arm> arms;
    for (const int n_rows : { 1500, 384, 192, 96 }) {
        const bool ring = n_rows < 1500;

        for (const auto & version : versions) {
            const kv_attn_fn attn = version.attn;
            if (kv_attn_runs(attn)) {
                arms.push_back({ version.name, n_rows, [&m, attn, n_rows, ring](int il) { attend(m, attn, il, n_rows, ring); }, {} });
            }
        }
        arms.push_back({ "plain read", n_rows, [&m, n_rows](int il) { read_only(m, il, n_rows); }, {} });
    }

    for (int round = 0; round < N_ROUNDS; ++round) {
        for (auto & a : arms) {
            a.us.push_back(time_step(m, a));
        }
    }

    printf("kv-attn: %d layers of %d heads, one token, one thread, median of %d interleaved rounds\n", N_LAYER, N_HEAD, N_ROUNDS);
    for (auto & a : arms) {
        std::sort(a.us.begin(), a.us.end());
        const double us    = a.us[a.us.size()/2];
        const double bytes = 2.0*sizeof(uint16_t)*N_LAYER*N_HEAD*KV_ATTN_DIM*a.n_rows;
        printf("  %-10s %-10s %5d rows  %9.1f us (quartiles %.1f .. %.1f)  %6.1f GB/s\n", a.name.c_str(), a.n_rows < 1500 ? "ring" : "full cache",
                a.n_rows, us, a.us[a.us.size()/4], a.us[a.us.size()*3/4], bytes/us/1e3);
    }

    return 0;
}
