// whisper-kv-view.h - reduced cross-attention views for whisper.cpp
//
// At every decoder step Whisper reads the keys and values of all 1500 encoder positions, most of them padding.
// A view makes a step read only the positions that matter: padding sinks plus a window of audio that follows
// the speech. The full cache stays in memory, and steps that turn out unsure are executed again over all of it.
//
//     struct whisper_kv_view_params kv = { .size = sizeof(kv) }; // C++: { sizeof(kv) }
//     whisper_kv_view_default_params(&kv);
//     kv.rule   = WHISPER_KV_RULE_PADSINK_TRACK;
//     kv.budget = 192;
//     if (whisper_kv_view_set(ctx, &kv) != 0) { ... } // the reason is in the log and in whisper_kv_view_check()
//     whisper_full(ctx, params, samples, n_samples);  // as always
//
// Words:   position = index of an encoder output, 20 ms each; row = keys and values of one position in one layer
// Threads: a context's default may be set while no other thread creates states on it; everything that takes a state
//          follows upstream's rule: one thread per state at a time, any number of states per context
// Structs: they only ever grow at their end. The caller sets size to the sizeof it was compiled with before any call; the
//          library touches nothing behind it and takes what is missing there as default. So a program runs with every
//          newer library; an older one refuses it
// Errors:  functions that return int give 0, or a negative enum whisper_kv_error; they never abort. NULL for a context,
//          params, counters or a path is WHISPER_KV_ERR_PARAM; a NULL state means the context's own state

#ifndef WHISPER_KV_VIEW_H
#define WHISPER_KV_VIEW_H

#include "whisper.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The text between the two marks holds no preprocessor lines but #define, so that cffi parses it as it is.
// cffi: begin

#define WHISPER_KV_MAX_SINKS  512
#define WHISPER_KV_MAX_AHEADS 640

enum whisper_kv_rule {
    WHISPER_KV_RULE_OFF               = 0, // upstream's attention, byte for byte
    WHISPER_KV_RULE_FULL              = 1, // every position, through our kernel
    WHISPER_KV_RULE_AUDIO_ONLY        = 2, // all audio, no padding (ignores the budget)
    WHISPER_KV_RULE_STRIDE            = 3, // evenly spaced positions
    WHISPER_KV_RULE_RANDOM            = 4, // positions drawn once with the seed
    WHISPER_KV_RULE_SINK_RECENT       = 5, // first rows + last audio, no tracking
    WHISPER_KV_RULE_FIRST_STEP_TOP    = 6, // largest attention mass on the first step
    WHISPER_KV_RULE_FIRST_STEP_POOLED = 7, // the same, mass averaged over neighbours
    WHISPER_KV_RULE_FIRST_STEP_SINKS  = 8, // sinks + window, neither moves
    WHISPER_KV_RULE_PADSINK_TRACK     = 9, // sinks + window that follows the alignment heads
    WHISPER_KV_RULE_COUNT             = 10
};

enum whisper_kv_sinks {
    WHISPER_KV_SINKS_FIRST_STEP = 0, // largest mass outside the window on the first step of the clip (published method)
    WHISPER_KV_SINKS_MODEL      = 1  // the constant list sink_pos
};

enum whisper_kv_error {
    WHISPER_KV_OK              =  0,
    WHISPER_KV_ERR_PARAM       = -1, // a value out of its range, NULL, or a struct of unknown size
    WHISPER_KV_ERR_UNSUPPORTED = -2, // this model, layout or backend cannot have a view
    WHISPER_KV_ERR_FILE        = -3, // a profile that cannot be read, or belongs to another model
    WHISPER_KV_ERR_MEMORY      = -4
};

