// kv-counters: adds and prints the counters of views

#pragma once

#include "whisper-kv-view.h"

// what two states read, in `sum`; size and row_size stay
void kv_counters_add(whisper_kv_view_counters & sum, const whisper_kv_view_counters & other);

// lines like upstream's timings: step counts, rows, bytes
void kv_counters_print(const whisper_kv_view_counters & c, const char * func, void (*print)(const char * line));
