// kv-select: time of choosing the positions of a clip, once per clip

#include "kv-select.h"

#include "ggml.h"
#include "whisper-kv-view.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#define N_ROUNDS 101

int main() {
    ggml_time_init();

    std::vector<float> mass(1500);
    for (size_t i = 0; i < mass.size(); ++i) {
        mass[i] = ((i*2654435761u >> 8) % 1000)/1000.0f;
    }

    printf("kv-select: budget 192, 200 audio positions of 1500, median of %d rounds\n", N_ROUNDS);
    for (int rule = WHISPER_KV_RULE_AUDIO_ONLY; rule < WHISPER_KV_RULE_COUNT; ++rule) {
        const kv_select_params params = { rule, 192, 0.25f, 0.25f, 3, 0, {} };

        kv_selection         out;
        std::vector<int64_t> us;

        for (int round = 0; round < N_ROUNDS; ++round) {
            const int64_t t0 = ggml_time_us();
            kv_select(params, { mass.data(), (int) mass.size(), 200, 0 }, out);
            us.push_back(ggml_time_us() - t0);
        }

        std::sort(us.begin(), us.end());
        printf("  %-18s %5lld us\n", whisper_kv_rule_name(rule), (long long) us[us.size()/2]);
    }

    return 0;
}
