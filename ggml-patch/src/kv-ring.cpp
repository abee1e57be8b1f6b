#include "kv-ring.h"

#include <algorithm>
#include <cmath>
#include <cstring>

kv_attn_rows kv_cross_cache_rows(const kv_cross_cache & cache, int n_ctx, int il) {
    const size_t stride = (size_t) cache.n_head*KV_ATTN_DIM;
    const size_t offset = il*GGML_PAD(n_ctx, 256)*stride;

    return { cache.k + offset, cache.v + offset, stride, KV_ATTN_DIM, n_ctx, nullptr };
}

void kv_ring_allocate(kv_ring & ring, const kv_cross_cache & cache, int n_slot) {
    const size_t n_heads = cache.n_layer*cache.n_head;

    ring.n_slot = n_slot;
    ring.k   .assign(n_heads*n_slot*KV_ATTN_DIM, 0);
    ring.v   .assign(n_heads*n_slot*KV_ATTN_DIM, 0);
    ring.pos .assign(n_slot, -1);
    ring.bias.assign(n_slot, 0.0f);
    ring.fresh.reserve(n_slot);
}

void kv_ring_forget(kv_ring & ring) {
    std::fill(ring.pos.begin(), ring.pos.end(), -1);
}

// offset of the slots of layer il, in elements
static size_t first_slot(const kv_ring & ring, const kv_cross_cache & cache, int il) {
    return (size_t) il*cache.n_head*ring.n_slot*KV_ATTN_DIM;
}

static void hold(kv_ring & ring, int slot, int32_t pos) {
    if (ring.pos[slot] != pos) {
        ring.pos[slot] = pos;
        ring.fresh.push_back(slot);
    }
}

// copies the rows of the fresh slots' positions, given those of a layer in cache and ring
static void copy_fresh(const kv_ring & ring, const ggml_fp16_t * from, ggml_fp16_t * to, int n_head) {
    for (const int32_t slot : ring.fresh) {
        const ggml_fp16_t * row = from + (size_t) ring.pos[slot]*n_head*KV_ATTN_DIM;

        for (int h = 0; h < n_head; ++h) {
            memcpy(to + ((size_t) h*ring.n_slot + slot)*KV_ATTN_DIM, row + h*KV_ATTN_DIM, KV_ATTN_DIM*sizeof(ggml_fp16_t));
        }
    }
}

// A fixed position that the window covers is read in the window, where it carries the alignment signal.
static void mask_fixed(kv_ring & ring, const kv_selection & sel) {
    ring.has_bias = false;

    for (size_t i = 0; i < sel.fixed.size(); ++i) {
        const bool covered = sel.fixed[i] >= sel.window_lo && sel.fixed[i] < sel.window_lo + sel.window_n;

        ring.bias[i]   = covered ? -INFINITY : 0.0f;
        ring.has_bias |= covered;
    }
}

int64_t kv_ring_load(kv_ring & ring, const kv_cross_cache & cache, int n_ctx, const kv_selection & sel) {
    const int n_fixed = sel.fixed.size();

    ring.fresh.clear();
    for (int i = 0; i < n_fixed; ++i) {
        hold(ring, i, sel.fixed[i]);
    }
    for (int pos = sel.window_lo; pos < sel.window_lo + sel.window_n; ++pos) {
        hold(ring, n_fixed + pos % sel.window_n, pos);
    }

    // one matrix of a layer after the other: rows that enter together lie side by side there
    for (int il = 0; il < cache.n_layer; ++il) {
        const auto   rows  = kv_cross_cache_rows(cache, n_ctx, il);
        const size_t slots = first_slot(ring, cache, il);

        copy_fresh(ring, rows.k, &ring.k[slots], cache.n_head);
        copy_fresh(ring, rows.v, &ring.v[slots], cache.n_head);
    }

    mask_fixed(ring, sel);

    return (int64_t) ring.fresh.size()*cache.n_layer;
}

kv_attn_rows kv_ring_rows(const kv_ring & ring, const kv_cross_cache & cache, const kv_selection & sel, int il) {
    const size_t slots = first_slot(ring, cache, il);
    const int    n     = sel.fixed.size() + sel.window_n;

    return {
        &ring.k[slots], &ring.v[slots], KV_ATTN_DIM, (size_t) ring.n_slot*KV_ATTN_DIM, n, ring.has_bias ? ring.bias.data() : nullptr,
    };
}
