#include "kv-ring.h"

#include <algorithm>
#include <cmath>
#include <cstring>

kv_attn_rows kv_cross_cache_rows(const kv_cross_cache & cache, int n_ctx, int il, int h) {
    const size_t stride = (size_t) cache.n_head*KV_ATTN_DIM;
    const size_t offset = il*GGML_PAD(n_ctx, 256)*stride + h*KV_ATTN_DIM;

    return { cache.k + offset, cache.v + offset, stride, n_ctx, nullptr };
}

void kv_ring_allocate(kv_ring & ring, const kv_cross_cache & cache, int n_slot) {
    const size_t n_heads = cache.n_layer*cache.n_head;

    ring.n_slot = n_slot;
    ring.k   .assign(n_heads*n_slot*KV_ATTN_DIM, 0);
    ring.v   .assign(n_heads*n_slot*KV_ATTN_DIM, 0);
    ring.pos .assign(n_slot, -1);
    ring.bias.assign(n_slot, 0.0f);
}

void kv_ring_forget(kv_ring & ring) {
    std::fill(ring.pos.begin(), ring.pos.end(), -1);
}

// offset of the first slot of head h of layer il, in elements
static size_t first_slot(const kv_ring & ring, const kv_cross_cache & cache, int il, int h) {
    return ((size_t) il*cache.n_head + h)*ring.n_slot*KV_ATTN_DIM;
}

// copies the rows of a position into a slot, all layers and heads; false if they are there already
static bool load_slot(kv_ring & ring, const kv_cross_cache & cache, int n_ctx, int slot, int32_t pos) {
    if (ring.pos[slot] == pos) {
        return false;
    }
    ring.pos[slot] = pos;

    for (int il = 0; il < cache.n_layer; ++il) {
        for (int h = 0; h < cache.n_head; ++h) {
            const auto   rows = kv_cross_cache_rows(cache, n_ctx, il, h);
            const size_t src  = pos*rows.stride;
            const size_t dst  = first_slot(ring, cache, il, h) + slot*KV_ATTN_DIM;

            memcpy(&ring.k[dst], rows.k + src, KV_ATTN_DIM*sizeof(ggml_fp16_t));
            memcpy(&ring.v[dst], rows.v + src, KV_ATTN_DIM*sizeof(ggml_fp16_t));
        }
    }

    return true;
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
    const int n_fixed  = sel.fixed.size();
    int64_t   n_copied = 0;

    for (int i = 0; i < n_fixed; ++i) {
        n_copied += load_slot(ring, cache, n_ctx, i, sel.fixed[i]);
    }
    for (int pos = sel.window_lo; pos < sel.window_lo + sel.window_n; ++pos) {
        n_copied += load_slot(ring, cache, n_ctx, n_fixed + pos % sel.window_n, pos);
    }

    mask_fixed(ring, sel);

    return n_copied*cache.n_layer;
}

kv_attn_rows kv_ring_rows(const kv_ring & ring, const kv_cross_cache & cache, const kv_selection & sel, int il, int h) {
    const size_t offset = first_slot(ring, cache, il, h);
    const int    n      = sel.fixed.size() + sel.window_n;

    return { &ring.k[offset], &ring.v[offset], KV_ATTN_DIM, n, ring.has_bias ? ring.bias.data() : nullptr };
}
