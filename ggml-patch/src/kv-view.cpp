#include "kv-view.h"

#include "kv-attn.h"
#include "kv-counters.h"
#include "kv-profile.h"
#include "kv-ring.h"
#include "kv-select.h"

#include <algorithm>
#include <new>
#include <vector>

#define KV_VIEW_MAX_SEQ        8   // sequences whose alignment signal is kept: WHISPER_MAX_DECODERS
#define KV_VIEW_SAMPLES_PER_POS 320 // 20 ms at 16 kHz
#define KV_VIEW_SAMPLES_PER_MEL 160
#define KV_VIEW_RUNAWAY_OFFSET  16  // tokens that any clip may have, however short

struct kv_view;

// userdata of the attention op: one for each decoder layer
struct kv_view_layer {
    kv_view * view;
    int       il;
    float     scale;
};

struct kv_view {
    kv_cross_cache         cache;
    whisper_kv_view_params params;
    kv_select_params       select;
    kv_attn_fn             attn;

    std::vector<kv_view_layer> layers; // [n_layer]
    std::vector<int32_t>       ahead;  // [n_layer*n_head] row of `align` that the head writes, -1 = no alignment head
    int                        n_ahead = 0;

    // clip
    int64_t n_samples   = 0;
    int     n_ctx       = 0;  // positions encoded
    int     n_audio     = 0;
    int     centre      = -1;
    int     n_generated = 0;  // steps since the prompt
    bool    selected    = false;

    // encoding held in the cache, for encode-once/decode-many
    bool keep       = false;
    int  enc_offset = -1;     // -1 = none
    int  enc_n_ctx  = 0;

    kv_selection selection;
    kv_ring      ring;

    // run of the decoder
    whisper_kv_step_kind  kind   = WHISPER_KV_STEP_PROMPT;
    whisper_kv_step_cause cause  = WHISPER_KV_CAUSE_NONE;
    bool                  retry  = false;
    int                   n_tokens = 0;
    int64_t               t_begin_us = 0;

    // what the run found; each (layer, head, token) writes rows of its own, so threads never meet
    std::vector<float>   align;     // [KV_VIEW_MAX_SEQ][n_ahead][n_ctx] attention of the alignment heads, by row read
    std::vector<float>   mass;      // [n_layer][n_head][n_ctx encoded] attention of the last token, full runs
    std::vector<float>   sink_mass; // [n_layer][n_head] share on the fixed positions, reduced runs
    std::vector<float>   mean;      // [n_ctx] work
    std::vector<int32_t> pos;       // positions read, for the callback

    kv_times times;

    whisper_kv_view_counters      counters  = {};
    whisper_context             * ctx       = nullptr; // for the callback
    whisper_state               * state     = nullptr;
    whisper_kv_view_step_callback callback  = nullptr;
    void                        * user_data = nullptr;
};

static int row_size(const kv_cross_cache & cache) {
    return 2*cache.n_head*KV_ATTN_DIM*sizeof(ggml_fp16_t);
}

kv_view * kv_view_init(const kv_cross_cache & cache) {
    kv_view * view = new (std::nothrow) kv_view;

    if (view) {
        view->cache = cache;
        view->attn  = kv_attn_best();
        view->params = kv_params_default();
        kv_view_reset_counters(view);
    }

    return view;
}

void kv_view_free(kv_view * view) {
    delete view;
}

bool kv_view_is_on(const kv_view * view) {
    return view && view->params.rule != WHISPER_KV_RULE_OFF;
}

const whisper_kv_view_params & kv_view_get_params(const kv_view * view) {
    return view->params;
}

//
// configuration
//

static void forget_selection(kv_view * view) {
    view->selected    = false;
    view->retry       = false;
    view->centre      = -1;
    view->n_generated = 0;
    kv_ring_forget(view->ring);
}

static void configure_aheads(kv_view * view) {
    const auto & params = view->params;

    view->ahead.assign(view->cache.n_layer*view->cache.n_head, -1);
    view->n_ahead = 0;

    for (int i = 0; i < params.n_aheads; ++i) {
        int32_t & row = view->ahead[params.aheads[i][0]*view->cache.n_head + params.aheads[i][1]];
        if (row < 0) {
            row = view->n_ahead++;
        }
    }
}