// tau and the guards act for padsink-track only; the other rules keep to their view.
struct whisper_kv_view_params {
    uint32_t size;          // sizeof(struct whisper_kv_view_params), set by the caller
    int32_t  rule;          // enum whisper_kv_rule                                            default OFF
    int32_t  budget;        // positions a reduced step may read, 1..1500                      default 192
    float    sink_fraction; // share of the budget given to sinks, 0..1                        default 0.25
    float    tau;           // steps less confident than this are re-executed, 0..1            default 0 (none), 1 = all
    float    lookbehind;    // share of the window that lies before the centre, 0..1           default 0.25
    int32_t  guard_eot;     // re-execute an end of text that comes while the window ends
                            // this many positions or more before the audio, -1 = off          default 50 (1 s)
    float    guard_runaway; // steps past 16 + this many tokens per second are full, 0 = off   default 25
    int32_t  pool;          // neighbours on each side that first-step-pooled averages, 0..64  default 3
    uint32_t seed;          // of rule random                                                  default 0
    int32_t  sinks;         // enum whisper_kv_sinks                                           default FIRST_STEP
    int32_t  n_sink_pos;    // entries of sink_pos                                             default 0
    int32_t  n_aheads;      // entries of aheads, 0 = upstream's preset for the model's shape  default 0
                            // (large-v1 has the shape of large-v2 and gets its preset, with a warning)

    int32_t  sink_pos[WHISPER_KV_MAX_SINKS];     // [n_sink_pos] positions 0..1499, strongest first
    int32_t  aheads  [WHISPER_KV_MAX_AHEADS][2]; // [n_aheads] {layer, head} of the decoder
};

// A step is one run of the decoder that yields the next token of every running sequence.
// n_reduced + n_full + n_reexec = n_steps; prompts (and language detection) are counted apart in n_prompts.
// n_rows_read counts a row once per run of the decoder, however many sequences share it.
struct whisper_kv_view_counters {
    uint32_t size;           // sizeof(struct whisper_kv_view_counters), set by the caller
    uint32_t row_size;       // bytes of one row
    int64_t  n_prompts;      // runs over a prompt: always full
    int64_t  n_steps;        // generation steps
    int64_t  n_reduced;      //   that read the view only
    int64_t  n_full;         //   that read everything from the start
    int64_t  n_reexec;       //   that read the view, then everything
    int64_t  n_reexec_tau;   //     because the confidence was below tau
    int64_t  n_reexec_eot;   //     because the text would have ended far from the end of the audio
    int64_t  n_full_runaway; //   of n_full: forced, because the clip runs away
    int64_t  n_rows_view;    // rows read through the view
    int64_t  n_rows_read;    // rows read in all
    int64_t  n_bytes_read;   // n_rows_read * row_size
    int64_t  n_rows_copied;  // rows copied into the ring buffers
    int64_t  t_prompts_us;   // time in prompts
    int64_t  t_steps_us;     // time in generation steps, re-executions included
    int64_t  t_tracking_us;  // time that steps spend on the view itself: window, copies, where the speech is, confidence
};

// Time that the nodes of the decoder's graph took since whisper_kv_view_time_nodes().
struct whisper_kv_view_times {
    uint32_t size;         // sizeof(struct whisper_kv_view_times), set by the caller
    int64_t  t_weights_ns; // products with the model's matrices
    int64_t  t_cross_ns;   // attention over the encoder's positions
    int64_t  t_signals_ns; //   of it: keeping what tracking needs
    int64_t  t_text_ns;    // attention over the text so far, and writing its cache
    int64_t  t_other_ns;   // norms, activations, sums
};

enum whisper_kv_step_kind {
    WHISPER_KV_STEP_PROMPT  = 0,
    WHISPER_KV_STEP_REDUCED = 1,
    WHISPER_KV_STEP_FULL    = 2,
    WHISPER_KV_STEP_REEXEC  = 3  // second run of a step, over the full cache
};

enum whisper_kv_step_cause {
    WHISPER_KV_CAUSE_NONE    = 0,
    WHISPER_KV_CAUSE_TAU     = 1,
    WHISPER_KV_CAUSE_EOT     = 2,
    WHISPER_KV_CAUSE_RUNAWAY = 3
};

