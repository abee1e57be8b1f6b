// kv-view: a made-up cache, driven through the hooks, with the attention op in a real graph. Every output is compared with
// plain attention in double precision over the positions that the run should have read.

#include "kv-view.h"

#include "kv-attn.h"
#include "kv-profile.h"
#include "kv-select.h"

#include "ggml-cpu.h"

#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

typedef std::vector<int32_t> positions;

// every `new` of the program and of the libraries that it loads
static size_t n_allocations = 0;

void * operator new   (size_t size)             { n_allocations++; return malloc(size); }
void   operator delete(void * memory) noexcept         { free(memory); }
void   operator delete(void * memory, size_t) noexcept { free(memory); }

static const int   N_LAYER = 2;
static const int   N_CTX   = 300; // of the cache; one encoding may hold fewer
static const int   N_AUDIO = 200;
static const float SCALE   = 0.125f;
static const int   SINK    = 150; // position that every other head looks at

// one report of the callback, copied
struct report {
    whisper_kv_view_step step;
    positions            pos;
    std::vector<float>   mass;
};

// a state of whisper.cpp as far as kv-view sees it
struct machine {
    int n_head;
    int n_ctx = 0; // encoded

    std::vector<ggml_fp16_t> k, v;   // [N_LAYER][GGML_PAD(n_ctx, 256)][n_head][64]
    std::vector<float>       kf, vf; // the same, f32

    int                n_tokens = 0;
    std::vector<float> q;   // [N_LAYER][n_tokens][n_head][64]
    std::vector<float> out; // the same

    std::vector<report> reports;

    std::mt19937 rng { 1 };
    kv_view *    view;

    machine(int n_head) : n_head(n_head) {
        const size_t n = (size_t) N_LAYER*GGML_PAD(N_CTX, 256)*n_head*KV_ATTN_DIM;

        std::normal_distribution<float> normal;
        for (size_t i = 0; i < n; ++i) {
            k .push_back(ggml_fp32_to_fp16(normal(rng)));
            v .push_back(ggml_fp32_to_fp16(normal(rng)));
            kf.push_back(ggml_fp16_to_fp32(k.back()));
            vf.push_back(ggml_fp16_to_fp32(v.back()));
        }

        view = kv_view_init({ N_LAYER, n_head, N_CTX, k.data(), v.data() });
        kv_view_set_callback(view, nullptr, nullptr, on_step, this);
    }

    ~machine() { kv_view_free(view); }

    machine(const machine &) = delete;

    static void on_step(whisper_context *, whisper_state *, const whisper_kv_view_step * step, void * user_data) {
        report r = { *step, {}, {} };
        if (step->pos) {
            r.pos.assign(step->pos, step->pos + step->n_pos);
        }
        if (step->mass) {
            r.mass.assign(step->mass, step->mass + step->n_layer*step->n_head*step->n_ctx);
        }
        ((machine *) user_data)->reports.push_back(r);
    }

    void encode(int n, int n_audio) {
        n_ctx = n;
        kv_view_on_audio (view, n_audio*320);
        CHECK(!kv_view_has_encoding(view, 0, n), "new audio");
        kv_view_on_encode(view, 0, n);
    }

    size_t row(int il, int pos, int h) const {
        return (((size_t) il*GGML_PAD(n_ctx, 256) + pos)*n_head + h)*KV_ATTN_DIM;
    }

    bool is_ahead(int il, int h) const { return il == 1 && (h == 0 || h == n_head - 1); }

    // queries: the alignment heads look at the token's target, the others mostly at SINK
    void ask(const std::vector<int> & targets) {
        std::normal_distribution<float> normal;

        n_tokens = targets.size();
        q.clear();
        for (int il = 0; il < N_LAYER; ++il) {
            for (const int target : targets) {
                for (int h = 0; h < n_head; ++h) {
                    const float * key = &kf[row(il, is_ahead(il, h) ? target : SINK % n_ctx, h)];
                    for (int d = 0; d < KV_ATTN_DIM; ++d) {
                        q.push_back(key[d]*(is_ahead(il, h) ? 2.0f : 0.5f) + normal(rng));
                    }
                }
            }
        }
    }