// all memory of the view, so that no step allocates
static void allocate(kv_view * view) {
    const auto & cache = view->cache;

    const size_t n_heads = cache.n_layer*cache.n_head;

    kv_ring_allocate(view->ring, cache, kv_select_capacity(view->select, cache.n_ctx));

    view->align    .assign((size_t) KV_VIEW_MAX_SEQ*view->n_ahead*cache.n_ctx, 0.0f);
    view->mass     .assign(n_heads*cache.n_ctx, 0.0f);
    view->sink_mass.assign(n_heads, 0.0f);
    view->mean     .assign(cache.n_ctx, 0.0f);

    view->pos            .reserve(cache.n_ctx);
    view->selection.fixed.reserve(cache.n_ctx);

    view->layers.resize(cache.n_layer);
    for (int il = 0; il < cache.n_layer; ++il) {
        view->layers[il] = { view, il, 0.0f };
    }
}

bool kv_view_configure(kv_view * view, const whisper_kv_view_params & params) {
    view->params = params;

    auto & select = view->select;

    select.rule          = params.rule;
    select.budget        = params.budget;
    select.sink_fraction = params.sink_fraction;
    select.lookbehind    = params.lookbehind;
    select.pool          = params.pool;
    select.seed          = params.seed;

    try {
        select.model_sinks.clear();
        if (params.sinks == WHISPER_KV_SINKS_MODEL) {
            select.model_sinks.assign(params.sink_pos, params.sink_pos + params.n_sink_pos);
        }

        if (params.rule != WHISPER_KV_RULE_OFF) {
            configure_aheads(view);
            allocate(view);
        }
    } catch (const std::bad_alloc &) {
        view->params.rule = WHISPER_KV_RULE_OFF;
        return false;
    }

    forget_selection(view);

    return true;
}

//
// clip
//

void kv_view_on_audio(kv_view * view, int64_t n_samples) {
    if (view) {
        view->n_samples  = n_samples;
        view->enc_offset = -1;
    }
}

static void begin_clip(kv_view * view, int mel_offset, int n_ctx) {
    const int64_t left    = view->n_samples - (int64_t) mel_offset*KV_VIEW_SAMPLES_PER_MEL;
    const int64_t n_audio = (left + KV_VIEW_SAMPLES_PER_POS - 1)/KV_VIEW_SAMPLES_PER_POS;

    view->n_ctx   = n_ctx;
    view->n_audio = std::max<int64_t>(1, std::min<int64_t>(n_audio, n_ctx));

    forget_selection(view);
}

void kv_view_on_encode(kv_view * view, int mel_offset, int n_ctx) {
    if (view) {
        view->enc_offset = mel_offset;
        view->enc_n_ctx  = n_ctx;
        begin_clip(view, mel_offset, n_ctx);
    }
}

bool kv_view_has_encoding(kv_view * view, int mel_offset, int n_ctx) {
    if (!view) {
        return false;
    }
    if (!view->keep || view->enc_offset != mel_offset || view->enc_n_ctx != n_ctx) {
        view->enc_offset = -1;
        return false;
    }

    begin_clip(view, mel_offset, n_ctx);

    return true;
}

void kv_view_keep_encoding(kv_view * view, bool keep) {
    view->keep = keep;
}

//
// window
//

static void load_selection(kv_view * view) {
    view->counters.n_rows_copied += kv_ring_load(view->ring, view->cache, view->n_ctx, view->selection);
}

static int n_rows_view(const kv_view * view) {
    return view->selection.fixed.size() + view->selection.window_n;
}

static void move_window(kv_view * view) {
    const kv_tracking_timer timer(view);

    auto & sel = view->selection;

    if (!sel.moves || view->centre < 0) {
        return;
    }

    const int lo = kv_select_window_lo(view->centre, sel.window_n, view->params.lookbehind, view->n_audio);
    if (lo != sel.window_lo) {
        sel.window_lo = lo;
        load_selection(view);
    }
}

//
// run of the decoder
//

static bool runs_away(const kv_view * view) {
    const float seconds = view->n_audio*(float) KV_VIEW_SAMPLES_PER_POS/WHISPER_SAMPLE_RATE;

    return view->selection.moves && view->params.guard_runaway > 0.0f &&
           view->n_generated > KV_VIEW_RUNAWAY_OFFSET + view->params.guard_runaway*seconds;
}

