#include "kv-select.h"

#include "whisper-kv-view.h"

#include <algorithm>
#include <cmath>
#include <random>

int kv_select_window_lo(int centre, int n, float lookbehind, int n_audio) {
    const int lo = centre - (int) (lookbehind*n);

    return std::max(0, std::min(lo, n_audio - n));
}

#define KV_SELECT_BLUR 10 // positions on each side, 0.2 s: about a syllable

int kv_select_centre(const float * signal, int n) {
    const auto value = [&](int i) { return i >= 0 && i < n && std::isfinite(signal[i]) ? (double) signal[i] : 0.0; };

    double sum      = 0.0;
    double best_sum = 0.0;
    int    best     = -1;

    for (int i = -KV_SELECT_BLUR; i < n; ++i) {
        sum += value(i + KV_SELECT_BLUR) - value(i - KV_SELECT_BLUR - 1);
        if (i >= 0 && sum > best_sum + 1e-9) { // a sum of rounding errors is none
            best_sum = sum;
            best     = i;
        }
    }

    if (best < 0) {
        return -1;
    }

    double moment = 0.0;
    for (int i = best - KV_SELECT_BLUR; i <= best + KV_SELECT_BLUR; ++i) {
        moment += i*value(i);
    }

    return std::lround(moment/best_sum);
}

int kv_select_capacity(const kv_select_params & params, int n_ctx) {
    if (params.rule == WHISPER_KV_RULE_AUDIO_ONLY) {
        return n_ctx; // all of it may be audio
    }

    return params.rule == WHISPER_KV_RULE_OFF || params.rule == WHISPER_KV_RULE_FULL || params.budget >= n_ctx ? 0 : params.budget;
}

// the n positions of largest score outside [skip_lo, skip_hi), ascending; NaN counts as no mass, ties go to the lower position
static void select_top(const float * score, int n_ctx, int skip_lo, int skip_hi, int n, std::vector<int32_t> & out) {
    out.clear();
    for (int pos = 0; pos < n_ctx; ++pos) {
        if (pos < skip_lo || pos >= skip_hi) {
            out.push_back(pos);
        }
    }

    n = std::min(n, (int) out.size());

    const auto value = [&](int32_t pos) { return std::isnan(score[pos]) ? -INFINITY : score[pos]; };

    std::partial_sort(out.begin(), out.begin() + n, out.end(), [&](int32_t a, int32_t b) {
        const float va = value(a);
        const float vb = value(b);

        return va != vb ? va > vb : a < b;
    });

    out.resize(n);
    std::sort(out.begin(), out.end());
}

//
// rules
//

static int n_sinks(const kv_select_params & params) {
    return (int) (params.sink_fraction*params.budget);
}

// room for the window once the sinks have theirs
static int n_window(const kv_select_params & params, const kv_select_input & in) {
    return std::min(params.budget - n_sinks(params), in.n_audio);
}

static void select_audio_only(const kv_select_params &, const kv_select_input & in, kv_selection & out) {
    out.window_n = in.n_audio;
}

static void select_stride(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    for (int i = 0; i < params.budget; ++i) {
        out.fixed.push_back((int64_t) i*in.n_ctx/params.budget);
    }
}

static void select_random(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    std::mt19937 rng(params.seed);

    // selection sampling (Knuth, TAOCP 2, 3.4.2 S), in integers so that every platform draws the same positions
    for (int pos = 0, left = params.budget; left > 0; ++pos) {
        if ((int) (rng() % (uint32_t) (in.n_ctx - pos)) < left) {
            out.fixed.push_back(pos);
            --left;
        }
    }
}

static void select_sink_recent(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    for (int pos = 0; pos < n_sinks(params); ++pos) {
        out.fixed.push_back(pos);
    }

    out.window_n  = n_window(params, in);
    out.window_lo = in.n_audio - out.window_n;
}

static void select_first_step_top(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    select_top(in.mass, in.n_ctx, 0, 0, params.budget, out.fixed);
}

static void select_first_step_pooled(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    std::vector<float> pooled(in.n_ctx);

    for (int pos = 0; pos < in.n_ctx; ++pos) {
        const int lo = std::max(pos - params.pool, 0);
        const int hi = std::min(pos + params.pool, in.n_ctx - 1);

        float sum = 0.0f;
        for (int i = lo; i <= hi; ++i) {
            sum += std::isnan(in.mass[i]) ? 0.0f : in.mass[i];
        }
        pooled[pos] = sum/(hi - lo + 1);
    }

    select_top(pooled.data(), in.n_ctx, 0, 0, params.budget, out.fixed);
}

// the model's constant sinks that lie behind the audio: in front of its end they are no padding in this clip
static void select_model_sinks(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    const int n = n_sinks(params);

    for (const int32_t pos : params.model_sinks) {
        if (pos >= in.n_audio && pos < in.n_ctx && (int) out.fixed.size() < n) {
            out.fixed.push_back(pos);
        }
    }

    std::sort(out.fixed.begin(), out.fixed.end());
}

static void select_first_step_sinks(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    out.window_n  = n_window(params, in);
    out.window_lo = kv_select_window_lo(std::max(in.centre, 0), out.window_n, params.lookbehind, in.n_audio);

    if (params.model_sinks.empty()) {
        select_top(in.mass, in.n_ctx, out.window_lo, out.window_lo + out.window_n, n_sinks(params), out.fixed);
    } else {
        select_model_sinks(params, in, out);
    }
}

static void select_padsink_track(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    select_first_step_sinks(params, in, out);
    out.moves = true;
}

static bool select_by_rule(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    switch (params.rule) {
        case WHISPER_KV_RULE_AUDIO_ONLY:        select_audio_only       (params, in, out); return true;
        case WHISPER_KV_RULE_STRIDE:            select_stride           (params, in, out); return true;
        case WHISPER_KV_RULE_RANDOM:            select_random           (params, in, out); return true;
        case WHISPER_KV_RULE_SINK_RECENT:       select_sink_recent      (params, in, out); return true;
        case WHISPER_KV_RULE_FIRST_STEP_TOP:    select_first_step_top   (params, in, out); return true;
        case WHISPER_KV_RULE_FIRST_STEP_POOLED: select_first_step_pooled(params, in, out); return true;
        case WHISPER_KV_RULE_FIRST_STEP_SINKS:  select_first_step_sinks (params, in, out); return true;
        case WHISPER_KV_RULE_PADSINK_TRACK:     select_padsink_track    (params, in, out); return true;
    }

    return false;
}

bool kv_select(const kv_select_params & params, const kv_select_input & in, kv_selection & out) {
    out.fixed.clear();
    out.window_lo = 0;
    out.window_n  = 0;
    out.moves     = false;

    if (params.budget >= in.n_ctx && params.rule != WHISPER_KV_RULE_AUDIO_ONLY) {
        return false;
    }

    return select_by_rule(params, in, out) && out.fixed.size() + out.window_n > 0;
}