    // the graph of all layers, as whisper.cpp builds it
    void compute(int n_threads) {
        ggml_context * ctx = ggml_init({ 16*1024*1024, nullptr, false });
        ggml_cgraph  * gf  = ggml_new_graph(ctx);

        std::vector<ggml_tensor *> results;

        for (int il = 0; il < N_LAYER; ++il) {
            ggml_tensor * ql = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, KV_ATTN_DIM, n_head, n_tokens);
            memcpy(ql->data, &q[il*ggml_nelements(ql)], ggml_nbytes(ql));

            ggml_tensor * kv = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, KV_ATTN_DIM, n_ctx, n_head);

            results.push_back(kv_view_build_attn(view, ctx, ggml_permute(ctx, ql, 0, 2, 1, 3), kv, kv, SCALE, il));
            ggml_build_forward_expand(gf, results.back());
        }

        ggml_graph_compute_with_ctx(ctx, gf, n_threads);

        out.clear();
        for (const ggml_tensor * result : results) {
            out.insert(out.end(), (float *) result->data, (float *) result->data + ggml_nelements(result));
        }
        ggml_free(ctx);
    }

    void run(int pos_first, int pos_last, int n_threads) {
        kv_view_on_decode_begin(view, n_tokens, pos_first, pos_last);
        compute(n_threads);
        kv_view_on_decode_end(view);
    }

    void prompt(int target, int n_threads = 1) { ask({ 0, 0, target }); run(0, 2, n_threads); }
    void step  (int target, int n_seq = 1, int n_threads = 1) { ask(std::vector<int>(n_seq, target)); run(9, 9, n_threads); }

    // attention of head h of token t over these positions, in double precision
    std::vector<double> plain(int il, int t, int h, const positions & pos, double * result) const {
        const size_t offset = (((size_t) il*n_tokens + t)*n_head + h)*KV_ATTN_DIM;

        std::vector<double> weight;
        double sum = 0.0;
        for (const int32_t p : pos) {
            double dot = 0.0;
            for (int d = 0; d < KV_ATTN_DIM; ++d) {
                dot += (double) q[offset + d]*kf[row(il, p, h) + d];
            }
            weight.push_back(std::exp(SCALE*dot)); // logits are below 20 here
            sum += weight.back();
        }

        std::fill(result, result + KV_ATTN_DIM, 0.0);
        for (size_t i = 0; i < pos.size(); ++i) {
            weight[i] /= sum;
            for (int d = 0; d < KV_ATTN_DIM; ++d) {
                result[d] += weight[i]*vf[row(il, pos[i], h) + d];
            }
        }

        return weight;
    }

    // largest error of the last run's output, had it read these positions
    double error(const positions & pos) const {
        double worst = 0.0, want[KV_ATTN_DIM];

        for (int i = 0; i < N_LAYER*n_tokens*n_head; ++i) {
            plain(i/(n_tokens*n_head), i/n_head % n_tokens, i % n_head, pos, want);
            for (int d = 0; d < KV_ATTN_DIM; ++d) {
                worst = std::max(worst, std::fabs(want[d] - out[(size_t) i*KV_ATTN_DIM + d]));
            }
        }

        return worst;
    }

    positions all() const {
        positions pos;
        for (int p = 0; p < n_ctx; ++p) {
            pos.push_back(p);
        }
        return pos;
    }

    // attention of the last token: [N_LAYER][n_head][n_ctx]
    std::vector<float> plain_mass() const {
        std::vector<float> mass;
        double ignored[KV_ATTN_DIM];
        for (int i = 0; i < N_LAYER*n_head; ++i) {
            for (const double w : plain(i/n_head, n_tokens - 1, i % n_head, all(), ignored)) {
                mass.push_back(w);
            }
        }
        return mass;
    }

    const whisper_kv_view_counters & counters() const { return kv_view_get_counters(view); }
};