void kv_view_on_decode_begin(kv_view * view, int n_tokens, int pos_first, int pos_last) {
    if (!kv_view_is_on(view)) {
        return;
    }

    view->n_tokens   = n_tokens;
    view->cause      = WHISPER_KV_CAUSE_NONE;
    view->t_begin_us = ggml_time_us();

    if (view->retry) {
        view->kind  = WHISPER_KV_STEP_REEXEC;
        view->retry = false; // even if this run fails
        return;
    }

    // a step holds the next token of each sequence; more tokens of one sequence, or its very first, are a prompt
    const bool is_step = pos_first > 0 && pos_first == pos_last && n_tokens <= KV_VIEW_MAX_SEQ;

    if (!is_step) {
        view->kind        = WHISPER_KV_STEP_PROMPT;
        view->n_generated = 0;
        return;
    }

    view->n_generated++;
    view->kind = WHISPER_KV_STEP_FULL;

    if (view->selected) {
        if (runs_away(view)) {
            view->cause = WHISPER_KV_CAUSE_RUNAWAY;
        } else {
            view->kind = WHISPER_KV_STEP_REDUCED;
            move_window(view);
        }
    }
}

bool kv_view_is_retry(const kv_view * view) {
    return view && view->retry;
}

// Where do the alignment heads look? Mean of all of them and of all sequences over n rows that start at row0. They hold
// positions pos0 to pos0 + n - 1, position p in row row0 + p % n as in the ring. -1 if there is nothing to go by.
static int find_centre(kv_view * view, int row0, int n, int pos0) {
    const int n_seq = view->kind == WHISPER_KV_STEP_PROMPT ? 1 : view->n_tokens;

    float * mean = view->mean.data();

    std::fill(mean, mean + n, 0.0f);

    for (int i = 0; i < n_seq*view->n_ahead; ++i) {
        const float * row = &view->align[(size_t) i*view->cache.n_ctx + row0];
        for (int j = 0; j < n; ++j) {
            mean[j] += row[j];
        }
    }

    std::rotate(mean, mean + (n > 0 ? pos0 % n : 0), mean + n); // from slots to positions

    const int found = kv_select_centre(mean, n);

    return found < 0 ? -1 : pos0 + found;
}

static void update_centre(kv_view * view) {
    const auto & sel = view->selection;

    const int found = view->kind == WHISPER_KV_STEP_REDUCED
        ? find_centre(view, sel.fixed.size(), sel.window_n, sel.window_lo)
        : find_centre(view, 0, view->n_audio, 0);

    if (found >= 0) {
        view->centre = found;
    }
}

// the selection of the clip, from what the last token of the prompt saw
static void select(kv_view * view) {
    const size_t n_heads = view->cache.n_layer*view->cache.n_head;

    float * mean = view->mean.data();

    std::fill(mean, mean + view->n_ctx, 0.0f);
    for (size_t i = 0; i < n_heads; ++i) {
        const float * mass = &view->mass[i*view->n_ctx];
        for (int pos = 0; pos < view->n_ctx; ++pos) {
            mean[pos] += mass[pos]/n_heads;
        }
    }

    view->selected = kv_select(view->select, { mean, view->n_ctx, view->n_audio, view->centre }, view->selection);

    if (view->selected) {
        load_selection(view);
    }
}

static void count_run(kv_view * view) {
    auto & c = view->counters;

    const int64_t t_us = ggml_time_us() - view->t_begin_us;

    const bool    reduced = view->kind == WHISPER_KV_STEP_REDUCED;
    const int64_t n_rows  = (int64_t) view->cache.n_layer*(reduced ? n_rows_view(view) : view->n_ctx);

    (view->kind == WHISPER_KV_STEP_PROMPT ? c.t_prompts_us : c.t_steps_us) += t_us;

    c.n_rows_read  += n_rows;
    c.n_rows_view  += reduced ? n_rows : 0;
    c.n_bytes_read  = c.n_rows_read*c.row_size;

    switch (view->kind) {
        case WHISPER_KV_STEP_PROMPT:  c.n_prompts++;                  break;
        case WHISPER_KV_STEP_REDUCED: c.n_steps++; c.n_reduced++;     break;
        case WHISPER_KV_STEP_FULL:    c.n_steps++; c.n_full++;        break;
        case WHISPER_KV_STEP_REEXEC:  c.n_reduced--; c.n_reexec++;    break; // counted as a step by its first run
    }

    c.n_full_runaway += view->cause == WHISPER_KV_CAUSE_RUNAWAY;
}

