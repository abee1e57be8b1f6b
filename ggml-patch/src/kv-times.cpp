#include "kv-times.h"

#include <chrono>

int64_t kv_time_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static bool is_computed(const ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_NONE: case GGML_OP_VIEW: case GGML_OP_RESHAPE: case GGML_OP_PERMUTE: case GGML_OP_TRANSPOSE: return false;
        default:                                                                                                  return true;
    }
}

static bool reads_weights(const ggml_tensor * node) {
    const ggml_tensor * matrix = node->src[0];

    return (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_GET_ROWS) && matrix->op == GGML_OP_NONE && !matrix->view_src;
}

static int64_t & time_of(kv_times & times, const ggml_tensor * node) {
    auto & found = times.found;

    if (reads_weights(node)) {
        return found.t_weights_ns;
    }
    switch (node->op) {
        case GGML_OP_CUSTOM:         return found.t_cross_ns;
        case GGML_OP_FLASH_ATTN_EXT: return node->src[1]->view_src == times.cross_k ? found.t_cross_ns : found.t_text_ns;
        case GGML_OP_CPY:            return found.t_text_ns;
        default:                     return found.t_other_ns;
    }
}

bool kv_times_on_node(ggml_tensor * node, bool ask, void * user_data) {
    auto & times = *(kv_times *) user_data;

    const int64_t now = kv_time_ns();

    if (!ask) {
        time_of(times, node) += now - times.t_last;
    }
    times.t_last = now;

    return !ask || is_computed(node);
}