static const double TOLERANCE = 3e-5; // that of kv-attn

static whisper_kv_view_params make_params(const machine & m, int rule = WHISPER_KV_RULE_PADSINK_TRACK) {
    auto params = kv_params_default();

    params.rule          = rule;
    params.budget        = 48; // 12 sinks, a window of 36
    params.n_aheads      = 2;
    params.aheads[0][0]  = 1;
    params.aheads[0][1]  = 0;
    params.aheads[1][0]  = 1;
    params.aheads[1][1]  = m.n_head - 1;
    params.guard_runaway = 0.0f;

    return params;
}

static const int N_WINDOW = 36;

static int window_lo(int centre, int n_audio = N_AUDIO) {
    return kv_select_window_lo(centre, N_WINDOW, 0.25f, n_audio);
}

// the selection that the prompt must have led to
static kv_selection want_selection(const machine & m, int n_audio, int centre) {
    const auto mass = m.plain_mass();

    std::vector<float> mean(m.n_ctx);
    for (size_t i = 0; i < mass.size(); ++i) {
        mean[i % m.n_ctx] += mass[i]/(N_LAYER*m.n_head);
    }

    kv_selection sel;
    kv_select({ WHISPER_KV_RULE_PADSINK_TRACK, 48, 0.25f, 0.25f, 3, 0, {} }, { mean.data(), m.n_ctx, n_audio, centre }, sel);
    return sel;
}

// the distinct positions of some fixed ones and a window
static positions merge(const positions & fixed, int lo) {
    positions pos = fixed;
    for (int p = lo; p < lo + N_WINDOW; ++p) {
        pos.push_back(p);
    }
    std::sort(pos.begin(), pos.end());
    pos.erase(std::unique(pos.begin(), pos.end()), pos.end());
    return pos;
}

static double largest_difference(const std::vector<float> & a, const std::vector<float> & b) {
    double worst = a.size() == b.size() ? 0.0 : INFINITY;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
        worst = std::max(worst, (double) std::fabs(a[i] - b[i]));
    }
    return worst;
}

