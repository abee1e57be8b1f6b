// kv-times: where the time of the decoder's graph goes, node by node

#pragma once

#include "whisper-kv-view.h"

#include "ggml.h"

#include <cstdint>

struct kv_times {
    const struct ggml_tensor * cross_k = nullptr; // cache that tells cross-attention from that over the text

    bool    on     = false;
    int64_t t_last = 0;

    whisper_kv_view_times found = {};
};

int64_t kv_time_ns();

// ggml's callback: is asked for each node whether to stop behind it, and told when it was computed. user_data: kv_times
bool kv_times_on_node(struct ggml_tensor * node, bool ask, void * user_data);
