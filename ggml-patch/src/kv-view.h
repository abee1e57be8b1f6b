// kv-view: the view of one whisper_state - parameters, step loop, attention op; its rows are in kv-ring
//
// whisper.cpp calls the kv_view_on_* functions where something happens (the hooks of patch 0002); in between, the
// attention op built by kv_view_build_attn() does the reading. The hooks, kv_view_is_on() and kv_view_free() take NULL
// for "no view"; the others need one.
//
// Life of a clip:  on_audio -> on_encode -> prompt -> step, step, ...
//   prompt  full; its last token's attention gives the selection
//   step    moves the window, copies the rows that enter it into the ring, reads the ring
//   retry   the same step once more over the full cache, into the same self-attention slots

#pragma once

#include "kv-ring.h"
#include "kv-times.h"
#include "whisper-kv-view.h"

#include "ggml.h"

struct kv_view;

// cache: the state's
kv_view * kv_view_init(const kv_cross_cache & cache);
void      kv_view_free(kv_view * view);

// params have passed whisper_kv_view_check(); aheads must be filled in; false if memory runs out
bool kv_view_configure(kv_view * view, const whisper_kv_view_params & params);

const whisper_kv_view_params & kv_view_get_params(const kv_view * view);

// is any rule but OFF in force?
bool kv_view_is_on(const kv_view * view);

//
// hooks
//

// the state got new audio
void kv_view_on_audio(kv_view * view, int64_t n_samples);

// May the encoder be skipped because the cache holds this window already? If so, resets the view; if not, the encoder is
// about to overwrite the cache, and what it held is gone even if it fails.
bool kv_view_has_encoding(kv_view * view, int mel_offset, int n_ctx);

// the cross-attention cache was written: n_ctx positions from mel frame mel_offset on
void kv_view_on_encode(kv_view * view, int mel_offset, int n_ctx);

// A run of the decoder begins: n_tokens tokens at positions pos_first..pos_last of their sequences.
void kv_view_on_decode_begin(kv_view * view, int n_tokens, int pos_first, int pos_last);
void kv_view_on_decode_end  (kv_view * view);

// is this run the second one of its step?
bool kv_view_is_retry(const kv_view * view);

// Cross-attention of decoder layer il: upstream's flash attention without a view, ours with one.
// q [KV_ATTN_DIM, n_tokens, n_head] f32; k, v as given to ggml_flash_attn_ext; result [KV_ATTN_DIM, n_head, n_tokens] f32
struct ggml_tensor * kv_view_build_attn(
        kv_view * view, struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v, float scale, int il);

// The logits of the run are known. confidence: probability of the leading sequence's best token;
// wants_eot: some sequence would end its text. True: run the step again (over the full cache).
bool kv_view_on_logits(kv_view * view, float confidence, bool wants_eot);

// will kv_view_on_logits() look at the confidence?
bool kv_view_wants_confidence(const kv_view * view);

// counters and callback

void kv_view_set_callback(kv_view * view, whisper_context * ctx, whisper_state * state, whisper_kv_view_step_callback callback, void * user_data);
void kv_view_keep_encoding(kv_view * view, bool keep);

// adds the time of its life to t_tracking_us
struct kv_tracking_timer {
    explicit kv_tracking_timer(kv_view * view);
    ~kv_tracking_timer();

    kv_view * view;
    int64_t   t0;
};

kv_times & kv_view_times(kv_view * view);

const whisper_kv_view_counters & kv_view_get_counters(const kv_view * view);

void kv_view_reset_counters(kv_view * view);
void kv_view_add_counters  (kv_view * view, const kv_view * other);

// lines like upstream's timings: step counts, rows, bytes
void kv_view_print_counters(const kv_view * view, const char * func, void (*print)(const char * line));