// prompt, steps with a moving window, a step executed again, a window on a sink
static void test_clip(machine & m, int n_ctx, int n_audio, int n_seq, int n_threads) {
    char what[64];
    snprintf(what, sizeof(what), "%d heads, n_ctx %d, %d sequences, %d threads", m.n_head, n_ctx, n_seq, n_threads);

    auto params = make_params(m);
    params.tau = 0.5f;
    kv_view_configure(m.view, params);
    kv_view_reset_counters(m.view);
    m.reports.clear();
    m.encode(n_ctx, n_audio);

    auto last   = [&]() -> const report & { return m.reports.back(); };
    auto copied = [&, before = (int64_t) 0]() mutable {
        const int64_t now = m.counters().n_rows_copied, n = now - before;
        before = now;
        return n;
    };

    // prompt
    m.prompt(40, n_threads);
    const auto sel = want_selection(m, n_audio, 40);

    CHECK(m.error(m.all()) < TOLERANCE, "%s: prompt: %g", what, m.error(m.all()));
    CHECK(last().step.kind == WHISPER_KV_STEP_PROMPT && last().step.n_ctx == n_ctx && last().step.n_audio == n_audio, "%s", what);
    CHECK(last().step.centre == 40 && last().step.confidence == -1.0f, "%s: centre %d", what, last().step.centre);
    CHECK(largest_difference(last().mass, m.plain_mass()) < 1e-5, "%s: mass", what);
    CHECK(sel.fixed.size() == 12 && copied() == N_LAYER*48, "%s: rows of the view", what);

    // a reduced step reads the view, wherever the heads look meanwhile
    m.step(52, n_seq, n_threads);
    CHECK(!kv_view_on_logits(m.view, 0.9f, false), "%s", what);
    CHECK(last().step.kind == WHISPER_KV_STEP_REDUCED && last().pos == merge(sel.fixed, window_lo(40, n_audio)), "%s: positions", what);
    CHECK(m.error(last().pos) < TOLERANCE, "%s: reduced: %g", what, m.error(last().pos));
    CHECK(m.error(m.all()) > 100*TOLERANCE, "%s: reduced differs from full", what);
    CHECK(last().step.centre == 52 && copied() == 0, "%s: centre %d", what, last().step.centre);

    // the window moves by 12: 12 rows enter each layer
    m.step(76, n_seq, n_threads);
    CHECK(kv_view_on_logits(m.view, 0.4f, false), "%s: unsure", what);
    CHECK(last().pos == merge(sel.fixed, window_lo(52, n_audio)) && m.error(last().pos) < TOLERANCE, "%s: moved window", what);
    CHECK(last().step.cause == WHISPER_KV_CAUSE_TAU && copied() == N_LAYER*12, "%s: moved window", what);

    // the same step over everything; it sees where the speech is
    CHECK(kv_view_is_retry(m.view), "%s", what);
    m.step(SINK % n_audio, n_seq, n_threads);
    CHECK(!kv_view_on_logits(m.view, 0.1f, true) && !kv_view_is_retry(m.view), "%s: no third run", what);
    CHECK(last().step.kind == WHISPER_KV_STEP_REEXEC && m.error(m.all()) < TOLERANCE, "%s: re-executed: %g", what, m.error(m.all()));
    CHECK(largest_difference(last().mass, m.plain_mass()) < 1e-5 && copied() == 0, "%s: re-executed mass", what);

    // the window jumps onto the sink that lies in the audio, which is read once
    m.step(SINK % n_audio, n_seq, n_threads);
    CHECK(!kv_view_on_logits(m.view, 0.9f, false), "%s", what);
    const int lo = window_lo(SINK % n_audio, n_audio);
    CHECK(std::binary_search(sel.fixed.begin(), sel.fixed.end(), SINK % n_ctx), "%s: the sink is none", what);
    CHECK(last().pos == merge(sel.fixed, lo) && last().pos.size() < 48, "%s: %zu positions", what, last().pos.size());
    CHECK(m.error(last().pos) < TOLERANCE, "%s: covered sink: %g", what, m.error(last().pos));
    CHECK(copied() == N_LAYER*std::min(N_WINDOW, lo - window_lo(52, n_audio)), "%s: jump", what);

    // and as far behind it as the audio goes
    const int end = lo + N_WINDOW - 1;
    m.step(end, n_seq, n_threads);
    kv_view_on_logits(m.view, 0.9f, false);
    m.step(end, n_seq, n_threads);
    kv_view_on_logits(m.view, 0.9f, false);
    CHECK(last().pos == merge(sel.fixed, window_lo(end, n_audio)), "%s: behind the sink", what);
    CHECK(m.error(last().pos) < TOLERANCE, "%s: behind the sink: %g", what, m.error(last().pos));

    const auto & c = m.counters();
    CHECK(c.n_prompts == 1 && c.n_steps == 5 && c.n_reduced == 4 && c.n_full == 0 && c.n_reexec == 1 && c.n_reexec_tau == 1 && c.n_reexec_eot == 0, "%s", what);
    CHECK(c.n_rows_view == 5*48*N_LAYER && c.n_rows_read == c.n_rows_view + 2*n_ctx*N_LAYER, "%s: %lld rows", what, (long long) c.n_rows_read);
    CHECK(c.row_size == 2u*2*64*m.n_head && c.n_bytes_read == c.n_rows_read*c.row_size, "%s: %lld bytes", what, (long long) c.n_bytes_read);
}

static void test_every_run_equals_plain_attention() {
    for (const int n_head : { 6, 8, 12, 16, 20 }) {
        machine m(n_head);
        for (int n_seq = 1; n_seq <= 8; ++n_seq) {
            for (const int n_threads : { 1, 2, 3 }) {
                test_clip(m, N_CTX, N_AUDIO, n_seq, n_threads);
            }
        }
    }
}

