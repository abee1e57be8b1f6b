// kv-attn: every version equals a plain reference in double precision, on both row layouts

#include "kv-attn.h"

#include "ggml.h"

#include "check.h"

#include <cmath>
#include <random>
#include <vector>

struct problem {
    int n_head;
    int n_rows;
    bool ring; // head-major ring, or position-major cache

    std::vector<float>    q;       // [n_head][64]
    std::vector<uint16_t> k, v;    // [n_head][n_rows][64] or [n_rows][n_head][64]
    std::vector<float>    bias;    // [n_rows]

    size_t offset(int h) const { return (size_t) h*KV_ATTN_DIM*(ring ? n_rows : 1); }
    size_t stride()      const { return ring ? KV_ATTN_DIM : (size_t) n_head*KV_ATTN_DIM; }

    kv_attn_rows rows(int h, bool with_bias) const {
        return { &k[offset(h)], &v[offset(h)], stride(), n_rows, with_bias ? bias.data() : nullptr };
    }
};

static problem make_problem(int n_head, int n_rows, bool ring, std::mt19937 & rng) {
    std::normal_distribution<float> normal(0.0f, 1.0f);

    problem p = { n_head, n_rows, ring, {}, {}, {}, {} };

    for (int i = 0; i < n_head*KV_ATTN_DIM; ++i) {
        p.q.push_back(3.0f*normal(rng));
    }
    for (int i = 0; i < n_head*n_rows*KV_ATTN_DIM; ++i) {
        p.k.push_back(ggml_fp32_to_fp16(normal(rng)));
        p.v.push_back(ggml_fp32_to_fp16(normal(rng)));
    }
    for (int i = 0; i < n_rows; ++i) {
        p.bias.push_back(i % 5 == 3 && n_rows > 1 ? -INFINITY : 0.5f*normal(rng));
    }

    return p;
}

// attention in double precision: weights that sum to 1, and the output
static void plain_attention(const float * q, const kv_attn_rows & rows, double scale, std::vector<double> & weight, double * out) {
    weight.assign(rows.n, 0.0);
    double max = -INFINITY, sum = 0.0;

    for (int i = 0; i < rows.n; ++i) {
        for (int d = 0; d < KV_ATTN_DIM; ++d) {
            weight[i] += (double) q[d]*ggml_fp16_to_fp32(rows.k[i*rows.stride + d]);
        }
        weight[i] = scale*weight[i] + (rows.bias ? rows.bias[i] : 0.0);
        max = std::max(max, weight[i]);
    }
    for (double & w : weight) {
        w = std::exp(w - max);
        sum += w;
    }
    for (int d = 0; d < KV_ATTN_DIM; ++d) {
        out[d] = 0.0;
        for (int i = 0; i < rows.n; ++i) {
            out[d] += weight[i]/sum*ggml_fp16_to_fp32(rows.v[i*rows.stride + d]);
        }
    }
    for (double & w : weight) {
        w /= sum;
    }
}

// Tolerance: float products of 64 terms of size ~3 in the logits give errors near 1e-5 there, hence 1e-5 relative in
// the weights and, values being of size 1, 3e-5 absolute in the output.
static void test_equals_plain(const char * name, kv_attn_fn attn) {
    std::mt19937 rng(1);

    std::vector<double> want_weight;
    double              want[KV_ATTN_DIM];
    float               weight[KV_ATTN_MAX_ROWS], out[KV_ATTN_DIM];

    for (const int n_head : { 6, 8, 12, 16, 20 }) {
        for (const int n_rows : { 1, 31, 97, 192, 255, 257, 1499, 1500 }) {
            for (const bool ring : { false, true }) {
                const problem p = make_problem(n_head, n_rows, ring, rng);

                for (int h = 0; h < n_head; ++h) {
                    for (const bool with_bias : { false, true }) {
                        const auto  rows = p.rows(h, with_bias);
                        const float inv  = attn(&p.q[h*KV_ATTN_DIM], rows, 0.125f, weight, out);

                        plain_attention(&p.q[h*KV_ATTN_DIM], rows, 0.125, want_weight, want);

                        double err_out = 0.0, err_weight = 0.0;
                        for (int d = 0; d < KV_ATTN_DIM; ++d) {
                            err_out = std::max(err_out, std::fabs(out[d] - want[d]));
                        }
                        for (int i = 0; i < n_rows; ++i) {
                            err_weight = std::max(err_weight, std::fabs(weight[i]*inv - want_weight[i]));
                        }
                        CHECK(err_out < 3e-5 && err_weight < 1e-5, "%s: %d heads, %d rows, ring %d, bias %d: out %g, weight %g",
                                name, n_head, n_rows, ring, with_bias, err_out, err_weight);
                    }
                }
            }
        }
    }
}

static void test_corners(const char * name, kv_attn_fn attn) {
    std::mt19937 rng(2);

    problem p = make_problem(1, 37, true, rng);
    float weight[KV_ATTN_MAX_ROWS], out[KV_ATTN_DIM];

    // no row there
    p.bias.assign(37, -INFINITY);
    CHECK(attn(p.q.data(), p.rows(0, true), 1.0f, weight, out) == 0.0f && out[0] == 0.0f && weight[36] == 0.0f, "%s: all rows masked", name);

    kv_attn_rows none = p.rows(0, false);
    none.n = 0;
    CHECK(attn(p.q.data(), none, 1.0f, weight, out) == 0.0f && out[63] == 0.0f, "%s: no rows", name);

    // one row gets everything; logits far apart do not overflow
    p.bias.assign(37, -5000.0f);
    p.bias[20] = 5000.0f;
    const float inv = attn(p.q.data(), p.rows(0, true), 1.0f, weight, out);
    CHECK(weight[20]*inv == 1.0f && out[5] == ggml_fp16_to_fp32(p.v[20*KV_ATTN_DIM + 5]), "%s: one row wins", name);

    // a NaN is shown, not hidden, wherever it is
    for (const int bad : { 0, 18, 36 }) {
        problem broken = p;
        broken.k[bad*KV_ATTN_DIM + 9] = 0x7e00;
        const float nan = attn(broken.q.data(), broken.rows(0, false), 1.0f, weight, out);
        CHECK(std::isnan(nan) && std::isnan(out[0]) && std::isnan(out[63]), "%s: NaN in row %d", name, bad);
    }
}

int main() {
    const struct { const char * name; kv_attn_fn attn; } versions[] = {
        { "ref", kv_attn_ref }, { "avx2", kv_attn_avx2 }, { "avx512", kv_attn_avx512 },
    };

    for (const auto & version : versions) {
        bool runs = version.attn != nullptr;
#if defined(__x86_64__)
        runs = runs && (version.attn != kv_attn_avx2   || (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")));
        runs = runs && (version.attn != kv_attn_avx512 ||  __builtin_cpu_supports("avx512f"));
#endif
        printf("%s: %s\n", version.name, runs ? "tested" : "not on this machine");
        if (runs) {
            test_equals_plain(version.name, version.attn);
            test_corners     (version.name, version.attn);
        }
    }

    return check_report();
}
