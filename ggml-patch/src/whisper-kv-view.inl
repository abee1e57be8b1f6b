// whisper-kv-view.inl: the part that needs to see whisper.cpp's own structs; included by whisper.cpp behind them
//
// Glue only: it attaches a view to each state, answers the C API, and reads what the step loop knows about its sequences.

#include "kv-profile.h"
#include "kv-view.h"
#include "kv-attn.h"

#include <cstdlib>
#include <numeric>

static const struct whisper_aheads * whisper_kv_preset(const whisper_hparams & hparams) {
    const bool multilingual = hparams.n_vocab >= 51865;

    whisper_alignment_heads_preset preset = WHISPER_AHEADS_NONE;

    if (hparams.n_text_layer == hparams.n_audio_layer) {
        switch (hparams.n_text_layer) {
            case  4: preset = multilingual ? WHISPER_AHEADS_TINY   : WHISPER_AHEADS_TINY_EN;   break;
            case  6: preset = multilingual ? WHISPER_AHEADS_BASE   : WHISPER_AHEADS_BASE_EN;   break;
            case 12: preset = multilingual ? WHISPER_AHEADS_SMALL  : WHISPER_AHEADS_SMALL_EN;  break;
            case 24: preset = multilingual ? WHISPER_AHEADS_MEDIUM : WHISPER_AHEADS_MEDIUM_EN; break;
            case 32: preset = hparams.n_mels == 128 ? WHISPER_AHEADS_LARGE_V3 : WHISPER_AHEADS_LARGE_V2; break;
        }
    } else if (hparams.n_text_layer == 4 && hparams.n_audio_layer == 32 && hparams.n_mels == 128) {
        preset = WHISPER_AHEADS_LARGE_V3_TURBO;
    }

    const auto it = g_aheads.find(preset);

    return it == g_aheads.end() ? nullptr : &it->second;
}

static kv_profile_shape whisper_kv_shape(const whisper_context * ctx) {
    const auto & hparams = ctx->model.hparams;

    return { hparams.n_text_layer, hparams.n_text_head, hparams.n_text_state, hparams.n_vocab };
}

// why this context cannot have a view at all; empty if it can
static std::string whisper_kv_unsupported(const whisper_context * ctx) {
    const auto & hparams = ctx->model.hparams;

    if (ctx->kv_view_dtw_wanted && ctx->params.flash_attn) {
        return "a view needs flash attention on, DTW token timestamps need it off: choose one of them";
    }
    if (!ctx->params.flash_attn) {
        return "a view needs flash attention (its cache layout); it is switched off";
    }
    if (ctx->itype != GGML_TYPE_F16) {
        return "a view needs an f16 cache; this model's weights are f32";
    }
    if (hparams.n_text_state != hparams.n_text_head*KV_ATTN_DIM) {
        return "a view needs heads of " + std::to_string(KV_ATTN_DIM) + " elements";
    }
    if (hparams.n_audio_ctx < 1 || hparams.n_audio_ctx > 1500) {
        return "a view needs a model of at most 1500 encoder positions";
    }

    return "";
}

// why this state's cache cannot be read by our kernel; empty if it can
static std::string whisper_kv_unsupported_state(const whisper_state * state) {
    for (ggml_backend_t backend : state->backends) {
        const auto type = ggml_backend_dev_type(ggml_backend_get_device(backend));
        if (type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL) {
            return std::string("a view runs on the CPU only, and this state uses ") + ggml_backend_name(backend) + ": switch the GPU off";
        }
    }

    return ggml_backend_buffer_is_host(state->kv_cross.buffer) ? "" : "a view needs the cross-attention cache in host memory";
}

// params with the alignment heads filled in from the preset where none are given; empty string or the reason why not
static std::string whisper_kv_complete(const whisper_context * ctx, whisper_kv_view_params & params) {
    const auto & hparams = ctx->model.hparams;

    if (params.n_aheads == 0) {
        if (const auto * preset = whisper_kv_preset(hparams)) {
            for (size_t i = 0; i < preset->n_heads; ++i) {
                params.aheads[i][0] = preset->heads[i].n_text_layer;
                params.aheads[i][1] = preset->heads[i].n_head;
            }
            params.n_aheads = preset->n_heads;
        }
    }

    if (params.n_aheads == 0 && params.rule == WHISPER_KV_RULE_PADSINK_TRACK) {
        return "no alignment heads are known for a model of this shape: give them in a profile";
    }

    for (int i = 0; i < params.n_aheads; ++i) {
        const int layer = params.aheads[i][0];
        const int head  = params.aheads[i][1];
        if (layer < 0 || layer >= hparams.n_text_layer || head < 0 || head >= hparams.n_text_head) {
            return "alignment head [" + std::to_string(layer) + ", " + std::to_string(head) + "] does not exist: the model has " +
                std::to_string(hparams.n_text_layer) + " layers of " + std::to_string(hparams.n_text_head) + " heads";
        }
    }

    return "";
}

