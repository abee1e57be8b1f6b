// kv-select: which positions a reduced step reads
//
// Pure functions over plain arrays. A rule turns what the first step of a clip saw into a selection: some fixed
// positions plus one window of audio. Only the window may move later, and only under padsink-track.

#pragma once

#include <cstdint>
#include <vector>

struct kv_select_params {
    int      rule;          // enum whisper_kv_rule
    int      budget;        // positions
    float    sink_fraction; // 0..1
    float    lookbehind;    // 0..1
    int      pool;          // positions on each side
    uint32_t seed;

    std::vector<int32_t> model_sinks; // strongest first; empty: sinks come from the first step
};

// what the first step of a clip saw
struct kv_select_input {
    const float * mass;    // [n_ctx] attention of the last prompt token, mean of all layers and heads
    int           n_ctx;   // positions in the cache
    int           n_audio; // audio positions, 1..n_ctx
    int           centre;  // audio position the alignment heads look at, -1 = unknown
};

// positions read = fixed, then [window_lo, window_lo + window_n)
// A fixed position inside the window is read once: kv-view masks its slot.
struct kv_selection {
    std::vector<int32_t> fixed; // ascending
    int  window_lo = 0;
    int  window_n  = 0;
    bool moves     = false;     // the window follows the centre: padsink-track
};

// Fills `out` (its memory is reused). False if the step must read everything: rule FULL or OFF,
// a budget >= n_ctx, or nothing selected.
bool kv_select(const kv_select_params & params, const kv_select_input & in, kv_selection & out);

// first position of a window of n positions around `centre`, inside [0, n_audio)
int kv_select_window_lo(int centre, int n, float lookbehind, int n_audio);

// Where does the attention signal[0..n), each >= 0, lie? Centre of mass of the 21 positions (0.4 s) that hold most of it,
// so that a lone peak far from the speech, such as a pause that acts as a sink, does not count. Ties go to the lower
// position, values that are not finite count as none; -1 if there is no signal.
int kv_select_centre(const float * signal, int n);

// most positions a selection of this rule can hold; 0 where kv_select() never selects
int kv_select_capacity(const kv_select_params & params, int n_ctx);