// after a longer one, on the same view: other layout of the cache, and nothing of the old mass is shown
static void test_a_shorter_encoding_after_a_longer_one() {
    machine m(6);
    test_clip(m, N_CTX, N_AUDIO, 1, 1);
    test_clip(m, 200,   180,     2, 2);
}

// centre after a step whose sequences look at these positions
static int centre_of(const std::vector<int> & targets) {
    machine m(6);
    kv_view_configure(m.view, make_params(m));
    m.encode(N_CTX, N_AUDIO);
    m.prompt(40);

    m.ask(targets);
    m.run(9, 9, targets.size());
    kv_view_on_logits(m.view, 0.9f, false);

    return m.reports.back().step.centre;
}

static void test_the_centre_is_that_of_most_sequences() {
    CHECK(centre_of({ 34, 34, 60 }) == 34, "far apart: where most look");
    CHECK(centre_of({ 60, 34, 60 }) == 60, "far apart: where most look, the first elsewhere");
    CHECK(centre_of({ 52, 52, 60 }) == 55, "near: the mean");
}

static void test_full_rules_never_reduce() {
    machine m(6);

    auto params = make_params(m, WHISPER_KV_RULE_FULL);
    params.tau = 1.0f;
    for (const bool large : { false, true }) {
        if (large) {
            params.rule   = WHISPER_KV_RULE_PADSINK_TRACK;
            params.budget = N_CTX;
        }
        kv_view_configure(m.view, params);
        m.encode(N_CTX, N_AUDIO);
        m.prompt(40);
        m.step(40, 3);
        CHECK(!kv_view_on_logits(m.view, 0.0f, true), "a full step is not executed again");
        CHECK(m.reports.back().step.kind == WHISPER_KV_STEP_FULL && m.error(m.all()) < TOLERANCE, "large %d", large);
    }
    CHECK(m.counters().n_full == 2 && m.counters().n_steps == 2 && m.counters().n_rows_copied == 0, "counters");
}

//
// fallback: is the step executed again, and why?
//

static int cause(whisper_kv_view_params params, int centre, float confidence, bool wants_eot) {
    machine m(6);
    kv_view_configure(m.view, params);
    m.encode(N_CTX, N_AUDIO);
    m.prompt(centre);
    m.step(centre);

    const bool again = kv_view_on_logits(m.view, confidence, wants_eot);
    const int  cause = m.reports.back().step.cause;
    const auto & c   = m.counters();

    CHECK(again == (cause != WHISPER_KV_CAUSE_NONE) && again == kv_view_is_retry(m.view), "cause %d", cause);
    CHECK(c.n_reexec_tau == (cause == WHISPER_KV_CAUSE_TAU) && c.n_reexec_eot == (cause == WHISPER_KV_CAUSE_EOT), "cause %d", cause);

    return cause;
}

static void test_tau_at_its_boundary() {
    const machine m(6);

    auto params = make_params(m);
    CHECK(cause(params, 40, 0.0f, false) == WHISPER_KV_CAUSE_NONE, "tau 0: never");

    params.tau = 0.4f;
    CHECK(cause(params, 40, 0.4f,                       false) == WHISPER_KV_CAUSE_NONE, "as confident as tau");
    CHECK(cause(params, 40, std::nextafter(0.4f, 0.0f), false) == WHISPER_KV_CAUSE_TAU,  "less");
    CHECK(cause(params, 40, NAN,                        false) == WHISPER_KV_CAUSE_TAU,  "NaN is never sure");
    CHECK(cause(params, 40, 0.3f,                       true)  == WHISPER_KV_CAUSE_TAU,  "counted once");

    params.tau = 1.0f;
    CHECK(cause(params, 40, 1.0f, false) == WHISPER_KV_CAUSE_TAU, "tau 1: always");
}