// Checks everything; `params` receives what was given, complete. WHISPER_KV_OK, or an error with its reason.
static int whisper_kv_prepare(
        const whisper_context * ctx, const whisper_state * state, const whisper_kv_view_params * given, whisper_kv_view_params & params, std::string & error) {
    error = ctx ? kv_params_read(given, params) : "the context is NULL";
    if (error.empty()) {
        error = kv_params_error(params);
    }
    if (!error.empty()) {
        return WHISPER_KV_ERR_PARAM;
    }

    if (params.rule == WHISPER_KV_RULE_OFF) {
        return WHISPER_KV_OK;
    }

    error = whisper_kv_unsupported(ctx);
    if (error.empty() && state) {
        error = whisper_kv_unsupported_state(state);
    }
    if (error.empty()) {
        error = whisper_kv_complete(ctx, params);
    }

    return error.empty() ? WHISPER_KV_OK : WHISPER_KV_ERR_UNSUPPORTED;
}

static int whisper_kv_fail(const char * func, int code, const std::string & error) {
    WHISPER_LOG_ERROR("%s: %s\n", func, error.c_str());
    return code;
}

static int whisper_kv_write_message(int code, const std::string & error, char * message, size_t n_message) {
    if (message && n_message > 0) {
        snprintf(message, n_message, "%s", error.c_str());
    }
    return code;
}

//
// hooks
//

// the view of a state or, if that is NULL, of the context's own; NULL if there is none
static kv_view * whisper_kv_view_of(whisper_context * ctx, whisper_state * state) {
    if (!state && ctx) {
        state = ctx->state;
    }
    return state ? state->kv_view : nullptr;
}

// gives a new state its view, set to the context's default
static bool whisper_kv_view_attach(whisper_context * ctx, whisper_state * state) {
    const auto & hparams = ctx->model.hparams;

    state->kv_view = kv_view_init({
        hparams.n_text_layer, hparams.n_text_head, hparams.n_audio_ctx,
        (const ggml_fp16_t *) state->kv_cross.k->data,
        (const ggml_fp16_t *) state->kv_cross.v->data,
    });

    return state->kv_view && whisper_kv_view_set_state(ctx, state, &ctx->kv_view_params) == WHISPER_KV_OK;
}

// the context's default: off, or the profile named by WHISPER_KV_PROFILE
static bool whisper_kv_view_init_context(whisper_context * ctx, bool dtw_wanted) {
    ctx->kv_view_params     = kv_params_default();
    ctx->kv_view_dtw_wanted = dtw_wanted;

    const char * path = getenv("WHISPER_KV_PROFILE");
    if (!path || !*path) {
        return true;
    }

    char message[512];
    if (whisper_kv_view_load_profile(ctx, path, &ctx->kv_view_params, message, sizeof(message)) != WHISPER_KV_OK ||
        whisper_kv_view_check       (ctx,       &ctx->kv_view_params, message, sizeof(message)) != WHISPER_KV_OK) {
        WHISPER_LOG_ERROR("%s: WHISPER_KV_PROFILE: %s\n", __func__, message);
        return false;
    }

    return true;
}

// The largest of n values; NaNs do not count. In lanes, so that the compiler makes vectors of them: a step asks for that of
// the whole vocabulary.
static float whisper_kv_max(const float * x, int n) {
    float max[16];
    std::fill_n(max, 16, -INFINITY);

    for (int i = 0; i + 16 <= n; i += 16) {
        for (int j = 0; j < 16; ++j) {
            max[j] = x[i + j] > max[j] ? x[i + j] : max[j];
        }
    }
    for (int i = n - n%16; i < n; ++i) {
        max[0] = std::max(max[0], x[i]);
    }

    return *std::max_element(max, max + 16);
}

