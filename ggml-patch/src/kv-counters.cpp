#include "kv-counters.h"

#include <cstdio>

void kv_counters_add(whisper_kv_view_counters & sum, const whisper_kv_view_counters & other) {
    sum.n_prompts      += other.n_prompts;
    sum.n_steps        += other.n_steps;
    sum.n_reduced      += other.n_reduced;
    sum.n_full         += other.n_full;
    sum.n_reexec       += other.n_reexec;
    sum.n_reexec_tau   += other.n_reexec_tau;
    sum.n_reexec_eot   += other.n_reexec_eot;
    sum.n_full_runaway += other.n_full_runaway;
    sum.n_rows_view    += other.n_rows_view;
    sum.n_rows_read    += other.n_rows_read;
    sum.n_bytes_read   += other.n_bytes_read;
    sum.n_rows_copied  += other.n_rows_copied;
    sum.t_prompts_us   += other.t_prompts_us;
    sum.t_steps_us     += other.t_steps_us;
    sum.t_tracking_us  += other.t_tracking_us;
}

void kv_counters_print(const whisper_kv_view_counters & c, const char * func, void (*print)(const char * line)) {
    char line[256];

    snprintf(line, sizeof(line), "%s:     kv steps = %8lld runs = %lld reduced + %lld full + %lld re-executed (tau %lld, eot %lld)\n", func,
            (long long) c.n_steps, (long long) c.n_reduced, (long long) c.n_full, (long long) c.n_reexec,
            (long long) c.n_reexec_tau, (long long) c.n_reexec_eot);
    print(line);

    snprintf(line, sizeof(line), "%s:      kv time = %8.2f ms / %5lld steps (tracking %.2f ms), %8.2f ms / %5lld prompts\n", func,
            c.t_steps_us/1e3, (long long) c.n_steps, c.t_tracking_us/1e3, c.t_prompts_us/1e3, (long long) c.n_prompts);
    print(line);

    snprintf(line, sizeof(line), "%s:      kv read = %8.2f MB = %lld rows x %u B (%lld through the view), %lld rows copied\n", func,
            c.n_bytes_read/1e6, (long long) c.n_rows_read, c.row_size, (long long) c.n_rows_view, (long long) c.n_rows_copied);
    print(line);
}