static void test_guard_eot_at_its_boundary() {
    const machine m(6);

    auto params = make_params(m);
    params.guard_eot = 10;

    const int centre = N_AUDIO - 10 - N_WINDOW + N_WINDOW/4; // the window ends 10 positions before the audio

    CHECK(cause(params, centre,     0.9f, true)  == WHISPER_KV_CAUSE_EOT,  "10 behind the window");
    CHECK(cause(params, centre + 1, 0.9f, true)  == WHISPER_KV_CAUSE_NONE, "9 behind the window");
    CHECK(cause(params, centre,     0.9f, false) == WHISPER_KV_CAUSE_NONE, "no end of text");

    params.guard_eot = 0;
    CHECK(cause(params, centre + 9,  0.9f, true) == WHISPER_KV_CAUSE_EOT,  "one position unread");
    CHECK(cause(params, centre + 10, 0.9f, true) == WHISPER_KV_CAUSE_NONE, "nothing unread");

    params.guard_eot = -1;
    CHECK(cause(params, centre, 0.9f, true) == WHISPER_KV_CAUSE_NONE, "off");

    params.guard_eot = 10;
    params.rule      = WHISPER_KV_RULE_FIRST_STEP_SINKS;
    CHECK(cause(params, centre, 0.9f, true) == WHISPER_KV_CAUSE_NONE, "a window that never moves cannot be too early");
}

// 200 positions = 4 s: 16 + 1*4 steps may be reduced
static void test_guard_runaway_at_its_boundary() {
    machine m(6);

    auto params = make_params(m);
    params.guard_runaway = 1.0f;
    kv_view_configure(m.view, params);
    m.encode(N_CTX, N_AUDIO);

    for (int round = 0; round < 2; ++round) {
        m.prompt(40); // a new prompt starts the count again
        for (int i = 1; i <= 22; ++i) {
            m.step(40);
            kv_view_on_logits(m.view, 0.9f, false);

            const auto & step = m.reports.back().step;
            CHECK(step.kind  == (i <= 20 ? WHISPER_KV_STEP_REDUCED : WHISPER_KV_STEP_FULL),     "step %d: kind %d",  i, step.kind);
            CHECK(step.cause == (i <= 20 ? WHISPER_KV_CAUSE_NONE   : WHISPER_KV_CAUSE_RUNAWAY), "step %d: cause %d", i, step.cause);
        }
    }
    CHECK(m.error(m.all()) < TOLERANCE, "a forced step reads everything");

    const auto & c = m.counters();
    CHECK(c.n_steps == 44 && c.n_reduced == 40 && c.n_full == 4 && c.n_full_runaway == 4, "%lld forced", (long long) c.n_full_runaway);

    params.guard_runaway = 0.0f;
    kv_view_configure(m.view, params);
    m.prompt(40);
    for (int i = 1; i <= 30; ++i) {
        m.step(40);
    }
    CHECK(m.counters().n_full_runaway == 4, "off");
}

//
// failures
//

static void test_a_second_run_that_fails_leaves_no_retry() {
    machine m(6);

    auto params = make_params(m);
    params.tau = 1.0f;
    kv_view_configure(m.view, params);
    m.encode(N_CTX, N_AUDIO);
    m.prompt(40);
    m.step(40);
    CHECK(kv_view_on_logits(m.view, 0.5f, false), "unsure");

    kv_view_on_decode_begin(m.view, 1, 9, 9); // and then the graph fails: no on_decode_end
    CHECK(!kv_view_is_retry(m.view), "the next run gets self-attention slots of its own");

    m.step(40);
    kv_view_on_logits(m.view, 0.5f, false);
    CHECK(m.reports.back().step.kind == WHISPER_KV_STEP_REDUCED, "the next step is a first run");
}