// Is the step that was just decoded unsure, so that it must run again over the full cache?
static bool whisper_kv_view_unsure(whisper_context & ctx, whisper_state & state, int n_decoders) {
    if (!kv_view_is_on(state.kv_view)) {
        return false;
    }

    const kv_tracking_timer timer(state.kv_view);

    const whisper_vocab & vocab = ctx.vocab;

    const whisper_decoder * leading = nullptr;

    float confidence = 0.0f;
    bool  wants_eot  = false;

    for (int j = 0; j < n_decoders; ++j) {
        const auto & decoder = state.decoders[j];

        if (decoder.failed || decoder.completed) {
            continue;
        }

        const float * probs = decoder.probs.data();
        const int     n     = decoder.probs.size();

        const float text = whisper_kv_max(probs, vocab.token_beg);
        const float time = whisper_kv_max(probs + vocab.token_beg, n - vocab.token_beg);

        wants_eot |= text >= time && probs[vocab.token_eot] == text;

        if (!leading || decoder.sequence.sum_logprobs_all > leading->sequence.sum_logprobs_all) {
            leading = &decoder;

            // upstream's filters choose between text and timestamps by the sum of the latter: so sure is it of one
            confidence = time > text ? std::accumulate(probs + vocab.token_beg, probs + n, 0.0f) : text;
        }
    }

    return kv_view_on_logits(state.kv_view, confidence, wants_eot);
}

// the same for programs that drive whisper_decode() themselves: there are no filters, so the raw logits decide
static bool whisper_kv_view_unsure_raw(whisper_context & ctx, whisper_state & state) {
    if (!kv_view_is_on(state.kv_view)) {
        return false;
    }

    const kv_tracking_timer timer(state.kv_view);

    const int     n      = ctx.vocab.n_vocab;
    const float * logits = state.logits.data() + (state.batch.n_tokens - 1)*n;
    const float   max    = whisper_kv_max(logits, n);

    float sum = 1.0f;
    if (kv_view_wants_confidence(state.kv_view)) {
        sum = std::accumulate(logits, logits + n, 0.0f, [max](float s, float logit) { return s + expf(logit - max); });
    }

    return kv_view_on_logits(state.kv_view, 1.0f/sum, logits[ctx.vocab.token_eot] == max);
}

static void whisper_kv_view_log(const char * line) {
    WHISPER_LOG_INFO("%s", line);
}

//
// C API
//

int whisper_kv_view_check(struct whisper_context * ctx, const struct whisper_kv_view_params * params, char * message, size_t n_message) {
    whisper_kv_view_params complete;
    std::string            error;

    const int code = whisper_kv_prepare(ctx, ctx ? ctx->state : nullptr, params, complete, error);

    return whisper_kv_write_message(code, error, message, n_message);
}

int whisper_kv_view_load_profile(
        struct whisper_context * ctx, const char * path, struct whisper_kv_view_params * params, char * message, size_t n_message) {
    if (!path) {
        return whisper_kv_write_message(WHISPER_KV_ERR_PARAM, "the path is NULL", message, n_message);
    }

    whisper_kv_view_params loaded;
    std::string            error = kv_params_read(params, loaded); // for its errors: is there a struct?
    if (!error.empty()) {
        return whisper_kv_write_message(WHISPER_KV_ERR_PARAM, error, message, n_message);
    }

    const kv_profile_shape shape = ctx ? whisper_kv_shape(ctx) : kv_profile_shape {};

    if (!kv_profile_load(path, ctx ? &shape : nullptr, loaded, error)) {
        return whisper_kv_write_message(WHISPER_KV_ERR_FILE, error, message, n_message);
    }

    error = kv_params_write(loaded, params);

    return whisper_kv_write_message(error.empty() ? WHISPER_KV_OK : WHISPER_KV_ERR_PARAM, error, message, n_message);
}

// large-v1 and large-v2 differ in nothing but their weights
static bool whisper_kv_preset_is_a_guess(const whisper_context * ctx, const whisper_kv_view_params & params) {
    return params.rule == WHISPER_KV_RULE_PADSINK_TRACK && params.n_aheads == 0 &&
        whisper_kv_preset(ctx->model.hparams) == &g_aheads.at(WHISPER_AHEADS_LARGE_V2);
}

int whisper_kv_view_set_state(struct whisper_context * ctx, struct whisper_state * state, const struct whisper_kv_view_params * params) {
    kv_view * view = whisper_kv_view_of(ctx, state);
    if (!view) {
        return whisper_kv_fail(__func__, WHISPER_KV_ERR_PARAM, "the state is NULL");
    }

    whisper_kv_view_params complete;
    std::string            error;

    const int code = whisper_kv_prepare(ctx, state ? state : ctx->state, params, complete, error);
    if (code != WHISPER_KV_OK) {
        return whisper_kv_fail(__func__, code, error);
    }

    if (!kv_view_configure(view, complete)) {
        return whisper_kv_fail(__func__, WHISPER_KV_ERR_MEMORY, "out of memory for the view");
    }

    whisper_kv_view_params given;
    kv_params_read(params, given);
    if (whisper_kv_preset_is_a_guess(ctx, given)) {
        WHISPER_LOG_WARN("%s: this model may be large-v1 or large-v2: the alignment heads are those of large-v2, a profile can give others\n", __func__);
    }

    return WHISPER_KV_OK;
}

