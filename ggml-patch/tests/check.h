// check: the smallest test harness - a failed CHECK prints where and what, and the program ends with 1

#pragma once

#include <cstdio>

static int n_checks = 0;
static int n_failed = 0;

#define CHECK(cond, ...)                                           \
    do {                                                           \
        n_checks++;                                                \
        if (!(cond)) {                                             \
            n_failed++;                                            \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            fprintf(stderr, __VA_ARGS__);                          \
            fprintf(stderr, "\n");                                 \
        }                                                          \
    } while (0)

static int check_report() {
    printf("%d checks, %d failed\n", n_checks, n_failed);
    return n_failed == 0 ? 0 : 1;
}