static void test_an_encoding_is_kept_until_something_else_is_encoded() {
    machine m(6);
    kv_view_configure(m.view, make_params(m));
    m.encode(N_CTX, N_AUDIO);
    CHECK(!kv_view_has_encoding(m.view, 0, N_CTX), "not asked to keep it");

    kv_view_keep_encoding(m.view, true);
    CHECK(!kv_view_has_encoding(m.view, 0, N_CTX), "the encoder ran since, and may have failed");
    kv_view_on_encode(m.view, 0, N_CTX);
    CHECK(kv_view_has_encoding(m.view, 0, N_CTX) && kv_view_has_encoding(m.view, 0, N_CTX), "kept");

    CHECK(!kv_view_has_encoding(m.view, 100, N_CTX), "another window");
    CHECK(!kv_view_has_encoding(m.view, 0,   N_CTX), "whose encoder failed: the cache is spoilt");

    kv_view_on_encode(m.view, 0, N_CTX);
    CHECK(!kv_view_has_encoding(m.view, 0, 150), "another length");

    kv_view_on_encode(m.view, 0, N_CTX);
    kv_view_on_audio(m.view, 16000);
    CHECK(!kv_view_has_encoding(m.view, 0, N_CTX), "other audio");
}

static void test_a_step_allocates_nothing() {
    machine m(8);
    kv_view_set_callback(m.view, nullptr, nullptr, nullptr, nullptr);
    kv_view_configure(m.view, make_params(m));
    m.encode(N_CTX, N_AUDIO);
    m.prompt(40);

    for (int target = 52; target < 150; target += 14) { // the window moves, jumps and covers a sink
        m.ask({ target });

        const size_t before = n_allocations;
        kv_view_on_decode_begin(m.view, 1, 9, 9);
        const size_t begun = n_allocations;
        m.compute(1);
        const size_t computed = n_allocations;
        kv_view_on_decode_end(m.view);
        kv_view_on_logits(m.view, 0.5f, false);

        CHECK(begun == before && n_allocations == computed, "%zu + %zu", begun - before, n_allocations - computed);
    }
    CHECK(m.counters().n_rows_copied > 0, "nothing moved");

    const size_t before = n_allocations;
    kv_view_free(kv_view_init({ N_LAYER, 8, N_CTX, m.k.data(), m.v.data() }));
    CHECK(n_allocations > before, "allocations of the library are not seen");
}

static void test_hooks_without_a_view_do_nothing() {
    kv_view_on_audio(nullptr, 1);
    kv_view_on_encode(nullptr, 0, 1);
    kv_view_on_decode_begin(nullptr, 1, 0, 0);
    kv_view_on_decode_end(nullptr);
    kv_view_print_counters(nullptr, "", nullptr);
    kv_view_add_counters(nullptr, nullptr);
    kv_view_free(nullptr);
    CHECK(!kv_view_has_encoding(nullptr, 0, 1) && !kv_view_is_retry(nullptr) && !kv_view_is_on(nullptr) && !kv_view_on_logits(nullptr, 0.0f, true), "NULL");

    machine m(6); // off until it is configured
    m.encode(N_CTX, N_AUDIO);
    kv_view_on_decode_begin(m.view, 1, 0, 0);
    kv_view_on_decode_end(m.view);
    CHECK(!kv_view_is_on(m.view) && m.reports.empty() && m.counters().n_prompts == 0, "off");

    ggml_context * ctx = ggml_init({ 1024*1024, nullptr, true });
    ggml_tensor  * q   = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, 1, 6);
    ggml_tensor  * kv  = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, 64, N_CTX, 6);
    CHECK(kv_view_build_attn(m.view, ctx, q, kv, kv, SCALE, 0)->op == GGML_OP_FLASH_ATTN_EXT, "off is upstream's op");
    ggml_free(ctx);
}

int main() {
    test_every_run_equals_plain_attention();
    test_a_shorter_encoding_after_a_longer_one();
    test_the_centre_is_that_of_most_sequences();
    test_full_rules_never_reduce();
    test_tau_at_its_boundary();
    test_guard_eot_at_its_boundary();
    test_guard_runaway_at_its_boundary();
    test_a_second_run_that_fails_leaves_no_retry();
    test_an_encoding_is_kept_until_something_else_is_encoded();
    test_a_step_allocates_nothing();
    test_hooks_without_a_view_do_nothing();

    return check_report();
}