int whisper_kv_view_set(struct whisper_context * ctx, const struct whisper_kv_view_params * params) {
    whisper_kv_view_params complete;
    std::string            error;

    const int code = whisper_kv_prepare(ctx, ctx ? ctx->state : nullptr, params, complete, error);
    if (code != WHISPER_KV_OK) {
        return whisper_kv_fail(__func__, code, error);
    }

    kv_params_read(params, ctx->kv_view_params);

    return ctx->state ? whisper_kv_view_set_state(ctx, ctx->state, params) : WHISPER_KV_OK;
}

static int whisper_kv_give(const char * func, const whisper_kv_view_params & from, whisper_kv_view_params * params) {
    const std::string error = kv_params_write(from, params);

    return error.empty() ? WHISPER_KV_OK : whisper_kv_fail(func, WHISPER_KV_ERR_PARAM, error);
}

int whisper_kv_view_get(struct whisper_context * ctx, struct whisper_kv_view_params * params) {
    return ctx ? whisper_kv_give(__func__, ctx->kv_view_params, params) : WHISPER_KV_ERR_PARAM;
}

int whisper_kv_view_get_state(struct whisper_context * ctx, struct whisper_state * state, struct whisper_kv_view_params * params) {
    const kv_view * view = whisper_kv_view_of(ctx, state);

    return view ? whisper_kv_give(__func__, kv_view_get_params(view), params) : WHISPER_KV_ERR_PARAM;
}

int whisper_kv_view_get_counters(struct whisper_context * ctx, struct whisper_state * state, struct whisper_kv_view_counters * counters) {
    const kv_view * view = whisper_kv_view_of(ctx, state);

    if (!view || !counters || !kv_size_is_known(counters->size, sizeof(*counters))) {
        return WHISPER_KV_ERR_PARAM;
    }

    const uint32_t size = counters->size;

    memcpy(counters, &kv_view_get_counters(view), size);
    counters->size = size;

    return WHISPER_KV_OK;
}

int whisper_kv_view_reset_counters(struct whisper_context * ctx, struct whisper_state * state) {
    kv_view * view = whisper_kv_view_of(ctx, state);

    if (!view) {
        return WHISPER_KV_ERR_PARAM;
    }

    kv_view_reset_counters(view);

    return WHISPER_KV_OK;
}

int whisper_kv_view_time_nodes(struct whisper_context * ctx, struct whisper_state * state, bool on) {
    kv_view * view = whisper_kv_view_of(ctx, state);

    if (!view) {
        return WHISPER_KV_ERR_PARAM;
    }

    const whisper_state * timed = state ? state : ctx->state;

    auto & times = kv_view_times(view);

    times.on      = on;
    times.cross_k = timed->kv_cross.k;
    if (on) {
        times.found = {};
    }
    ggml_backend_sched_set_eval_callback(timed->sched_decode.sched, on ? kv_times_on_node : nullptr, &times);

    return WHISPER_KV_OK;
}

int whisper_kv_view_get_times(struct whisper_context * ctx, struct whisper_state * state, struct whisper_kv_view_times * times) {
    kv_view * view = whisper_kv_view_of(ctx, state);

    if (!view || !times || !kv_size_is_known(times->size, sizeof(*times))) {
        return WHISPER_KV_ERR_PARAM;
    }

    const uint32_t size = times->size;

    memcpy(times, &kv_view_times(view).found, size);
    times->size = size;

    return WHISPER_KV_OK;
}

int whisper_kv_view_set_step_callback(
        struct whisper_context * ctx, struct whisper_state * state, whisper_kv_view_step_callback callback, void * user_data) {
    kv_view * view = whisper_kv_view_of(ctx, state);

    if (!view) {
        return WHISPER_KV_ERR_PARAM;
    }

    kv_view_set_callback(view, ctx, state ? state : ctx->state, callback, user_data);

    return WHISPER_KV_OK;
}

int whisper_kv_view_keep_encoding(struct whisper_context * ctx, struct whisper_state * state, bool keep) {
    kv_view * view = whisper_kv_view_of(ctx, state);

    if (!view) {
        return WHISPER_KV_ERR_PARAM;
    }

    kv_view_keep_encoding(view, keep);

    return WHISPER_KV_OK;
}
