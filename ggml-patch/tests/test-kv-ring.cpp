// kv-ring: what it holds against the cache it was copied from, and how much is copied when

#include "kv-ring.h"

#include "check.h"

#include <cmath>
#include <cstring>
#include <vector>

#define N_LAYER 2
#define N_HEAD  3
#define N_CTX   300 // more than one block of 256
#define N_BYTES (KV_ATTN_DIM*sizeof(ggml_fp16_t))

// a cache whose every element tells where it is from
// the rows of head h alone
static kv_attn_rows head(kv_attn_rows rows, int h) {
    rows.k += h*rows.head_stride;
    rows.v += h*rows.head_stride;
    return rows;
}

struct machine {
    std::vector<ggml_fp16_t> k, v;
    kv_cross_cache           cache;
    kv_ring                  ring;

    machine() {
        const size_t n = N_LAYER*GGML_PAD(N_CTX, 256)*N_HEAD*KV_ATTN_DIM;
        for (size_t i = 0; i < n; ++i) {
            k.push_back(i % 65521);
            v.push_back(i % 65519);
        }
        cache = { N_LAYER, N_HEAD, N_CTX, k.data(), v.data() };
        kv_ring_allocate(ring, cache, 14);
    }

    int64_t load(const kv_selection & sel) {
        return kv_ring_load(ring, cache, N_CTX, sel);
    }

    // position of each slot, in order
    std::vector<int> slots(const kv_selection & sel) const {
        std::vector<int> out(sel.fixed.begin(), sel.fixed.end());
        for (int i = 0; i < sel.window_n; ++i) {
            out.push_back(0);
        }
        for (int pos = sel.window_lo; pos < sel.window_lo + sel.window_n; ++pos) {
            out[sel.fixed.size() + pos % sel.window_n] = pos;
        }
        return out;
    }

    void check(const kv_selection & sel, const char * what) const {
        const auto want = slots(sel);

        for (int il = 0; il < N_LAYER; ++il) {
            for (int h = 0; h < N_HEAD; ++h) {
                const auto all  = head(kv_cross_cache_rows(cache, N_CTX, il), h);
                const auto rows = head(kv_ring_rows(ring, cache, sel, il), h);

                CHECK(rows.n == (int) want.size(), "%s: %d rows", what, rows.n);
                for (int i = 0; i < rows.n; ++i) {
                    CHECK(memcmp(rows.k + i*rows.stride, all.k + want[i]*all.stride, N_BYTES) == 0 &&
                          memcmp(rows.v + i*rows.stride, all.v + want[i]*all.stride, N_BYTES) == 0,
                          "%s: layer %d, head %d, slot %d does not hold position %d", what, il, h, i, want[i]);
                }
            }
        }
    }
};

static void test_rows_of_the_cache() {
    machine m;
    const auto rows = kv_cross_cache_rows(m.cache, N_CTX, 1);

    CHECK(rows.n == N_CTX && rows.stride == N_HEAD*KV_ATTN_DIM && rows.head_stride == KV_ATTN_DIM && !rows.bias, "layout");
    CHECK(rows.k - m.k.data() == 512*N_HEAD*KV_ATTN_DIM, "layer 1 begins behind 512 positions");
    CHECK(kv_cross_cache_rows(m.cache, 256, 1).k - m.k.data() == 256*N_HEAD*KV_ATTN_DIM, "fewer encoded, smaller layers");
}

static void test_only_what_enters_is_copied() {
    machine m;
    kv_selection sel;
    sel.fixed     = { 250, 280, 299 };
    sel.window_lo = 20;
    sel.window_n  = 11;

    CHECK(m.load(sel) == 14*N_LAYER, "first: everything");
    m.check(sel, "first");
    CHECK(m.load(sel) == 0, "again: nothing");

    sel.window_lo = 24;
    CHECK(m.load(sel) == 4*N_LAYER, "four on");
    m.check(sel, "four on");

    sel.window_lo = 22;
    CHECK(m.load(sel) == 2*N_LAYER, "two back");
    m.check(sel, "two back");

    sel.window_lo = 100;
    CHECK(m.load(sel) == 11*N_LAYER, "a jump");
    m.check(sel, "a jump");

    m.k[0]++; // another clip
    kv_ring_forget(m.ring);
    CHECK(m.load(sel) == 14*N_LAYER, "forgotten");
}

static void test_a_fixed_position_in_the_window_is_read_once() {
    machine m;
    kv_selection sel;
    sel.fixed     = { 19, 20, 30, 31 };
    sel.window_lo = 20;
    sel.window_n  = 10;
    m.load(sel);

    const auto rows = kv_ring_rows(m.ring, m.cache, sel, 0);
    CHECK(rows.bias && rows.bias[0] == 0.0f && rows.bias[1] == -INFINITY && rows.bias[2] == 0.0f && rows.bias[3] == 0.0f, "20 alone");
    for (int i = 4; i < rows.n; ++i) {
        CHECK(rows.bias[i] == 0.0f, "slot %d of the window", i);
    }

    sel.window_lo = 40;
    m.load(sel);
    CHECK(!kv_ring_rows(m.ring, m.cache, sel, 0).bias, "the window has left");
}

int main() {
    test_rows_of_the_cache();
    test_only_what_enters_is_copied();
    test_a_fixed_position_in_the_window_is_read_once();

    return check_report();
}
