// kv-ring: the rows that a view reads, copied from the full cache and kept head after head
//
// Slots [0, n_fixed) hold the fixed positions of a selection, slot n_fixed + p % window_n the window's position p: when
// the window moves, only the rows that enter it are copied. A fixed position that it covers keeps its slot, masked.

#pragma once

#include "kv-attn.h"
#include "kv-select.h"

#include "ggml.h"

#include <cstdint>
#include <vector>

// the cross-attention cache of the flash-attention layout
struct kv_cross_cache {
    int n_layer; // of the decoder
    int n_head;  // of KV_ATTN_DIM elements each
    int n_ctx;   // most positions, 1..KV_ATTN_MAX_ROWS

    const ggml_fp16_t * k; // [n_layer][GGML_PAD(n_ctx encoded, 256)][n_head][KV_ATTN_DIM], f16
    const ggml_fp16_t * v; // the same
};

// all rows of layer il; n_ctx: positions encoded
kv_attn_rows kv_cross_cache_rows(const kv_cross_cache & cache, int n_ctx, int il);

struct kv_ring {
    int n_slot = 0;

    std::vector<ggml_fp16_t> k;    // [n_layer][n_head][n_slot][KV_ATTN_DIM], f16
    std::vector<ggml_fp16_t> v;    // the same
    std::vector<int32_t>     pos;  // [n_slot] position held, -1 = none
    std::vector<float>       bias; // [n_slot] -INFINITY where the window covers a fixed position, else 0
    std::vector<int32_t>     fresh; // work: slots whose position is new, up to n_slot

    bool has_bias = false;
};

// throws std::bad_alloc; nothing else allocates
void kv_ring_allocate(kv_ring & ring, const kv_cross_cache & cache, int n_slot);

// the cache holds another clip now
void kv_ring_forget(kv_ring & ring);

// Copies what the selection reads and the ring does not hold yet. Returns the rows copied, those of every layer.
int64_t kv_ring_load(kv_ring & ring, const kv_cross_cache & cache, int n_ctx, const kv_selection & sel);

// the selection's rows of layer il, in the order of their slots
kv_attn_rows kv_ring_rows(const kv_ring & ring, const kv_cross_cache & cache, const kv_selection & sel, int il);