// what a run of the decoder read and found; valid during the callback only. Fields behind size are not there
struct whisper_kv_view_step {
    uint32_t        size;       // sizeof(struct whisper_kv_view_step), set by the library
    int32_t         kind;       // enum whisper_kv_step_kind
    int32_t         cause;      // enum whisper_kv_step_cause; of a reduced run: why it will be executed again
    int32_t         n_tokens;   // sequences (or prompt tokens) in the run
    int32_t         n_layer;    // of the decoder
    int32_t         n_head;
    int32_t         n_ctx;      // positions encoded: fewer than the model's with a smaller audio_ctx
    int32_t         n_audio;    // audio positions
    int32_t         centre;     // position the alignment heads look at now, -1 = unknown
    int32_t         window_lo;  // first position of the window read
    int32_t         window_n;   // positions in the window read
    int32_t         n_pos;      // positions read, each counted once
    const int32_t * pos;        // [n_pos], ascending; NULL in full runs
    float           confidence; // probability of the leading sequence's best token (of all timestamps, if it is one); -1 in prompts
    float           sink_mass;  // share of attention on the fixed positions, mean of layers and heads; -1 in full runs
    const float   * mass;       // [n_layer][n_head][n_ctx] attention of the last token, no gaps; NULL in reduced runs
};

typedef void (*whisper_kv_view_step_callback)(
        struct whisper_context * ctx, struct whisper_state * state, const struct whisper_kv_view_step * step, void * user_data);

// names as on the command line ("padsink-track"); NULL for an unknown rule, -1 for an unknown name
const char * whisper_kv_rule_name(int rule);
int          whisper_kv_rule_from_name(const char * name);

int whisper_kv_view_default_params(struct whisper_kv_view_params * params);

// Can this context run with these parameters? Writes the reason why not into message (at most n_message bytes, may be 0).
int whisper_kv_view_check(struct whisper_context * ctx, const struct whisper_kv_view_params * params, char * message, size_t n_message);

// Reads a profile (JSON, written by `pyharness calibrate`) into params. ctx may be NULL here; with a ctx, the profile must
// be of a model of the same shape. Errors are written into message like above.
int whisper_kv_view_load_profile(
        struct whisper_context * ctx, const char * path, struct whisper_kv_view_params * params, char * message, size_t n_message);

// Sets the default of the context: for its own state, if it has one, and for states created from now on.
int whisper_kv_view_set(struct whisper_context * ctx, const struct whisper_kv_view_params * params);
int whisper_kv_view_get(struct whisper_context * ctx,       struct whisper_kv_view_params * params);

// Sets one state. Takes effect with the next prompt; must not be called from a callback of a running call on the state.
int whisper_kv_view_set_state(struct whisper_context * ctx, struct whisper_state * state, const struct whisper_kv_view_params * params);
int whisper_kv_view_get_state(struct whisper_context * ctx, struct whisper_state * state,       struct whisper_kv_view_params * params);

// counters since the state was created or reset
int whisper_kv_view_get_counters  (struct whisper_context * ctx, struct whisper_state * state, struct whisper_kv_view_counters * counters);
int whisper_kv_view_reset_counters(struct whisper_context * ctx, struct whisper_state * state);

// For benches: from now on, the decoder's graph is computed node by node, which takes longer, and the time of each is taken
// (of signals: by the first thread). With false the graph is computed in one go again; the times found stay.
int whisper_kv_view_time_nodes(struct whisper_context * ctx, struct whisper_state * state, bool on);
int whisper_kv_view_get_times (struct whisper_context * ctx, struct whisper_state * state, struct whisper_kv_view_times * times);

// Called after every run of the decoder, with everything the run found out. NULL switches it off.
int whisper_kv_view_set_step_callback(
        struct whisper_context * ctx, struct whisper_state * state, whisper_kv_view_step_callback callback, void * user_data);

// Encode once, decode many: while on, whisper_full_with_state(..., NULL, 0) decodes the encoder output that the state
// already holds instead of computing it again. New samples or another window are always encoded.
int whisper_kv_view_keep_encoding(struct whisper_context * ctx, struct whisper_state * state, bool keep);

// cffi: end

#ifdef __cplusplus
}
#endif

#endif // WHISPER_KV_VIEW_H