static void report_run(kv_view * view, float confidence) {
    if (!view->callback) {
        return;
    }

    const auto & cache = view->cache;
    const auto & sel   = view->selection;

    const bool reduced = view->kind == WHISPER_KV_STEP_REDUCED;

    view->pos.clear();
    float sink_mass = -1.0f;

    if (reduced) {
        for (size_t i = 0; i < sel.fixed.size(); ++i) {
            if (view->ring.bias[i] == 0.0f) {
                view->pos.push_back(sel.fixed[i]);
            }
        }
        for (int i = 0; i < sel.window_n; ++i) {
            view->pos.push_back(sel.window_lo + i);
        }
        std::sort(view->pos.begin(), view->pos.end());

        sink_mass = 0.0f;
        for (const float m : view->sink_mass) {
            sink_mass += m/view->sink_mass.size();
        }
    }

    whisper_kv_view_step step = {};

    step.size       = sizeof(step);
    step.kind       = view->kind;
    step.cause      = view->cause;
    step.n_tokens   = view->n_tokens;
    step.n_layer    = cache.n_layer;
    step.n_head     = cache.n_head;
    step.n_ctx      = view->n_ctx;
    step.n_audio    = view->n_audio;
    step.centre     = view->centre;
    step.window_lo  = reduced ? sel.window_lo : 0;
    step.window_n   = reduced ? sel.window_n  : view->n_audio;
    step.n_pos      = reduced ? (int32_t) view->pos.size() : view->n_ctx;
    step.pos        = reduced ? view->pos.data() : nullptr;
    step.confidence = confidence;
    step.sink_mass  = sink_mass;
    step.mass       = reduced ? nullptr : view->mass.data();

    view->callback(view->ctx, view->state, &step, view->user_data);
}

void kv_view_on_decode_end(kv_view * view) {
    if (!kv_view_is_on(view)) {
        return;
    }

    if (view->kind == WHISPER_KV_STEP_PROMPT) {
        update_centre(view);
        select(view);
    } else {
        const kv_tracking_timer timer(view);
        update_centre(view);
    }

    count_run(view);

    if (view->kind == WHISPER_KV_STEP_PROMPT) { // a step is reported when its confidence is known
        report_run(view, -1.0f);
    }
}

bool kv_view_wants_confidence(const kv_view * view) {
    return view->callback || view->params.tau > 0.0f;
}

bool kv_view_on_logits(kv_view * view, float confidence, bool wants_eot) {
    if (!kv_view_is_on(view) || view->kind == WHISPER_KV_STEP_PROMPT) {
        return false;
    }

    const auto & params = view->params;
    const auto & sel    = view->selection;

    if (view->kind == WHISPER_KV_STEP_REDUCED && sel.moves) { // the other rules keep to their view
        const int n_behind = view->n_audio - (sel.window_lo + sel.window_n);

        if (params.tau >= 1.0f || !(confidence >= params.tau)) { // 1 = all, even the certain; NaN is unsure
            view->cause = WHISPER_KV_CAUSE_TAU;
            view->counters.n_reexec_tau++;
        } else if (wants_eot && params.guard_eot >= 0 && n_behind >= std::max(1, params.guard_eot)) {
            view->cause = WHISPER_KV_CAUSE_EOT;
            view->counters.n_reexec_eot++;
        }
        view->retry = view->cause != WHISPER_KV_CAUSE_NONE;
    }

    report_run(view, confidence);

    return view->retry;
}

//
// attention op
//

// keeps what the other units need to know about a head of token t
static void keep_signals(kv_view * view, int il, int t, const kv_attn_query & query, int n_rows) {
    const int  i_head  = il*view->cache.n_head + query.head;
    const bool is_last = t == view->n_tokens - 1;
    const bool reduced = view->kind == WHISPER_KV_STEP_REDUCED;
    const bool prompt  = view->kind == WHISPER_KV_STEP_PROMPT;

    const int i_ahead = view->ahead[i_head];

    if (i_ahead >= 0 && (is_last || !prompt)) {
        float * row = &view->align[((size_t) (prompt ? 0 : t)*view->n_ahead + i_ahead)*view->cache.n_ctx];
        for (int i = 0; i < n_rows; ++i) {
            row[i] = query.weight[i]*query.inv;
        }
    }

    if (reduced && is_last) {
        float sum = 0.0f;
        for (size_t i = 0; i < view->selection.fixed.size(); ++i) {
            sum += query.weight[i];
        }
        view->sink_mass[i_head] = sum*query.inv;
    }

    if (!reduced && is_last && (prompt || view->callback)) {
        float * mass = &view->mass[(size_t) i_head*view->n_ctx];
        for (int i = 0; i < n_rows; ++i) {
            mass[i] = query.weight[i]*query.inv;
        }
    }
}

