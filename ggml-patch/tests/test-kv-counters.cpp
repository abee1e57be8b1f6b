// kv-counters: the sum holds every field, the lines say what was counted

#include "kv-counters.h"

#include "check.h"

#include <cstring>
#include <string>

#define N_FIELDS ((sizeof(whisper_kv_view_counters) - 2*sizeof(uint32_t))/sizeof(int64_t)) // behind size and row_size

// field i holds factor*(i + 1)
static whisper_kv_view_counters numbered(int64_t factor) {
    whisper_kv_view_counters c = {};
    c.size     = sizeof(c);
    c.row_size = 2048;

    int64_t fields[N_FIELDS];
    for (size_t i = 0; i < N_FIELDS; ++i) {
        fields[i] = factor*(i + 1);
    }
    memcpy(&c.n_prompts, fields, sizeof(fields));

    return c;
}

static std::string lines;

static void keep(const char * line) {
    lines += line;
}

int main() {
    auto sum = numbered(1);
    kv_counters_add(sum, numbered(10));

    const auto want = numbered(11);
    CHECK(memcmp(&sum, &want, sizeof(sum)) == 0, "a field is not added, or size or row_size is");

    kv_counters_print(want, "name", keep);
    CHECK(lines.find("name:     kv steps =       22 runs = 33 reduced + 44 full + 55 re-executed (tau 66, eot 77)\n") == 0, "%s", lines.c_str());
    CHECK(lines.find("= 110 rows x 2048 B (99 through the view), 132 rows copied\n") != std::string::npos, "%s", lines.c_str());

    return check_report();
}
