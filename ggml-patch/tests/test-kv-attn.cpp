// kv-attn: every version equals a plain reference in double precision, on both row layouts

#include "kv-attn.h"

#include "ggml.h"

#include "check.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#define N_TOKENS 2 // they read the same rows

struct problem {
    int  n_head;
    int  n_rows;
    bool ring; // head-major ring, or position-major cache

    std::vector<float>    q;       // [n_head][N_TOKENS][64]
    std::vector<uint16_t> k, v;    // [n_head][n_rows][64] or [n_rows][n_head][64]
    std::vector<float>    bias;    // [n_rows]

    kv_attn_rows rows(bool with_bias) const {
        const size_t head_stride = (size_t) KV_ATTN_DIM*(ring ? n_rows : 1);
        const size_t stride      = (size_t) KV_ATTN_DIM*(ring ? 1 : n_head);

        return { k.data(), v.data(), stride, head_stride, n_rows, with_bias ? bias.data() : nullptr };
    }
};

static problem make_problem(int n_head, int n_rows, bool ring, std::mt19937 & rng) {
    std::normal_distribution<float> normal(0.0f, 1.0f);

    problem p = { n_head, n_rows, ring, {}, {}, {}, {} };

    for (int i = 0; i < n_head*N_TOKENS*KV_ATTN_DIM; ++i) {
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

// what a call gave for one query
struct result {
    float weight[KV_ATTN_MAX_ROWS];
    float out[KV_ATTN_DIM];
    float inv;
};

// all heads and tokens of the problem, as many to a call as it takes
static std::vector<result> run(kv_attn_fn attn, const problem & p, const kv_attn_rows & rows, float scale) {
    const int n = p.n_head*N_TOKENS;

    std::vector<result>        results(n);
    std::vector<kv_attn_query> queries;

    for (int i = 0; i < n; ++i) {
        queries.push_back({ i/N_TOKENS, &p.q[i*KV_ATTN_DIM], results[i].weight, results[i].out, -1.0f });
    }
    for (int i = 0; i < n; i += KV_ATTN_MAX_QUERIES) {
        attn(&queries[i], std::min(KV_ATTN_MAX_QUERIES, n - i), rows, scale);
    }
    for (int i = 0; i < n; ++i) {
        results[i].inv = queries[i].inv;
    }

    return results;
}

// attention of a head in double precision: weights that sum to 1, and the output
static void plain_attention(const float * q, const kv_attn_rows & rows, int h, double scale, std::vector<double> & weight, double * out) {
    weight.assign(rows.n, 0.0);
    double max = -INFINITY, sum = 0.0;

    for (int i = 0; i < rows.n; ++i) {
        for (int d = 0; d < KV_ATTN_DIM; ++d) {
            weight[i] += (double) q[d]*ggml_fp16_to_fp32(rows.k[h*rows.head_stride + i*rows.stride + d]);
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
            out[d] += weight[i]/sum*ggml_fp16_to_fp32(rows.v[h*rows.head_stride + i*rows.stride + d]);
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

    for (const int n_head : { 6, 8, 12, 16, 20 }) {
        for (const int n_rows : { 1, 31, 97, 192, 255, 257, 1499, 1500 }) {
            for (const bool ring : { false, true }) {
                const problem p = make_problem(n_head, n_rows, ring, rng);

                for (const bool with_bias : { false, true }) {
                    const auto rows    = p.rows(with_bias);
                    const auto results = run(attn, p, rows, 0.125f);

                    for (size_t i = 0; i < results.size(); ++i) {
                        const auto & found = results[i];
                        plain_attention(&p.q[i*KV_ATTN_DIM], rows, i/N_TOKENS, 0.125, want_weight, want);

                        double err_out = 0.0, err_weight = 0.0;
                        for (int d = 0; d < KV_ATTN_DIM; ++d) {
                            err_out = std::max(err_out, std::fabs(found.out[d] - want[d]));
                        }
                        for (int j = 0; j < n_rows; ++j) {
                            err_weight = std::max(err_weight, std::fabs(found.weight[j]*found.inv - want_weight[j]));
                        }
                        CHECK(err_out < 3e-5 && err_weight < 1e-5, "%s: %d heads, %d rows, ring %d, bias %d, query %d: out %g, weight %g",
                                name, n_head, n_rows, ring, with_bias, (int) i, err_out, err_weight);
                    }
                }
            }
        }
    }
}

static void test_corners(const char * name, kv_attn_fn attn) {
    std::mt19937 rng(2);

    problem p = make_problem(1, 37, true, rng);

    attn(nullptr, 0, p.rows(false), 1.0f); // nothing asked

    // no row there
    p.bias.assign(37, -INFINITY);
    result found = run(attn, p, p.rows(true), 1.0f)[0];
    CHECK(found.inv == 0.0f && found.out[0] == 0.0f && found.weight[36] == 0.0f, "%s: all rows masked", name);

    kv_attn_rows none = p.rows(false);
    none.n = 0;
    found = run(attn, p, none, 1.0f)[0];
    CHECK(found.inv == 0.0f && found.out[63] == 0.0f, "%s: no rows", name);

    // one row gets everything; logits far apart do not overflow
    p.bias.assign(37, -5000.0f);
    p.bias[20] = 5000.0f;
    found = run(attn, p, p.rows(true), 1.0f)[0];
    CHECK(found.weight[20]*found.inv == 1.0f && found.out[5] == ggml_fp16_to_fp32(p.v[20*KV_ATTN_DIM + 5]), "%s: one row wins", name);

    // a NaN is shown, not hidden, wherever it is, and by the query that has it only
    for (const int bad : { 0, 18, 36 }) {
        problem broken = make_problem(2, 37, true, rng);
        broken.k[bad*KV_ATTN_DIM + 9] = 0x7e00;
        const auto results = run(attn, broken, broken.rows(false), 1.0f);
        CHECK(std::isnan(results[1].inv) && std::isnan(results[1].out[0]) && std::isnan(results[1].out[63]), "%s: NaN in row %d", name, bad);
        CHECK(results[2].inv > 0.0f && !std::isnan(results[2].out[0]), "%s: the other head", name);
    }
}

int main() {
    const struct { const char * name; kv_attn_fn attn; } versions[] = {
        { "ref", kv_attn_ref }, { "avx2", kv_attn_avx2 }, { "avx512", kv_attn_avx512 }, { "neon", kv_attn_neon },
    };

    for (const auto & version : versions) {
        const bool runs = kv_attn_runs(version.attn);

        printf("%s: %s\n", version.name, runs ? "tested" : "not on this machine");
        if (runs) {
            test_equals_plain(version.name, version.attn);
            test_corners     (version.name, version.attn);
        }
    }

    CHECK(kv_attn_runs(kv_attn_best()), "the best version runs");

    return check_report();
}