static kv_attn_rows layer_rows(const kv_view * view, int il) {
    return view->kind == WHISPER_KV_STEP_REDUCED
        ? kv_ring_rows       (view->ring,  view->cache, view->selection, il)
        : kv_cross_cache_rows(view->cache, view->n_ctx, il);
}

// Work is split by (head, token); tokens of one head stay together because they read the same rows.
static void attn_op(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const auto & layer = *(const kv_view_layer *) userdata;

    kv_view * view = layer.view;

    const struct ggml_tensor * q = dst->src[0];

    const int n_tokens = q->ne[1];
    const int n_work   = q->ne[2]*n_tokens;
    const int i_end    = n_work*(ith + 1)/nth;

    const bool timed = view->times.on && ith == 0;

    const auto rows = layer_rows(view, layer.il);

    kv_attn_query queries[KV_ATTN_MAX_QUERIES];
    float         weights[KV_ATTN_MAX_QUERIES][KV_ATTN_MAX_ROWS];

    for (int i0 = n_work*ith/nth; i0 < i_end; i0 += KV_ATTN_MAX_QUERIES) {
        const int n = std::min(KV_ATTN_MAX_QUERIES, i_end - i0);

        for (int i = 0; i < n; ++i) {
            const int h = (i0 + i)/n_tokens;
            const int t = (i0 + i)%n_tokens;

            queries[i].head   = h;
            queries[i].q      = (const float *) ((const char *) q->data   + t*q->nb[1]   + h*q->nb[2]);
            queries[i].out    = (float *)       ((char *)       dst->data + h*dst->nb[1] + t*dst->nb[2]);
            queries[i].weight = weights[i];
        }

        view->attn(queries, n, rows, layer.scale);

        const int64_t t0 = timed ? kv_time_ns() : 0;

        for (int i = 0; i < n; ++i) {
            keep_signals(view, layer.il, (i0 + i)%n_tokens, queries[i], rows.n);
        }
        if (timed) {
            view->times.found.t_signals_ns += kv_time_ns() - t0;
        }
    }
}

struct ggml_tensor * kv_view_build_attn(
        kv_view * view, struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v, float scale, int il) {
    if (!kv_view_is_on(view)) {
        return ggml_flash_attn_ext(ctx, q, k, v, nullptr, scale, 0.0f, 0.0f);
    }

    view->layers[il].scale = scale;

    // k and v are not read through these arguments; they keep the graph the same size as upstream's, so that switching
    // the view on or off never makes ggml plan its memory anew
    struct ggml_tensor * args[] = { q, k, v };

    return ggml_custom_4d(ctx, GGML_TYPE_F32, q->ne[0], q->ne[2], q->ne[1], 1, args, 3, attn_op, GGML_N_TASKS_MAX, &view->layers[il]);
}

//
// counters
//

void kv_view_set_callback(kv_view * view, whisper_context * ctx, whisper_state * state, whisper_kv_view_step_callback callback, void * user_data) {
    view->ctx       = ctx;
    view->state     = state;
    view->callback  = callback;
    view->user_data = user_data;
}

kv_tracking_timer::kv_tracking_timer(kv_view * view) : view(view), t0(ggml_time_us()) {
}

kv_tracking_timer::~kv_tracking_timer() {
    view->counters.t_tracking_us += ggml_time_us() - t0;
}

kv_times & kv_view_times(kv_view * view) {
    return view->times;
}

const whisper_kv_view_counters & kv_view_get_counters(const kv_view * view) {
    return view->counters;
}

void kv_view_reset_counters(kv_view * view) {
    view->counters          = {};
    view->counters.size     = sizeof(view->counters);
    view->counters.row_size = row_size(view->cache);
}

void kv_view_add_counters(kv_view * view, const kv_view * other) {
    if (view && other) {
        kv_counters_add(view->counters, other->counters);
    }
}

void kv_view_print_counters(const kv_view * view, const char * func, void (*print)(const char * line)) {
    if (kv_view_is_on(view)) {
        kv_counters_print(view->counters, func, print);
    }
}
